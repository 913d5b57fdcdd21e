"""`wildood show`: what a detector is, without its weights and its model."""

import json
import sys

from wildood.cli.main import main


def test_show_describes_the_detector_without_the_model(fitted, cli):
    text = cli("show", "d").out
    for part in ("Sequential", "Ensemble", "false-alarm rate <= 10 %", "Woods: alpha 0.1", "steps 6", "seed"):
        assert part in text
    assert json.loads(cli("show", "d", "--json").out)["record"]["seed"] == 0


def test_show_gives_the_range_of_thresholds_by_class(cli, fit_words, arrays):
    result = cli(*fit_words, "--by-class", "--out", "each", "--quiet")
    assert (result.code, "by class" in result.err) == (0, False)
    described = json.loads((arrays / "each" / "detector.json").read_text())
    each = [float.fromhex(text) for text in described["class_thresholds"]]
    line = f"one for each of 2 predicted classes, from {min(each):.6g} to {max(each):.6g}: unknown above that of its class"
    assert f"threshold  {line}\n" in cli("show", "each").out
    assert described["promise"]["by_class"] is True


def test_show_wraps_long_lines_between_words_in_a_terminal(fitted, arrays, monkeypatch, capsys):
    monkeypatch.chdir(arrays)
    assert main(["show", "d"]) == 0
    whole = capsys.readouterr().out
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _self: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["show", "d"]) == 0
    broken = capsys.readouterr().out
    assert broken.split() == whole.split()
    assert max(map(len, whole.splitlines())) > 60 >= max(map(len, broken.splitlines()))
    assert all(line.startswith((" " * 11, *whole.split())) for line in broken.splitlines())


def test_a_directory_without_a_detector_is_refused(assert_mistake):
    assert_mistake(["show", "."], "detector.json cannot be read")

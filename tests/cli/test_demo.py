"""`wildood demo` as a user types it, once for real and otherwise trained for a few steps only."""

import contextlib
import csv
import dataclasses
import functools
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import sem

import wildood
from wildood.cli import demo
from wildood.cli.main import main
from wildood.experiments.grids import DEMO_METHODS, demo_grid
from wildood.experiments.split import digits_split
from wildood.experiments.store import OodMetrics, Result
from wildood.experiments.tables import demo_title
from wildood.methods.woods import Woods
from wildood.report import table

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"} | {"OMP_NUM_THREADS": "1"}
METHODS = [demo_title(method) for method in DEMO_METHODS]
FEW = ["max-softmax", "energy", "WOODS", "WOODS-alt"]
METRICS = ["caught", "false_alarms", "fpr95", "auroc", "accuracy"]


def wildood_says(place, *words):
    command = [sys.executable, "-m", "wildood", *map(str, words)]
    return subprocess.run(command, cwd=place, env=ENVIRONMENT, capture_output=True, encoding="utf-8", check=False)


def table_in(text):
    """The cells of each method's line."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return {cells[0]: cells[1:] for cells in lines if cells[0] in METHODS and len(cells) > 1}


def run_of(record, method, seed):
    (found,) = (run for run in record["runs"] if (run["method"], run["seed"]) == (method, seed))
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def done(place):
    """The real demo, with one seed."""
    ran = wildood_says(place, "demo", "--seeds", "1", "--out", "X")
    assert ran.returncode == 0, ran.stderr
    return ran


@pytest.fixture(scope="module")
def record(done, place):
    return json.loads((place / "X" / "results.json").read_text())


@contextlib.contextmanager
def in_a_hurry():
    """Fewer methods, and a few steps of training."""

    def few(seed):
        quick = wildood.Schedule(epochs=5, batch=64, lr=0.05)
        return [dataclasses.replace(each, pretraining=quick) for each in demo_grid(seed) if demo_title(each.method) in FEW]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "demo_grid", few)
        patch.setattr(Woods, "schedule", lambda self: wildood.Schedule(steps=4, batch=64))
        yield


class Quick(NamedTuple):
    """A demo in a hurry: what it was told, what it said, and where it wrote."""

    words: list
    code: int
    out: str
    err: str
    place: object


@pytest.fixture(scope="module")
def quick(place):
    """Two seeds, quietly, to a directory with a space in its name."""
    words = ["--seeds", "2", "--quiet", "--out", str(place / "two seeds")]
    out, err = io.StringIO(), io.StringIO()
    with in_a_hurry(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["demo", *words])
    return Quick(words, code, out.getvalue(), err.getvalue(), place / "two seeds")


@pytest.mark.slow
def test_demo_writes_detector_results_page_and_examples(done, place):
    assert sorted(path.name for path in (place / "X").iterdir()) == [
        "detector",
        "examples.npz",
        "report.html",
        "results.json",
    ]
    assert (place / "X" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.slow
def test_demo_prints_its_table_without_escape_codes(done, record):
    assert "\x1b" not in done.stdout
    expected = {method: [f"{100 * run_of(record, method, 0)[name]:.1f}" for name in METRICS] for method in METHODS}
    assert table_in(done.stdout) == expected
    assert list(table_in(done.stdout)) == METHODS
    for title in ("caught ↑", "false alarms ↓", "FPR95 ↓", "AUROC ↑", "accuracy ↑"):
        assert title in done.stdout


def test_demo_prints_the_best_of_each_column_bold_on_a_terminal(monkeypatch, capsys):
    energy, woods = (each for each in demo_grid(0) if each.method in {"energy", "woods"})
    results = [
        Result(energy, {"digits": OodMetrics(0.2, 0.01, 0.9, 0.9, 0.9, accepted=0.3, examples=100)}, 0.99, 0.02, 100),
        Result(woods, {"digits": OodMetrics(0.1, 0.01, 0.9, 0.9, 0.9, accepted=0.1, examples=100)}, 0.98, 0.03, 100),
    ]
    console = functools.partial(table.Console, force_terminal=True, color_system="standard")
    monkeypatch.setattr(table, "Console", console)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    demo._print(results, Path("X"), 1.0)
    assert re.findall(r"\x1b\[1m *([\d.]+)", capsys.readouterr().out) == ["2.0", "90.0", "99.0", "90.0", "10.0", "90.0"]


@pytest.mark.slow
def test_demo_puts_its_progress_on_standard_error(done, record):
    lines = [f"seed 0 {name} FPR95 {100 * run_of(record, name, 0)['fpr95']:.1f} %" for name in METHODS]
    assert [" ".join(line.split()) for line in done.stderr.splitlines()] == lines
    assert "seed 0  " not in done.stdout


@pytest.mark.slow
def test_demo_says_where_to_look_next(done):
    assert "X/report.html: " in done.stdout
    assert "wildood show X/detector: " in done.stdout
    assert "wildood score X/detector X/examples.npz: " in done.stdout


@pytest.mark.slow
def test_woods_catches_more_than_the_classifier_it_began_with(record):
    """What the demo is there to show."""
    before, after = run_of(record, "energy", 0), run_of(record, "WOODS", 0)
    assert after["caught"] > before["caught"] + 0.1
    assert after["fpr95"] < before["fpr95"] / 2
    assert after["accuracy"] > before["accuracy"] - 0.01
    assert after["false_alarms"] < 0.08


@pytest.mark.slow
def test_one_seed_is_its_own_mean_and_has_no_error(record):
    for method in METHODS:
        run = run_of(record, method, 0)
        expected = {name: {"mean": run[name], "standard_error": None} for name in METRICS}
        assert record["summary"][method] == expected


@pytest.mark.slow
def test_results_say_how_they_were_made(record):
    assert record["command"] == "wildood demo --seeds 1 --out X"
    assert record["versions"]["wildood"] == wildood.__version__
    assert set(record["versions"]) == {"wildood", "torch", "numpy", "python", "threads"}
    assert record["seconds"] > 0


@pytest.mark.slow
def test_show_describes_the_demos_detector(done, place):
    shown = wildood_says(place, "show", "X/detector")
    assert shown.returncode == 0, shown.stderr
    for part in (
        "SmallCNN",
        "uint8 examples of shape (8, 8, 1)",
        "false-alarm rate <= 5 %",
        "Woods: alpha 0.05",
        "seed       0",
    ):
        assert part in shown.stdout


@pytest.mark.slow
def test_score_gives_the_shares_that_the_results_say(done, place, record):
    scored = wildood_says(place, "score", "X/detector", "X/examples.npz")
    assert scored.returncode == 0, scored.stderr
    unknown = [row["decision"] == "unknown" for row in csv.DictReader(scored.stdout.splitlines())]
    assert len(unknown) == 214 + 160
    woods = run_of(record, "WOODS", 0)
    assert np.mean(unknown[:214]) == woods["false_alarms"]
    assert np.mean(unknown[214:]) == woods["caught"]


@pytest.mark.slow
def test_the_examples_are_the_test_scans_with_the_known_ones_first(done, place):
    split = digits_split(0)
    with np.load(place / "X" / "examples.npz") as examples:
        assert examples.files == ["x"]
        assert np.array_equal(examples["x"], np.concatenate([split.test_id[0], split.test_ood]))


@pytest.mark.slow
def test_the_page_holds_the_numbers_of_the_table(done, place):
    page = (place / "X" / "report.html").read_text(encoding="utf-8").replace('<td class="best">', "<td>")
    for method, cells in table_in(done.stdout).items():
        assert f'<th scope="row">{method}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) in page


@pytest.mark.slow
def test_quiet_demo_is_silent_but_for_its_table(quick):
    assert (quick.code, quick.err) == (0, "")
    assert list(table_in(quick.out)) == FEW


@pytest.mark.slow
def test_summary_is_the_mean_and_standard_error_of_the_runs(quick):
    record = json.loads((quick.place / "results.json").read_text())
    assert [(run["seed"], run["method"]) for run in record["runs"]] == [(seed, name) for seed in (0, 1) for name in FEW]
    assert list(record["summary"]) == FEW
    for method in FEW:
        for name in METRICS:
            values = [run_of(record, method, seed)[name] for seed in (0, 1)]
            found = record["summary"][method][name]
            assert found == pytest.approx({"mean": np.mean(values), "standard_error": sem(values)}, abs=1e-12)
            cell = f"{100 * found['mean']:.1f} ± {100 * found['standard_error']:.1f}"
            assert cell == table_in(quick.out)[method][METRICS.index(name)]


@pytest.mark.slow
def test_the_detector_is_woods_on_the_first_seed(quick):
    detector = wildood.load(quick.place / "detector")
    record = json.loads((quick.place / "results.json").read_text())
    assert (detector.record["method"]["name"], detector.record["seed"]) == ("Woods", 0)
    assert np.mean(detector.predict(digits_split(0).test_ood) == wildood.UNKNOWN) == run_of(record, "WOODS", 0)["caught"]


@pytest.mark.slow
def test_the_page_of_several_seeds_says_which(quick):
    page = (quick.place / "report.html").read_text(encoding="utf-8")
    assert "mean ± standard error over the seeds 0, 1." in page
    assert "A closer look (seed 0)" in page


@pytest.mark.slow
def test_the_command_that_is_written_down_can_be_typed_again(quick):
    record = json.loads((quick.place / "results.json").read_text())
    assert shlex.split(record["command"]) == ["wildood", "demo", *quick.words]


@pytest.mark.slow
def test_the_next_commands_can_be_typed_as_they_are_printed(quick):
    commands = [line.rsplit(": ", 1)[0] for line in quick.out.splitlines() if line.startswith("wildood ")]
    detector, examples = str(quick.place / "detector"), str(quick.place / "examples.npz")
    assert [shlex.split(command) for command in commands] == [
        ["wildood", "show", detector],
        ["wildood", "score", detector, examples],
    ]


def refuse_to_run(*_):
    raise AssertionError


@pytest.mark.parametrize(
    ("words", "missing", "message"),
    [
        (["--seeds", "0"], None, "--seeds is 0: give at least 1"),
        (["--seeds", "-3"], None, "--seeds is -3: give at least 1"),
        ([], "matplotlib", "pip install matplotlib scikit-learn"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line_before_any_work(words, missing, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "perform", refuse_to_run)
    monkeypatch.chdir(tmp_path)
    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)  # as if it were not installed
    assert main(["demo", *words]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("wildood: ")
    assert message in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("missing", ["sklearn", "sklearn.datasets"])
def test_without_scikit_learn_the_extra_is_named_in_one_line(missing, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["demo"]) == 2
    printed = capsys.readouterr()
    assert printed.err == "wildood: the digits are inside scikit-learn: pip install scikit-learn\n"
    assert printed.out == ""
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_file_in_the_place_of_the_directory_is_a_mistake_found_before_any_work(tmp_path, monkeypatch, capsys):
    (tmp_path / "taken").write_text("mine")
    monkeypatch.setattr(demo, "perform", refuse_to_run)
    assert main(["demo", "--out", str(tmp_path / "taken")]) == 2
    printed = capsys.readouterr()
    assert "taken" in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.slow
def test_demo_runs_again_over_what_is_there(tmp_path, capsys):
    words = ["demo", "--seeds", "1", "--out", str(tmp_path / "d")]
    with in_a_hurry():
        assert main(words) == 0
        first = {path.name: path.read_bytes() for path in (tmp_path / "d").iterdir() if path.is_file()}
        capsys.readouterr()
        assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    second = {path.name: path.read_bytes() for path in (tmp_path / "d").iterdir() if path.is_file()}
    assert first.keys() == second.keys()
    command = " ".join(["wildood", *words]).encode()
    assert second["report.html"] == first["report.html"].replace(command, command + b" --quiet")
    assert second["examples.npz"] == first["examples.npz"]
    assert json.loads(first["results.json"])["runs"] == json.loads(second["results.json"])["runs"]
    assert len(list((tmp_path / "d" / "detector").iterdir())) == 3

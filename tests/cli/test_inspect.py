"""`wildood inspect` as a user types it: what it says, what it writes, and the exit code that a scheduled job acts on."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import wildood
from wildood.cli import inspect as inspect_command
from wildood.cli.main import FOUND, MISTAKE, OK, main
from wildood.models.small import MLP, SmallCNN

WITHOUT = """
import sys
for name in ("matplotlib", "sklearn"):
    sys.modules[name] = None    # as if they were not installed
from wildood.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
OWN = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(2, 2))
"""


def plain_model():
    """Its energy is high near the origin, where nothing is known."""
    model = MLP(2, 2, hidden=(2,))
    with torch.no_grad():
        for layer in (model.body[1], model.head):
            layer.weight.copy_(torch.eye(2))
            layer.bias.zero_()
    return model


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path, rng = tmp_path_factory.mktemp("inspect"), np.random.default_rng(0)

    def known(count):
        return (rng.normal(size=(count, 2)) + 5).astype("f")

    unknown = 0.1 * rng.normal(size=(40, 2)).astype("f")
    holdout = known(300)
    np.savez(path / "holdout.npz", x=holdout, y=np.arange(300) % 2)
    np.savez(path / "labelled.npz", x=known(200), y=np.arange(200) % 2)
    np.save(path / "clean.npy", known(200))
    np.save(path / "fresh.npy", known(250))
    np.save(path / "drifted.npy", known(250) - 2)
    np.save(path / "mixed.npy", np.concatenate([known(160), unknown]))
    np.save(path / "seen.npy", np.concatenate([known(160), unknown]))
    np.save(path / "wide.npy", np.zeros((5, 3), "f"))
    model = plain_model()
    save_file(model.state_dict(), path / "w.safetensors")
    wildood.posthoc(model, wildood.EnergyScore(), holdout=holdout).save(path / "det")
    wildood.posthoc(model, wildood.EnergyScore(), labelled=known(400)).save(path / "untrusted")
    own = torch.nn.Sequential(torch.nn.Linear(2, 2))
    wildood.posthoc(own, wildood.EnergyScore(), holdout=holdout).save(path / "own")
    (path / "own_model.py").write_text(OWN)
    return path


@pytest.fixture(autouse=True)
def _here(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setenv("WILDOOD_DATA", str(place / "cache"))


def inspect(out, *words):
    """The exit code, and what was written."""
    code = main(["inspect", *words, "--out", str(out)])
    path = out / "inspection.json"
    return code, json.loads(path.read_text()) if path.exists() else None


def test_unknowns_that_are_found_give_exit_code_3_and_say_how_many(tmp_path, capsys):
    code, record = inspect(tmp_path, "det", "--wild", "mixed.npy")
    said = capsys.readouterr()
    assert code == FOUND == 3
    assert record["found"] is True
    assert 0.1 < record["unknown"]["bound"] < 0.2
    assert record["unknown"]["bound"] <= record["unknown"]["estimate"]
    lines = said.out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["traffic", "unknown", "promise", "label first"]
    assert lines[1] == f"unknown      {record['unknown']['says']}"
    assert "of the wild data is OOD at 95 % confidence (estimate " in lines[1]
    assert "300 ID and 200 wild scores), compared with the holdout; or its known part" in lines[1]
    shown = record["rejected"]
    assert lines[0].startswith(
        f"traffic      {shown['count']} of 200 ({100 * shown['value']:.1f} %; {100 * shown['low']:.1f} to "
    )
    assert lines[0].endswith(" at 95 % confidence) of mixed.npy are rejected")
    assert lines[2].endswith("cannot be told from unlabelled traffic: give recent ID examples with --id")
    assert said.err == f"wild: 200 examples from mixed.npy\n{tmp_path / 'report.html'} shows the examples\n"
    assert "At least <strong>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_traffic_without_unknowns_gives_exit_code_0(tmp_path, capsys):
    code, record = inspect(tmp_path, "det", "--wild", "clean.npy")
    assert code == OK
    assert (record["found"], record["unknown"]["tested"], record["unknown"]["bound"]) == (False, True, 0)
    assert "no OOD is found at 95 % confidence" in capsys.readouterr().out


def test_every_name_of_inspection_json_is_in_the_guide(tmp_path):
    _, record = inspect(tmp_path, "det", "--wild", "mixed.npy", "--id", "fresh.npy")
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    names = {*record, *record["unknown"], *record["rejected"], *record["promise"], *record["promise"]["rate"]}
    names |= {*record["fpr_by_share"][0], *record["label_first"][0]}
    assert {name for name in names if f"`{name}`" not in guide.partition("## Looking at traffic")[2]} == set()


def test_examples_are_numbers_for_arrays_and_agree_with_score(tmp_path, capsys):
    _, record = inspect(tmp_path, "det", "--wild", "mixed.npy", "--top", "5")
    capsys.readouterr()
    assert main(["score", "det", "mixed.npy", "--format", "jsonl"]) == OK
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for kind in ("label_first", "most_ood", "borderline"):
        assert len(record[kind]) == 5
        for row in record[kind]:
            assert {name: row[name] for name in ("example", "score", "decision", "class")} == rows[row["number"]]
    highest = sorted(rows, key=lambda row: -row["score"])[:5]
    assert [row["example"] for row in record["most_ood"]] == [row["example"] for row in highest]


def test_a_holdout_that_cannot_be_trusted_is_said_instead_of_tested(tmp_path, capsys):
    code, record = inspect(tmp_path, "untrusted", "--wild", "mixed.npy")
    assert code == OK
    assert (record["found"], record["unknown"]["tested"], record["unknown"]["p_value"]) == (False, False, None)
    assert record["label_first"][0]["p_value"] is None
    assert "was not tested: the classifier may have trained on the holdout" in capsys.readouterr().out
    assert "was not tested" in (tmp_path / "report.html").read_text(encoding="utf-8")
    code, record = inspect(tmp_path, "untrusted", "--wild", "mixed.npy", "--id", "fresh.npy")
    assert (code, record["unknown"]["compared_with"]) == (FOUND, "--id")


def test_id_examples_measure_the_false_alarms(tmp_path, capsys):
    code, record = inspect(tmp_path, "det", "--wild", "clean.npy", "--id", "fresh.npy")
    assert code == OK
    assert record["promise"]["verdict"] in {"holds", "not contradicted"}
    assert record["promise"]["rate"]["examples"] == 250
    code, record = inspect(tmp_path, "det", "--wild", "clean.npy", "--id", "drifted.npy")
    assert code == OK  # no unknowns: the exit code speaks of the traffic
    promise = record["promise"]
    assert promise["verdict"] == "broken"
    assert promise["rate"]["low"] > promise["promised"]["alpha"] == 0.05
    assert promise["by_luck"] < 0.05
    assert "the promise of at most 5 % looks broken" in capsys.readouterr().out


@pytest.fixture(scope="module")
def fitted(place):
    path = place / "fitted"
    words = ["--labelled", place / "labelled.npz", "--wild", place / "seen.npy", "--holdout", place / "holdout.npz"]
    model = ["--model", "mlp:inputs=2,classes=2,hidden=2", "--weights", place / "w.safetensors", "--steps", "2"]
    assert main(["fit", *map(str, [*words, *model, "--batch", "32", "--out", path]), "--quiet"]) == OK
    return str(path)


def test_traffic_that_was_trained_on_is_not_tested(fitted, tmp_path, capsys):
    code, record = inspect(tmp_path, fitted, "--wild", "seen.npy")
    assert code == OK
    assert record["unknown"]["tested"] is False
    assert "was not tested: these examples were the detector's wild data" in capsys.readouterr().out
    code, record = inspect(tmp_path, fitted, "--wild", "mixed.npy")
    assert record["unknown"]["tested"] is True


@pytest.mark.parametrize(
    ("file", "name"), [("seen.npy", "wild data"), ("labelled.npz", "labelled data"), ("holdout.npz", "holdout")]
)
def test_id_examples_that_a_fit_was_given_are_refused(fitted, tmp_path, capsys, file, name):
    assert inspect(tmp_path, fitted, "--wild", "mixed.npy", "--id", file) == (MISTAKE, None)
    assert f"--id: {file}: these examples were the detector's {name}: give ID examples" in capsys.readouterr().err


def test_id_examples_that_set_the_threshold_are_refused(tmp_path, capsys):
    assert inspect(tmp_path, "det", "--wild", "mixed.npy", "--id", "holdout.npz") == (MISTAKE, None)
    assert "--id: holdout.npz: these examples set the detector's threshold: give ID examples" in capsys.readouterr().err


def test_a_confidence_that_is_not_reached_finds_nothing(tmp_path):
    np.save(tmp_path / "few.npy", np.append(np.load("clean.npy")[:60], np.zeros((3, 2), "f"), axis=0))
    found = [
        inspect(tmp_path, "det", "--wild", str(tmp_path / "few.npy"), "--confidence", text) for text in ("0.9", "0.999")
    ]
    assert [code for code, _ in found] == [FOUND, OK]
    assert 0.001 < found[0][1]["unknown"]["p_value"] <= 0.1


def test_the_default_directory_is_beside_the_detector(place):
    assert main(["inspect", "det", "--wild", "clean.npy", "--quiet"]) == OK
    assert {path.name for path in (place / "det" / "inspection").iterdir()} == {"inspection.json", "report.html"}
    assert wildood.load(place / "det").promise.examples == 300


def test_a_model_of_your_own_is_named_again(tmp_path, place, monkeypatch, capsys):
    monkeypatch.syspath_prepend(place)
    assert inspect(tmp_path, "own", "--wild", "clean.npy")[0] == MISTAKE
    assert "--model module:function" in capsys.readouterr().err
    assert inspect(tmp_path, "own", "--wild", "clean.npy", "--model", "own_model:build")[0] in {OK, FOUND}


def test_pictures_are_named_by_their_files_and_shown(tmp_path, capsys):
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    spec, model = wildood.InputSpec(mean=(0.5,), std=(0.5,)), SmallCNN(2, width=4, hidden=8)
    dark, bright = (rng.integers(low, low + 60, (90, 8, 8, 1), np.uint8) for low in (0, 190))
    detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=dark[:60], input=spec)
    if detector.score(bright).mean() < detector.score(dark).mean():  # what scores higher is what is unknown
        dark, bright = bright, dark
        detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=dark[:60], input=spec)
    detector.record["classes"] = ["cat", "dog"]
    detector.save(tmp_path / "d")
    (tmp_path / "inbox" / "monday").mkdir(parents=True)
    for number, image in enumerate(np.concatenate([dark[60:], bright[:10]])):
        Image.fromarray(image[..., 0]).save(tmp_path / "inbox" / "monday" / f"{number}.png")
    (tmp_path / "inbox" / "torn.png").write_bytes(b"not a picture")
    words = [str(tmp_path / "d"), "--wild", str(tmp_path / "inbox")]
    assert inspect(tmp_path / "o", *words)[0] == MISTAKE
    assert "torn.png" in capsys.readouterr().err
    code, record = inspect(tmp_path / "o", *words, "--skip-broken", "--data-root", str(tmp_path / "root"))
    assert (code, record["examples"]) == (FOUND, 40)
    assert {row["example"] for row in record["most_ood"][:10]} == {f"monday/{number}.png" for number in range(30, 40)}
    assert {row["class"] for row in record["label_first"]} <= {"cat", "dog"}
    assert "monday/3" in capsys.readouterr().out
    assert (tmp_path / "o" / "report.html").read_text(encoding="utf-8").count("data:image/png;base64,") == 32


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["det"], "inspect needs --wild: give the traffic to look at"),
        (["det", "--wild", "nowhere"], "--wild: nowhere does not exist"),
        (["det", "--wild", "wide.npy"], "--wild: an example has shape (3,), expected (2,)"),
        (["det", "--wild", "clean.npy", "--confidence", "1"], "confidence is 1.0: give a probability strictly between"),
        (["det", "--wild", "clean.npy", "--top", "0"], "--top is 0: give a number of examples"),
        (["det", "--wild", "clean.npy", "--id", "clean.npy"], "--id: clean.npy is the traffic itself: give other examples"),
        (["nowhere", "--wild", "clean.npy"], "nowhere/detector.json cannot be read"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, capsys, words, told):
    assert inspect(tmp_path, *words) == (MISTAKE, None)
    said = capsys.readouterr().err.splitlines()
    assert told in said[-1]
    assert said[-1].startswith("wildood: ")


def test_a_file_is_no_place_to_write_to(place, capsys):
    assert main(["inspect", "det", "--wild", "clean.npy", "--out", "clean.npy"]) == MISTAKE
    assert "--out clean.npy is a file: give a directory" in capsys.readouterr().err


def test_the_help_speaks_of_the_exit_code(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["inspect", "--help"])
    assert ended.value.code == 0
    assert "The exit code is 3 if unknowns are found" in capsys.readouterr().out


@pytest.mark.parametrize("quiet", [True, False])
def test_without_matplotlib_the_result_is_written_and_a_line_says_how_to_get_the_page(tmp_path, monkeypatch, capsys, quiet):
    monkeypatch.setattr(inspect_command, "plots_installed", lambda: False)
    code, record = inspect(tmp_path, "det", "--wild", "mixed.npy", *(["--quiet"] if quiet else []))
    said = capsys.readouterr()
    assert (code, record["found"]) == (FOUND, True)
    assert "unknown      at least" in said.out
    hint = "for a page that shows the examples: pip install matplotlib, then the same command again\n"
    assert said.err == "" if quiet else said.err.endswith(hint)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_the_program_ends_with_the_code_and_needs_none_of_the_extras(tmp_path, place):
    words = ["inspect", "det", "--wild", "mixed.npy", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", WITHOUT, *words], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == FOUND, done.stderr
    assert (tmp_path / "inspection.json").exists()

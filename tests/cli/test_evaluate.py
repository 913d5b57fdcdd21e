"""`wildood evaluate` as a user types it: what it prints, what it writes, what it refuses."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import wildood
from wildood.cli import evaluate as evaluate_command
from wildood.cli.main import main
from wildood.evaluate.metrics import all_metrics
from wildood.models.small import MLP, SmallCNN

WITHOUT = """
import sys
for name in ("matplotlib", "sklearn"):
    sys.modules[name] = None    # as if they were not installed
from wildood.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
OWN = "import torch\n\ndef build():\n    return torch.nn.Sequential(torch.nn.Linear(3, 2))\n"
FILES = ["metrics.json", "report.html", "table.md", "table.tex"]
HINT = "for a page with figures and pictures: pip install matplotlib, then the same command again\n"
QUICK = ["--resamples", "20"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    place = tmp_path_factory.mktemp("evaluate")
    rng = np.random.default_rng(0)

    def known(count):
        y = rng.integers(0, 2, count)
        return (rng.normal(size=(count, 3)) + 3 * y[:, None]).astype("float32"), y

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, own = MLP(3, 2, hidden=(8,)), torch.nn.Sequential(torch.nn.Linear(3, 2))
    np.save(place / "holdout.npy", holdout := known(100)[0])
    detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=holdout, alpha=0.1)
    detector.save(place / "d")
    wildood.posthoc(own, wildood.EnergyScore(), holdout=known(100)[0], alpha=0.1).save(place / "own-d")
    (place / "own.py").write_text(OWN)
    x, y = known(80)
    np.savez(place / "test.npz", x=x, y=y)
    np.savez(place / "wrong.npz", x=x, y=y + 5)
    np.savez(place / "far.npz", x=x[:30] - 6, y=y[:30])
    np.save(place / "copy.npy", x[:30] - 6)
    (place / "more").mkdir()
    np.save(place / "more" / "near.npy", np.concatenate([x[:2], x[:20] - 2]))
    np.save(place / "more" / "far.npz", x[:9] + 4)
    (place / "more" / "far.npz.npy").rename(place / "more" / "far.npz")
    np.save(place / "empty.npy", x[:0])
    np.save(place / "wide.npy", np.zeros((4, 5), "float32"))
    return place


@pytest.fixture
def place(files, tmp_path, monkeypatch):
    monkeypatch.chdir(files)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return tmp_path


SETS = ["--id", "test.npz", "--ood", "far.npz", "more/near.npy"]


def test_the_table_is_printed_and_the_files_are_written(place, files, capsys):
    assert main(["evaluate", "d", *SETS, *QUICK]) == 0
    printed = capsys.readouterr()
    out = files / "d" / "evaluation"
    assert sorted(path.name for path in out.iterdir()) == FILES
    record = json.loads((out / "metrics.json").read_text())
    far, near = record["ood"]
    rows = {line.split("  ")[0].strip(): line for line in printed.out.splitlines()}
    assert f"{100 * far['fpr95']['value']:.1f} [" in rows["far.npz"]
    assert f"{100 * near['caught']['value']:.1f} [" in rows["near.npy"]
    assert f"{100 * record['average']['auroc']['value']:.1f} [" in rows["mean of the sets"]
    assert "ID is the positive class" in printed.out
    assert f"False alarms: {record['promise']['says']}." in printed.out.splitlines()
    assert printed.out.endswith("d/evaluation: metrics.json, table.md, table.tex\n")
    assert printed.err.splitlines() == [
        "id: 80 examples of 2 classes from test.npz",
        "ood: 30 examples from far.npz",
        "ood: 22 examples from more/near.npy",
        "Examples that are in test.npz, too: 2 of 22 in near.npy. An example cannot be both ID and OOD.",
        "d/evaluation/report.html shows it as a page",
    ]


def test_known_examples_that_have_changed_are_in_table_and_files(place, capsys):
    shifted, detector = np.load("test.npz"), wildood.load("d")
    np.savez(place / "noisy.npz", x=shifted["x"] - 1, y=shifted["y"])
    words = ["--shifted", str(place / "noisy.npz"), "--out", str(place / "o")]
    assert main(["evaluate", "d", *SETS, *QUICK, *words]) == 0
    printed = capsys.readouterr()
    record = json.loads((place / "o" / "metrics.json").read_text())["shifted"]
    assert record["name"] == "noisy.npz"
    assert record["accuracy"]["count"] == (detector.classify(shifted["x"] - 1) == shifted["y"]).sum()
    assert "shifted set: noisy.npz" in printed.out
    assert "noisy.npz: known examples that have changed since the holdout" in printed.out
    assert "shifted: 80 examples of 2 classes from" in printed.err
    for name in ("table.md", "table.tex"):
        assert "shifted set: noisy.npz" in (place / "o" / name).read_text()


def test_metrics_json_holds_what_the_library_says(place, files):
    assert main(["evaluate", "d", *SETS, *QUICK, "--seed", "3", "--quiet", "--out", str(place / "o")]) == 0
    record = json.loads((place / "o" / "metrics.json").read_text())
    detector = wildood.load("d")
    test, far = np.load("test.npz"), np.load("far.npz")["x"]
    expected = all_metrics(detector.score(test["x"]), detector.score(far))
    result = record["ood"][0]
    assert (result["name"], result["data"], result["examples"]) == ("far.npz", "far.npz", 30)
    assert result["fpr95"]["value"] == expected.fpr_at_tpr
    assert result["auroc"]["value"] == pytest.approx(expected.auroc)
    assert (result["aupr_in"], result["aupr_out"]) == pytest.approx((expected.aupr_in, expected.aupr_out))
    assert result["fpr95"]["low"] <= result["fpr95"]["value"] <= result["fpr95"]["high"]
    answers = detector.predict(far)
    assert result["caught"]["count"] == (answers == wildood.UNKNOWN).sum()
    accepted = np.flatnonzero(answers != wildood.UNKNOWN)
    order = accepted[np.argsort(detector.score(far)[accepted], kind="stable")]
    assert [mistake["example"] for mistake in result["mistakes"]] == order[:16].tolist()
    assert record["ood"][1]["also_in_id"] == 2
    assert record["id"]["accuracy"]["count"] == (detector.classify(test["x"]) == test["y"]).sum()
    assert record["id"]["false_alarms"]["count"] == (detector.predict(test["x"]) == wildood.UNKNOWN).sum()
    classes = record["id"]["false_alarms_by_class"]
    assert [(each["class"], each["name"]) for each in classes] == [(0, "0"), (1, "1")]
    assert record["detector"]["record"] == detector.record
    assert record["detector"]["threshold"] == detector.threshold
    assert record["detector"]["promise"]["alpha"] == record["promise"]["promised"]["alpha"] == 0.1
    assert record["promise"]["rate"] == record["id"]["false_alarms"]
    assert record["intervals"]["bootstrap"] == {"how": "percentile", "resamples": 20, "seed": 3}
    assert record["command"].startswith("wildood evaluate d --id test.npz --ood far.npz more/near.npy")


def test_data_that_set_the_threshold_is_measured_with_a_warning(place, capsys):
    assert main(["evaluate", "d", "--id", "holdout.npy", "--ood", "far.npz", *QUICK, "--out", str(place / "o")]) == 0
    told = "holdout.npy: these examples set the detector's threshold: what is measured here is not new."
    assert told in capsys.readouterr().err.splitlines()
    assert told in (place / "o" / "table.md").read_text().splitlines()
    assert json.loads((place / "o" / "metrics.json").read_text())["promise"]["verdict"] == "cannot be told"


def test_every_name_of_metrics_json_is_in_the_guide(place):
    assert main(["evaluate", "d", *SETS, *QUICK, "--quiet", "--out", str(place / "o")]) == 0
    record = json.loads((place / "o" / "metrics.json").read_text())
    guide = Path(__file__).parents[2].joinpath("docs/guide.md").read_text("utf-8").partition("## Evaluating")[2]
    names = {*record, *record["id"], *record["ood"][0], *record["average"], *record["ood"][0]["caught"]}
    names |= {*record["id"]["mistakes"][0], *record["id"]["false_alarms_by_class"][0]}
    names |= {"confidence", "bootstrap", *record["detector"], *record["promise"]}
    assert {name for name in names if f"`{name}`" not in guide} == set()


def test_infinite_settings_are_text_in_metrics_json(place):
    """A clip of inf, which clips nothing, is a setting that JSON has no number for."""
    detector = wildood.load("d")
    detector.record["schedule"] = {"clip": float("inf"), "milestones": [0.5]}
    detector.save("infinite")
    assert main(["evaluate", "infinite", "--id", "test.npz", "--ood", "far.npz", *QUICK]) == 0
    record = json.loads(Path("infinite/evaluation/metrics.json").read_text())["detector"]["record"]
    assert record["schedule"] == {"clip": "inf", "milestones": [0.5]}


def test_the_same_command_gives_the_same_bytes(place):
    for name in ("one", "two"):
        assert main(["evaluate", "d", *SETS, *QUICK, "--quiet", "--out", str(place / name)]) == 0
    one, two = ({path.name: path.read_text() for path in (place / name).iterdir()} for name in ("one", "two"))
    assert sorted(one) == FILES
    for name in FILES:
        assert one[name].replace(str(place / "one"), "") == two[name].replace(str(place / "two"), "")


def test_evaluate_has_help(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "usage: wildood evaluate" in shown
    assert "--ood DATA [DATA ...]" in shown


def test_files_of_one_name_are_told_apart_by_their_paths(place):
    words = ["evaluate", "d", "--id", "test.npz", "--ood", "far.npz", "more/far.npz", *QUICK, "--quiet"]
    assert main([*words, "--out", str(place / "o")]) == 0
    record = json.loads((place / "o" / "metrics.json").read_text())
    assert [result["name"] for result in record["ood"]] == ["far.npz", "more/far.npz"]


def test_quiet_says_nothing_but_the_result_and_what_is_wrong(place, capsys, caplog):
    assert main(["evaluate", "d", *SETS, *QUICK, "--quiet", "--out", str(place / "o")]) == 0
    assert caplog.messages == [
        "Examples that are in test.npz, too: 2 of 22 in near.npy. An example cannot be both ID and OOD."
    ]
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "mean of the sets" in printed.out


def test_an_unlabelled_id_set_has_no_accuracy(place, capsys):
    words = ["evaluate", "d", "--id", "test.npz:x", "--ood", "far.npz", *QUICK, "--out", str(place / "o")]
    assert main(words) == 0
    record = json.loads((place / "o" / "metrics.json").read_text())
    assert (record["id"]["accuracy"], record["id"]["classes_are"]) == (None, "predicted")
    assert "accuracy" not in capsys.readouterr().out


def test_a_model_of_your_own_is_named(place, capsys):
    words = ["evaluate", "own-d", *SETS, *QUICK, "--quiet", "--out", str(place / "o")]
    assert main(words) == 2
    assert "made with a model of your own" in capsys.readouterr().err
    assert main([*words, "--model", "own:build"]) == 0


def test_without_matplotlib_all_but_the_page_is_written(place, monkeypatch, capsys):
    monkeypatch.setattr(evaluate_command, "plots_installed", lambda: False)
    assert main(["evaluate", "d", *SETS, *QUICK, "--out", str(place / "o")]) == 0
    printed = capsys.readouterr()
    assert printed.err.endswith(HINT)
    assert "mean of the sets" in printed.out
    assert sorted(path.name for path in (place / "o").iterdir()) == ["metrics.json", "table.md", "table.tex"]


@pytest.mark.slow
def test_none_of_the_extras_is_needed(place, files):
    command = [sys.executable, "-c", WITHOUT, "evaluate", "d", *SETS, *QUICK, "--out", str(place / "o")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=files, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(HINT)
    assert "mean of the sets" in done.stdout


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Pictures of three classes, and a detector of them that knows their names in another order."""
    place = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(1)
    colours = {"ant": (200, 20, 20), "bee": (20, 200, 20), "cow": (20, 20, 200)}
    for name, colour in colours.items():
        (place / "test" / name).mkdir(parents=True)
        for number in range(4):
            noise = rng.integers(0, 40, (12, 12, 3)) + np.array(colour)
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(place / "test" / name / f"{number}.png")
    (place / "odd").mkdir()
    for number in range(5):
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(place / "odd" / f"{number}.png")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallCNN(3, channels=3, width=4, hidden=8)
    spec = wildood.InputSpec(mean=(0.5,) * 3, std=(0.5,) * 3)
    holdout = rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    detector = wildood.posthoc(model, wildood.MaxSoftmax(), holdout=holdout, input=spec, alpha=0.1)
    detector.save(place / "unnamed")
    detector.record["classes"] = ["cow", "ant", "bee"]
    detector.save(place / "named")
    return place


def test_folders_of_pictures_are_matched_by_the_names_of_their_classes(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WILDOOD_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(photos)
    words = ["--id", "test/", "--ood", "odd/", *QUICK, "--out", str(tmp_path / "o")]
    assert main(["evaluate", "named", *words]) == 0
    record = json.loads((tmp_path / "o" / "metrics.json").read_text())
    classes = record["id"]["false_alarms_by_class"]
    assert [(each["class"], each["name"], each["examples"]) for each in classes] == [
        (0, "cow", 4),
        (1, "ant", 4),
        (2, "bee", 4),
    ]
    detector = wildood.load("named")
    images = wildood.open_images("test", size=8)
    said = [detector.record["classes"][number] for number in detector.classify(images)]
    right = sum(name.startswith(f"{answer}/") for name, answer in zip(images.names, said, strict=True))
    assert record["id"]["accuracy"]["count"] == right
    assert (record["id"]["name"], record["ood"][0]["name"]) == ("test", "odd")
    files = {mistake["example"] for mistake in record["ood"][0]["mistakes"]}
    assert files <= {f"{number}.png" for number in range(5)}
    page = (tmp_path / "o" / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == len(files) + record["id"]["false_alarms"]["count"]
    capsys.readouterr()
    assert main(["evaluate", "unnamed", *words]) == 0
    assert "id: the detector has no names for its classes, those of test are numbered" in capsys.readouterr().err
    assert record["id"]["unmatched_names"] is False
    assert json.loads((tmp_path / "o" / "metrics.json").read_text())["id"]["unmatched_names"] is True
    for name in ("table.md", "report.html"):
        assert "test: the detector has no names for its classes, so" in (tmp_path / "o" / name).read_text(encoding="utf-8")


def test_long_lines_are_broken_between_words_in_a_terminal(place, monkeypatch, capsys):
    assert main(["evaluate", "d", *SETS, *QUICK, "--quiet", "--out", str(place / "o")]) == 0
    told = capsys.readouterr().out.partition("In percent")[2]
    assert max(map(len, told.splitlines())) > 120  # whole lines for a pipe
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _self: True)
    monkeypatch.setenv("COLUMNS", "70")
    assert main(["evaluate", "d", *SETS, *QUICK, "--quiet", "--out", str(place / "o")]) == 0
    broken = capsys.readouterr().out.partition("In percent")[2]
    assert broken.split() == told.split()
    assert max(len(line) for line in broken.splitlines() if " " in line) <= 70


def test_a_class_that_the_detector_does_not_have_is_refused(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WILDOOD_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(photos)
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "elk").symlink_to(photos / "test" / "ant")
    assert main(["evaluate", "named", "--id", str(tmp_path / "zoo"), "--ood", "odd", *QUICK]) == 2
    assert "zoo has a class 'elk' that the detector has not: give the same classes" in capsys.readouterr().err


MISTAKES = {
    "no data": (["evaluate", "d"], "evaluate needs --id and --ood: give known and unknown examples"),
    "no ood": (["evaluate", "d", "--id", "test.npz"], "evaluate needs --id and --ood"),
    "empty ood": (["evaluate", "d", "--id", "test.npz", "--ood"], "evaluate needs --id and --ood"),
    "no detector": (["evaluate", "--id", "test.npz"], "missing: DETECTOR"),
    "not a detector": (["evaluate", ".", *SETS], "detector.json cannot be read"),
    "twice": (["evaluate", "d", "--id", "test.npz", "--ood", "a", "a"], "--ood names a 2 times: give each set once"),
    "no file": (["evaluate", "d", "--id", "no.npz", "--ood", "far.npz"], "--id: no.npz: No such file"),
    "labels": (["evaluate", "d", "--id", "wrong.npz", "--ood", "far.npz"], "wrong.npz: a label is 6, but the model has 2"),
    "shape": (["evaluate", "d", "--id", "test.npz", "--ood", "wide.npy"], "wide.npy: an example has shape (5,), expected"),
    "empty": (["evaluate", "d", "--id", "empty.npy", "--ood", "far.npz"], "empty.npy has shape (0, 3): give at least one"),
    "out": (["evaluate", "d", *SETS, "--out", "own.py"], "--out own.py cannot be written to"),
    "resamples": (["evaluate", "d", *SETS, "--resamples", "0"], "--resamples is 0: give at least 1"),
    "option": (["evaluate", "d", *SETS, "--resample", "5"], "did you mean --resamples?"),
    "copies": (["evaluate", "d", *SETS, "copy.npy"], "--ood: far.npz and copy.npy hold the same examples: give each set"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gives_one_line_and_exit_code_2(place, mistake, capsys):
    words, message = MISTAKES[mistake]
    assert main([*words, *([] if "--out" in words or len(words) < 3 else ["--out", str(place / "o")])]) == 2
    printed = capsys.readouterr()
    *before, last = printed.err.splitlines()
    assert last.startswith("wildood: ")
    assert message in last
    assert all(re.fullmatch(r"(id|ood): \d+ examples( of \d classes)? from \S+", line) for line in before)
    assert printed.out == ""
    assert not (place / "o").exists()

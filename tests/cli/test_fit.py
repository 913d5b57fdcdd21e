"""`wildood fit`: a detector, its settings, its page; a grid of methods; what it refuses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import wildood
from wildood.cli import fit as fit_command
from wildood.data.wild import as_wild
from wildood.detect.detector import Promise
from wildood.detect.split import split_wild
from wildood.models.small import MLP, SmallCNN

WITHOUT_EXTRAS = """
import sys
for name in ("matplotlib", "sklearn"):
    sys.modules[name] = None    # as if they were not installed
from wildood.cli.main import main
codes = []
for command in sys.stdin.read().splitlines():
    codes.append(main(command.split()))
    print(f"-- {codes[-1]}", flush=True)
sys.exit(any(codes))
"""
HINT = "for a page that shows what changed: pip install matplotlib, then the same command again\n"
MLP_WORDS = ["--model", "mlp:inputs=3,classes=2,hidden=8", "--weights", "w.safetensors"]
NOT_HELPED = ("training was not shown to help", "nothing unknown was shown")


@pytest.fixture
def mlp_words(fit_words):
    """A fit of a shipped model with weights."""
    return [*fit_words, *MLP_WORDS]


def detector_file(arrays, name):
    return json.loads((arrays / name / "detector.json").read_text())


def test_progress_goes_to_standard_error_and_the_guarantee_to_standard_output(fitted, arrays):
    assert fitted.out == f"d: {Promise(alpha=0.1, examples=50, unseen=True)}\n"
    assert fitted.err.split("step 6 ")[0].splitlines() == [
        "labelled: 120 examples of 2 classes from labelled.npz",
        "wild: 60 examples from wild.npz",
        "holdout: 100 examples of 2 classes from holdout.npz",
        "each constraint must become <= 0; λ is its multiplier, β its penalty",
    ]
    assert "\x1b" not in fitted.err
    assert {path.name for path in (arrays / "d").iterdir()} >= {"detector.json", "settings.toml", "run"}


def test_quiet_shows_no_progress(fitted, cli, fit_words):
    lines = cli(*fit_words, "--out", "d", "--quiet").err.splitlines()
    assert [line for line in lines if not line.startswith(NOT_HELPED)] == []


@pytest.mark.slow
def test_a_warning_survives_quiet(arrays, fit_words):
    """In a process of its own: pytest collects warnings before they reach standard error."""
    words = [*fit_words, "--model", "mlp:inputs=3,classes=2,hidden=8", "--steps", "2", "--out", "w", "--quiet"]
    command = [sys.executable, "-m", "wildood", *words]
    done = subprocess.run(command, cwd=arrays, capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("step")] == []
    assert "of labelled: start from a trained one (pretrain makes one; --weights on the command line)" in lines[0]


def test_the_settings_that_were_written_can_be_passed_back(fitted, cli, arrays):
    assert cli("fit", "--config", "d/settings.toml", "--out", "again").code == 0
    first, second = detector_file(arrays, "d"), detector_file(arrays, "again")
    assert (first["weights"], first["threshold"]) == (second["weights"], second["threshold"])


@pytest.mark.slow
def test_a_frozen_backbone_is_recorded_and_passed_back(cli, fit_words, arrays):
    assert cli(*fit_words, "--frozen", "--keep", "last", "--out", "frozen").code == 0
    assert cli("fit", "--config", "frozen/settings.toml", "--out", "frozen2").code == 0
    first, second = detector_file(arrays, "frozen"), detector_file(arrays, "frozen2")
    assert first["record"]["frozen"] is second["record"]["frozen"] is True
    assert first["weights"] == second["weights"]
    assert "trained    the last layer" in cli("show", "frozen").out
    assert cli("fit", "--config", "frozen/settings.toml", "--no-frozen", "--out", "whole").code == 0
    assert "frozen" not in detector_file(arrays, "whole")["record"]


@pytest.mark.slow
def test_a_grid_keeps_the_method_that_accepts_the_least_wild_data(cli, fit_words, arrays):
    words = [*fit_words, "--method", "oe", "--grid", "weight=0.1,1", "--confidence", "0.9", "--out"]
    result = cli(*words, "g")
    assert result.code == 0, result.err
    ranking = json.loads((arrays / "g" / "ranking.json").read_text())
    names = [each["name"] for each in ranking["places"]]
    assert sorted(names) == ["OutlierExposure-weight=0.1", "OutlierExposure-weight=1.0"]
    assert result.out.startswith(f"{names[0]}: accepts ")
    content = detector_file(arrays, "g")
    assert content["record"]["method"]["weight"] == float(names[0].partition("=")[2])
    assert content["promise"]["confidence"] == 0.9
    assert cli("fit", "--config", "g/settings.toml", "--out", "g2").code == 0
    assert json.loads((arrays / "g2" / "ranking.json").read_text())["places"] == ranking["places"]
    assert (arrays / "g" / "ranking.json").read_text().endswith("}\n")
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text("utf-8")
    assert {name for name in (*ranking, *ranking["places"][0]) if f"`{name}`" not in guide} == set()
    assert (result.out + result.err).count("accepts the least of the wild data") == 1
    before = (arrays / "g" / "detector.json").read_bytes()
    assert cli(*words, "g").out == result.out  # the same one: it has all been done
    assert (arrays / "g" / "detector.json").read_bytes() == before


def test_what_another_run_made_is_not_replaced(fitted, cli, assert_mistake, fit_words, arrays):
    assert cli(*fit_words, "--method", "oe", "--grid", "weight=0.1,1", "--out", "grid").code == 0
    files = {name: (arrays / name / "detector.json").read_bytes() for name in ("d", "grid")}
    for words, message in (
        (["--grid", "mu2=0.1,1", "--out", "d"], "d/run belongs to another run, of a single method: give another"),
        (["--method", "oe", "--grid", "weight=1,2", "--out", "grid"], "grid/run belongs to another run: its methods"),
        (["--out", "grid"], "grid/run belongs to another run: its methods is OutlierExposure-weight=0.1, Out"),
    ):
        assert_mistake([*fit_words, *words, "--quiet"], message)
    assert files == {name: (arrays / name / "detector.json").read_bytes() for name in files}


def test_by_class_that_cannot_be_done_is_said_with_the_guarantee(cli, fit_words, caplog):
    result = cli(*fit_words, "--by-class", "--alpha", "0.03", "--out", "bc", "--quiet")
    assert result.code == 0
    assert caplog.messages[0].startswith("by class was NOT done, one threshold is for all classes: class ")
    assert result.out.endswith(" has the same distribution (over all classes: by class was NOT done)\n")
    assert "by class   NOT done: class " in cli("show", "bc").out


def test_a_shipped_model_need_not_be_named_again(cli, mlp_words):
    assert cli(*mlp_words, "--steps", "2", "--out", "m").code == 0
    assert cli("score", "m", "new.npy").code == 0


def test_csi_is_fitted_in_two_stages_shown_and_loaded(tmp_path, monkeypatch, cli):
    rng = np.random.default_rng(0)
    for name in ("labelled", "holdout"):
        np.savez(tmp_path / f"{name}.npz", x=rng.integers(0, 256, (60, 8, 8, 1)).astype(np.uint8), y=np.arange(60) % 2)
    words = ["fit", "--method", "csi", "--labelled", tmp_path / "labelled.npz", "--holdout", tmp_path / "holdout.npz"]
    words += ["--epochs", "1", "--batch", "16", "--head-epochs", "2", "--head-lr", "0.2", "--out", tmp_path / "d"]
    words += ["--model", "smallcnn:classes=2,width=4,hidden=8", "--mean", "0.5", "--std", "0.25", "--quiet"]
    assert cli(*words).code == 0
    content = json.loads((tmp_path / "d" / "detector.json").read_bytes())
    assert content["record"]["method"] == {
        "name": "Csi", "temperature": 0.07, "projection": 128, "head_epochs": 2, "head_lr": 0.2, "alpha": 0.05,
    }  # fmt: skip
    assert content["record"]["schedule"]["weight_decay"] == 1e-6  # the method's own, where nothing else was said
    assert [(row["stage"], row["epoch"]) for row in content["history"]] == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert wildood.load(tmp_path / "d").predict(np.load(tmp_path / "labelled.npz")["x"]).shape == (60,)
    shown = " ".join(cli("show", tmp_path / "d").out.split())
    assert "method Csi: temperature 0.07" in shown
    last = content["history"][4]
    accuracy = f"accuracy {100 * last['accuracy']:.1f} %"
    assert f"kept epoch 2 of 2 of stage 2, step {last['step']} of {last['step']}, {accuracy}" in shown


def rows_in(page):
    rows = re.findall(r'<tr[^>]*><th scope="row">([^<]*)</th>(.*?)</tr>', page)
    return {name: re.findall(r"<td>([^<]*)</td>", cells) for name, cells in rows}


def shares(detector, wild, x, y):
    rejected = [np.mean(detector.predict(examples) == wildood.UNKNOWN) for examples in (wild, x)]
    return [f"{100 * share:.1f}" for share in (*rejected, np.mean(detector.classify(x) == y))]


def set_aside(path):
    """What training did not see."""
    aside = split_wild(as_wild(np.load(path)["x"]), "best", seed=0)[1]
    return aside.gather(torch.arange(len(aside)))[0].numpy()


@pytest.mark.parametrize("holdout", [True, False])
def test_the_page_compares_the_saved_detector_with_the_energy_of_the_model(cli, arrays, mlp_words, holdout):
    out = f"page-{holdout}"
    words = [*mlp_words, "--out", out]
    if not holdout:
        words = [word for word in words if word not in {"--holdout", "holdout.npz"}]
    result = cli(*words)
    assert result.code == 0
    assert result.err.endswith(f"{out}/report.html shows what changed\n")
    page = (arrays / out / "report.html").read_text(encoding="utf-8")
    wild = set_aside(arrays / "wild.npz")
    known = np.load(arrays / ("holdout.npz" if holdout else "labelled.npz"))
    model = MLP(3, 2, hidden=(8,))
    model.load_state_dict(load_file(arrays / "w.safetensors"))
    after = wildood.load(arrays / out)
    before = wildood.posthoc(model, wildood.EnergyScore(), holdout=known["x"], alpha=0.1)
    kept = int(np.sum(after.score(known["x"]) <= after.threshold))  # as many known examples are accepted before as after
    before.threshold = float(np.sort(before.score(known["x"]))[kept - 1])
    assert rows_in(page) == {
        "before: its energy": shares(before, wild, known["x"], known["y"]),
        "after: start kept": shares(after, wild, known["x"], known["y"]),
    }
    assert ("The labelled examples were trained on" in page) is not holdout
    assert f"<dd>wildood {' '.join(words)}</dd>" in page


def test_images_are_shown_in_their_layout(cli, tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("labelled", 120), ("holdout", 100), ("wild", 60)):
        x, y = rng.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8), rng.integers(0, 2, count)
        np.savez(tmp_path / f"{name}.npz", x=x, **({} if name == "wild" else {"y": y}))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(SmallCNN(2, channels=3, width=4, hidden=8).state_dict(), tmp_path / "w.safetensors")
    words = [word for name in ("labelled", "wild", "holdout") for word in (f"--{name}", tmp_path / f"{name}.npz")]
    words += ["--model", "smallcnn:classes=2,channels=3,width=4,hidden=8", "--weights", tmp_path / "w.safetensors"]
    words += ["--mean", *["0.5"] * 3, "--std", *["0.5"] * 3, "--layout", "NCHW", "--batch", "32", "--steps", "6", "--quiet"]
    assert cli("fit", *words, "--alpha", "0.1", "--out", tmp_path / "d").code == 0
    page = (tmp_path / "d" / "report.html").read_text(encoding="utf-8")
    wild = set_aside(tmp_path / "wild.npz")
    rejected = int(np.sum(wildood.load(tmp_path / "d").predict(wild) == wildood.UNKNOWN))
    assert f"<h3>Wild and rejected: {rejected} of 30" in page
    assert page.count("data:image/png;base64,") >= 16


@pytest.mark.parametrize("quiet", [True, False])
def test_without_matplotlib_a_fit_says_how_to_get_the_page_which_the_same_command_adds(
    cli, arrays, mlp_words, monkeypatch, quiet
):
    out = f"no-page-{quiet}"
    words = [*mlp_words, *(["--quiet"] if quiet else []), "--out", out]
    with monkeypatch.context() as patch:
        patch.setattr(fit_command, "plots_installed", lambda: False)
        result = cli(*words)
    assert result.out.startswith(f"{out}: false-alarm rate <= 10 %")
    assert result.err == "" if quiet else result.err.endswith(HINT)
    assert not (arrays / out / "report.html").exists()
    assert wildood.load(arrays / out).promise.alpha == 0.1
    before = (arrays / out / "detector.json").read_bytes()
    assert cli(*words).code == 0
    assert (arrays / out / "report.html").exists()
    assert (arrays / out / "detector.json").read_bytes() == before


@pytest.mark.slow
def test_fit_score_and_show_need_none_of_the_extras(arrays, mlp_words):
    commands = [[*mlp_words, "--out", "bare"], ["show", "bare"], ["score", "bare", "wild.npz"]]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS],
        cwd=arrays,
        input="\n".join(" ".join(command) for command in commands),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(f"{HINT}examples: 60 examples from wild.npz\n")
    assert [part.strip() != "" for part in done.stdout.split("-- 0\n")] == [True, True, True, False]


MISTAKES = {
    "size of vectors": (["--size", "8", "8"], "--size is for images: give --mean and --std, too"),
    "half a spec": (["--mean", "0.5"], "--mean and --std belong together"),
    "holdout in wild": (["--wild", "holdout.npz"], "100 of the 100 holdout examples are in wild, too"),
    "no such features": (["--features", "9"], "no submodule '9': name one that gives one vector"),
    "no such grid": (["--grid", "wait=1,2"], "--grid wait=1,2: give settings with their values"),
    "grid of words": (["--grid", "mu2=a"], "give numbers with commas"),
    "grid of alphas": (["--grid", "alpha=0.05,0.1"], "false-alarm rate: set it with --alpha"),
    "small holdout": (["--alpha", "0.01"], "a larger alpha (--alpha), or keep='last' (--keep last)"),
    "small grid": (["--alpha", "0.02", "--grid", "mu2=1,2"], "needs 49 in each: give 147 in all"),
    "grid without": (["--keep", "last", "--grid", "mu2=1,2"], "leave out keep= (--keep)"),
    "another run": (["--out", "d", "--seed", "5"], "belongs to another run: its seed is 0"),
    "a seed below 0": (["--seed", "-1"], "seed is -1: give a whole number from 0 on"),
    "a very long word": (["--out", "y" * 5000], "which no file can be named: give another path"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(fitted, fit_words, assert_mistake, mistake):
    words, message = MISTAKES[mistake]
    assert_mistake([*fit_words, "--out", "x", *words], message)

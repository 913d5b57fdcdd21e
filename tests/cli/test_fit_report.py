"""What `wildood fit` leaves to look at, with matplotlib and without it."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import wildood
from wildood.cli import fit as fit_command
from wildood.cli.main import main
from wildood.data.wild import as_wild
from wildood.detect.split import split_wild
from wildood.models.small import MLP, SmallCNN

WITHOUT = """
import sys
for name in ("matplotlib", "sklearn"):
    sys.modules[name] = None    # as if they were not installed
from wildood.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
HINT = "for a page that shows what changed: pip install matplotlib, then the same command again\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("fit")
    rng = np.random.default_rng(0)

    def points(count):
        y = rng.integers(0, 2, count)
        return (rng.normal(size=(count, 3)) + 3 * y[:, None]).astype("float32"), y

    def images(count):
        return rng.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8), rng.integers(0, 2, count)

    for kind, draw in (("points", points), ("images", images)):
        for name, count in (("labelled", 120), ("holdout", 100), ("wild", 60)):
            x, y = draw(count)
            np.savez(path / f"{kind}-{name}.npz", **({"x": x} if name == "wild" else {"x": x, "y": y}))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(MLP(3, 2, hidden=(8,)).state_dict(), path / "points.safetensors")
        save_file(SmallCNN(2, channels=3, width=4, hidden=8).state_dict(), path / "images.safetensors")
    return path


MODELS = {"points": "mlp:inputs=3,classes=2,hidden=8", "images": "smallcnn:classes=2,channels=3,width=4,hidden=8"}


def words(out, *more, kind="points", holdout=True):
    files = {name: f"{kind}-{name}.npz" for name in ("labelled", "wild", *(["holdout"] if holdout else []))}
    options = {
        **files,
        "model": MODELS[kind],
        "weights": f"{kind}.safetensors",
        "batch": 32,
        "alpha": 0.1,
        "steps": 6,
        "out": out,
    }
    return ["fit", *(str(word) for name, value in options.items() for word in (f"--{name}", value)), *more]


def rows_in(page):
    rows = re.findall(r'<tr[^>]*><th scope="row">([^<]*)</th>(.*?)</tr>', page)
    return {name: re.findall(r"<td>([^<]*)</td>", cells) for name, cells in rows}


def shares(detector, wild, x, y):
    rejected = [np.mean(detector.predict(examples) == wildood.UNKNOWN) for examples in (wild, x)]
    return [f"{100 * share:.1f}" for share in (*rejected, np.mean(detector.classify(x) == y))]


def set_aside(wild):
    """What training did not see."""
    aside = split_wild(as_wild(wild), "best", seed=0)[1]
    return aside.gather(torch.arange(len(aside)))[0].numpy()


@pytest.mark.parametrize("holdout", [True, False])
def test_the_page_shows_the_saved_detector_beside_the_energy_of_the_model(place, monkeypatch, capsys, holdout):
    monkeypatch.chdir(place)
    out = f"page-{holdout}"
    assert main(words(out, holdout=holdout)) == 0
    assert capsys.readouterr().err.endswith(f"{out}/report.html shows what changed\n")
    page = (place / out / "report.html").read_text(encoding="utf-8")
    wild = set_aside(np.load("points-wild.npz")["x"])
    known = np.load("points-holdout.npz" if holdout else "points-labelled.npz")
    model = MLP(3, 2, hidden=(8,))
    model.load_state_dict(load_file("points.safetensors"))
    after = wildood.load(place / out)
    before = wildood.posthoc(model, wildood.EnergyScore(), holdout=known["x"], alpha=0.1)
    kept = int(np.sum(after.score(known["x"]) <= after.threshold))  # as many known examples are accepted before as after
    before.threshold = float(np.sort(before.score(known["x"]))[kept - 1])
    assert rows_in(page) == {
        "before: its energy": shares(before, wild, known["x"], known["y"]),
        "after: start kept": shares(after, wild, known["x"], known["y"]),
    }
    assert ("The labelled examples were trained on" in page) is not holdout
    assert f"<dd>wildood {' '.join(words(out, holdout=holdout))}</dd>" in page


def test_images_are_shown_in_the_layout_they_are_given_in(place, monkeypatch):
    monkeypatch.chdir(place)
    layout = ["--mean", "0.5", "0.5", "0.5", "--std", "0.5", "0.5", "0.5", "--layout", "NCHW", "--quiet"]
    assert main(words("pictures", *layout, kind="images")) == 0
    page = (place / "pictures" / "report.html").read_text(encoding="utf-8")
    wild = set_aside(np.load("images-wild.npz")["x"])
    rejected = int(np.sum(wildood.load(place / "pictures").predict(wild) == wildood.UNKNOWN))
    assert f"<h3>Wild and rejected: {rejected} of 30" in page
    assert page.count("data:image/png;base64,") >= 16


def test_quiet_fit_writes_its_page_in_silence(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert main(words("quiet", "--quiet")) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith("quiet: false-alarm rate <= 10 %")
    assert (place / "quiet" / "report.html").exists()


@pytest.mark.parametrize("quiet", [True, False])
def test_without_matplotlib_a_fit_says_how_to_get_the_page_and_writes_the_detector(place, monkeypatch, capsys, quiet):
    monkeypatch.chdir(place)
    monkeypatch.setattr(fit_command, "plots_installed", lambda: False)
    out = f"no-page-{quiet}"
    assert main(words(out, *(["--quiet"] if quiet else []))) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{out}: false-alarm rate <= 10 %")
    assert printed.err == "" if quiet else printed.err.endswith(HINT)
    assert not (place / out / "report.html").exists()
    assert wildood.load(place / out).promise.alpha == 0.1


def test_the_same_command_again_adds_the_page_that_was_missing(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    with monkeypatch.context() as patch:
        patch.setattr(fit_command, "plots_installed", lambda: False)
        assert main(words("later")) == 0
    before = (place / "later" / "detector.json").read_bytes()
    assert main(words("later")) == 0
    assert (place / "later" / "report.html").exists()
    assert (place / "later" / "detector.json").read_bytes() == before


def test_fit_score_and_show_need_none_of_the_extras(place):
    commands = [words("bare"), ["show", "bare"], ["score", "bare", "points-wild.npz"]]
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, *command], cwd=place, capture_output=True, encoding="utf-8", check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr in {"", "examples: 60 examples from points-wild.npz\n"} or done.stderr.endswith(HINT)
        assert done.stdout != ""

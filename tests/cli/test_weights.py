"""`--weights` takes a saved detector: its classifier and its input spec are those to start from."""

import json
import shutil
import tomllib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import wildood
from wildood.cli import fit as fit_command
from wildood.data.files import dump_tensors
from wildood.models.small import MLP, SmallCNN

DATA = ["--labelled", "labelled.npz", "--wild", "wild.npz", "--holdout", "holdout.npz"]
SHORT = ["--batch", "32", "--alpha", "0.1", "--steps", "2", "--quiet"]
MODEL = ["--model", "mlp:inputs=3,classes=2,hidden=8"]


@pytest.fixture(autouse=True)
def no_pages(monkeypatch):
    """They are not looked at here, and take a second each."""
    monkeypatch.setattr(fit_command, "plots_installed", lambda: False)


@pytest.fixture(scope="module", params=["woods-alt", "knn"])
def last(request, arrays):
    """The directory of a detector whose score has a head or holds features, and the weights of its classifier."""
    known = {name: tuple(np.load(arrays / f"{name}.npz")[key] for key in "xy") for name in ("labelled", "holdout")}
    known["holdout"] = tuple(each[:-1] for each in known["holdout"])  # not the set that is given when it is trained again
    model = MLP(3, 2, hidden=(8,))
    model.load_state_dict(load_file(arrays / "w.safetensors"))
    if request.param == "knn":
        detector = wildood.posthoc(model, wildood.Knn(k=3), **known)
    else:
        settings = {"keep": "last", "schedule": wildood.Schedule(steps=2, batch=32), "verbose": False}
        detector = wildood.fit(model, wild=np.load(arrays / "wild.npz")["x"], method=wildood.WoodsAlt(), **known, **settings)
    place = detector.save(arrays / f"last-{request.param}")
    weights = arrays / f"last-{request.param}.safetensors"
    weights.write_bytes(dump_tensors(detector.classifier.model.state_dict()))
    return place.name, weights.name


def made(arrays, name):
    content = json.loads((arrays / name / "detector.json").read_text())
    return content["weights"], content["threshold"]


def test_a_detector_gives_its_classifier_and_the_model_need_not_be_named(last, cli, arrays):
    place, weights = last
    (file,) = (arrays / place).glob("weights-*.safetensors")
    moved = shutil.copy(file, arrays / f"moved-{place}.safetensors")
    ways = {
        "plain": ["--weights", weights, *MODEL],
        "directory": ["--weights", place],
        "file": ["--weights", file],
        "moved": ["--weights", moved, *MODEL],
        "named": ["--weights", place, *MODEL],
    }
    for name, words in ways.items():
        done = cli("fit", *DATA, *SHORT, *words, "--keep", "last", "--out", f"{place}-{name}")
        assert done.code == 0, done.err
    assert len({made(arrays, f"{place}-{name}") for name in ways}) == 1
    settings = tomllib.loads((arrays / f"{place}-directory" / "settings.toml").read_text())
    assert settings["weights"] == place
    assert "model" not in settings
    assert cli("fit", "--config", f"{place}-directory/settings.toml", "--out", f"{place}-again").code == 0
    assert made(arrays, f"{place}-again") == made(arrays, f"{place}-plain")


def test_pretraining_goes_on_from_a_detector(last, cli, arrays):
    place, weights = last
    common = ["--labelled", "labelled.npz", "--epochs", "1", "--batch", "32", "--augment", "False", "--quiet"]
    for name, words in (("plain", [weights, *MODEL]), ("taken", [place])):
        assert cli("pretrain", *common, "--weights", *words, "--out", f"{place}-p-{name}").code == 0
    plain, taken = (load_file(arrays / f"{place}-p-{name}" / "weights.safetensors") for name in ("plain", "taken"))
    assert all(torch.equal(plain[name], taken[name]) for name in plain)


def test_a_detector_whose_head_makes_the_logits_is_refused(cli, arrays):
    known = {name: tuple(np.load(arrays / f"{name}.npz")[key] for key in "xy") for name in ("labelled", "holdout")}
    settings = {"schedule": wildood.Schedule(steps=2, batch=32), "verbose": False}
    wildood.fit(MLP(3, 2, hidden=(8,)), method=wildood.Godin(), **known, **settings).save(arrays / "last-godin")
    (file,) = (arrays / "last-godin").glob("weights-*.safetensors")
    shutil.copy(file, arrays / "moved-godin.safetensors")
    words = {"fit": [*DATA, *SHORT], "pretrain": ["--labelled", "labelled.npz", *SHORT[:2], "--epochs", "1", "--quiet"]}
    for command, more in words.items():
        for place in ("last-godin", file):
            done = cli(command, *more, "--weights", place, "--out", "refused")
            assert done.code == 2
            assert done.err.count("\n") == 1
            assert (
                f"--weights {place} is a detector whose logits a head of its own makes (DeConfHead), not the model's last "
                "layer: give the weights of the classifier that it was made from" in done.err
            )
        done = cli(command, *more, "--weights", "moved-godin.safetensors", *MODEL, "--out", "refused")
        assert done.code == 2
        assert "--weights moved-godin.safetensors is a detector whose logits a head of its own makes, not" in done.err


@pytest.fixture(scope="module")
def pictures(arrays):
    """Arrays of images, and the directory of a detector of them that resizes."""
    rng = np.random.default_rng(0)
    for name, count in (("labelled", 120), ("holdout", 100), ("wild", 60)):
        x, y = rng.integers(0, 256, (count, 1, 8, 8), dtype=np.uint8), rng.integers(0, 2, count)
        np.savez(arrays / f"images-{name}.npz", x=x, **({} if name == "wild" else {"y": y}))
    spec = wildood.InputSpec(layout="NCHW", mean=(0.5,), std=(0.25,), size=(12, 12))
    torch.manual_seed(0)
    model = SmallCNN(2, size=12, width=4, hidden=8)
    detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=x_of(arrays, "holdout")[:-1], input=spec)
    return detector.save(arrays / "last-images").name


def x_of(arrays, name):
    return np.load(arrays / f"images-{name}.npz")["x"]


def test_the_input_spec_is_taken_over_unless_there_is_one(pictures, cli, arrays):
    data = [word if word.startswith("--") else f"images-{word}" for word in DATA]
    done = cli("fit", *data, *SHORT[:-1], "--weights", pictures, "--out", "taken")
    assert done.code == 0, done.err
    assert "mean, std, layout and size of images: those of last-images" in done.err
    assert wildood.load(arrays / "taken").classifier.spec == wildood.load(arrays / pictures).classifier.spec
    settings = tomllib.loads((arrays / "taken" / "settings.toml").read_text())
    assert (settings["mean"], settings["std"], settings["layout"], settings["size"]) == ([0.5], [0.25], "NCHW", [12, 12])
    own = ["--mean", "0.4", "--std", "0.2", "--layout", "NCHW", "--size", "12"]
    assert cli("fit", *data, *SHORT, *own, "--weights", pictures, "--out", "own").code == 0
    assert wildood.load(arrays / "own").classifier.spec.mean == (0.4,)


def test_classes_have_the_numbers_of_the_detector(cli, arrays, fitted):
    detector = wildood.load(arrays / "d", model=torch.nn.Sequential(torch.nn.Linear(3, 2)))
    detector.record["classes"] = ["low", "high"]
    detector.save(arrays / "named")
    for name in ("labelled", "holdout"):
        with np.load(arrays / f"{name}.npz") as known:
            x, y = known["x"][:-1], known["y"][:-1]  # not the sets of the detector
        np.savez(arrays / f"named-{name}.npz", x=x, y=1 - y, classes=np.array(["high", "low"]))
    words = ["fit", "--labelled", "named-labelled.npz", "--wild", "wild.npz", "--holdout", "named-holdout.npz", *SHORT]
    words += ["--model", "summing:build", "--weights", "named"]
    assert cli(*words, "--out", "named-2").code == 0
    record = json.loads((arrays / "named-2" / "detector.json").read_text())["record"]
    assert record["classes"] == ["low", "high"]
    assert json.loads((arrays / "named-2" / "detector.json").read_text())["history"][0]["accuracy"] > 0.9
    with np.load(arrays / "labelled.npz") as known:
        np.savez(arrays / "other.npz", x=known["x"], y=known["y"], classes=np.array(["low", "odd"]))
    words[2] = "other.npz"
    refused = cli(*words, "--out", "named-3")
    assert refused.code == 2
    assert "has a class 'odd' that the detector of --weights has not: give the same classes" in refused.err


def test_weights_of_a_model_that_has_such_names_itself_stay_as_they_are(cli, arrays):
    wrapped = torch.nn.ModuleDict({"model": torch.nn.Linear(3, 2)})
    save_file(wrapped.state_dict(), arrays / "wrapped.safetensors")
    (arrays / "wrapping.py").write_text(
        "import torch\n\nclass Wrapped(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.model = torch.nn.Linear(3, 2)\n\n    def forward(self, x):\n        return self.model(x)\n"
    )
    words = ["--model", "wrapping:Wrapped", "--weights", "wrapped.safetensors"]
    assert cli("fit", *DATA, *SHORT, *words, "--out", "wrapped").code == 0


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("d", "d was made with a model of your own (Sequential): give it again, with model= in Python or --model"),
        (".", "detector.json cannot be read (No such file or directory): give that of a saved detector"),
        ("no.safetensors", "--weights no.safetensors: there is no such file or directory"),
    ],
)
def test_a_mistake_is_one_line(fitted, assert_mistake, weights, message):
    assert_mistake(["fit", *DATA, *SHORT, "--weights", weights, "--out", "x"], message)


def test_the_directory_of_a_pretraining_is_answered_with_its_weights(arrays, assert_mistake):
    (arrays / "pretrained" / "run").mkdir(parents=True)
    shutil.copy(arrays / "w.safetensors", arrays / "pretrained" / "weights.safetensors")
    message = "--weights pretrained holds no detector, but weights of pretrain: give pretrained/weights.safetensors"
    assert_mistake(["fit", *DATA, *SHORT, *MODEL, "--weights", "pretrained", "--out", "x"], message)


def test_the_holdout_of_the_detector_to_start_from_is_refused(last, arrays, assert_mistake):
    place, _ = last
    given = {name: np.load(arrays / "holdout.npz")[name][:-1] for name in "xy"}
    np.savez(arrays / "used.npz", **given)
    words = [*DATA[:-1], "used.npz", *SHORT, "--weights", place, "--out", "refused"]
    assert_mistake(("fit", *words), "so they promise nothing about a detector that starts from it: give unseen ones")

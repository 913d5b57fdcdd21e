"""Models, weights and data of the command line; of a folder of pictures, every file is used, or named."""

import csv
import io
import json
import os
import shutil
import sys
import tomllib
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import wildood
from wildood.cli.inputs import colours
from wildood.cli.main import main
from wildood.data.images import Images
from wildood.data.validation import all_labels
from wildood.detect.split import split_for_fit
from wildood.errors import as_utf8

COLOURS = {"grass": (30, 160, 40), "sky": (90, 140, 230)}
SPEC = wildood.InputSpec(mean=(0.5,) * 3, std=(0.25,) * 3)
SMALL = ["--batch", "16", "--steps", "2", "--alpha", "0.2"]


def picture(rng, colour):
    height, width = rng.integers(20, 60, 2)
    noise = rng.normal(0, 12, (height, width, 3))
    return Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    place = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for part, count in (("photos", 24), ("held", 12)):
        for name, colour in COLOURS.items():
            (place / part / name).mkdir(parents=True)
            for number in range(count):
                picture(rng, colour).save(place / part / name / f"{number}.{('jpg', 'png')[number % 2]}")
    (place / "inbox" / "monday").mkdir(parents=True)
    for number in range(20):
        picture(rng, [*COLOURS.values(), (200, 30, 30)][number % 3]).save(place / "inbox" / "monday" / f"in {number}.png")
    return place


@pytest.fixture
def place(files, tmp_path, monkeypatch):
    monkeypatch.setenv("WILDOOD_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(files)
    return tmp_path


PICTURES = ["fit", "--labelled", "photos/", "--wild", "inbox/", "--model", "resnet20"]


@pytest.mark.slow
def test_folders_of_mixed_pictures_make_a_detector_that_names_files_and_classes(place, capsys):
    assert main([*PICTURES, "--holdout", "held", *SMALL, "--out", str(place / "d")]) == 0
    said = capsys.readouterr()
    assert "labelled: 48 examples of 2 classes from photos" in said.err
    assert "wild: 20 examples from inbox" in said.err
    assert "holdout: 24 examples of 2 classes from held" in said.err
    record = json.loads((place / "d" / "detector.json").read_text())["record"]
    assert record["classes"] == ["grass", "sky"]
    settings = tomllib.loads((place / "d" / "settings.toml").read_text())
    means = np.mean(list(COLOURS.values()), axis=0) / 255
    assert settings["mean"] == pytest.approx(means, abs=0.02)
    assert main(["score", str(place / "d"), "inbox"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert sorted(row["example"] for row in rows) == sorted(f"monday/in {number}.png" for number in range(20))
    assert {row["class"] for row in rows} <= set(COLOURS)


def test_the_colours_of_many_pixels_are_exact():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6000, 64, 64, 1), dtype=np.uint8)  # more than a float32 can count
    pixels[..., 0] |= 128
    mean, std = colours(Images(pixels))
    assert mean == (round(float(pixels.mean(dtype=np.float64)) / 255, 4),)
    assert std == (round(float(pixels.std(dtype=np.float64)) / 255, 4),)


def test_traffic_that_is_no_number_is_refused(place, capsys):
    wild = np.full((40, 32, 32, 3), np.nan, np.float32)
    np.save(place / "wild.npy", wild)
    np.savez(place / "known.npz", x=np.zeros((60, 32, 32, 3), np.float32), y=np.arange(60) % 2)
    words = ["fit", "--labelled", str(place / "known.npz"), "--model", "resnet20", *SMALL, "--out", str(place / "d")]
    assert main([*words, "--wild", str(place / "wild.npy")]) == 2
    assert "wild: example 0 holds NaN or infinity" in capsys.readouterr().err
    np.save(place / "wild.npy", np.array([["a"], ["b"]]))
    assert main([*words, "--wild", str(place / "wild.npy")]) == 2
    assert "wild has dtype <U1: give float32 numbers or uint8 images" in capsys.readouterr().err


def test_in_python_a_holdout_without_a_class_keeps_the_numbers_of_the_others(place, files):
    labelled = wildood.open_images("photos", size=16)
    (place / "only").mkdir()
    (place / "only" / "sky").symlink_to(files / "held" / "sky")
    holdout = wildood.open_images(place / "only", size=16)
    assert (labelled.classes, holdout.classes) == (("grass", "sky"), ("sky",))
    parts = split_for_fit(
        labelled, wildood.open_images("inbox", size=16), holdout, wildood.Schedule(steps=1, batch=8), 0.2, SPEC, "last", 0
    )
    assert set(all_labels(parts.threshold).tolist()) == {1}
    says_sky = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16 * 3, 2))
    says_sky[1].weight.data.zero_()
    says_sky[1].bias.data = torch.tensor([0.0, 5.0])
    rows, still = [], wildood.Schedule(steps=1, batch=8, lr=1e-9)
    wildood.pretrain(says_sky, labelled, holdout, schedule=still, input=SPEC, verbose=False, on_epoch=rows.append)
    assert rows[-1]["accuracy"] == 1.0


def test_a_size_of_the_users_own(place, capsys):
    words = [*PICTURES[:-1], "smallcnn:channels=3,classes=2,size=16", "--size", "16"]
    assert main([*words, *SMALL, "--out", str(place / "d")]) == 0
    assert json.loads((place / "d" / "detector.json").read_text())["example"]["shape"] == [16, 16, 3]


@pytest.mark.slow
def test_settings_with_measured_colours_can_be_passed_back(place, capsys):
    assert main([*PICTURES, *SMALL, "--out", str(place / "d")]) == 0
    assert main(["fit", "--config", str(place / "d" / "settings.toml"), "--out", str(place / "again")]) == 0
    first, second = (json.loads((place / name / "detector.json").read_text()) for name in ("d", "again"))
    assert first["weights"] == second["weights"]


@pytest.mark.slow
def test_pretrain_reads_folders(place, capsys):
    words = [
        "pretrain",
        "--labelled",
        "photos",
        "--model",
        "resnet20",
        "--set-aside",
        "0.25",
        "--batch",
        "16",
        "--steps",
        "2",
    ]
    assert main([*words, "--out", str(place / "p")]) == 0
    with np.load(place / "p" / "trained_on.npz") as kept, np.load(place / "p" / "set_aside.npz") as aside:
        assert (kept["x"].shape, aside["x"].shape) == ((36, 32, 32, 3), (12, 32, 32, 3))
    fit = ["fit", "--labelled", str(place / "p" / "trained_on.npz"), "--wild", "inbox", "--model", "resnet20:classes=2"]
    weights = ["--weights", str(place / "p" / "weights.safetensors")]
    weights += ["--mean", "0.3", "0.5", "0.5", "--std", "0.2", "0.2", "0.2"]
    assert main([*fit, *weights, *SMALL, "--out", str(place / "d")]) == 0
    assert json.loads((place / "d" / "detector.json").read_text())["record"]["classes"] == ["grass", "sky"]


def test_a_name_that_is_no_text_is_written_as_the_disk_has_it(place, files, capsys):
    assert main([*PICTURES, *SMALL, "--out", str(place / "d")]) == 0
    (place / "odd").mkdir()
    shutil.copy(files / "held" / "sky" / "1.png", os.fsencode(place / "odd") + b"/bad\xff.png")
    assert main(["score", str(place / "d"), str(place / "odd"), "--out", str(place / "answers.csv")]) == 0
    assert b"\nbad\xff.png," in (place / "answers.csv").read_bytes()


def test_weights_of_named_classes_fit_without_saying_how_many(place, capsys):
    words = ["pretrain", "--labelled", "photos", "--model", "resnet20", "--batch", "16", "--steps", "1"]
    assert main([*words, "--out", str(place / "p")]) == 0
    given = ["--weights", str(place / "p" / "weights.safetensors"), "--mean", "0.5", "0.4", "0.3", "--std", "1", "1", "1"]
    assert main([*PICTURES, *given, *SMALL, "--out", str(place / "d")]) == 0
    assert json.loads((place / "d" / "detector.json").read_text())["model"]["settings"]["classes"] == 2


def test_a_broken_picture_stops_with_its_name_and_can_be_left_out(place, files, capsys):
    broken = files / "inbox" / "monday" / "torn.jpg"
    broken.write_bytes((files / "photos" / "sky" / "0.jpg").read_bytes()[:200])
    try:
        assert main([*PICTURES, *SMALL, "--out", str(place / "d")]) == 2
        said = capsys.readouterr().err
        assert "torn.jpg" in said
        assert "--skip-broken" in said
        assert main([*PICTURES, *SMALL, "--skip-broken", "--out", str(place / "d")]) == 0
        said = capsys.readouterr().err
        assert "inbox: 1 left out because they cannot be read:\n  monday/torn.jpg (" in said
        assert "wild: 20 examples from inbox" in said
    finally:
        broken.unlink()


def test_a_folder_without_classes_is_no_labelled_data(place, files, capsys):
    assert (
        main(["fit", "--labelled", "inbox/monday", "--wild", "inbox", "--model", "resnet20", "--out", str(place / "d")]) == 2
    )
    assert "inbox/monday has no labels: put the pictures of each class into a folder of their own" in capsys.readouterr().err


def test_a_holdout_with_some_of_the_classes_keeps_their_numbers(place, files, capsys):
    only = place / "only"
    only.mkdir()
    (only / "sky").symlink_to(files / "held" / "sky")
    assert main([*PICTURES, "--holdout", str(only), "--keep", "last", *SMALL, "--out", str(place / "d")]) == 0
    assert "class grass is in labelled but not in the holdout" in capsys.readouterr().err
    (only / "sea").symlink_to(files / "held" / "grass")
    assert main([*PICTURES, "--holdout", str(only), *SMALL, "--out", str(place / "d2")]) == 2
    assert "has a class 'sea' that photos has not" in capsys.readouterr().err


def test_arrays_and_pictures_go_together(place, capsys):
    rng = np.random.default_rng(1)
    np.savez(place / "known.npz", x=rng.integers(0, 256, (48, 24, 24, 3), dtype=np.uint8), y=rng.integers(0, 2, 48))
    words = [
        "fit",
        "--labelled",
        str(place / "known.npz"),
        "--wild",
        "inbox",
        "--model",
        "smallcnn:channels=3,classes=2,size=24",
    ]
    assert main([*words, *SMALL, "--out", str(place / "d")]) == 0
    assert json.loads((place / "d" / "detector.json").read_text())["example"]["shape"] == [24, 24, 3]


def test_a_named_set_works_and_a_missing_one_says_how_to_get_it(place, capsys):
    words = ["fit", "--labelled", "digits", "--wild", "digits", "--model", "smallcnn", *SMALL]
    assert main([*words, "--out", str(place / "d")]) == 0
    assert "labelled examples are in wild, too" in capsys.readouterr().err
    assert main(["fit", "--labelled", "cifar10:train", "--wild", "inbox", "--model", "resnet20", "--out", "x"]) == 2
    said = capsys.readouterr().err
    assert "wildood data get cifar10" in said
    assert "did you mean" not in said
    assert main(["fit", "--labelled", "cifar11:train", "--wild", "inbox", "--model", "resnet20", "--out", "x"]) == 2
    assert "did you mean the named set cifar10? See wildood data list" in capsys.readouterr().err


ODD_NAMES = {
    "latin-1": b"caf\xe9",
    "not UTF-8": b"\xff\xfe",
    "two lines": b"a\nb",
    "colour": b"\x1b[31mred",
    "markup": b"[red]<b>&amp;",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES)
def test_names_of_any_bytes_go_through_every_command(files, place, name, capsys):
    odd = os.fsdecode(name)
    for part in ("photos", "held"):  # as a folder, as a class and as a file
        for folder, kind in ((odd, "grass"), ("sky", "sky")):
            target = place / f"{odd}-{part}" / folder
            target.mkdir(parents=True)
            for picture_file in (files / part / kind).iterdir():
                (target / f"{odd}{picture_file.name}").symlink_to(picture_file)
    labelled, held = str(place / f"{odd}-photos"), str(place / f"{odd}-held")
    shared = ["--model", "smallcnn:channels=3,width=2", "--size", "8", "--batch", "16", "--steps", "2"]
    assert main(["pretrain", "--labelled", labelled, *shared, "--set-aside", "0.2", "--out", str(place / "p")]) == 0
    fit = ["fit", "--labelled", labelled, "--wild", labelled, "--holdout", held, *shared, "--alpha", "0.2"]
    out = str(place / f"{odd}-out")
    assert main([*fit, "--out", out]) == 0
    assert main(["show", out]) == 0
    assert main(["inspect", out, "--wild", held, "--top", "2"]) in {0, 3}
    assert main(["evaluate", out, "--id", held, "--ood", "inbox", "--resamples", "5"]) == 0
    assert main(["evaluate", out, "--id", "held2", "--ood", held]) == 2
    assert main(["score", out, held, "--out", str(place / "scores.csv")]) == 0
    assert main(["score", out, held, "--format", "jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert len(rows) == 24
    assert {row["example"].split("/")[0] for row in rows} == {odd, "sky"}
    record = json.loads((place / f"{odd}-out" / "detector.json").read_text())["record"]
    assert record["classes"] == [as_utf8(each) for each in sorted([odd, "sky"])]
    for page in (place / f"{odd}-out").rglob("*.html"):
        page.read_text(encoding="utf-8")


def test_arrays_are_scored_as_the_library_does(fitted, cli, arrays, monkeypatch):
    rows = list(csv.DictReader(io.StringIO(cli("score", "d", "new.npy", "--model", "summing:build").out)))
    monkeypatch.syspath_prepend(str(arrays))
    detector = wildood.load(arrays / "d", model=import_module("summing").build)
    x = np.load(arrays / "new.npy")
    assert [float(row["score"]) for row in rows] == pytest.approx(detector.score(x).tolist(), abs=1e-6)
    assert [int(row["class"]) for row in rows] == detector.classify(x).tolist()
    unknown = (detector.predict(x) == wildood.UNKNOWN).tolist()
    assert [row["decision"] == "unknown" for row in rows] == unknown


def test_standard_input_is_scored(fitted, cli, arrays, monkeypatch):
    content = SimpleNamespace(buffer=io.BytesIO((arrays / "new.npy").read_bytes()))
    monkeypatch.setattr(sys, "stdin", content)
    result = cli("score", "d", "-", "--model", "summing:build", "--format", "jsonl", "--out", "s.jsonl")
    assert (result.code, result.out) == (0, "")
    rows = [json.loads(line) for line in (arrays / "s.jsonl").read_text().splitlines()]
    assert [row["example"] for row in rows] == list(range(7))


FIT = ["fit", "--labelled", "labelled.npz", "--wild", "wild.npz", "--out", "x"]
OWN = [*FIT, "--model", "summing:build"]
MISTAKES = {
    "a path as a module": ([*FIT, "--model", "./summing:build"], "give module:function"),
    "no such module": ([*FIT, "--model", "nowhere:build"], "no module named 'nowhere'"),
    "no such function": ([*FIT, "--model", "summing:biuld"], "summing has no 'biuld'"),
    "not a model": ([*FIT, "--model", "summing:nothing"], "it must build a torch.nn.Module"),
    "no such model": ([*FIT, "--model", "resnet"], "give one of wideresnet, resnet20"),
    "no module": ([*FIT, "--model", ":f"], "--model :f: give one of wideresnet, resnet20"),
    "model of arguments": ([*FIT, "--model", "os.path:join"], "missing a required argument: 'a'"),
    "bad settings": ([*FIT, "--model", "mlp:inputs=3"], "give settings as in smallcnn:classes=7"),
    "layer of less than none": ([*FIT, "--model", "mlp:inputs=-64,classes=3"], "inputs is -64: give a whole"),
    "layer beyond memory": ([*FIT, "--model", f"mlp:inputs=4,classes={'9' * 12}"], "from 1 to 1048576"),
    "endless network": ([*FIT, "--model", "wideresnet:depth=99999999994"], "depth is 99999999994: give 6n"),
    "no weights": ([*OWN, "--weights", "none.safetensors"], "none.safetensors: there is no such file"),
    "bad weights": ([*OWN, "--weights", "model.txt"], "cannot be read as safetensors"),
    "weights of another": ([*OWN, "--weights", "w.safetensors"], "do not fit the model"),
    "no such file": ([*OWN, "--labelled", "no.npz"], "--labelled: no.npz: No such file or directory"),
    "not arrays": ([*OWN, "--wild", "summing.py"], "--wild: summing.py is not of a kind that can be opened"),
    "unknown names": ([*OWN, "--labelled", "odd.npz"], "no array named x or images"),
    "a pipe of arrays": ([*OWN, "--wild", "pipe.npy"], "--wild: pipe.npy is a pipe, a socket or a device"),
    "a pipe to score": (
        ["score", "d", "pipe.npy", "--model", "summing:build"],
        "pipe.npy is a pipe, a socket or a device",
    ),
    "model not named": (["score", "d", "new.npy"], "made with a model of your own"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(fitted, assert_mistake, mistake):
    assert_mistake(*MISTAKES[mistake])

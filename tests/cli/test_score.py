"""`wildood score`: lines as soon as they are known, and a file that goes on where it was cut off."""

import io
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import wildood
from wildood.cli.main import main
from wildood.detect import bulk as chunks
from wildood.detect.bulk import Draft
from wildood.models.small import MLP, SmallCNN

KILLED = """
import os, signal, sys
import wildood.detect.bulk as drafts
from wildood.cli.main import main
number, really = 0, drafts.os.fsync
def fsync(file):
    global number
    number += 1
    really(file)
    if number == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
drafts.os.fsync = fsync
main(sys.argv[2:])
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two detectors of vectors and one of pictures, 20,000 vectors and 1,000 pictures."""
    place, rng = tmp_path_factory.mktemp("made"), np.random.default_rng(0)
    torch.manual_seed(0)
    x = rng.normal(size=(20_000, 4)).astype("float32")
    np.save(place / "x.npy", x)
    for name, alpha in (("d", 0.2), ("other", 0.1)):
        wildood.posthoc(MLP(4, 3), wildood.EnergyScore(), holdout=x[:200], alpha=alpha).save(place / name)
    pixels = rng.integers(0, 256, (1000, 8, 8, 3), dtype=np.uint8)
    spec = wildood.InputSpec(mean=(0.5,) * 3, std=(0.25,) * 3)
    model = SmallCNN(channels=3, classes=3, width=4, hidden=8)
    wildood.posthoc(model, wildood.EnergyScore(), holdout=pixels[:200], alpha=0.2, input=spec).save(place / "seeing")
    (place / "inbox").mkdir()
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).save(place / "inbox" / f"{number:04}.png")
    return place


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    for name in ("d", "other", "seeing"):
        shutil.copytree(made / name, tmp_path / name)
    for name in ("x.npy", "inbox"):
        (tmp_path / name).symlink_to(made / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WILDOOD_DATA", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "MOST", 256)


def whole(*words):
    assert main(["score", *words, "--out", "whole"]) == 0
    return Path("whole").read_bytes()


def cut_off(monkeypatch, after, *words, code=130):
    """The command, interrupted before it adds another chunk."""
    with monkeypatch.context() as patch:
        really, added = Draft.add, []

        def add(draft, text, note):
            if len(added) == after:
                raise KeyboardInterrupt
            added.append(text)
            really(draft, text, note)

        patch.setattr(Draft, "add", add)
        assert main(["score", *words]) == code


@pytest.mark.parametrize("moment", [5, 6])  # a note is half done; lines are on the disk but not noted
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(place, moment):
    words = ["score", "d", "x.npy", "--out", "a.csv"]
    expected = whole("d", "x.npy")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(moment), *words], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not Path("a.csv").exists()
    assert 0 < Path("a.csv.part").stat().st_size < len(expected)
    assert expected.startswith(Path("a.csv.part").read_bytes())
    assert main(words) == 0
    assert Path("a.csv").read_bytes() == expected
    assert list(Path().glob("*.part*")) == []


def test_interrupted_it_says_what_is_kept_and_called_again_where_it_goes_on(place, monkeypatch, capsys):
    words = ["d", "x.npy", "--out", "a.csv"]
    expected = whole("d", "x.npy")
    capsys.readouterr()
    cut_off(monkeypatch, 2, *words)
    assert "a.csv.part keeps 8192 lines: called again, it goes on from there\n" in capsys.readouterr().err
    assert main(["score", *words]) == 0
    assert "a.csv.part has 8192 lines already: going on from there\n" in capsys.readouterr().err
    assert Path("a.csv").read_bytes() == expected
    assert main(["score", *words]) == 0  # and anew, in the place of what is whole
    assert "already" not in capsys.readouterr().err


OTHERS = {
    "a detector": ["other", "x.npy"],
    "examples": ["d", "y.npy"],
    "a --format": ["d", "x.npy", "--format", "jsonl"],
}


@pytest.mark.parametrize("what", OTHERS)
def test_draft_of_another_call_is_refused_in_one_line_and_kept(place, monkeypatch, capsys, what):
    np.save("y.npy", np.load("x.npy"))
    cut_off(monkeypatch, 2, "d", "x.npy", "--out", "a.csv")
    kept = Path("a.csv.part").read_bytes()
    capsys.readouterr()
    assert main(["score", *OTHERS[what], "--out", "a.csv"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(
        f"wildood: a.csv.part was begun with {what} other than now: remove a.csv.part and a.csv.part.json"
    )
    assert Path("a.csv.part").read_bytes() == kept


@pytest.mark.parametrize("note", [{"lines": 3}, {"listed": "many"}])
def test_draft_whose_note_is_damaged_is_refused_in_one_line_and_kept(place, monkeypatch, capsys, note):
    cut_off(monkeypatch, 2, "d", "x.npy", "--out", "a.csv")
    kept, about = Path("a.csv.part").read_bytes(), json.loads(Path("a.csv.part.json").read_bytes())
    Path("a.csv.part.json").write_text(json.dumps({**about, "note": note}))
    capsys.readouterr()
    assert main(["score", "d", "x.npy", "--out", "a.csv"]) == 2
    said = (
        "wildood: a.csv.part has a damaged note of how far it came: remove a.csv.part and a.csv.part.json to begin anew, or "
    )
    assert capsys.readouterr().err.splitlines()[-1] == f"{said}give another --out"
    assert Path("a.csv.part").read_bytes() == kept


def test_standard_input_goes_on_if_it_is_the_same_again(place, monkeypatch, capsys):
    expected = whole("d", "x.npy")
    words = ["d", "-", "--out", "a.csv"]

    def typed(array):
        content = io.BytesIO()
        np.save(content, array)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content.getvalue())))

    x = np.load("x.npy")
    typed(x)
    cut_off(monkeypatch, 2, *words)
    typed(np.where(np.arange(20_000)[:, None] == 5000, 0, x))
    assert main(["score", *words]) == 2
    assert "a.csv.part was begun with other examples than - has now" in capsys.readouterr().err
    typed(x)
    assert main(["score", *words]) == 0
    assert Path("a.csv").read_bytes() == expected


def test_standard_output_gets_the_same_lines(place, capsys):
    expected = whole("d", "x.npy")
    capsys.readouterr()
    assert main(["score", "d", "x.npy"]) == 0
    assert capsys.readouterr().out.encode() == expected


def test_pictures_have_the_scores_of_opened_ones_and_leave_no_cache(place, small_chunks):
    lines = whole("seeing", "inbox").decode().splitlines()
    assert not (place / "data").exists()
    images = wildood.open_images("inbox")
    scores = wildood.load("seeing").score(images)
    assert [line.split(",")[:2] for line in lines[1:]] == [
        [name, str(float(score))] for name, score in zip(images.names, scores, strict=True)
    ]


def test_broken_picture_in_the_middle_stops_it_and_repaired_or_skipped_it_goes_on(place, small_chunks, capsys):
    Path("inbox").unlink()
    shutil.copytree(next(place.parent.glob("made*")) / "inbox", "inbox")
    torn, words = Path("inbox/0600.png"), ["score", "seeing", "inbox", "--out", "a.csv"]
    sound = torn.read_bytes()
    torn.write_bytes(sound[:40])
    assert main(words) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "a.csv.part keeps 512 lines: called again, it goes on from there"
    assert said[1].startswith(f"wildood: {place / torn} cannot be read as a picture (")
    assert len(said) == 2
    shutil.copy("a.csv.part", "b.csv.part")
    shutil.copy("a.csv.part.json", "b.csv.part.json")

    assert main([*words[:-1], "b.csv", "--skip-broken"]) == 0
    said = capsys.readouterr().err
    assert "left out, because it cannot be read: 0600.png (" in said
    assert said.endswith("inbox: 1 left out because they cannot be read\nexamples: 999 examples from inbox\n")
    names = [line.split(",")[0] for line in Path("b.csv").read_text().splitlines()[1:]]
    assert names == [f"{number:04}.png" for number in range(1000) if number != 600]

    torn.write_bytes(sound)
    assert main(words) == 0
    assert "a.csv.part has 512 lines already" in capsys.readouterr().err
    assert Path("a.csv").read_bytes() == whole("seeing", "inbox")


def test_draft_that_left_some_out_does_not_go_on_without_being_told_to(place, small_chunks, monkeypatch, capsys):
    Path("inbox").unlink()
    shutil.copytree(next(place.parent.glob("made*")) / "inbox", "inbox")
    Path("inbox/0001.png").write_bytes(b"torn")
    cut_off(monkeypatch, 2, "seeing", "inbox", "--out", "a.csv", "--skip-broken")
    capsys.readouterr()
    assert main(["score", "seeing", "inbox", "--out", "a.csv"]) == 2
    assert capsys.readouterr().err == "wildood: a.csv.part was begun with --skip-broken, and left out 1: give it again\n"


@pytest.mark.parametrize("out", ["-", "a.csv"])
def test_mistake_is_one_line_and_leaves_no_draft(place, capsys, out):
    Path("empty").mkdir()
    np.save("nan.npy", np.full((3, 4), np.nan, np.float32))
    np.save("wide.npy", np.zeros((3, 5), np.float32))
    mistakes = {
        "empty": "holds no pictures",
        "nan.npy": "x: example 0 holds NaN or infinity",
        "wide.npy": "x: an example has shape (5,), expected (4,)",
        "cifar11": "did you mean the named set cifar10?",
    }
    for examples, said in mistakes.items():
        assert main(["score", "d", examples, "--out", out]) == 2
        printed = capsys.readouterr()
        assert said in printed.err.splitlines()[-1]
        assert printed.out == ""
    assert list(Path().glob("a.csv*")) == []

"""`torchrun -m wildood fit`: one detector and one line from several processes; one that is killed ends all of them."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from wildood.cli.main import main
from wildood.data.files import load_state
from wildood.detect.detector import Promise
from wildood.train.history import read_rows

FIT = ["-m", "wildood", "fit", "--labelled", "labelled.npz", "--wild", "wild.npz", "--holdout", "holdout.npz"]
SETTINGS = ["--batch", "32", "--alpha", "0.1", "--epochs", "14", "--model", "own:build"]
TIMES = {"images_per_second", "seconds_left"}


pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path):
    rng = np.random.default_rng(0)

    def known(count):
        y = rng.integers(0, 2, count)
        return (rng.normal(size=(count, 3)) + 3 * y[:, None]).astype("float32"), y

    for name, count in (("labelled", 120), ("holdout", 100), ("wild", 60)):
        x, y = known(count)
        np.savez(tmp_path / f"{name}.npz", x=x, **({} if name == "wild" else {"y": y}))
    shutil.copy(Path(__file__).parents[1] / "programs" / "own.py", tmp_path)
    return tmp_path


def made(place, out):
    """The detector's weights, bit by bit, and its history without times."""
    (weights,) = (place / out).glob("weights-*.safetensors")
    rows = read_rows(place / out / "run" / "history.jsonl")
    return weights.read_bytes(), [{name: row[name] for name in row.keys() - TIMES} for row in rows]


def wait_for_step(checkpoint, step, process):
    deadline = time.monotonic() + 180
    while not (checkpoint.exists() and load_state(checkpoint.read_bytes())["state"]["step"] >= step):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the run wrote no checkpoint"
        time.sleep(0.01)


@pytest.mark.slow
def test_a_fit_on_two_processes_ends_with_one_detector_also_when_one_of_them_was_killed(place, torchrun):
    words = [*FIT, *SETTINGS, "--out"]
    with torchrun(2, *words, "whole", cwd=place) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert output.decode() == f"whole: {Promise(alpha=0.1, examples=50, unseen=True)}\n"
    assert errors.decode().count("epoch 1/14 ") == 1
    assert b"BatchNorm" not in errors  # it normalises by running statistics, which all processes share
    assert (place / "whole" / "report.html").exists()
    assert json.loads((place / "whole" / "detector.json").read_text())["record"]["processes"] == 2

    (place / "slow").touch()
    with torchrun(2, *words, "killed", cwd=place) as process:
        wait_for_step(place / "killed" / "run" / "checkpoint.safetensors", 5, process)
        os.kill(int((place / "pid-1").read_text()), signal.SIGKILL)
        output, errors = process.communicate()
    assert process.returncode != 0
    assert output == b""
    line = (
        "wildood (process 0 of 2): another process of this run ended, or the run was told to end: start it again with the "
        "same command; with a run directory, it goes on from its last checkpoint"
    )
    assert errors.decode().splitlines().count(line) == 1
    assert "wildood/train" not in errors.decode()  # no traceback of ours
    assert not (place / "killed" / "detector.json").exists()

    (place / "slow").unlink()
    with torchrun(2, *words, "killed", cwd=place) as process:
        errors = process.communicate()[1].decode()
    assert process.returncode == 0, errors
    assert errors.count("resuming killed/run at step") == 1
    assert made(place, "killed") == made(place, "whole")


def test_a_command_that_several_processes_cannot_share_is_refused(monkeypatch, capsys):
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert main(["demo"]) == 2
    said = "wildood (process 1 of 2): demo runs in one process: start it without torchrun, which is for fit and pretrain\n"
    assert capsys.readouterr().err == said

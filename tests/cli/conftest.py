"""Small arrays, a model of one's own and a fitted detector, and the command line inside this process."""

import io
import os
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from wildood.cli.main import main
from wildood.models.small import MLP

OWN = """
import torch

def build():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))    # the sum tells the classes apart
    model[0].weight.data = torch.tensor([[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])
    model[0].bias.data = torch.tensor([4.5, -4.5])
    return model

def nothing():
    return 3

def broken():
    raise ZeroDivisionError("a bug")
"""
FIT = [
    "fit",
    "--labelled",
    "labelled.npz",
    "--wild",
    "wild.npz",
    "--holdout",
    "holdout.npz",
    "--batch",
    "32",
    "--alpha",
    "0.1",
]


class Result(NamedTuple):
    """What a command returned and wrote."""

    code: int
    out: str
    err: str


def wildood(place, *words):
    """Run a command in a directory, inside this process."""
    out, err, path = io.StringIO(), io.StringIO(), sys.path[:]
    with chdir(place), redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([*map(str, words)])
        finally:
            sys.path[:] = path
    return Result(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def arrays(tmp_path_factory):
    """A directory with labelled, holdout and wild arrays of two classes, weights, and a model in summing.py."""
    path, rng = tmp_path_factory.mktemp("cli"), np.random.default_rng(0)

    def known(count):
        y = rng.integers(0, 2, count)
        return (rng.normal(size=(count, 3)) + 3 * y[:, None]).astype("float32"), y

    for name, count in (("labelled", 120), ("holdout", 100)):
        x, y = known(count)
        np.savez(path / f"{name}.npz", x=x, y=y)
    np.savez(path / "odd.npz", a=known(60)[0], b=known(60)[1], c=np.arange(3))
    np.savez(path / "wild.npz", x=known(60)[0])
    np.save(path / "new.npy", known(7)[0])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(MLP(3, 2, hidden=(8,)).state_dict(), path / "w.safetensors")
    (path / "summing.py").write_text(OWN)
    (path / "model.txt").write_text("not weights")
    os.mkfifo(path / "pipe.npy")
    return path


@pytest.fixture(scope="session")
def run_in():
    """A function that runs a command in a directory and returns its code, output and errors."""
    return wildood


@pytest.fixture
def cli(arrays):
    """A function that runs a command in the directory of the arrays and returns its code, output and errors."""
    return lambda *words: wildood(arrays, *words)


@pytest.fixture(scope="session")
def fit_words():
    """A fit of the model in summing.py; `--out` is missing."""
    return [*FIT, "--batch", "32", "--alpha", "0.1", "--model", "summing:build", "--steps", "6"]


@pytest.fixture(scope="session")
def fitted(arrays, fit_words):
    """The result of a fit whose detector is in `d`."""
    result = wildood(arrays, *fit_words, "--out", "d")
    assert result.code == 0, result.err
    return result


@pytest.fixture
def assert_mistake(cli):
    """A function that asserts that a command ends with exit code 2 and one line that holds a message."""

    def check(words, message):
        code, out, err = cli(*words)
        *before, last = err.splitlines()
        assert (code, out) == (2, "")
        assert message in last
        assert last.startswith("wildood: ")
        assert all(line.startswith(("labelled: ", "wild: ", "holdout: ")) and " examples " in line for line in before)

    return check

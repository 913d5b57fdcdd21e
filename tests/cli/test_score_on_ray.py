"""The same lines from a Ray cluster, in their order; a killed worker costs its own chunk only."""

import os
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import wildood
from wildood.cli import score_on_ray
from wildood.cli.main import main
from wildood.cli.score_on_ray import Job, answer_on_ray
from wildood.detect import bulk as chunks
from wildood.detect.bulk import Draft
from wildood.errors import InputError
from wildood.models.small import MLP

# A start that Ray gives up leaves unclosed pipes of its own; the next attempt is what counts.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
WORDS = ["score", "d", "x.npy", "--out", "a.csv", "--ray", "local"]


@pytest.fixture
def expected(tmp_path, monkeypatch, one_thread):
    """What a plain call writes for 12 chunks of 256 examples, in the directory where the test is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(chunks, "MOST", 256)
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(3000, 4)).astype("float32")
    np.save("x.npy", x)
    np.savez("x.npz", x=x)
    wildood.posthoc(MLP(4, 3), wildood.EnergyScore(), holdout=x[:200], alpha=0.2).save("d")
    assert main(["score", "d", "x.npy", "--out", "plain.csv"]) == 0
    return Path("plain.csv").read_bytes()


def killed_once(real, notes, at):
    """A worker's work that notes each chunk, and is killed in the middle of one, the first time."""

    def work(chunk, job):
        first = not notes.exists() or f" {at}\n" not in notes.read_text()
        with notes.open("a") as file:
            file.write(f"{os.getpid()} {chunk.first}\n")
        if chunk.first == at and first:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(chunk, job)

    return work


def test_killed_worker_and_killed_caller_change_no_byte(cluster, expected, monkeypatch, capsys):
    work, notes, later = score_on_ray.work, Path("notes.txt").absolute(), Path("later.txt").absolute()
    monkeypatch.setattr(score_on_ray, "work", killed_once(work, notes, at=1024))
    really = Draft.add

    def add(draft, text, note):
        if note["listed"] > 6 * 256:
            raise KeyboardInterrupt
        really(draft, text, note)

    with monkeypatch.context() as patch:
        patch.setattr(Draft, "add", add)
        assert main(WORDS) == 130
    assert Path("a.csv.part").read_bytes() == expected[: Path("a.csv.part").stat().st_size]
    tries = [int(line.split()[1]) for line in notes.read_text().splitlines()]
    assert tries.count(1024) == 2
    assert max(tries) <= (6 + 2 * 2) * 256  # no further ahead than two chunks for each of two CPUs
    # Another file: a task of the first call may still be ending.
    monkeypatch.setattr(score_on_ray, "work", killed_once(work, later, at=-1))
    capsys.readouterr()
    assert main(WORDS) == 0
    assert "a.csv.part has 1536 lines already" in capsys.readouterr().err
    tries = [int(line.split()[1]) for line in later.read_text().splitlines()]
    assert sorted(tries) == list(range(1536, 3000, 256))
    assert Path("a.csv").read_bytes() == expected


def test_rows_that_are_sent_wait_in_no_more_than_half_of_the_room_for_them(monkeypatch):
    under_way, most = [], []

    def send(chunk, _job):
        under_way.append(chunk)
        most.append(sum(each.count for each in under_way))
        return chunk

    def get(chunk):
        under_way.remove(chunk)
        return chunk.count

    task = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=send))
    ray = SimpleNamespace(remote=lambda _: task, cluster_resources=lambda: {"CPU": 8}, get=get)
    monkeypatch.setattr(score_on_ray, "connected", lambda *_, **__: nullcontext(ray))
    monkeypatch.setattr(score_on_ray, "OBJECTS", 1000)  # bytes, of which a row has 8
    rows = [chunks.Rows(np.zeros((count, 1)), first) for first, count in enumerate([20, 20, 30, 100, 10, 10])]
    assert [count for _, count in answer_on_ray(iter(rows), "local", None)] == [20, 20, 30, 100, 10, 10]
    assert most == [20, 40, 50, 100, 10, 20]


def test_workers_look_for_modules_where_the_caller_stands_only_for_a_model_of_the_users(expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    job = replace(Job.of(Path("d"), None, "csv"), found_in="where the caller stands")
    score_on_ray._detector.__wrapped__(job)
    assert job.found_in not in sys.path
    with pytest.raises(InputError):
        score_on_ray._detector.__wrapped__(replace(job, model="no_such_module:build"))
    assert job.found_in in sys.path


def test_arrays_that_workers_cannot_read_by_rows_are_sent_to_them(cluster, expected, capsys):
    assert main(["score", "d", "x.npz", "--ray", "local"]) == 0
    assert capsys.readouterr().out.encode() == expected


def test_what_a_worker_refuses_and_a_worker_that_dies_again_and_again_are_one_line(cluster, expected, monkeypatch, capsys):
    x = np.load("x.npy")
    x[600] = np.nan
    np.save("nan.npy", x)
    assert main(["score", "d", "nan.npy", "--ray", "local"]) == 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        "wildood: x: example 600 holds NaN or infinity: repair or drop such examples"
    ]
    with monkeypatch.context() as patch:
        patch.setattr(score_on_ray, "__version__", "0.0.7")
        assert main(WORDS) == 2
    assert capsys.readouterr().err.rstrip().endswith("this one 0.0.7: install the same on all")
    monkeypatch.setattr(score_on_ray, "MOST_DEATHS", 1)
    monkeypatch.setattr(score_on_ray, "work", lambda _chunk, _job: os.kill(os.getpid(), signal.SIGKILL))
    np.save("few.npy", x[:200])
    assert main(["score", "d", "few.npy", "--out", "a.csv", "--ray", "local"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("wildood: the worker that scored examples 0 to 199 died, and so did those that tried again (")
    assert list(Path().glob("a.csv*")) == []

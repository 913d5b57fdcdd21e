"""Runs on several processes: each is done once, whatever is killed, and ends with the same bits."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from wildood.errors import TrainingError
from wildood.experiments import pool as pools
from wildood.experiments.experiment import Experiment
from wildood.experiments.pool import run_all, work
from wildood.experiments.run import run
from wildood.experiments.store import Failure, Result, RunStore
from wildood.methods.schedule import Schedule

NEEDS_PROC = pytest.mark.skipif(not Path("/proc").exists(), reason="finds processes in /proc")


class Undisturbed(NamedTuple):
    """Runs that nothing disturbs: what was run, what ended, and the store."""

    experiments: list
    ended: list
    store: RunStore


@pytest.fixture(scope="module")
def alone(small, small_root, tmp_path_factory):
    """Two short runs, one that checkpoints for long enough to be interrupted, and one that fails, as it did before."""
    longer = replace(small, schedule=Schedule(steps=150, batch=16), seed=1)
    wrong = replace(small, test=("none.npz",), wild="none.npz")
    experiments = [small, replace(small, method="energy", settings={}, wild=None, pi=0.0), longer, wrong]
    store, ended = RunStore(tmp_path_factory.mktemp("alone")), []
    assert isinstance(run(wrong, store, small_root), Failure)
    assert run_all(experiments, store, small_root, workers=2, on_end=ended.append) == ended
    return Undisturbed(experiments, ended, store)


@pytest.fixture(scope="module")
def several(alone):
    return alone.experiments[:3]


def outcome(store):
    """All that does not depend on the clock."""
    timed = {"images_per_second", "seconds_left"}
    return {
        found.experiment.name: (
            dict(found.tests),
            found.accuracy,
            [{key: value for key, value in row.items() if key not in timed} for row in found.history],
        )
        for found in store.contents().results
    }


def start(runs, root, experiments, place):
    """A pool in a process of its own."""
    files = []
    for experiment in experiments:
        files.append(place / f"{experiment.name}.toml")
        files[-1].write_text(experiment.to_toml())
    script = Path(__file__).with_name("run_all.py")
    return subprocess.Popen([sys.executable, script, runs, root, *files], start_new_session=True)


def until(condition):
    """Wait for something that must come."""
    for _ in range(6000):  # a machine may be busy: five minutes
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it did not come")


def children_of(pid):
    """The worker processes of a runner."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = process.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            is_worker = b"spawn_main" in process.joinpath("cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if int(parent) == pid and is_worker:
            found.append(int(process.name))
    return found


@pytest.mark.slow
def test_runs_are_done_by_workers_and_a_failure_is_tried_again_and_stops_no_other(alone):
    *good, wrong = alone.experiments
    assert {each.experiment.name: type(each) for each in alone.ended} == {
        **{each.name: Result for each in good},
        wrong.name: Failure,
    }
    assert run_all(good, alone.store, None, workers=2, on_end=pytest.fail) == []


@pytest.mark.slow
@NEEDS_PROC
def test_killed_caller_loses_and_doubles_nothing_and_its_workers_stop(several, small_root, tmp_path, alone):
    runs = tmp_path / "runs"
    store, longer = RunStore(runs), several[-1]
    process = start(runs, small_root, several, tmp_path)
    until(lambda: store.is_done(several[0]) and (store.training(longer) / "history.jsonl").exists())
    workers = children_of(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=300)
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    done = {each.name: (store.place(each) / "result.json").stat().st_mtime_ns for each in several if store.is_done(each)}
    assert several[0].name in done
    run_all(several, store, small_root, workers=2, on_end=lambda _: None)
    for name, written in done.items():
        assert (runs / name / "result.json").stat().st_mtime_ns == written
    assert outcome(store) == outcome(alone.store)


@pytest.mark.slow
@NEEDS_PROC
def test_killed_worker_is_replaced_and_its_run_goes_on(several, small_root, tmp_path, alone):
    runs = tmp_path / "runs"
    store, longer = RunStore(runs), several[-1]
    process = start(runs, small_root, several, tmp_path)
    until(lambda: (store.training(longer) / "history.jsonl").exists())
    for worker in children_of(process.pid):
        os.kill(worker, signal.SIGKILL)
    assert process.wait(timeout=300) == 0
    assert outcome(store) == outcome(alone.store)


@pytest.mark.slow
@NEEDS_PROC
def test_ctrl_c_in_a_terminal_saves_what_was_trained(several, small_root, tmp_path):
    runs = tmp_path / "runs"
    store, longer = RunStore(runs), several[-1]
    process = start(runs, small_root, [replace(longer, schedule=Schedule(steps=100_000, batch=16))], tmp_path)
    (only,) = [Experiment.from_toml(file.read_text()) for file in tmp_path.glob("*.toml")]
    history = store.training(only) / "history.jsonl"
    until(lambda: history.exists() and len(history.read_text().splitlines()) > 2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the group
    process.wait(timeout=300)
    assert (store.training(only) / "checkpoint.safetensors").exists()


@pytest.mark.slow
def test_two_pools_on_one_directory_share_the_work_and_repair_a_damaged_run_once(several, small_root, tmp_path, alone):
    runs, small = tmp_path / "runs", several[0]
    store = RunStore(runs)
    store.place(small).mkdir(parents=True)
    for name in ("experiment.toml", "result.json"):
        (store.place(small) / name).write_text("torn")
    places = [tmp_path / name for name in ("first", "second")]
    for place in places:
        place.mkdir()
    processes = [start(runs, small_root, several, place) for place in places]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    assert outcome(store) == outcome(alone.store)
    assert not list(runs.glob("*/training"))
    assert sorted(file.name for file in store.place(small).glob("*damaged*")) == [
        "experiment.toml.damaged",
        "result.json.damaged",
    ]


@pytest.mark.slow
def test_workers_that_keep_dying_are_told_instead_of_started_for_ever(small, small_root, tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "work", len)  # which takes no such arguments
    with pytest.raises(TrainingError, match=r"keep dying \(exit code 1, see above\) with 1 runs left"):
        run_all([small], RunStore(tmp_path), small_root, workers=2, on_end=lambda _: None)


def test_a_worker_without_its_parent_stops_at_the_next_epoch(small, small_root, tmp_path):
    ours, theirs = multiprocessing.Pipe()
    ours.send(small)
    with pytest.raises(SystemExit):
        work(theirs, tmp_path, small_root, parent=-1, threads=1)
    assert not RunStore(tmp_path).is_done(small)


def test_a_worker_ends_when_its_parent_closes_the_connection(tmp_path):
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    assert work(theirs, tmp_path, None, parent=os.getppid(), threads=1) is None

"""Runs on several processes, with and without Ray: each is done once, whatever is killed, and ends with the same bits."""

import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from wildood.cli.main import main
from wildood.errors import InputError, TrainingError
from wildood.experiments import pool as pools
from wildood.experiments.experiment import Experiment
from wildood.experiments.grids import GRIDS, Grid
from wildood.experiments.pool import connected, run_all, run_on_ray, work
from wildood.experiments.run import run
from wildood.experiments.store import Failure, Result, RunStore
from wildood.methods.schedule import Schedule

# A start that Ray gives up leaves unclosed pipes of its own; the next attempt is what counts.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
NEEDS_PROC = pytest.mark.skipif(not Path("/proc").exists(), reason="finds processes in /proc")
TIMES = {"images_per_second", "seconds_left"}


class Undisturbed(NamedTuple):
    """Runs that nothing disturbs: what was run, what ended, and the store."""

    experiments: list
    ended: list
    store: RunStore


@pytest.fixture(scope="module")
def alone(small, small_root, tmp_path_factory):
    """Two short runs, one that checkpoints for long enough to be interrupted, and one that fails, as it did before."""
    longer = replace(small, schedule=Schedule(steps=300, batch=16), seed=1)
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
    return {
        found.experiment.name: (
            dict(found.tests),
            found.accuracy,
            [{key: value for key, value in row.items() if key not in TIMES} for row in found.history],
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
    history = store.training(longer) / "history.jsonl"  # removed when the run ends, which a busy machine may see first
    until(lambda: store.is_done(several[0]) and (history.exists() or store.is_done(longer)))
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


@pytest.mark.slow
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


class NoneFound:
    """In the place of Ray's cached look at the processes."""

    def __call__(self):
        return set()

    def cache_clear(self):
        """Nothing was cached."""


def refusal(address="local", cpus=1, gpus=0.0):
    with pytest.raises(InputError) as refused, connected(address, cpus, gpus):
        pytest.fail("connected")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_without_ray_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refusal() == "runs on Ray need the package ray: pip install 'wildood[ray]'"


def test_address_at_which_nobody_listens_is_refused():
    with socket.socket() as taken:  # a port that is bound, but not listened at, refuses
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert refusal(address).startswith(f"nobody answers at {address} (")


@pytest.mark.slow
def test_no_cluster_to_find_and_an_address_that_is_none_are_refused(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", os.fspath(tmp_path))
    # Ray also looks for clusters among the processes, where it would find that of a test which runs beside this one.
    monkeypatch.setattr("ray._private.services._cached_find_gcs_addresses", NoneFound())
    for address in ("auto", "nonsense"):
        assert refusal(address).startswith(f"Ray cannot be used at {address} (")
        assert refusal(address).endswith("): give a cluster's address, or local")


@pytest.mark.parametrize(
    ("cpus", "gpus", "said"),
    [
        (0, 0.0, "a run has 0 CPUs: give at least 1"),
        (1, -1.0, "a run has -1 GPUs: give a share of one, such as 0.5, or a whole number"),
        (1, 1.5, "a run has 1.5 GPUs: give a share of one, such as 0.5, or a whole number"),
    ],
)
def test_share_that_no_run_can_have_is_refused(cpus, gpus, said):
    assert refusal("local", cpus, gpus) == said


# From here on, tests use the cluster of the module; those above connect by themselves.


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "runs")


def bits(store, experiment):
    """The result and scores of a run, bit by bit, without its times."""
    result = store.result(experiment)
    history = [{key: value for key, value in row.items() if key not in TIMES} for row in result.history]
    scores = {name: values.tobytes() for name, values in store.scores(experiment).items()}
    return replace(result, history=history, seconds=0.0, about=result.about["split"]), scores


def by_name(ended):
    return {each.experiment.name: each for each in ended}


def train_with(train, callback, *arguments, callbacks, **settings):
    return train(*arguments, callbacks=[*callbacks, callback], **settings)


def killed_once(real, name, at_step):
    """A worker's work that saves after every step, notes each, and is killed in the middle of one run, the first time."""

    def work(experiment, task):
        from wildood import Callback  # noqa: PLC0415 - of the worker, where this is run
        from wildood.detect import fit as module  # noqa: PLC0415
        from wildood.train import checkpoint  # noqa: PLC0415

        notes = task.runs / f"{experiment.name}.txt"
        first = not notes.exists()

        class Note(Callback):
            def on_step_end(self, training):
                with notes.open("a") as file:
                    file.write(f"{os.getpid()} {training.steps}\n")
                if first and experiment.name == name and training.steps == at_step:
                    os.kill(os.getpid(), signal.SIGKILL)

        train, seconds = module.train, checkpoint.SECONDS
        module.train, checkpoint.SECONDS = partial(train_with, train, Note()), 0.0
        try:
            return real(experiment, task)
        finally:
            module.train, checkpoint.SECONDS = train, seconds

    return work


@pytest.mark.slow
def test_runs_on_ray_end_with_the_bits_of_plain_runs(cluster, one_thread, store, tmp_path, small_root, small, monkeypatch):
    trained, scored = small, replace(small, method="energy", settings={}, wild=None, pi=0.0)
    plain = RunStore(tmp_path / "plain")
    for experiment in (trained, scored):
        assert isinstance(run(experiment, plain, small_root), Result)
    monkeypatch.chdir(tmp_path)  # paths that are not absolute mean the same to workers as here
    shutil.copytree(small_root, "data")
    on_end = []
    ended = run_on_ray([trained, scored, trained], RunStore(Path("runs")), "data", "local", on_end.append)
    assert on_end == ended
    assert sorted(each.experiment.name for each in ended) == sorted([trained.name, scored.name])
    assert {type(each) for each in ended} == {Result}
    for experiment in (trained, scored):
        assert bits(store, experiment) == bits(plain, experiment)
    assert run_on_ray([trained, scored], store, small_root, "local", on_end.append) == []
    assert sorted(each.name for each in store.root.iterdir() if each.is_file()) == []


@pytest.mark.slow
def test_killed_worker_reruns_only_its_run_from_its_checkpoint_to_the_same_bits(
    cluster, one_thread, store, tmp_path, small_root, small, monkeypatch
):
    other, plain = replace(small, seed=1), RunStore(tmp_path / "plain")
    for experiment in (small, other):
        assert isinstance(run(experiment, plain, small_root), Result)
    monkeypatch.setattr(pools, "ray_task", killed_once(pools.ray_task, small.name, at_step=4))
    ended = run_on_ray([small, other], store, small_root, "local", lambda _: None)
    assert sorted(type(each).__name__ for each in ended) == ["Result", "Result"]

    notes, undisturbed = ((store.root / f"{each.name}.txt").read_text().split() for each in (small, other))
    assert notes[1::2] == ["1", "2", "3", "4", "4", "5", "6"]  # killed in step 4, before it was saved
    assert len(set(notes[:8:2])) == len(set(notes[8::2])) == 1
    assert notes[0] != notes[8]
    assert undisturbed[1::2] == ["1", "2", "3", "4", "5", "6"]
    assert len(set(undisturbed[::2])) == 1
    for experiment in (small, other):
        assert bits(store, experiment) == bits(plain, experiment)


@pytest.mark.slow
def test_run_that_fails_and_run_whose_workers_die_are_recorded_and_the_rest_goes_on(
    cluster, store, small_root, small, monkeypatch
):
    fails, dies = replace(small, test=("missing.npz",)), replace(small, seed=1)
    real, name = pools.ray_task, dies.name

    def work(experiment, task):
        if experiment.name == name:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(experiment, task)

    monkeypatch.setattr(pools, "ray_task", work)
    monkeypatch.setattr(pools, "MOST_DEATHS", 1)
    plan, on_end = [fails, dies, small], []
    ended = by_name(run_on_ray(plan, store, small_root, "local", on_end.append))
    assert by_name(on_end) == ended
    assert isinstance(ended[small.name], Result)
    assert ended[fails.name].error.startswith(f"{small_root / 'missing.npz'} is not there")
    assert ended[dies.name].error.startswith("the worker died, and so did those that tried again (WorkerCrashedError)")
    assert store.is_done(small)
    assert by_name(store.contents().failures) == {each.name: ended[each.name] for each in (fails, dies)}

    monkeypatch.setattr(pools, "ray_task", real)  # called again, what failed is tried again
    again = by_name(run_on_ray(plan, store, small_root, "local", on_end.append))
    assert {name: type(each) for name, each in again.items()} == {dies.name: Result, fails.name: Failure}


@pytest.mark.slow
def test_run_that_another_process_has_claimed_is_waited_for(cluster, store, small_root, small):
    claimed, free = small, replace(small, seed=1)
    with ExitStack() as elsewhere:
        assert elsewhere.enter_context(store.claimed(claimed))
        order = []

        def on_end(ended):
            order.append(ended.experiment)
            elsewhere.close()

        run_on_ray([claimed, free], store, small_root, "local", on_end)
    assert order == [free, claimed]


@pytest.mark.slow
def test_worker_with_another_wildood_or_another_directory_stops_all_in_one_line(
    cluster, store, small_root, small, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(pools, "__version__", "0.0.7")
        with pytest.raises(InputError, match=r"has wildood \S+, this one 0\.0\.7: install the same on all$"):
            run_on_ray([small], store, small_root, "local", print)
    monkeypatch.setattr(pools, "NamedTemporaryFile", lambda **_: ExitStackWithName(store.root / "seen-here-only"))
    with pytest.raises(InputError, match=r"runs is another directory on the Ray node .*: give --runs where all nodes see"):
        run_on_ray([small], store, small_root, "local", print)
    assert not any(store.contents())


class ExitStackWithName(ExitStack):
    def __init__(self, name):
        super().__init__()
        self.name = name


@pytest.mark.slow
def test_command_runs_its_plan_on_ray(cluster, tmp_path, small_root, small, monkeypatch, capfd):
    monkeypatch.setitem(GRIDS, "two", Grid("two seeds", 2, "honest", lambda _, seed: [replace(small, seed=seed)]))
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "two", "--data-root", str(small_root), "--quiet", "--ray", "local", "--cpus", "1"]) == 0
    printed = capfd.readouterr()
    assert "2 runs, 0 done" in printed.out
    assert printed.out.endswith("wildood report runs: tables, figures and a page of them\n")
    assert printed.err == ""
    assert sorted(each.experiment.seed for each in RunStore(tmp_path / "runs").contents().results) == [0, 1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cpus", "2"], "--cpus is for runs on Ray: give --ray local or --ray ADDRESS, too"),
        (["--gpus", "0.5"], "--gpus is for runs on Ray: give --ray local or --ray ADDRESS, too"),
        (["--ray", "local", "--workers", "2"], "--workers is for runs without Ray: with --ray, --cpus and --gpus of a run"),
    ],
)
def test_command_refuses_options_of_the_other_way_to_run(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "digits", *words]) == 2
    assert capsys.readouterr().err.startswith(f"wildood: {said}")

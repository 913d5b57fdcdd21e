"""The same plan on Ray: the same bits, a killed worker costs its own run only, and what fails is recorded."""

import os
import shutil
import signal
import socket
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from wildood.cli.main import main
from wildood.errors import InputError
from wildood.experiments import ray_pool as on_ray
from wildood.experiments.grids import GRIDS, Grid
from wildood.experiments.ray_pool import connected, run_on_ray
from wildood.experiments.run import run
from wildood.experiments.store import Failure, Result, RunStore

# A start that Ray gives up leaves unclosed pipes of its own; the next attempt is what counts.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
TIMES = {"images_per_second", "seconds_left"}


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


def found(store, experiment):
    """All that a run found, bit by bit, without its times."""
    result = store.result(experiment)
    history = [{key: value for key, value in row.items() if key not in TIMES} for row in result.history]
    scores = {name: values.tobytes() for name, values in store.scores(experiment).items()}
    return replace(result, history=history, seconds=0.0, about=result.about["split"]), scores


def by_name(ended):
    return {each.experiment.name: each for each in ended}


def train_with(train, callback, **settings):
    return train(**settings | {"callbacks": [*settings["callbacks"], callback]})


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
        assert found(store, experiment) == found(plain, experiment)
    assert run_on_ray([trained, scored], store, small_root, "local", on_end.append) == []
    assert sorted(each.name for each in store.root.iterdir() if each.is_file()) == []


@pytest.mark.slow
def test_killed_worker_reruns_only_its_run_from_its_checkpoint_to_the_same_bits(
    cluster, one_thread, store, tmp_path, small_root, small, monkeypatch
):
    other, plain = replace(small, seed=1), RunStore(tmp_path / "plain")
    for experiment in (small, other):
        assert isinstance(run(experiment, plain, small_root), Result)
    monkeypatch.setattr(on_ray, "work", killed_once(on_ray.work, small.name, at_step=4))
    ended = run_on_ray([small, other], store, small_root, "local", lambda _: None)
    assert sorted(type(each).__name__ for each in ended) == ["Result", "Result"]

    notes, undisturbed = ((store.root / f"{each.name}.txt").read_text().split() for each in (small, other))
    assert notes[1::2] == ["1", "2", "3", "4", "4", "5", "6"]  # killed in step 4, before it was saved
    assert len(set(notes[:8:2])) == len(set(notes[8::2])) == 1
    assert notes[0] != notes[8]
    assert undisturbed[1::2] == ["1", "2", "3", "4", "5", "6"]
    assert len(set(undisturbed[::2])) == 1
    for experiment in (small, other):
        assert found(store, experiment) == found(plain, experiment)


@pytest.mark.slow
def test_run_that_fails_and_run_whose_workers_die_are_recorded_and_the_rest_goes_on(
    cluster, store, small_root, small, monkeypatch
):
    fails, dies = replace(small, test=("missing.npz",)), replace(small, seed=1)
    real, name = on_ray.work, dies.name

    def work(experiment, task):
        if experiment.name == name:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(experiment, task)

    monkeypatch.setattr(on_ray, "work", work)
    monkeypatch.setattr(on_ray, "MOST_DEATHS", 1)
    plan, on_end = [fails, dies, small], []
    ended = by_name(run_on_ray(plan, store, small_root, "local", on_end.append))
    assert by_name(on_end) == ended
    assert isinstance(ended[small.name], Result)
    assert ended[fails.name].error.startswith(f"{small_root / 'missing.npz'} is not there")
    assert ended[dies.name].error.startswith("the worker died, and so did those that tried again (WorkerCrashedError)")
    assert store.is_done(small)
    assert by_name(store.contents().failures) == {each.name: ended[each.name] for each in (fails, dies)}

    monkeypatch.setattr(on_ray, "work", real)  # called again, what failed is tried again
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
        patch.setattr(on_ray, "__version__", "0.0.7")
        with pytest.raises(InputError, match=r"has wildood \S+, this one 0\.0\.7: install the same on all$"):
            run_on_ray([small], store, small_root, "local", print)
    monkeypatch.setattr(on_ray, "NamedTemporaryFile", lambda **_: ExitStackWithName(store.root / "seen-here-only"))
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

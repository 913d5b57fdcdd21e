"""A pool of processes that perform experiments, on one machine."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from wildood.errors import TrainingError
from wildood.experiments.experiment import Experiment
from wildood.experiments.own_methods import register
from wildood.experiments.results import Failure, Result
from wildood.experiments.run import MOST_DEATHS, run
from wildood.experiments.store import RunStore
from wildood.train.history import Row


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Torch uses so many threads inside the block.

    >>> with using_threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Told = Callable[[Result | Failure], None]
POLL = 0.2  # seconds


def run_all(
    experiments: Sequence[Experiment],
    store: RunStore,
    root: str | Path | None,
    workers: int,
    told: Told,
    own: Sequence[str] = (),
) -> list[Result | Failure]:
    """Do those runs that are not done, each in one of several processes; `told` hears of each as it ends.

    `own` are methods of the user's own that the experiments name (see `register`).

    Other callers may work in the same directory: a run is done by one of them. A worker that is killed loses nothing but
    the steps since its last checkpoint, and another one takes its place. If the caller is killed, its workers stop.
    """
    store.mend(experiments)
    waiting = {experiment.name: experiment for experiment in experiments if not store.is_done(experiment)}
    if not waiting:
        return []
    store.check_locks()
    for experiment in waiting.values():
        store.forget_failure(experiment)
    todo = list(waiting.values())
    threads = max(1, processors() // workers)
    context = multiprocessing.get_context("spawn")

    def worker() -> BaseProcess:
        arguments = (todo, store.root, root, os.getpid(), threads, own)
        process = context.Process(target=work, args=arguments, daemon=True)
        process.start()
        return process

    ended: list[Result | Failure] = []
    deaths = 0
    processes = [worker() for _ in range(min(workers, len(waiting)))]
    try:
        while waiting:
            time.sleep(POLL)
            for name, experiment in list(waiting.items()):
                found = store.result(experiment) if store.is_done(experiment) else store.failure(experiment)
                if found is not None:
                    deaths = 0
                    ended.append(found)
                    told(found)
                    del waiting[name]
            for number, process in enumerate(processes):
                if waiting and not process.is_alive():
                    deaths += bool(process.exitcode)
                    if deaths > (1 + MOST_DEATHS) * workers:  # more than a run that kills its process can explain
                        raise TrainingError(_keeps_dying(process.exitcode or 0, len(waiting)))
                    processes[number] = worker()
        for process in processes:
            process.join()
    finally:
        _stop(processes)
    return ended


def work(
    experiments: Sequence[Experiment],
    runs: Path,
    root: str | Path | None,
    parent: int,
    threads: int,
    own: Sequence[str] = (),
) -> None:
    """What a worker does: run after run, until every one is done or has failed, here or elsewhere."""
    register(own)
    os.setpgrp()  # Ctrl-C in a terminal is the parent's, who passes it on: a second one would interrupt the saving
    torch.set_num_threads(threads)
    store, left = RunStore(runs), list(experiments)

    def stop_if_orphaned(_: Row | None = None) -> None:
        if os.getppid() != parent:  # killed: nobody waits for this any more
            raise SystemExit(1)

    try:
        while left:
            ended = [each for each in left if _ends(each, store, root, stop_if_orphaned)]
            left = [each for each in left if each not in ended]
            stop_if_orphaned()
            if left and not ended:
                time.sleep(POLL)  # other processes are at what is left; one of them may be killed
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None  # what was trained is saved; the parent tells the user
    except OSError as error:  # of the directory of runs, such as a full disk
        raise SystemExit(f"wildood: {error.filename or runs}: {error.strerror}") from None


def processors() -> int:
    """How many processors this process may use.

    >>> processors() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ends(experiment: Experiment, store: RunStore, root: str | Path | None, look: Callable[[Row | None], None]) -> bool:
    """Do a run if nobody else is at it; whether it has ended, here or elsewhere."""
    look(None)
    if run(experiment, store, root, look) is not None:
        return True
    return store.is_done(experiment) or store.failure(experiment) is not None


def _stop(processes: Sequence[BaseProcess]) -> None:
    """Ask workers to save and stop, as Ctrl-C does, and wait for them."""
    for process in processes:
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGINT)
    for process in processes:
        process.join(timeout=30)
        if process.is_alive():
            process.kill()


def _keeps_dying(code: int, left: int) -> str:
    how = f"killed by signal {-code}: lack of memory?" if code < 0 else f"exit code {code}, see above"
    return f"the worker processes keep dying ({how}) with {left} runs left"

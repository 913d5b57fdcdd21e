"""Experiments on several processes: the loop that all pools share, and the pool of one machine."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from wildood.errors import TrainingError
from wildood.experiments.experiment import Experiment
from wildood.experiments.own_methods import register
from wildood.experiments.run import MOST_DEATHS, run
from wildood.experiments.store import Failure, Result, RunStore
from wildood.train.history import Row

OnEnd = Callable[[Result | Failure], None]
Finished = tuple[Experiment, Result | Failure | None]  # None: another process is at it
RETRY = 1.0  # seconds after which runs that other processes are at are tried again
STOP_SECONDS = 30  # that workers have to save their run after Ctrl-C


class Pool(Protocol):
    """Workers that do runs."""

    def submit(self, experiments: Sequence[Experiment]) -> None:
        """Let the workers do these runs, in this order."""

    def finished(self, timeout: float) -> list[Finished]:
        """The runs that have ended since the last call; waits for the first of them, at most so many seconds."""

    def stop(self) -> None:
        """Ask the workers to save and stop, as Ctrl-C does, and wait for them."""


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


def processors() -> int:
    """How many processors this process may use.

    >>> processors() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(
    experiments: Sequence[Experiment],
    store: RunStore,
    root: str | Path | None,
    workers: int,
    on_end: OnEnd,
    own: Sequence[str] = (),
) -> list[Result | Failure]:
    """Do those runs that are not done, several at a time; `on_end` is called with each result or failure.

    `own` are methods of the user's own that the experiments name (see `register`).

    Other callers may work in the same directory: a run is done by one of them. A worker that is killed is replaced, and
    its run resumes from its last checkpoint. If the caller is killed, its workers stop.
    """
    waiting = store.pending(experiments)
    if not waiting:
        return []
    pool = LocalPool(store.root, root, min(workers, len(waiting)), processors() // workers, own)
    return run_on_pool(waiting, store, pool, on_end)


def run_on_pool(waiting: dict[str, Experiment], store: RunStore, pool: Pool, on_end: OnEnd) -> list[Result | Failure]:
    """Do these runs on a pool; those that other processes are at are tried again, since one of these may be killed."""
    ended: list[Result | Failure] = []
    elsewhere: list[Experiment] = []
    try:
        pool.submit(list(waiting.values()))
        while waiting:
            finished = pool.finished(RETRY)
            for experiment, found in finished:
                outcome = found or store.outcome(experiment)
                if outcome is None:
                    elsewhere.append(experiment)
                    continue
                del waiting[experiment.name]
                ended.append(outcome)
                on_end(outcome)
            if not any(outcome is None for _, outcome in finished):
                pool.submit(elsewhere)
                elsewhere = []
    finally:
        pool.stop()
    return ended


class _Worker(NamedTuple):
    process: BaseProcess
    connection: Connection


class LocalPool:
    """Processes on this machine, each of which does one run at a time."""

    def __init__(self, runs: Path, root: str | Path | None, workers: int, threads: int, own: Sequence[str] = ()) -> None:
        self._arguments = (runs, root, os.getpid(), max(1, threads), tuple(own))
        self._queue: deque[Experiment] = deque()
        self._running: dict[int, Experiment] = {}  # by worker
        self._deaths = 0  # of processes since a run has ended
        self._workers = [self._start() for _ in range(workers)]

    def submit(self, experiments: Sequence[Experiment]) -> None:
        """Queue these runs."""
        self._queue.extend(experiments)
        self._assign()

    def finished(self, timeout: float) -> list[Finished]:
        """The runs that have ended; a worker that died is replaced, and its run is queued again."""
        connections = [each.connection for each in self._workers]
        ready = wait(connections, timeout)
        found: list[Finished] = []
        for number, worker in enumerate(self._workers):
            if worker.connection not in ready:
                continue
            try:
                outcome = worker.connection.recv()
            except (EOFError, OSError):
                self._replace(number)
                continue
            self._deaths = 0 if outcome is not None else self._deaths
            found.append((self._running.pop(number), outcome))
        self._assign()
        return found

    def stop(self) -> None:
        """Interrupt busy workers, which save their run, and end idle ones."""
        for number, (process, connection) in enumerate(self._workers):
            connection.close()
            if number in self._running and process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGINT)
        for process, _ in self._workers:
            process.join(timeout=STOP_SECONDS)
            if process.is_alive():
                process.kill()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, *self._arguments), daemon=True)
        process.start()
        theirs.close()  # so that the death of the process ends the connection
        return _Worker(process, ours)

    def _replace(self, number: int) -> None:
        process, connection = self._workers[number]
        process.join()
        connection.close()
        if number in self._running:
            self._queue.appendleft(self._running.pop(number))
        self._deaths += 1
        if self._deaths > (1 + MOST_DEATHS) * len(self._workers):  # more than a run that kills its process can explain
            code, left = process.exitcode or 0, len(self._queue) + len(self._running)
            how = f"killed by signal {-code}: lack of memory?" if code < 0 else f"exit code {code}, see above"
            raise TrainingError(f"the worker processes keep dying ({how}) with {left} runs left")
        self._workers[number] = self._start()

    def _assign(self) -> None:
        """Send a queued run to each idle worker."""
        for number, worker in enumerate(self._workers):
            if self._queue and number not in self._running:
                self._running[number] = self._queue.popleft()
                try:
                    worker.connection.send(self._running[number])
                except OSError:
                    self._replace(number)


def work(
    connection: Connection, runs: Path, root: str | Path | None, parent: int, threads: int, own: Sequence[str] = ()
) -> None:
    """The loop of a worker: it does the runs that it is sent, until its parent closes the connection or dies."""
    register(own)
    os.setpgrp()  # Ctrl-C in a terminal reaches the parent only, which passes it on once
    torch.set_num_threads(threads)
    store = RunStore(runs)

    def stop_if_orphaned(_: Row) -> None:
        if os.getppid() != parent:
            raise SystemExit(1)

    try:
        while True:
            connection.send(run(connection.recv(), store, root, stop_if_orphaned))
    except (EOFError, BrokenPipeError):  # the parent has closed the connection, or was killed
        return
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None  # what was trained is saved
    except OSError as error:  # of the run directory, such as a full disk
        raise SystemExit(f"wildood: {error.filename or runs}: {error.strerror}") from None

"""Experiments on several processes: the loop that all pools share, the pool of one machine, and that of a Ray cluster."""

import logging
import multiprocessing
import os
import platform
import re
import secrets
import signal
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import ModuleType
from typing import Any, NamedTuple

import torch

from wildood import __version__
from wildood.data.files import data_root
from wildood.errors import InputError, TrainingError
from wildood.experiments.experiment import Experiment
from wildood.experiments.grids import register
from wildood.experiments.run import MOST_DEATHS, code_version, run
from wildood.experiments.store import Failure, Result, RunOutcome, RunStore
from wildood.train.history import Row
from wildood.train.progress import logger

OnEnd = Callable[[RunOutcome], None]
Finished = tuple[Experiment, RunOutcome | None]  # None: another process is at it
RETRY = 1.0  # seconds after which runs that other processes are at are tried again
STOP_SECONDS = 30  # that workers have to save their run after Ctrl-C
LOCAL = "local"  # the address of a Ray cluster on this machine that ends with its caller
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "^"}  # the latter: messages of Ray's to the terminal
OBJECTS = 100_000_000  # bytes of memory for what tasks are sent and return: results are small, rows to score are not
ATTEMPTS = 3  # to start a cluster on this machine
CONNECT_SECONDS = 10  # to find out whether somebody listens at an address
LONGEST_PATH = 30  # characters of a directory below which Ray can make its sockets


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Torch uses so many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(
    experiments: Sequence[Experiment],
    store: RunStore,
    root: str | Path | None,
    workers: int,
    on_end: OnEnd,
    own: Sequence[str] = (),
) -> list[RunOutcome]:
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


def run_on_pool(
    waiting: dict[str, Experiment], store: RunStore, pool: "LocalPool | RayPool", on_end: OnEnd
) -> list[RunOutcome]:
    """Do these runs on a pool; those that other processes are at are tried again, since one of these may be killed."""
    ended: list[RunOutcome] = []
    elsewhere: list[Experiment] = []
    try:
        pool.submit(list(waiting.values()))
        while waiting:
            finished = pool.finished(RETRY)
            for experiment, result in finished:
                outcome = result or store.outcome(experiment)
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
        """Wait at most so many seconds for runs that end; a worker that died is replaced, and its run is queued again."""
        ready = wait([each.connection for each in self._workers], timeout)
        ended: list[Finished] = []
        for number, worker in enumerate(self._workers):
            if worker.connection not in ready:
                continue
            try:
                outcome = worker.connection.recv()
            except (EOFError, OSError):
                self._replace(number)
                continue
            self._deaths = 0 if outcome is not None else self._deaths
            ended.append((self._running.pop(number), outcome))
        self._assign()
        return ended

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


@dataclass(frozen=True)
class _Task:
    """What a worker must know besides its experiment; paths are absolute, since workers have another directory.

    A worker that does not find `marker`, a file in the run directory, sees another directory.
    """

    runs: Path
    root: Path
    marker: Path
    version: str
    cpus: int
    gpus: float
    own: tuple[str, ...]


def run_on_ray(
    experiments: Sequence[Experiment],
    store: RunStore,
    root: str | Path | None,
    address: str,
    on_end: OnEnd,
    cpus: int = 1,
    gpus: float = 0.0,
    own: Sequence[str] = (),
) -> list[RunOutcome]:
    """Do those runs that are not done on a Ray cluster; `on_end` is called with each result or failure.

    The run directory and the data must be the same on all nodes. The run of a worker that is killed resumes from its last
    checkpoint. Other callers may work in the same directory, with Ray or without.

    `address` is that of the cluster, or "local" for one on this machine that ends with this call. A run has `cpus` CPUs and
    as many threads of torch, and `gpus` GPUs or a share of one; without any, it sees none. The modules of `own` methods must
    be on every node.
    """
    waiting = store.pending(experiments)
    if not waiting:
        return []
    with NamedTemporaryFile(dir=store.root, prefix="ray-") as marker, connected(address, cpus, gpus) as ray:
        paths = store.root.absolute(), data_root(root).absolute(), Path(marker.name).absolute()
        task = _Task(*paths, version=__version__, cpus=cpus, gpus=gpus, own=tuple(own))
        return run_on_pool(waiting, store, RayPool(ray, store, task), on_end)


class RayPool:
    """Each run is one Ray task; Ray decides how many go on at once."""

    def __init__(self, ray: ModuleType, store: RunStore, task: _Task) -> None:
        self._ray, self._store, self._task = ray, store, task
        options = {"name": "wildood run", "num_cpus": task.cpus, "num_gpus": task.gpus, "max_retries": MOST_DEATHS}
        self._remote = ray.remote(ray_task).options(**options)
        self._running: dict[Any, Experiment] = {}

    def submit(self, experiments: Sequence[Experiment]) -> None:
        """Start a task for each run."""
        self._running |= {self._remote.remote(each, self._task): each for each in experiments}

    def finished(self, timeout: float) -> list[Finished]:
        """Wait at most so many seconds for tasks that end."""
        if not self._running:
            time.sleep(timeout)
            return []
        ready = self._ray.wait(list(self._running), timeout=timeout)[0]
        return [(self._running[each], self._outcome(each, self._running.pop(each))) for each in ready]

    def stop(self) -> None:
        """Cancel the tasks that have not ended, which save their runs."""
        for reference in self._running:
            self._ray.cancel(reference)
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=STOP_SECONDS)

    def _outcome(self, reference: Any, experiment: Experiment) -> RunOutcome | None:
        """The outcome of a task; None if another process is at its run."""
        try:
            outcome: RunOutcome | None = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(str(error.cause)) from None  # about this cluster: every run would fail alike
            reason = f"{type(error.cause).__name__}: {' '.join(str(error.cause).split())}"
            return self._add_failure(experiment, reason, error)
        except self._ray.exceptions.RayError as error:
            reason = (
                f"the worker died, and so did those that tried again ({type(error).__name__}), perhaps for lack of memory: "
                "with more --cpus, fewer runs share a machine"
            )
            return self._add_failure(experiment, reason, error)
        code = (outcome.about or {}).get("code") if isinstance(outcome, Result) else None
        if code is not None and code != code_version():
            logger.warning("the run %s was made by other code of wildood (%s) than is here", experiment.name, code)
        return outcome

    def _add_failure(self, experiment: Experiment, reason: str, error: Exception) -> Failure | None:
        failure = Failure(experiment, reason, re.sub(r"\x1b\[[\d;]*m", "", str(error)))  # without colours
        with self._store.claimed(experiment) as mine:
            if mine:
                self._store.add_failure(failure)
            return failure if mine else None


def ray_task(experiment: Experiment, task: _Task) -> RunOutcome | None:
    """One run on a worker; None if another process is at it, or has done it."""
    if __version__ != task.version:
        raise InputError(
            f"the Ray node {platform.node()} has wildood {__version__}, this one {task.version}: install the same on all"
        )
    if not task.marker.exists():
        raise InputError(
            f"{task.runs} is another directory on the Ray node {platform.node()}: give --runs where all nodes see the same"
        )
    if not task.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray would let the run see all GPUs
    register(task.own)
    torch.set_num_threads(task.cpus)
    return run(experiment, RunStore(task.runs), task.root)


@contextmanager
def connected(address: str, cpus: int, gpus: float) -> Iterator[ModuleType]:
    """Ray, connected to a cluster with room for runs of so many CPUs and GPUs.

    Where the caller is connected already, that connection is used, and stays.
    """
    if cpus < 1:
        raise InputError(f"a run has {cpus} CPUs: give at least 1")
    if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
        raise InputError(f"a run has {gpus:g} GPUs: give a share of one, such as 0.5, or a whole number")
    ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    with ExitStack() as after:
        if address == LOCAL:
            quiet |= _local_settings(after)
        else:
            _check_reachable(address)
        after.callback(ray.shutdown)
        _connect(ray, address, quiet)
        _check_room(ray, address, cpus, gpus)
        yield ray


def _connect(ray: ModuleType, address: str, settings: dict[str, Any]) -> None:
    """Ray gives a cluster on this machine half a minute to start; on a busy machine, the first attempt may fail."""
    for left in reversed(range(ATTEMPTS if address == LOCAL else 1)):
        try:
            ray.init(address=address, **settings)
        except Exception as error:  # Ray raises bare ones, too
            ray.shutdown()
            if left > 0:
                continue
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            advice = "try again, or without Ray" if address == LOCAL else "give a cluster's address, or local"
            raise InputError(f"Ray cannot be used at {address} ({reason}): {advice}") from error
        return


def _ray() -> ModuleType:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)  # before the import, which reads them
    try:
        import ray  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise InputError("runs on Ray need the package ray: pip install 'wildood[ray]'") from error
    return ray


def _local_settings(after: ExitStack) -> dict[str, Any]:
    """Of a cluster on this machine: all its files in a directory that goes with it, and nobody else's work.

    Ray listens to the network even here, and since 2.60 requires a token, which it would otherwise write to the user's home.
    """
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    usual = tempfile.gettempdir()
    directory = usual if len(usual) <= LONGEST_PATH else "/tmp"  # noqa: S108 - only for a new directory in it
    place = tempfile.TemporaryDirectory(prefix="ray-", dir=directory, ignore_cleanup_errors=True)
    settings = {"num_cpus": processors(), "include_dashboard": False, "object_store_memory": OBJECTS}
    return settings | {"_temp_dir": after.enter_context(place)}


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes, loudly."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"nobody answers at {address} ({error}): give a Ray cluster's address, or local") from error


def _check_room(ray: ModuleType, address: str, cpus: int, gpus: float) -> None:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        return
    wanted = f"{cpus} CPUs and {gpus:g} GPUs"
    if address == LOCAL:
        raise InputError(f"a run is to have {wanted}, which this machine has not: give fewer with --cpus and --gpus")
    logger.warning("no node of the Ray cluster has %s: waiting for one that has", wanted)

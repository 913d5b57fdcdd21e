"""Experiments on a Ray cluster: the connection, and a pool of Ray tasks."""

import logging
import os
import platform
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import ModuleType
from typing import Any

import torch

from wildood import __version__
from wildood.data.files import data_root
from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.own_methods import register
from wildood.experiments.pool import STOP_SECONDS, Finished, OnEnd, processors, run_on_pool
from wildood.experiments.run import MOST_DEATHS, code_version, run
from wildood.experiments.store import Failure, Result, RunStore
from wildood.train.progress import logger

LOCAL = "local"
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "^"}  # the latter: messages of Ray's to the terminal
OBJECTS = 100_000_000  # bytes of memory for what tasks are sent and return: results are small, rows to score are not
ATTEMPTS = 3  # to start a cluster on this machine
SECONDS = 10  # to find out whether somebody listens at an address
LONGEST = 30  # letters of a directory below which Ray can make its sockets


@contextmanager
def connected(address: str, cpus: int, gpus: float) -> Iterator[ModuleType]:
    """Ray, connected to a cluster with room for runs of so many CPUs and GPUs.

    Where the caller is connected already, that connection is used, and stays.

    >>> with connected("local", cpus=0, gpus=0.0):
    ...     pass
    Traceback (most recent call last):
    wildood.errors.InputError: a run has 0 CPUs: give at least 1
    """
    _check_share(cpus, gpus)
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

    Ray listens to the network even here, and since 2.60 obeys only those who know a secret: given one, it keeps none in the
    user's home.
    """
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    usual = tempfile.gettempdir()
    directory = usual if len(usual) <= LONGEST else "/tmp"  # noqa: S108 - only for a new directory in it
    place = tempfile.TemporaryDirectory(prefix="ray-", dir=directory, ignore_cleanup_errors=True)
    return {
        "num_cpus": processors(),
        "include_dashboard": False,
        "object_store_memory": OBJECTS,
        "_temp_dir": after.enter_context(place),
    }


def _check_share(cpus: int, gpus: float) -> None:
    if cpus < 1:
        raise InputError(f"a run has {cpus} CPUs: give at least 1")
    if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
        raise InputError(f"a run has {gpus:g} GPUs: give a share of one, such as 0.5, or a whole number")


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes, loudly."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), SECONDS).close()
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


@dataclass(frozen=True)
class _Task:
    """What a worker must know besides its experiment; paths are absolute, since workers have another directory.

    Attributes:
        runs: the run directory.
        root: the data root.
        marker: a file in the run directory; a worker that does not find it sees another directory.
        version: of wildood.
        cpus: of a run.
        gpus: of a run.
        own: methods of the user's own.
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
) -> list[Result | Failure]:
    """Do those runs that are not done on a Ray cluster; `on_end` is called with each result or failure.

    The run directory and the data must be the same on all nodes. The run of a worker that is killed resumes from its last
    checkpoint. Other callers may work in the same directory, with Ray or without.

    Args:
        experiments: what to run.
        store: where the runs are kept.
        root: of the data.
        address: of the cluster, or "local" for one on this machine that ends with this call; where the caller is connected
            to Ray already, that connection is used, and stays.
        on_end: called with the result or failure of each run.
        cpus: how many CPUs a run has, and threads of torch.
        gpus: how many GPUs a run has, or which share of one; a run without any sees none.
        own: methods of the user's own that the experiments name; a module of that name must be on every node.

    >>> run_on_ray([], RunStore(Path("runs")), None, "local", print)
    []
    """
    waiting = store.pending(experiments)
    if not waiting:
        return []
    with _marker(store.root) as marker, connected(address, cpus, gpus) as ray:
        paths = store.root.absolute(), data_root(root).absolute(), marker
        task = _Task(*paths, version=__version__, cpus=cpus, gpus=gpus, own=tuple(own))
        return run_on_pool(waiting, store, RayPool(ray, store, task), on_end)


class RayPool:
    """Each run is one Ray task; Ray decides how many go on at once."""

    def __init__(self, ray: ModuleType, store: RunStore, task: _Task) -> None:
        self._ray, self._store, self._task = ray, store, task
        options = {"name": "wildood run", "num_cpus": task.cpus, "num_gpus": task.gpus, "max_retries": MOST_DEATHS}
        self._remote = ray.remote(work).options(**options)
        self._running: dict[Any, Experiment] = {}

    def submit(self, experiments: Sequence[Experiment]) -> None:
        """Start a task for each run."""
        self._running |= {self._remote.remote(each, self._task): each for each in experiments}

    def finished(self, timeout: float) -> list[Finished]:
        """The runs whose tasks have ended."""
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

    def _outcome(self, reference: Any, experiment: Experiment) -> Result | Failure | None:
        """The outcome of a task; None if another process is at its run."""
        try:
            outcome: Result | Failure | None = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(str(error.cause)) from None  # about this cluster: every run would fail alike
            reason = f"{type(error.cause).__name__}: {' '.join(str(error.cause).split())}"
            return self._add_failure(Failure(experiment, reason, _without_colours(str(error))))
        except self._ray.exceptions.RayError as error:
            reason = (
                f"the worker died, and so did those that tried again ({type(error).__name__}), perhaps for lack of memory: "
                "with more --cpus, fewer runs share a machine"
            )
            return self._add_failure(Failure(experiment, reason, _without_colours(str(error))))
        code = (outcome.about or {}).get("code") if isinstance(outcome, Result) else None
        if code is not None and code != code_version():
            logger.warning("the run %s was made by other code of wildood (%s) than is here", experiment.name, code)
        return outcome

    def _add_failure(self, failure: Failure) -> Failure | None:
        with self._store.claimed(failure.experiment) as mine:
            if not mine:
                return None
            self._store.add_failure(failure)
        return failure


def work(experiment: Experiment, task: _Task) -> Result | Failure | None:
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
def _marker(runs: Path) -> Iterator[Path]:
    """A temporary file in the run directory, by which a worker recognises it."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
        file = NamedTemporaryFile(dir=runs, prefix="ray-")  # noqa: SIM115 - closed below; only this may fail
    except OSError as error:
        raise InputError(f"{runs} cannot be written to ({error.strerror}): give another --runs") from error
    with file:
        yield Path(file.name).absolute()


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)

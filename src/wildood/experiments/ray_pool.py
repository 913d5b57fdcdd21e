"""Experiments on a Ray cluster."""

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
from wildood.experiments.pool import POLL, Told, processors
from wildood.experiments.results import Failure, Result
from wildood.experiments.run import MOST_DEATHS, code_version, run
from wildood.experiments.store import RunStore
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
    _refuse_share(cpus, gpus)
    ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    with ExitStack() as after:
        if address == LOCAL:
            quiet |= _settings_here(after)
        else:
            _refuse_silence(address)
        after.callback(ray.shutdown)
        _connect(ray, address, quiet, attempts=ATTEMPTS if address == LOCAL else 1)
        _look_for_room(ray, address, cpus, gpus)
        yield ray


def _connect(ray: ModuleType, address: str, settings: dict[str, Any], attempts: int) -> None:
    """Ray gives a cluster on this machine half a minute to start, which a busy one may not manage the first time."""
    try:
        ray.init(address=address, **settings)
    except Exception as error:  # Ray raises bare ones, too
        ray.shutdown()
        if attempts > 1:
            _connect(ray, address, settings, attempts - 1)
            return
        said = str(error).strip().partition("\n")[0].rstrip(".")
        otherwise = "try again, or without Ray" if address == LOCAL else "give a cluster's address, or local"
        raise InputError(f"Ray cannot be used at {address} ({said}): {otherwise}") from error


def _ray() -> ModuleType:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)  # before the import, which reads them
    try:
        import ray  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise InputError("runs on Ray need the package ray: pip install 'wildood[ray]'") from error
    return ray


def _settings_here(after: ExitStack) -> dict[str, Any]:
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


def _refuse_share(cpus: int, gpus: float) -> None:
    if cpus < 1:
        raise InputError(f"a run has {cpus} CPUs: give at least 1")
    if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
        raise InputError(f"a run has {gpus:g} GPUs: give a share of one, such as 0.5, or a whole number")


def _refuse_silence(address: str) -> None:
    """Ray itself would try for minutes, loudly."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"nobody answers at {address} ({error}): give a Ray cluster's address, or local") from error


def _look_for_room(ray: ModuleType, address: str, cpus: int, gpus: float) -> None:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        return
    wanted = f"{cpus} CPUs and {gpus:g} GPUs"
    if address == LOCAL:
        raise InputError(f"a run is to have {wanted}, which this machine has not: give fewer with --cpus and --gpus")
    logger.warning("no node of the Ray cluster has %s: waiting for one that has", wanted)


TO_STOP = 30  # seconds that workers have to save their run after Ctrl-C


@dataclass(frozen=True)
class _Places:
    """What a worker must know besides its experiment; every path is absolute, for workers stand elsewhere."""

    runs: Path
    root: Path
    mark: Path
    version: str
    cpus: int
    gpus: float
    own: tuple[str, ...]


def run_on_ray(
    experiments: Sequence[Experiment],
    store: RunStore,
    root: str | Path | None,
    address: str,
    told: Told,
    cpus: int = 1,
    gpus: float = 0.0,
    own: Sequence[str] = (),
) -> list[Result | Failure]:
    """Do those runs that are not done on a Ray cluster; `told` hears of each as it ends.

    The directory of runs and the data must be the same on all nodes. A worker that is killed loses nothing but the steps
    since its run's last checkpoint. Other callers may work in the same directory, with Ray or without.

    Args:
        experiments: what to run.
        store: where the runs are kept.
        root: of the data.
        address: of the cluster, or "local" for one on this machine that ends with this call; where the caller is connected
            to Ray already, that connection is used, and stays.
        told: called with what each run found, or why it failed.
        cpus: how many CPUs a run has, and threads of torch.
        gpus: how many GPUs a run has, or which share of one; a run without any sees none.
        own: methods of the user's own that the experiments name; a module of that name must be on every node.

    >>> run_on_ray([], RunStore(Path("runs")), None, "local", print)
    []
    """
    store.mend(experiments)
    waiting = {experiment.name: experiment for experiment in experiments if not store.is_done(experiment)}
    if not waiting:
        return []
    store.check_locks()
    for experiment in waiting.values():
        store.forget_failure(experiment)
    with _marked(store.root) as mark, connected(address, cpus, gpus) as ray:
        places = _Places(
            runs=store.root.absolute(),
            root=data_root(root).absolute(),
            mark=mark,
            version=__version__,
            cpus=cpus,
            gpus=gpus,
            own=tuple(own),
        )
        task = ray.remote(work).options(name="wildood run", num_cpus=cpus, num_gpus=gpus, max_retries=MOST_DEATHS)
        running = {task.remote(experiment, places): experiment for experiment in waiting.values()}
        elsewhere: list[Experiment] = []
        ended: list[Result | Failure] = []
        try:
            while running or elsewhere:
                ready = _ready(ray, list(running))
                for reference in ready:
                    experiment = running.pop(reference)
                    found = _outcome(ray, reference, experiment, store)
                    if found is None:
                        elsewhere.append(experiment)
                    else:
                        _warn_of_other_code(found)
                        ended.append(found)
                        told(found)
                if not ready:  # other processes are at those; one of them may have been killed
                    running |= {task.remote(experiment, places): experiment for experiment in elsewhere}
                    elsewhere = []
        except BaseException:
            _stop(ray, list(running))
            raise
    return ended


def work(experiment: Experiment, places: _Places) -> Result | Failure | None:
    """What a worker does: one run; None if another process is at it, or has done it."""
    if __version__ != places.version:
        raise InputError(
            f"the Ray node {platform.node()} has wildood {__version__}, this one {places.version}: install the same on all"
        )
    if not places.mark.exists():
        raise InputError(
            f"{places.runs} is another directory on the Ray node {platform.node()}: give --runs where all nodes see the same"
        )
    if not places.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves it as it is; they are for those who asked
    register(places.own)
    torch.set_num_threads(places.cpus)
    return run(experiment, RunStore(places.runs), places.root)


@contextmanager
def _marked(runs: Path) -> Iterator[Path]:
    """A file in the directory of runs, while they go on, by which a worker knows that it sees the same directory."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
        file = NamedTemporaryFile(dir=runs, prefix="ray-")  # noqa: SIM115 - below; only this may fail as said here
    except OSError as error:
        raise InputError(f"{runs} cannot be written to ({error.strerror}): give another --runs") from error
    with file:
        yield Path(file.name).absolute()


def _ready(ray: ModuleType, references: list[Any]) -> list[Any]:
    """Those of the tasks that have ended; waits a moment if there is none."""
    if not references:
        time.sleep(POLL)
        return []
    ready: list[Any] = ray.wait(references, timeout=POLL)[0]
    return ready


def _outcome(ray: ModuleType, reference: Any, experiment: Experiment, store: RunStore) -> Result | Failure | None:
    """What a task found; None if its run has not ended, because another process is at it."""
    try:
        found: Result | Failure | None = ray.get(reference)
        if found is None and store.is_done(experiment):
            return store.result(experiment)
        return found or store.failure(experiment)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, InputError):
            raise InputError(str(error.cause)) from None  # of this cluster: each run would say the same
        said = f"{type(error.cause).__name__}: {' '.join(str(error.cause).split())}"
        failure = Failure(experiment, said, _plain(str(error)))
    except ray.exceptions.RayError as error:
        said = (
            f"the worker died, and so did those that tried again ({type(error).__name__}), perhaps for lack of memory: "
            "with more --cpus, fewer runs share a machine"
        )
        failure = Failure(experiment, said, _plain(str(error)))
    with store.claimed(experiment) as mine:
        if not mine:
            return None
        store.add_failure(failure)
    return failure


def _plain(text: str) -> str:
    """Without the colours of a terminal."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def _warn_of_other_code(found: Result | Failure) -> None:
    code = (found.about or {}).get("code") if isinstance(found, Result) else None
    if code is not None and code != code_version():
        logger.warning("the run %s was made by other code of wildood (%s) than is here", found.experiment.name, code)


def _stop(ray: ModuleType, references: Sequence[Any]) -> None:
    """Ask workers to save and stop, as Ctrl-C does, and wait for them."""
    for reference in references:
        ray.cancel(reference)
    if references:
        ray.wait(list(references), num_returns=len(references), timeout=TO_STOP)

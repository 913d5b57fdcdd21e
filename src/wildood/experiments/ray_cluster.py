"""A quiet connection to a Ray cluster, or to one on this machine that lives as long as it is used."""

import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from wildood.errors import InputError
from wildood.experiments.runner import processors
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

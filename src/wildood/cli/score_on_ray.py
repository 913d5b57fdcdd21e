"""An archive scored on a Ray cluster: a task for each chunk, which Ray starts again if its worker dies; lines in order."""

import os
import platform
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from wildood import __version__
from wildood.cli.inputs import read_model
from wildood.detect.bulk import Chunk, Format, Lines, Rows, lines_of
from wildood.detect.detector import Detector
from wildood.detect.storage import load, read_description
from wildood.errors import DetectorFileError, InputError, WildoodError
from wildood.experiments.ray_pool import OBJECTS, connected
from wildood.experiments.run import MOST_DEATHS

AHEAD = 2  # chunks for each CPU of the cluster that wait for a worker or for their turn to be written


@dataclass(frozen=True)
class Job:
    """What a worker must know besides its chunk; every path is absolute, for workers stand elsewhere.

    Attributes:
        detector: the directory of the detector.
        digest: of its description, by which a worker knows that it sees the same.
        model: module:function, for a model of the user's own,
        found_in: which is looked for here.
        form: of the lines.
        version: of wildood.
    """

    detector: Path
    digest: str
    model: str | None
    found_in: str
    form: Format
    version: str

    @classmethod
    def of(cls, detector: Path, model: str | None, form: Format) -> "Job":
        """What workers of this call must know."""
        return cls(detector.absolute(), read_description(detector)["digest"], model, os.getcwd(), form, __version__)  # noqa: PTH109


def answer_on_ray(chunks: Iterator[Chunk], address: str, job: Job) -> Iterator[tuple[Chunk, Lines]]:
    """The lines of chunks, in their order, made by the workers of a cluster; few are under way at a time."""
    with connected(address, cpus=1, gpus=0.0) as ray:
        task = ray.remote(work).options(name="wildood score", num_cpus=1, max_retries=MOST_DEATHS)
        most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        waiting: deque[tuple[Chunk, Any]] = deque()
        try:
            for chunk in chunks:
                while waiting and (len(waiting) == most or _sent(chunk, *(each for each, _ in waiting)) > OBJECTS // 2):
                    yield _ended(ray, *waiting.popleft())
                waiting.append((chunk, task.remote(chunk, job)))
            while waiting:
                yield _ended(ray, *waiting.popleft())
        finally:
            for _, reference in waiting:
                ray.cancel(reference)


def _sent(*chunks: Chunk) -> int:
    """The bytes of rows that travel with chunks; other workers read theirs from the disk."""
    return sum(chunk.examples.nbytes for chunk in chunks if isinstance(chunk, Rows))


def work(chunk: Chunk, job: Job) -> Lines:
    """What a worker does: one chunk, with the detector that it has loaded once."""
    if __version__ != job.version:
        raise InputError(
            f"the Ray node {platform.node()} has wildood {__version__}, this one {job.version}: install the same on all"
        )
    if chunk.place is not None and not chunk.place.exists():
        raise InputError(
            f"{chunk.place} is not on the Ray node {platform.node()}: put examples where all nodes see the same"
        )
    return lines_of(_detector(job), chunk, job.form)


@lru_cache(maxsize=1)
def _detector(job: Job) -> Detector:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves it as it is; nobody asked for one
    torch.set_num_threads(1)
    try:
        same = read_description(job.detector)["digest"] == job.digest
    except DetectorFileError:
        same = False
    if not same:
        raise InputError(
            f"{job.detector} is another detector on the Ray node {platform.node()}: put it where all nodes see the same"
        )
    if job.model is None:
        return load(job.detector)
    sys.path.insert(0, job.found_in)
    return load(job.detector, model=read_model(job.model))


def _ended(ray: ModuleType, chunk: Chunk, reference: Any) -> tuple[Chunk, Lines]:
    try:
        lines: Lines = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, WildoodError):
            raise type(error.cause)(str(error.cause)) from None
        raise
    except ray.exceptions.RayError as error:
        raise InputError(
            f"the worker that scored examples {chunk.first} to {chunk.first + chunk.count - 1} died, and so did those that "
            f"tried again ({type(error).__name__}), perhaps for lack of memory: try again, or without --ray"
        ) from error
    return chunk, lines

"""`wildood score`: a detector and an archive of examples in, one line for each example out; here, or on a Ray cluster."""

import os
import platform
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple

import torch
import tyro

from wildood import __version__
from wildood.cli.inputs import open_unlabelled, read_detector, read_model
from wildood.cli.options import DATA_ROOT, DEVICE, named, parse
from wildood.data.archives import Archive, Shard
from wildood.detect.bulk import Format, ShardDirectory, ShardScores, score_archive, score_shard, shard_directory
from wildood.detect.detector import Detector
from wildood.detect.storage import load, read_description
from wildood.errors import DetectorFileError, InputError, WildoodError
from wildood.experiments.pool import OBJECTS, connected, processors
from wildood.experiments.run import MOST_DEATHS
from wildood.train.progress import logger, verbose_logging

AHEAD = 2  # shards for each CPU of the cluster that wait for a worker or for their turn to be written


@dataclass(frozen=True)
class ScoreOptions:
    """Score examples with a saved detector: one line for each, in their order.

    Attributes:
        detector: the directory that fit wrote.
        examples: a directory of pictures, a .csv or .jsonl file of paths, FILE.npz or FILE.npy (FILE.npz:name for one of
            several arrays), - for standard input, a named set, or a table if the detector was made from one.
        model: module:function that builds a model of your own. For security, loading a detector never imports code.
        format: csv with a header, or jsonl with one object in each line.
        out: a file to write to, or - for standard output; an interrupted call leaves FILE.part, and continues from it.
        skip_broken: leave out pictures that cannot be read, instead of stopping.
        ray: let a Ray cluster score them: its address, or local for one on this machine.
    """

    detector: Annotated[Path, tyro.conf.Positional, named("DETECTOR")]
    examples: Annotated[str, tyro.conf.Positional, named("EXAMPLES")]
    model: Annotated[str | None, named("MODULE:FUNCTION")] = None
    device: Annotated[str | None, named("NAME", help=DEVICE)] = None
    format: Format = "csv"
    out: Annotated[str, named("FILE")] = "-"
    skip_broken: bool = False
    ray: Annotated[str | None, named("ADDRESS")] = None
    data_root: Annotated[Path | None, named("DIRECTORY", help=DATA_ROOT)] = None


def run(words: Sequence[str]) -> None:
    """Write example (its file, or its number), score, decision (known or unknown) and the classifier's class for each."""
    options = parse(ScoreOptions, "score", words)
    out = Path(options.out)
    if options.out != "-" and ((out.exists() and not out.is_file()) or not out.parent.is_dir()):
        what = "is a directory or a device" if out.exists() else "is in a directory that does not exist"
        raise InputError(f"--out {options.out} {what}: give a file, or - for standard output")
    if options.ray is not None and options.device is not None:
        raise InputError("--device is for scoring on this machine: with --ray, each task has a CPU; leave it out")
    detector = read_detector(options)

    def scorer(shards: Iterator[Shard]) -> Iterator[tuple[Shard, ShardScores]]:
        if options.ray is not None:
            yield from score_on_ray(shards, options.ray, Job.of(options.detector, options.model, options.format))
        else:
            for shard in shards:
                yield shard, score_shard(detector, shard, options.format, processors())

    with verbose_logging(verbose=True), open_unlabelled(options.examples, "examples", options, detector) as archive:
        if archive.count is not None:
            logger.info("examples: %d examples from %s", archive.count, archive.where)
        with _directory(options, archive) as directory:
            totals = score_archive(archive, scorer, directory)
        if archive.count is None:
            logger.info("examples: %d examples from %s", totals.lines, archive.where)


def _directory(options: ScoreOptions, archive: Archive) -> AbstractContextManager[ShardDirectory | None]:
    if options.out == "-":
        return nullcontext()
    provenance = {
        "a detector": read_description(options.detector)["digest"],
        "a --model": options.model or "",
        "examples": archive.identity,
        "a --format": options.format,
        "a version of wildood": __version__,
    }
    return shard_directory(Path(options.out), provenance, skip_broken=options.skip_broken)


class Job(NamedTuple):
    """What a Ray worker must know besides its shard. Paths are absolute: workers have another working directory."""

    detector: Path
    digest: str  # of the detector's description: a worker that finds another one has another detector
    model: str | None  # module:function, for a model of the user's own
    import_path: str  # the directory in which that module is looked for
    form: Format
    version: str  # of wildood

    @classmethod
    def of(cls, detector: Path, model: str | None, form: Format) -> "Job":
        """The job of this call."""
        return cls(detector.absolute(), read_description(detector)["digest"], model, str(Path.cwd()), form, __version__)


def score_on_ray(shards: Iterator[Shard], address: str, job: Job) -> Iterator[tuple[Shard, ShardScores]]:
    """Score shards on a Ray cluster: a task for each, which Ray starts again if its worker dies; results in order."""
    with connected(address, cpus=1, gpus=0.0) as ray:
        task = ray.remote(score_task).options(name="wildood score", num_cpus=1, max_retries=MOST_DEATHS)
        most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        waiting: deque[tuple[Shard, Any]] = deque()
        try:
            for shard in shards:
                while waiting and (
                    len(waiting) == most or shard.nbytes + sum(each.nbytes for each, _ in waiting) > OBJECTS // 2
                ):
                    yield _result(ray, *waiting.popleft())
                waiting.append((shard, task.remote(shard, job)))
            while waiting:
                yield _result(ray, *waiting.popleft())
        finally:
            for _, reference in waiting:
                ray.cancel(reference)


def score_task(shard: Shard, job: Job) -> ShardScores:
    """Score one shard in a Ray worker, which loads the detector once."""
    if __version__ != job.version:
        raise InputError(
            f"the Ray node {platform.node()} has wildood {__version__}, this one {job.version}: install the same on all"
        )
    if shard.path is not None and not shard.path.exists():
        raise InputError(f"{shard.path} is not on the Ray node {platform.node()}: put examples where all nodes see the same")
    return score_shard(_load_detector(job), shard, job.form)


@lru_cache(maxsize=1)
def _load_detector(job: Job) -> Detector:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray does not hide GPUs from a task that has asked for none
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
    sys.path.insert(0, job.import_path)
    return load(job.detector, model=read_model(job.model))


def _result(ray: ModuleType, shard: Shard, reference: Any) -> tuple[Shard, ShardScores]:
    try:
        scores: ShardScores = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, WildoodError):
            raise type(error.cause)(str(error.cause)) from None
        raise
    except ray.exceptions.RayError as error:
        raise InputError(
            f"the worker that scored examples {shard.first} to {shard.first + shard.count - 1} died, and so did those that "
            f"tried again ({type(error).__name__}), perhaps for lack of memory: try again, or without --ray"
        ) from error
    return shard, scores

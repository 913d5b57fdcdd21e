"""`wildood score`: a detector and an archive of examples in, one line for each example out."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from wildood import __version__
from wildood.cli.inputs import archive_like, read_model
from wildood.cli.options import DATA_ROOT, named, parse
from wildood.cli.score_on_ray import Job, answer_on_ray
from wildood.detect.bulk import Archive, Chunk, Format, Lines, Output, Progress, draft_of, lines_of, write_lines
from wildood.detect.storage import load, read_description
from wildood.errors import InputError
from wildood.experiments.pool import processors
from wildood.train.progress import logger, progress_bar, verbose_logging


@dataclass(frozen=True)
class ScoreOptions:
    """Score examples with a saved detector: one line for each, in their order, as soon as it is known.

    Attributes:
        detector: the directory that fit wrote.
        examples: a directory of pictures, a .csv or .jsonl file of paths, FILE.npz or FILE.npy (FILE.npz:name for one of
            several arrays), - for standard input, or a named set.
        model: module:function, for a detector of a model of your own: no code is imported because a file says so.
        format: csv with a header, or jsonl with one object in each line.
        out: a file to write to, or - for standard output; a call that was cut off leaves FILE.part, and goes on from it.
        skip_broken: leave out pictures that cannot be read, instead of stopping.
        ray: let a Ray cluster score them: its address, or local for one on this machine.
    """

    detector: Annotated[Path, tyro.conf.Positional, named("DETECTOR")]
    examples: Annotated[str, tyro.conf.Positional, named("EXAMPLES")]
    model: Annotated[str | None, named("MODULE:FUNCTION")] = None
    format: Format = "csv"
    out: Annotated[str, named("FILE")] = "-"
    skip_broken: bool = False
    ray: Annotated[str | None, named("ADDRESS")] = None
    data_root: Annotated[Path | None, named("DIRECTORY", help=DATA_ROOT)] = None


class _StandardOutput:
    """Lines for whoever reads them; nothing can go on from there."""

    def __init__(self) -> None:
        self.note: dict[str, Any] = {}

    def add(self, text: str, note: Mapping[str, Any]) -> None:  # noqa: ARG002 - nobody asks for it again
        sys.stdout.write(text)
        sys.stdout.flush()

    def refuse(self, why: str) -> InputError:
        return InputError(f"standard output {why}: give --out FILE")


def run(words: Sequence[str]) -> None:
    """Write example (its file, or its number), score, decision (known or unknown) and the classifier's class for each."""
    options = parse(ScoreOptions, "score", words)
    if options.out != "-" and (Path(options.out).is_dir() or not Path(options.out).parent.is_dir()):
        what = "is a directory" if Path(options.out).is_dir() else "is in a directory that does not exist"
        raise InputError(f"--out {options.out} {what}: give a file, or - for standard output")
    detector = load(options.detector, model=None if options.model is None else read_model(options.model))

    def answer(chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, Lines]]:
        if options.ray is not None:
            yield from answer_on_ray(chunks, options.ray, Job.of(options.detector, options.model, options.format))
        else:
            for chunk in chunks:
                yield chunk, lines_of(detector, chunk, options.format, processors())

    with verbose_logging(verbose=True), archive_like(detector, options.examples, "examples", options) as archive:
        if archive.count is not None:
            logger.info("examples: %d examples from %s", archive.count, archive.where)
        with _output(options, archive) as output:
            done = Progress.of(output)
            with progress_bar(archive.count, done.listed, "scoring", "examples") as bar:
                done = write_lines(archive, answer, output, lambda at: bar.at(at.listed))
        if archive.count is None:
            logger.info("examples: %d examples from %s", done.examples, archive.where)


@contextmanager
def _output(options: ScoreOptions, archive: Archive) -> Iterator[Output]:
    """Standard output, or the draft of a file, which says how far it came if it is cut off."""
    if options.out == "-":
        yield _StandardOutput()
        return
    made_of = {
        "a detector": read_description(options.detector)["digest"],
        "a --model": options.model or "",
        "examples": archive.identity,
        "a --format": options.format,
        "a version of wildood": __version__,
    }
    with draft_of(Path(options.out), made_of, elsewhere="give another --out") as draft:
        before = Progress.of(draft)
        if before.broken and not options.skip_broken:
            raise InputError(f"{draft.part} was begun with --skip-broken, and left out {before.broken}: give it again")
        if before.listed:
            logger.info("%s has %d lines already: going on from there", draft.part, before.examples)
        try:
            yield draft
        except BaseException:
            done = Progress.of(draft)
            if done.examples:
                logger.info("%s keeps %d lines: called again, it goes on from there", draft.part, done.examples)
            raise

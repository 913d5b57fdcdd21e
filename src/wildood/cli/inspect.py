"""`wildood inspect`: traffic in; how much of it is unknown, and what to look at, out."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from wildood.cli.inputs import read_detector, read_unlabelled
from wildood.cli.main import FOUND, OK, say_named
from wildood.cli.options import DATA_ROOT, DEVICE, named, parse
from wildood.data.files import write_text
from wildood.errors import InputError
from wildood.evaluate.thresholds import check_confidence
from wildood.report.figures import plots_installed
from wildood.report.inspection import TOP, inspect
from wildood.train.progress import logger, verbose_logging


@dataclass(frozen=True)
class InspectOptions:
    """Look at traffic: how much of it is unknown, whether the false-alarm promise looks true, what to label first.

    The exit code is 3 if unknowns are found at the confidence of --confidence, 0 if not, or if that cannot be tested.

    Attributes:
        detector: the directory that fit wrote.
        wild: the traffic, unlabelled: a directory of pictures, a .csv or .jsonl file of paths, FILE.npz, FILE.npy, - for
            standard input, or a named set.
        id: recent examples that are known to be ID and that no training has seen, like wild; labels are not needed. The
            traffic is compared with them instead of the holdout, and the false-alarm rate is measured on them.
        confidence: of the test for unknowns, and of every limit.
        top: how many examples to list and to show, of each kind.
        model: module:function that builds a model of your own. For security, loading a detector never imports code.
        out: the directory to write inspection.json and report.html to.
        skip_broken: leave out pictures that cannot be read, instead of stopping.
        quiet: show no progress.
    """

    detector: Annotated[Path, tyro.conf.Positional, named("DETECTOR")]
    wild: Annotated[str | None, named("DATA")] = None
    id: Annotated[str | None, named("DATA")] = None
    confidence: Annotated[float, named("SHARE", "(default: 0.95)")] = 0.95
    top: Annotated[int, named("N", f"(default: {TOP})")] = TOP
    model: Annotated[str | None, named("MODULE:FUNCTION")] = None
    device: Annotated[str | None, named("NAME", help=DEVICE)] = None
    out: Annotated[Path | None, named("DIRECTORY", "(default: DETECTOR/inspection)")] = None
    skip_broken: bool = False
    data_root: Annotated[Path | None, named("DIRECTORY", help=DATA_ROOT)] = None
    quiet: bool = False


def run(words: Sequence[str]) -> int:
    """Write inspection.json and the page, print the result, and return its exit code."""
    options = parse(InspectOptions, "inspect", words)
    if options.wild is None:
        raise InputError("inspect needs --wild: give the traffic to look at")
    check_confidence(options.confidence)
    if options.top < 1:
        raise InputError(f"--top is {options.top}: give a number of examples to show, at least 1")
    out = options.detector / "inspection" if options.out is None else options.out
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file: give a directory")
    command = shlex.join(["wildood", "inspect", *words])
    with verbose_logging(verbose=not options.quiet):
        detector = read_detector(options)
        traffic = read_unlabelled(options.wild, "--wild", options, detector)
        known = None if options.id is None else read_unlabelled(options.id, "--id", options, detector)
        report = inspect(detector, traffic, known, confidence=options.confidence, top=options.top, command=command)
        report.save(out, page=False)
        lines = report.summary
        say_named({**lines, "label first": f"{lines['label first']} ({out / 'inspection.json'} says why)"}, width=12)
        if plots_installed():
            write_text(out / "report.html", report.page())
            logger.info("%s shows the examples", out / "report.html")
        else:
            logger.info("for a page that shows the examples: pip install matplotlib, then the same command again")
    return FOUND if report.found else OK

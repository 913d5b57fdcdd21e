"""`wildood inspect`: traffic in; how much of it is unknown, and what to look at, out."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from wildood.cli.inputs import read_detector, read_unlabelled
from wildood.cli.main import FOUND, OK, say_named
from wildood.cli.options import DATA_ROOT, named, parse
from wildood.data.files import write_text
from wildood.data.fingerprint import role_of, role_text
from wildood.data.images import Images
from wildood.detect.detector import Detector
from wildood.errors import InputError
from wildood.evaluate.thresholds import check_confidence
from wildood.experiments.evaluation import SetDecisions
from wildood.report.figures import plots_installed
from wildood.report.inspection_page import Inspection, inspect_traffic, inspection_page, inspection_record
from wildood.train.progress import logger, verbose_logging

NAMED = 5  # examples to label first that are named on screen


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
    top: Annotated[int, named("N", "(default: 16)")] = 16
    model: Annotated[str | None, named("MODULE:FUNCTION")] = None
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
    with verbose_logging(verbose=not options.quiet):
        detector = read_detector(options)
        traffic = read_unlabelled(options.wild, "--wild", options, detector)
        known = None if options.id is None else _read_known(detector, options, traffic)
        decided = SetDecisions.asked(detector, "--wild", traffic)
        reference = None if known is None else SetDecisions.asked(detector, "--id", known)
        inspection = inspect_traffic(detector, decided, reference, confidence=options.confidence, role_of=decided.role_of)
        record = inspection_record(detector, inspection, traffic, options.top)
        write_text(out / "inspection.json", json.dumps(record, indent=1) + "\n")
        say_named(_lines(inspection, record, out), width=12)
        if plots_installed():
            command = shlex.join(["wildood", "inspect", *words])
            write_text(out / "report.html", inspection_page(detector, inspection, traffic, record, command))
            logger.info("%s shows the examples", out / "report.html")
        else:
            logger.info("for a page that shows the examples: pip install matplotlib, then the same command again")
    return FOUND if inspection.found else OK


def _read_known(detector: Detector, options: InspectOptions, traffic: Images) -> Images:
    """The examples of --id; refused if they had a role in making the detector or are the traffic itself."""
    text = str(options.id)
    known = read_unlabelled(text, "--id", options, detector)
    used = role_of(detector.record, known)
    if used:
        raise InputError(f"--id: {text}: these examples {role_text(used)}: give ID examples that nothing has seen")
    if known.fingerprint(labels=False) == traffic.fingerprint(labels=False):
        raise InputError(f"--id: {text} is the traffic itself: give other examples, known to be ID")
    return known


def _lines(inspection: Inspection, record: dict[str, Any], out: Path) -> dict[str, str]:
    """The result, to be read."""
    more = ", ..." if len(record["label_first"]) > NAMED else ""
    first = ", ".join(str(row["example"]) for row in record["label_first"][:NAMED])
    return {
        "traffic": f"{inspection.rejected.text(inspection.confidence)} of {record['wild']} are rejected",
        "unknown": inspection.says,
        "promise": inspection.promise.says,
        "label first": f"{first}{more} ({out / 'inspection.json'} says why)",
    }

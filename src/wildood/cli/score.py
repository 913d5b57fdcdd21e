"""`wildood score`: a detector and examples in, one line for each example out."""

import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from wildood.cli.models import read_model
from wildood.cli.options import named, parse
from wildood.cli.sources import read_like
from wildood.cli.training import DATA_ROOT
from wildood.data.files import write_atomically
from wildood.detect.storage import load
from wildood.errors import InputError
from wildood.train.progress import shown

COLUMNS = ("example", "score", "decision", "class")


@dataclass(frozen=True)
class ScoreOptions:
    """Score examples with a saved detector: one line for each, in their order.

    Attributes:
        detector: the directory that fit wrote.
        examples: a directory of pictures, a .csv or .jsonl file of paths, FILE.npz or FILE.npy (FILE.npz:name for one of
            several arrays), - for standard input, or a named set.
        model: module:function, for a detector of a model of your own: no code is imported because a file says so.
        format: csv with a header, or jsonl with one object in each line.
        out: a file to write to, or - for standard output.
        skip_broken: leave out pictures that cannot be read, instead of stopping.
    """

    detector: Annotated[Path, tyro.conf.Positional, named("DETECTOR")]
    examples: Annotated[str, tyro.conf.Positional, named("EXAMPLES")]
    model: Annotated[str | None, named("MODULE:FUNCTION")] = None
    format: Literal["csv", "jsonl"] = "csv"
    out: Annotated[str, named("FILE")] = "-"
    skip_broken: bool = False
    data_root: Annotated[Path | None, named("DIRECTORY", help=DATA_ROOT)] = None


def run(words: Sequence[str]) -> None:
    """Write example (its file, or its number), score, decision (known or unknown) and the classifier's class for each."""
    options = parse(ScoreOptions, "score", words)
    if options.out != "-" and (Path(options.out).is_dir() or not Path(options.out).parent.is_dir()):
        what = "is a directory" if Path(options.out).is_dir() else "is in a directory that does not exist"
        raise InputError(f"--out {options.out} {what}: give a file, or - for standard output")
    detector = load(options.detector, model=None if options.model is None else read_model(options.model))
    with shown(verbose=True):
        images = read_like(detector, options.examples, "examples", options)
    scores, classes = detector.score_and_classify(images)
    decisions = ["known" if accepted else "unknown" for accepted in detector.accepts(scores, classes)]
    names = detector.record.get("classes")
    said = classes.tolist() if names is None else [names[number] for number in classes]
    rows = zip(images.names or range(len(scores)), (float(score) for score in scores), decisions, said, strict=True)
    text = io.StringIO()
    if options.format == "csv":
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    else:
        text.writelines(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in rows)
    if options.out == "-":
        sys.stdout.write(text.getvalue())
    else:
        write_atomically(Path(options.out), text.getvalue().encode(errors="surrogateescape"))  # names as the disk has them

"""`wildood evaluate`: a saved detector and test data in, a table, its files and a page out."""

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from wildood.cli.inputs import read_detector, read_test, read_unlabelled
from wildood.cli.main import say
from wildood.cli.options import DATA_ROOT, DEVICE, named, parse
from wildood.data.files import write_text
from wildood.detect.split import check_seed
from wildood.errors import InputError, as_utf8
from wildood.experiments.evaluation import RESAMPLES
from wildood.report.evaluation import evaluate, set_name
from wildood.report.evaluation_page import CONVENTION, UNITS, all_tables, not_promised, promise_text
from wildood.report.figures import plots_installed
from wildood.report.table import print_table
from wildood.settings import check_integer
from wildood.train.progress import logger, verbose_logging


@dataclass(frozen=True)
class EvaluateOptions:
    """Measure a saved detector on test data: a table, its files, and a page.

    Attributes:
        detector: the directory that fit wrote.
        id: known examples that nobody has trained on, with labels if there are any: a directory of pictures, a .csv or
            .jsonl file of paths, FILE.npz, FILE.npy or a named set.
        ood: one or more sets of unknown examples, named in the same ways.
        shifted: known examples that look different from those of the training, named in the same ways: their accuracy and
            false alarms.
        model: module:function that builds a model of your own. For security, loading a detector never imports code.
        out: the directory to write to (default: DETECTOR/evaluation).
        skip_broken: leave out pictures that cannot be read, instead of stopping.
        resamples: of the bootstrap.
        seed: of the bootstrap.
        quiet: show no progress.
    """

    detector: Annotated[Path, tyro.conf.Positional, named("DETECTOR")]
    id: Annotated[str | None, named("DATA")] = None
    ood: Annotated[tuple[str, ...], named("DATA [DATA ...]")] = ()
    shifted: Annotated[str | None, named("DATA")] = None
    model: Annotated[str | None, named("MODULE:FUNCTION")] = None
    device: Annotated[str | None, named("NAME", help=DEVICE)] = None
    out: Annotated[Path | None, named("DIRECTORY")] = None
    skip_broken: bool = False
    data_root: Annotated[Path | None, named("DIRECTORY", help=DATA_ROOT)] = None
    resamples: Annotated[int, named("N", f"(default: {RESAMPLES})")] = RESAMPLES
    seed: int = 0
    quiet: bool = False


def run(words: Sequence[str]) -> None:
    """Measure the detector; the table on standard output, everything else in the directory."""
    options = parse(EvaluateOptions, "evaluate", words)
    if options.id is None or not options.ood:
        raise InputError("evaluate needs --id and --ood: give known and unknown examples that nobody has trained on")
    names = _names(options.ood)
    check_integer(options.resamples, "--resamples", "at least 1, at most 1,000,000", most=10**6)
    check_seed(options.seed, "--seed")
    detector = read_detector(options)
    out = options.detector / "evaluation" if options.out is None else options.out
    _check_place(out)
    command = shlex.join(["wildood", "evaluate", *words])
    with verbose_logging(verbose=not options.quiet):
        known = read_test(options.id, "--id", options, detector)
        sets = {
            name: read_unlabelled(text, "--ood", options, detector) for name, text in zip(names, options.ood, strict=True)
        }
        shifted = None if options.shifted is None else read_test(options.shifted, "--shifted", options, detector)
        report = evaluate(
            detector, known, sets, shifted=shifted, resamples=options.resamples, seed=options.seed, command=command,
            directory=options.detector,
        )  # fmt: skip
    report.save(out, page=False)
    for table in all_tables(report):
        print_table(table)
    notes = filter(None, [UNITS, CONVENTION, promise_text(report.promise), not_promised(report)])
    say("\n".join([*notes, f"{out}: metrics.json, table.md, table.tex"]))
    with verbose_logging(verbose=not options.quiet):
        if plots_installed():
            write_text(out / "report.html", report.page())
            logger.info("%s shows it as a page", out / "report.html")
        else:
            logger.info("for a page with figures and pictures: pip install matplotlib, then the same command again")


def _check_place(out: Path) -> None:
    """Refuse a place that cannot be written to before anything is measured, without making a directory."""
    there = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        why = f"{there} is {'a file' if not there.is_dir() else 'read-only'}"
        raise InputError(f"--out {out} cannot be written to ({why}): give a directory")


def _names(texts: Sequence[str]) -> list[str]:
    """What each OOD set is called; the whole text where the last parts are alike."""
    twice = [text for text, count in Counter(texts).items() if count > 1]
    if twice:
        raise InputError(f"--ood names {twice[0]} {texts.count(twice[0])} times: give each set once")
    names = list(map(set_name, texts))
    return names if len(set(names)) == len(names) else list(map(as_utf8, texts))

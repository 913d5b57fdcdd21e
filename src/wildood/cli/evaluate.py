"""`wildood evaluate`: a saved detector and test data in, a table, its files and a page out."""

import json
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
from wildood.cli.options import DATA_ROOT, named, parse
from wildood.data.catalog import is_named_set
from wildood.data.files import write_text
from wildood.data.images import Images
from wildood.detect.detector import versions
from wildood.detect.split import check_seed
from wildood.errors import InputError, as_utf8
from wildood.experiments.evaluation import RESAMPLES, SetDecisions, measure
from wildood.report.evaluation_page import (
    CONVENTION,
    UNITS,
    evaluation_latex,
    evaluation_markdown,
    evaluation_page,
    id_table,
    metrics_record,
    ood_table,
    promise_text,
    shared_examples,
    used_before,
)
from wildood.report.figures import plots_installed
from wildood.report.page import settings_text
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
    model: Annotated[str | None, named("MODULE:FUNCTION")] = None
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
    with verbose_logging(verbose=not options.quiet):
        known = SetDecisions.asked(detector, _name(options.id), read_test(options.id, "--id", options, detector))
        sets = {
            name: read_unlabelled(text, "--ood", options, detector) for name, text in zip(names, options.ood, strict=True)
        }
        _check_apart(sets)
        unknown = [SetDecisions.asked(detector, name, images) for name, images in sets.items()]
        measured = measure(detector, known, unknown, options.resamples, options.seed)
        for sentence in used_before(measured.evaluation):
            logger.warning("%s", sentence)
        shared = shared_examples(measured.evaluation)
        if shared:
            logger.warning("%s An example cannot be both ID and OOD.", shared)
    command = shlex.join(["wildood", "evaluate", *words])
    record = metrics_record(measured, options.detector, command)
    write_text(out / "metrics.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
    write_text(out / "table.md", evaluation_markdown(measured.evaluation, measured.promise))
    write_text(out / "table.tex", evaluation_latex(measured.evaluation, measured.promise))
    print_table(ood_table(measured.evaluation))
    print_table(id_table(measured.evaluation))
    say("\n".join([UNITS, CONVENTION, promise_text(measured.promise), f"{out}: metrics.json, table.md, table.tex"]))
    with verbose_logging(verbose=not options.quiet):
        if plots_installed():
            versions_text = settings_text(versions())
            provenance = {"command": command, "detector": str(options.detector), "measured with": versions_text}
            write_text(out / "report.html", evaluation_page(measured, provenance))
            logger.info("%s shows it as a page", out / "report.html")
        else:
            logger.info("for a page with figures and pictures: pip install matplotlib, then the same command again")


def _check_place(out: Path) -> None:
    """Refuse a place that cannot be written to before anything is measured, without making a directory."""
    there = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        why = f"{there} is {'a file' if not there.is_dir() else 'read-only'}"
        raise InputError(f"--out {out} cannot be written to ({why}): give a directory")


def _check_apart(sets: dict[str, Images]) -> None:
    """Refuse one set under two names: it would count twice in the mean."""
    first: dict[str, str] = {}
    for name, images in sets.items():
        other = first.setdefault(images.fingerprint(labels=False), name)
        if other != name:
            raise InputError(f"--ood: {other} and {name} hold the same examples: give each set once")


def _name(text: str) -> str:
    """What a set is called: a named set by its name, a file or a folder by its last part."""
    return text if is_named_set(text) else as_utf8(Path(text).name or text)


def _names(texts: Sequence[str]) -> list[str]:
    """What each OOD set is called; the whole text where the last parts are alike."""
    twice = [text for text, count in Counter(texts).items() if count > 1]
    if twice:
        raise InputError(f"--ood names {twice[0]} {texts.count(twice[0])} times: give each set once")
    names = [_name(text) for text in texts]
    return names if len(set(names)) == len(names) else list(map(as_utf8, texts))

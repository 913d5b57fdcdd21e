"""`wildood demo`: from scans inside scikit-learn's wheel to a detector, a table and a page, in a minute or two."""

import json
import math
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from wildood.cli.options import parse
from wildood.data.files import write_array_file, write_text
from wildood.errors import InputError
from wildood.experiments.comparison import METHODS, Outcome, outcomes, summary
from wildood.experiments.digits import digits
from wildood.experiments.parts import Parts
from wildood.experiments.pool import using_threads
from wildood.report.comparison_page import comparison_page, comparison_table
from wildood.report.figures import plots_installed
from wildood.report.table import print_table
from wildood.settings import check_integer
from wildood.train.progress import logger, progress_bar, verbose_logging


@dataclass(frozen=True)
class DemoOptions:
    """Train a digit classifier, teach it to say "unknown" in several ways, and write a table, a page and the detector.

    Attributes:
        out: the directory to write to.
        seeds: over how many seeds to repeat it.
        quiet: show no progress.
    """

    out: Path = Path("demo")
    seeds: int = 5
    quiet: bool = False


def run(words: Sequence[str]) -> None:
    """Compare the methods on digits; the table on standard output, the rest in the directory."""
    options = parse(DemoOptions, "demo", words)
    check_integer(options.seeds, "--seeds", "at least 1, at most 1,000", most=1000)
    if not plots_installed():
        raise InputError("the demo draws its page with matplotlib: pip install matplotlib scikit-learn")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {options.out} cannot be written to ({error.strerror}): give a directory") from error
    began = time.monotonic()
    seeds = range(options.seeds)
    results: list[Outcome] = []
    with (
        using_threads(1),
        verbose_logging(verbose=not options.quiet),
        progress_bar(len(seeds) * len(METHODS), 0, "comparing", "runs") as bar,
    ):
        for result in outcomes(seeds, digits):
            results.append(result)
            logger.info("seed %d  %-16s  FPR95 %4.1f %%", result.seed, result.method, 100 * result.metrics.fpr95)
            bar.at(len(results))
    parts = digits(seeds[0])
    detector = next(result.detector for result in results if result.method == "WOODS")
    detector.save(options.out / "detector")
    _write_examples(options.out / "examples.npz", parts)
    command = shlex.join(["wildood", "demo", *words])
    write_text(options.out / "report.html", comparison_page(results, parts, command))
    record = _record(results, command, time.monotonic() - began)
    write_text(options.out / "results.json", json.dumps(record, indent=1) + "\n")
    _print(results, options.out, time.monotonic() - began)


def _record(results: Sequence[Outcome], command: str, seconds: float) -> dict[str, Any]:
    """Every number of the comparison, as shares."""
    means = summary([(result.method, result.metrics) for result in results])
    return {
        "command": command,
        "data": "scikit-learn digits: 0-6 known, 7-9 unknown, pi = 0.1, test part",
        "runs": [{"method": result.method, "seed": result.seed, **asdict(result.metrics)} for result in results],
        "summary": {
            method: {
                name: {"mean": mean, "standard_error": None if math.isnan(error) else error}
                for name, (mean, error) in metrics.items()
            }
            for method, metrics in means.items()
        },
        "seconds": round(seconds, 1),
        "versions": results[-1].detector.record["versions"],
    }


def _write_examples(path: Path, parts: Parts) -> None:
    """The test scans, known ones first, for `wildood score` to try."""
    write_array_file(path, x=np.concatenate([parts.test_id[0], parts.test_ood]))


def _print(results: Sequence[Outcome], out: Path, seconds: float) -> None:
    """The table, and what to look at next."""
    means = summary([(result.method, result.metrics) for result in results])
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 100)
    seeds = len(results) // len(means)
    spread = f"mean ± standard error over {seeds} seeds" if seeds > 1 else "one seed"
    console.print(f"Digits 0-6 are known, 7-9 unknown; %, {spread} ({seconds:.0f} s):")
    print_table(comparison_table(means))
    detector = str(out / "detector")
    console.print(
        f"{out / 'report.html'}: what this means, as a page\n"
        f"{shlex.join(['wildood', 'show', detector])}: the WOODS detector of seed 0\n"
        f"{shlex.join(['wildood', 'score', detector, str(out / 'examples.npz')])}: its answers on the test scans",
        markup=False,
    )

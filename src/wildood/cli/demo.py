"""`wildood demo`: from scans inside scikit-learn's wheel to a detector, a table and a page, in a minute or two."""

import json
import logging
import math
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wildood.cli.options import parse
from wildood.data.files import write_array_file, write_text
from wildood.errors import InputError
from wildood.experiments.grids import demo_grid
from wildood.experiments.pool import using_threads
from wildood.experiments.run import Outcome, perform
from wildood.experiments.split import digits_split
from wildood.experiments.store import Result
from wildood.experiments.tables import demo_metrics, demo_summary, demo_title
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
    """Run the methods on digits; the table goes to standard output, the rest to the directory."""
    options = parse(DemoOptions, "demo", words)
    check_integer(options.seeds, "--seeds", "at least 1, at most 1,000", most=1000)
    if not plots_installed():
        raise InputError("the demo draws its page with matplotlib: pip install matplotlib scikit-learn")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {options.out} cannot be written to ({error.strerror}): give a directory") from error
    began = time.monotonic()
    outcomes = _outcomes(options)
    results, split = [each.result for each in outcomes], digits_split(seed=0)
    detector = next(each.detector for each in outcomes if each.result.experiment.method == "woods")
    detector.save(options.out / "detector")
    write_array_file(options.out / "examples.npz", x=np.concatenate([split.test_id[0], split.test_ood]))  # known ones first
    command = shlex.join(["wildood", "demo", *words])
    write_text(options.out / "report.html", comparison_page(outcomes, split, command))
    record = _record(results, command, time.monotonic() - began)
    write_text(options.out / "results.json", json.dumps(record, indent=1) + "\n")
    _print(results, options.out, time.monotonic() - began)


def _outcomes(options: DemoOptions) -> list[Outcome]:
    """The outcome of each run; starting classifiers and features are shared in a temporary directory."""
    experiments = [each for seed in range(options.seeds) for each in demo_grid(seed)]
    outcomes: list[Outcome] = []
    before = logging.root.manager.disable
    with (
        using_threads(1),
        verbose_logging(verbose=not options.quiet),
        progress_bar(len(experiments), 0, "comparing", "runs") as bar,
        tempfile.TemporaryDirectory() as runs,
    ):
        for experiment in experiments:
            logging.disable(logging.WARNING)  # the table says how well each method does
            try:
                outcomes.append(perform(experiment, Path(runs)))
            finally:
                logging.disable(before)
            fpr95 = demo_metrics(outcomes[-1].result)["fpr95"]
            logger.info("seed %d  %-16s  FPR95 %4.1f %%", experiment.seed, demo_title(experiment.method), 100 * fpr95)
            bar.at(len(outcomes))
    return outcomes


def _record(results: Sequence[Result], command: str, seconds: float) -> dict[str, Any]:
    """Every number of the comparison, as shares."""
    runs = [(result.experiment, demo_metrics(result)) for result in results]
    summary: dict[str, Any] = {}
    for method, metrics in demo_summary(results).items():
        cells = {name: (mean, None if math.isnan(error) else error) for name, (mean, error) in metrics.items()}
        summary[method] = {name: {"mean": mean, "standard_error": error} for name, (mean, error) in cells.items()}
    return {
        "command": command,
        "data": "scikit-learn digits: 0-6 known, 7-9 unknown, pi = 0.1, test part",
        "runs": [{"method": demo_title(each.method), "seed": each.seed, **metrics} for each, metrics in runs],
        "summary": summary,
        "seconds": round(seconds, 1),
        "versions": (results[-1].about or {})["versions"],
    }


def _print(results: Sequence[Result], out: Path, seconds: float) -> None:
    """The table, and what to look at next."""
    means = demo_summary(results)
    seeds = len(results) // len(means)
    spread = f"mean ± standard error over {seeds} seeds" if seeds > 1 else "one seed"
    sys.stdout.write(f"Digits 0-6 are known, 7-9 unknown; %, {spread} ({seconds:.0f} s):\n")
    print_table(comparison_table(means))
    detector = str(out / "detector")
    sys.stdout.write(
        f"{out / 'report.html'}: what this means, as a page\n"
        f"{shlex.join(['wildood', 'show', detector])}: the WOODS detector of seed 0\n"
        f"{shlex.join(['wildood', 'score', detector, str(out / 'examples.npz')])}: its answers on the test scans\n"
    )

"""The report of a comparison: what each method catches at what cost, then a closer look at one run of WOODS."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from wildood.data.inputs import InputSpec
from wildood.detect.detector import Detector
from wildood.evaluate.metrics import rejection_rate
from wildood.experiments.run import Outcome
from wildood.experiments.split import Split
from wildood.experiments.store import KNOWN
from wildood.experiments.tables import demo_summary, demo_title
from wildood.report import figures
from wildood.report.fit_page import provenance, training
from wildood.report.page import Gallery, gallery, render
from wildood.report.table import Column, Row, Table, TableCell, percent

COLUMNS = {
    "caught": "caught ↑",
    "false_alarms": "false alarms ↓",
    "fpr95": "FPR95 ↓",
    "auroc": "AUROC ↑",
    "accuracy": "accuracy ↑",
}
BEFORE, AFTER = "energy", "WOODS"
IN_ROC = ("max-softmax", "energy", "WOODS", "WOODS-alt")  # as many as a reader can tell apart


def comparison_table(means: Mapping[str, Mapping[str, tuple[float, float]]]) -> Table:
    """A row for each method, its means ± standard errors in percent; the best of each column is marked.

    >>> table = comparison_table({"energy": {name: (0.5, 0.01) for name in COLUMNS}})
    >>> table.texts(table.rows[0])[:2]
    ['energy', '50.0 ± 1.0']
    """
    digits = percent(1)
    best = {
        name: (max if title.endswith("↑") else min)(float(digits(metrics[name][0])) for metrics in means.values())
        for name, title in COLUMNS.items()
    }
    rows = []
    for method, metrics in means.items():
        cells = []
        for name in COLUMNS:
            mean, error = metrics[name]
            is_best = float(digits(mean)) == best[name]
            cells.append(TableCell(mean, None if math.isnan(error) else error, best=is_best))
        rows.append(Row.of(method, *cells))
    return Table([Column("method"), *(Column(title, digits=digits) for title in COLUMNS.values())], rows)


def comparison_page(outcomes: Sequence[Outcome], split: Split, command: str) -> str:
    """The page of the demo; its closer look is at the first seed, whose split is `split`."""
    results = [outcome.result for outcome in outcomes]
    seeds = list(dict.fromkeys(result.experiment.seed for result in results))
    first = {demo_title(each.result.experiment.method): each for each in outcomes if each.result.experiment.seed == seeds[0]}
    means = demo_summary(results)
    after = first[AFTER].detector
    scores = {
        name: (outcome.scores[KNOWN], outcome.scores["digits"], outcome.detector.threshold)
        for name, outcome in first.items()
        if name in IN_ROC
    }
    groups = ("known (0-6)", "unknown (7-9)")
    all_seeds = ", ".join(map(str, seeds))
    return render(
        "comparison.html",
        title="Teaching a digit classifier to say “unknown”",
        before=means[BEFORE],
        after=means[AFTER],
        promise=after.promise,
        known_count=len(split.test_id[0]),
        unknown_count=len(split.test_ood),
        spread=f"mean ± standard error over the seeds {all_seeds}" if len(seeds) > 1 else f"seed {seeds[0]}",
        table=comparison_table(means),
        seed=seeds[0],
        histograms={name: figures.histogram(name, *scores[name], groups) for name in (BEFORE, AFTER)},
        accepted={
            name: [1 - rejection_rate(group, threshold) for group in (known, unknown)]
            for name, (known, unknown, threshold) in scores.items()
        },
        roc=figures.roc("roc", scores),
        galleries=_galleries(after, split),
        provenance=provenance(after, {"command": command, "seeds": f"{all_seeds} (figures: {seeds[0]})"}),
        **training(after.history, after.record),
    )


def _galleries(detector: Detector, split: Split) -> dict[str, Gallery]:
    known, (unknown, called) = detector.score(split.test_id[0]), detector.score_and_classify(split.test_ood)
    spec, threshold = detector.classifier.spec, detector.threshold
    assert isinstance(spec, InputSpec)  # noqa: S101 - the digits have one
    highest, lowest = np.argsort(-unknown), np.argsort(unknown)
    alarms = np.argsort(-known)
    answers = [f"“{name}”, {score:.1f}" for name, score in zip(called, unknown, strict=True)]
    truths = [f"a {name}, {score:.1f}" for name, score in zip(split.test_id[1], known, strict=True)]
    return {
        "rejected": gallery(split.test_ood, highest[unknown[highest] > threshold], answers, spec),
        "accepted": gallery(split.test_ood, lowest[unknown[lowest] <= threshold], answers, spec),
        "false_alarms": gallery(split.test_id[0], alarms[known[alarms] > threshold], truths, spec),
    }

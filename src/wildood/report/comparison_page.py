"""The report of a comparison: what each method catches at what cost, then a closer look at one run of WOODS."""

from collections.abc import Mapping, Sequence

import numpy as np

from wildood.detect.detector import Detector
from wildood.evaluate.metrics import Scores, rejection_rate
from wildood.experiments.run import Outcome
from wildood.experiments.split import Split
from wildood.experiments.store import KNOWN
from wildood.experiments.tables import demo_summary, demo_title
from wildood.report import figures
from wildood.report.gallery import Pictures, gallery
from wildood.report.page import Panel, Section, code, note, page, table
from wildood.report.sections import making_section, training_section
from wildood.report.tables import COLUMNS, best_cells, cells

BEFORE, AFTER = "energy", "WOODS"
IN_ROC = ("max-softmax", "energy", "WOODS", "WOODS-alt")  # as many as a reader can tell apart
OWN = """import wildood

detector = wildood.fit(
    model,                      # your classifier, as it is deployed
    labelled=(x, y),            # what it was trained on
    wild=x_wild,                # what it meets: no labels
    holdout=(x_new, y_new),     # labelled examples that it was not trained on
)
detector.predict(batch)         # the class, or wildood.UNKNOWN (-1)
"""


def comparison_page(outcomes: Sequence[Outcome], split: Split, command: str) -> str:
    """The page of the demo; its closer look is at the first seed, whose split is given."""
    results = [outcome.result for outcome in outcomes]
    seeds = list(dict.fromkeys(result.experiment.seed for result in results))
    first = {demo_title(each.result.experiment.method): each for each in outcomes if each.result.experiment.seed == seeds[0]}
    detector = first[AFTER].detector
    means = demo_summary(results)
    spread = f"mean ± standard error over the seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}"
    tested = f"{len(split.test_id[0])} known and {len(split.test_ood)} unknown scans that nobody has trained on"
    comparison = Panel(
        "Ways to find unknowns, from the same classifier",
        f"In percent, on {tested}; {spread}.",
        table(["method", *COLUMNS.values()], cells(means), best=best_cells(means))
        + note(
            "Max-softmax, ODIN, Mahalanobis and energy leave the classifier as it is; the others train it further on "
            "unlabelled traffic. “Caught” is the share of unknowns, “false alarms” the share of the known rejected at the "
            "deployed threshold. FPR95 is the share of unknowns accepted when 95 % of the known are accepted. ↑ higher is "
            "better, ↓ lower is better. In bold: the best of each column. The promised rate is an average over many "
            "holdouts: one holdout of 100 or 200 examples may give somewhat more."
        ),
    )
    return page(
        "Teaching a digit classifier to say “unknown”",
        _lead(means, detector),
        [
            Section("What is caught, and at what cost", [comparison], wide=True),
            _scores_section(first, seeds[0]),
            training_section(detector),
            _gallery_section(detector, split),
            Section("With your own classifier", [_own()], wide=True),
            making_section(detector, {"command": command, "seeds": f"{', '.join(map(str, seeds))} (figures: {seeds[0]})"}),
        ],
    )


def _lead(means: dict[str, dict[str, tuple[float, float]]], detector: Detector) -> str:
    before, after = means[BEFORE], means[AFTER]
    assert detector.promise is not None  # noqa: S101 - fit calibrates
    return (
        "<p>A small network knows the digits 0 to 6. In service it also meets 7, 8 and 9, which it has never seen, and "
        "calls them something from 0 to 6. WOODS trains it a little further on the unlabelled traffic, one in ten of which "
        "is unknown.</p>"
        f"<p>Afterwards it says “unknown” to <strong>{100 * after['caught'][0]:.1f} %</strong> of the 7s, 8s and 9s "
        f"(before, by its energy: {100 * before['caught'][0]:.1f} %). The cost: "
        f"<strong>{100 * after['false_alarms'][0]:.1f} %</strong> of the known digits are rejected, too (promised: "
        f"at most {100 * detector.promise.alpha:g} %); the accuracy was "
        f"{100 * before['accuracy'][0]:.1f} % and is {100 * after['accuracy'][0]:.1f} %.</p>"
    )


def _scores_section(outcomes: Mapping[str, Outcome], seed: int) -> Section:
    scores = {
        name: (outcome.scores[KNOWN], outcome.scores["digits"], outcome.detector.threshold)
        for name, outcome in outcomes.items()
        if name in IN_ROC
    }
    groups = ("known (0-6)", "unknown (7-9)")
    before, after = (figures.histogram(name, *scores[name], groups) for name in (BEFORE, AFTER))
    return Section(
        f"A closer look (seed {seed})",
        [
            Panel(
                "Before: the energy of the classifier as it was",
                f"Left of the dashed line is accepted: {_accepted(*scores[BEFORE])}.",
                before,
            ),
            Panel(
                "After: the energy of the classifier that WOODS trained",
                f"The same for the trained one: {_accepted(*scores[AFTER])}.",
                after,
            ),
            Panel(
                "Caught against cost, at every threshold",
                "Further up and to the left is better. The dot is the threshold that is deployed; only false-alarm rates up "
                "to 30 % are shown.",
                figures.roc("roc", scores),
            ),
        ],
    )


def _accepted(known: Scores, unknown: Scores, threshold: float) -> str:
    shares = [1 - rejection_rate(scores, threshold) for scores in (known, unknown)]
    return f"{100 * shares[0]:.1f} % of the known, {100 * shares[1]:.1f} % of the unknown"


def _gallery_section(detector: Detector, split: Split) -> Section:
    known, (unknown, called) = detector.score(split.test_id[0]), detector.score_and_classify(split.test_ood)
    spec, threshold = detector.classifier.spec, detector.threshold
    assert spec is not None  # noqa: S101 - the digits have one
    highest, lowest = np.argsort(-unknown), np.argsort(unknown)
    alarms = np.argsort(-known)
    answers = [f"“{name}”, {score:.1f}" for name, score in zip(called, unknown, strict=True)]
    truths = [f"a {name}, {score:.1f}" for name, score in zip(split.test_id[1], known, strict=True)]
    return Section(
        "What it does with single examples",
        [
            gallery(
                "Unknown and rejected",
                "Below each: what the classifier would have called it, and the score; the highest first.",
                Pictures(split.test_ood, highest[unknown[highest] > threshold], answers, spec),
            ),
            gallery(
                "Unknown but accepted",
                "The mistakes that matter, the most confident first. Below each: what it is called, and the score.",
                Pictures(split.test_ood, lowest[unknown[lowest] <= threshold], answers, spec),
            ),
            gallery(
                "False alarms",
                "Known digits that were rejected. Below each: what it is, and the score.",
                Pictures(split.test_id[0], alarms[known[alarms] > threshold], truths, spec),
            ),
        ],
        wide=True,
    )


def _own() -> Panel:
    return Panel(
        "The lines to change",
        "Any PyTorch classifier that returns logits will do. The holdout must be new to the classifier: the promised "
        "false-alarm rate rests on it. From a terminal, wildood fit does the same.",
        code(OWN),
    )

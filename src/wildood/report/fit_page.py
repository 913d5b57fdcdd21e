"""The report of a user's own fit: no unknown is labelled here, so it says what can be said without."""

from html import escape
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wildood.detect.detector import Detector
from wildood.evaluate.metrics import accepting_threshold, accuracy, rejection_rate
from wildood.report import figures
from wildood.report.gallery import Pictures, can_be_shown, gallery
from wildood.report.given import Given
from wildood.report.page import Panel, Section, note, page, table
from wildood.report.sections import making_section, training_section

LOOKED_AT = 2000  # how many examples of each kind the page scores, at most


class Seen(NamedTuple):
    """Scores and answers of a detector on what was given."""

    wild: npt.NDArray[np.float32]
    wild_classes: npt.NDArray[np.int64]
    known: npt.NDArray[np.float32]
    known_classes: npt.NDArray[np.int64]


def fit_page(detector: Detector, before: Detector, given: Given, command: str, settings: str) -> str:
    """The page of a fit.

    Args:
        detector: what the fit made.
        before: the energy of the starting classifier; its threshold is not used: both are compared at one rate.
        given: what the fit was given.
        command: what was typed.
        settings: the file of effective settings.
    """
    given = Given(_some(given.wild), _some(given.known), _some(given.classes), given.is_holdout)
    seen = {name: _look(each, given) for name, each in (("before", before), ("after", detector))}
    alike = 1 - rejection_rate(seen["after"].known, detector.threshold)
    thresholds = {
        "before": accepting_threshold(seen["before"].known, max(alike, 1 / len(given.known))),
        "after": detector.threshold,
    }
    sections = [
        Section("What changed", [_table_panel(detector, seen, thresholds, given)], wide=True),
        Section("Scores", _histograms(seen, thresholds, given)),
        training_section(detector),
        making_section(detector, {"command": command, "seed": str(detector.record["seed"])}, settings),
    ]
    if can_be_shown(detector.example.shape, detector.classifier.spec):
        sections.insert(3, Section("Single examples", _galleries(detector, seen["after"], given), wide=True))
    return page("A classifier that says “unknown”", _lead(detector, seen, thresholds, given), sections)


def _lead(detector: Detector, seen: dict[str, Seen], thresholds: dict[str, float], given: Given) -> str:
    rejected = {key: 100 * rejection_rate(seen[key].wild, threshold) for key, threshold in thresholds.items()}
    known = 100 * rejection_rate(seen["after"].known, detector.threshold)
    return (
        f"<p>Of {len(given.wild)} wild examples, this detector says “unknown” to "
        f"<strong>{rejected['after']:.1f} %</strong>; the starting classifier's own energy, set to reject "
        f"the same share of known examples ({known:.1f} %), to "
        f"{rejected['before']:.1f} %.</p><p>Its threshold: {escape(str(detector.promise))}.</p>"
    )


def _table_panel(detector: Detector, seen: dict[str, Seen], thresholds: dict[str, float], given: Given) -> Panel:
    known = _name(given)
    rows = [
        [
            name,
            f"{100 * rejection_rate(seen[key].wild, thresholds[key]):.1f}",
            f"{100 * rejection_rate(seen[key].known, thresholds[key]):.1f}",
            f"{100 * accuracy(seen[key].known_classes, given.classes):.1f}",
        ]
        for name, key in (("before: its energy", "before"), (f"after: {detector.record['method']['name']}", "after"))
    ]
    return Panel(
        "What is rejected",
        f"In percent, on {len(given.wild)} wild and {len(given.known)} {known} examples.",
        table(["", "wild rejected", f"{known} rejected", f"{known} accuracy"], rows, strong=1)
        + note(
            "Nobody has said which wild examples are unknown, so there is no detection rate here. Both rows reject the same "
            "share of known data: the one that rejects more wild data catches more unknowns. Most of these wild examples "
            "were trained on. "
            + (
                "The promised rate is an average over holdouts, and a part of this one chose (the epoch, and the best of "
                "several candidates): the share of it that is rejected may lie somewhat above or below."
                if given.is_holdout
                else "So were the labelled ones: fresh data is rejected more often."
            )
        ),
    )


def _name(given: Given) -> str:
    return "holdout" if given.is_holdout else "labelled"


def _histograms(seen: dict[str, Seen], thresholds: dict[str, float], given: Given) -> list[Panel]:
    titles = {
        "before": "Before: the energy of the classifier as it was",
        "after": "After: the score of the trained detector",
    }
    return [
        Panel(
            title,
            "Right of the dashed line is rejected. Wild data is a mixture: most of it lies where the known lies.",
            figures.histogram(key, seen[key].known, seen[key].wild, thresholds[key], (_name(given), "wild")),
        )
        for key, title in titles.items()
    ]


def _galleries(detector: Detector, after: Seen, given: Given) -> list[Panel]:
    spec, threshold = detector.classifier.spec, detector.threshold
    assert spec is not None  # noqa: S101 - asked before
    highest, alarms = np.argsort(-after.wild), np.argsort(-after.known)
    wild = [f"{name}, {score:.3g}" for name, score in zip(after.wild_classes, after.wild, strict=True)]
    known = [f"{name}, {score:.3g}" for name, score in zip(given.classes, after.known, strict=True)]
    return [
        gallery(
            "Wild and rejected",
            "The highest scores first. Below each: the class it would have been given, and the score.",
            Pictures(given.wild, highest[after.wild[highest] > threshold], wild, spec),
        ),
        gallery(
            "Wild and just accepted",
            "The next ones to be rejected if the threshold were lower.",
            Pictures(given.wild, highest[after.wild[highest] <= threshold], wild, spec),
        ),
        gallery(
            "False alarms",
            "Known examples that are rejected. Below each: its class and the score.",
            Pictures(given.known, alarms[after.known[alarms] > threshold], known, spec),
        ),
    ]


def _look(detector: Detector, given: Given) -> Seen:
    return Seen(*detector.score_and_classify(given.wild), *detector.score_and_classify(given.known))


def _some(examples: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """At most so many of them, evenly spaced."""
    chosen: npt.NDArray[Any] = examples[np.linspace(0, len(examples) - 1, min(len(examples), LOOKED_AT)).astype(int)]
    return chosen

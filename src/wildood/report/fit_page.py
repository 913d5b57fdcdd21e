"""The report of a user's own fit: no unknown is labelled here, so it says what can be said without."""

from html import escape
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wildood.detect.detector import Detector
from wildood.evaluate.intervals import Share, in_percent
from wildood.evaluate.metrics import accepting_threshold, accuracy
from wildood.report import figures
from wildood.report.gallery import Pictures, can_be_shown, gallery
from wildood.report.given import LOOKED_AT, Given
from wildood.report.page import Panel, Section, note, page, table
from wildood.report.sections import making_section, training_section

CONFIDENCE = 0.95  # of the interval of the headline


class Seen(NamedTuple):
    """Scores, classes and rejections of a detector on wild and on known examples, and the threshold to draw."""

    wild: npt.NDArray[np.float32]
    wild_classes: npt.NDArray[np.int64]
    known: npt.NDArray[np.float32]
    known_classes: npt.NDArray[np.int64]
    wild_rejected: npt.NDArray[np.bool_]
    known_rejected: npt.NDArray[np.bool_]
    threshold: float


def fit_page(detector: Detector, before: Detector, given: Given, command: str, settings: str) -> str:
    """The page of a fit.

    Args:
        detector: what the fit made.
        before: the energy of the starting classifier; its threshold is not used: both are compared at one rate.
        given: examples to look at; the wild ones must be those that training did not see.
        command: what was typed.
        settings: the file of effective settings.
    """
    given = Given(_some(given.wild), _some(given.known), _some(given.classes), given.is_holdout)
    after = _look(detector, given)
    accepted = max(1 - float(np.mean(after.known_rejected)), 1 / len(given.known))
    seen = {"before": _look(before, given, accepted), "after": after}
    sections = [
        Section("What changed", [_table_panel(detector, seen, given)], wide=True),
        Section("Scores", _histograms(seen, given)),
        training_section(detector),
        making_section(detector, {"command": command, "seed": str(detector.record["seed"])}, settings),
    ]
    if can_be_shown(detector.example.shape, detector.classifier.spec):
        sections.insert(3, Section("Single examples", _galleries(detector, after, given), wide=True))
    return page("A classifier that says “unknown”", _lead(detector, seen, given), sections)


def _lead(detector: Detector, seen: dict[str, Seen], given: Given) -> str:
    rejected = {key: Share.of(each.wild_rejected, CONFIDENCE) for key, each in seen.items()}
    known = in_percent(float(np.mean(seen["after"].known_rejected)))
    warnings = "".join(f"<p><strong>Warning:</strong> {escape(text)}.</p>" for text in detector.warnings)
    return (
        f"{warnings}<p>Of {len(given.wild)} wild examples that training did not see, this detector says “unknown” to "
        f"<strong>{in_percent(rejected['after'].value)}</strong> ({rejected['after'].limits} at {100 * CONFIDENCE:g} % "
        f"confidence); the starting classifier's own energy, set to reject the same share of known examples ({known}), to "
        f"{in_percent(rejected['before'].value)}.</p><p>Its threshold: {escape(detector.promise_text)}.</p>"
    )


def _table_panel(detector: Detector, seen: dict[str, Seen], given: Given) -> Panel:
    known = _name(given)
    start_kept = detector.record.get("assessment", {}).get("start_kept", False)
    made_by = "start kept" if start_kept else detector.record["method"]["name"]
    rows = [
        [
            name,
            f"{100 * np.mean(seen[key].wild_rejected):.1f}",
            f"{100 * np.mean(seen[key].known_rejected):.1f}",
            f"{100 * accuracy(seen[key].known_classes, given.classes):.1f}",
        ]
        for name, key in (("before: its energy", "before"), (f"after: {made_by}", "after"))
    ]
    return Panel(
        "What is rejected",
        f"In percent, on {len(given.wild)} wild examples set aside and {len(given.known)} {known} examples.",
        table(["", "wild rejected", f"{known} rejected", f"{known} accuracy"], rows, strong=1)
        + note(
            "Nobody has said which wild examples are unknown, so there is no detection rate here. Both rows reject the same "
            "share of known data: the one that rejects more wild data catches more unknowns. Training has not seen these "
            "wild examples. "
            + (
                "The promised rate is an average over holdouts, and a part of this one chose (the epoch, and the best of "
                "several candidates): the share of it that is rejected may lie somewhat above or below."
                if given.is_holdout
                else "The labelled examples were trained on: fresh data is rejected more often."
            )
        ),
    )


def _name(given: Given) -> str:
    return "holdout" if given.is_holdout else "labelled"


def _histograms(seen: dict[str, Seen], given: Given) -> list[Panel]:
    titles = {
        "before": "Before: the energy of the classifier as it was",
        "after": "After: the score of the finished detector",
    }
    return [
        Panel(
            title,
            "Right of the dashed line is rejected. Wild data is a mixture: most of it lies where the known lies.",
            figures.histogram(key, seen[key].known, seen[key].wild, seen[key].threshold, (_name(given), "wild")),
        )
        for key, title in titles.items()
    ]


def _galleries(detector: Detector, after: Seen, given: Given) -> list[Panel]:
    spec = detector.classifier.spec
    assert spec is not None  # noqa: S101 - asked before
    highest, alarms = np.argsort(-after.wild), np.argsort(-after.known)
    wild = [f"{name}, {score:.3g}" for name, score in zip(after.wild_classes, after.wild, strict=True)]
    known = [f"{name}, {score:.3g}" for name, score in zip(given.classes, after.known, strict=True)]
    return [
        gallery(
            "Wild and rejected",
            "The highest scores first. Below each: the class it would have been given, and the score.",
            Pictures(given.wild, highest[after.wild_rejected[highest]], wild, spec),
        ),
        gallery(
            "Wild and just accepted",
            "The next ones to be rejected if the threshold were lower.",
            Pictures(given.wild, highest[~after.wild_rejected[highest]], wild, spec),
        ),
        gallery(
            "False alarms",
            "Known examples that are rejected. Below each: its class and the score.",
            Pictures(given.known, alarms[after.known_rejected[alarms]], known, spec),
        ),
    ]


def _look(detector: Detector, given: Given, accepted: float | None = None) -> Seen:
    """What a detector says of the examples: at its own thresholds, or at one that accepts this share of the known ones."""
    wild, wild_classes = detector.score_and_classify(given.wild)
    known, known_classes = detector.score_and_classify(given.known)
    if accepted is None:
        threshold = detector.threshold
        rejected = ~detector.accepts(wild, wild_classes), ~detector.accepts(known, known_classes)
    else:
        threshold = accepting_threshold(known, accepted)
        rejected = wild > threshold, known > threshold
    return Seen(wild, wild_classes, known, known_classes, *rejected, threshold)


def _some(examples: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """At most so many of them, evenly spaced."""
    chosen: npt.NDArray[Any] = examples[np.linspace(0, len(examples) - 1, min(len(examples), LOOKED_AT)).astype(int)]
    return chosen

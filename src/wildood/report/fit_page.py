"""The report of a user's own fit: no unknown is labelled here, so it says what can be said without."""

from html import escape
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wildood.detect.detector import Detector
from wildood.evaluate.metrics import accuracy, false_alarm_rate
from wildood.report import figures
from wildood.report.gallery import Chosen, can_be_shown, gallery
from wildood.report.page import Panel, Section, note, page, table
from wildood.report.sections import making_section, training_section

LOOKED_AT = 2000  # how many examples of each kind the page scores, at most


class Given(NamedTuple):
    """What the fit was given: wild examples, and ID examples with their classes (the holdout, or labelled ones)."""

    wild: npt.NDArray[Any]
    known: npt.NDArray[Any]
    classes: npt.NDArray[Any]
    is_holdout: bool


class Seen(NamedTuple):
    """Scores and answers of a detector on what was given."""

    wild: npt.NDArray[np.float32]
    wild_classes: npt.NDArray[np.int64]
    known: npt.NDArray[np.float32]
    known_classes: npt.NDArray[np.int64]


def fit_page(detector: Detector, before: Detector, given: Given, command: str) -> str:
    """The page of a fit; `before` is the energy of the starting classifier at the same false-alarm rate."""
    given = Given(_some(given.wild), _some(given.known), _some(given.classes), given.is_holdout)
    seen = {name: _look(each, given) for name, each in (("before", before), ("after", detector))}
    sections = [
        Section("What changed", [_table_panel(detector, before, seen, given)], wide=True),
        Section("Scores", _histograms(detector, before, seen, given)),
        training_section(detector),
        making_section(detector, {"command": command, "seed": str(detector.record["seed"])}),
    ]
    spec = detector.classifier.spec
    if spec is not None and can_be_shown(detector.example.shape, spec):
        sections.insert(3, Section("Single examples", _galleries(detector, seen["after"], given), wide=True))
    return page("A classifier that says “unknown”", _lead(detector, seen["after"]), sections)


def _lead(detector: Detector, after: Seen) -> str:
    rejected = 100 * false_alarm_rate(after.wild, detector.threshold)
    return (
        f"<p>This detector says “unknown” to <strong>{rejected:.1f} %</strong> of the wild examples it was given. Its "
        f"threshold: {escape(str(detector.promise))}.</p>"
    )


def _table_panel(detector: Detector, before: Detector, seen: dict[str, Seen], given: Given) -> Panel:
    rows = [
        [
            name,
            f"{100 * false_alarm_rate(seen[key].wild, threshold):.1f}",
            f"{100 * false_alarm_rate(seen[key].known, threshold):.1f}",
            f"{100 * accuracy(seen[key].known_classes, given.classes):.1f}",
        ]
        for name, key, threshold in (
            ("before: its energy", "before", before.threshold),
            (f"after: {detector.record['method']['name']}", "after", detector.threshold),
        )
    ]
    known = "holdout" if given.is_holdout else "labelled"
    return Panel(
        "What is rejected",
        f"In percent, on {len(given.wild)} wild and {len(given.known)} {known} examples.",
        table(["", "wild rejected", f"{known} rejected", f"{known} accuracy"], rows, strong=1)
        + note(
            "Nobody has said which wild examples are unknown, so there is no detection rate here: at the same rate on known "
            "data, rejecting more wild data means catching more unknowns. Most of these wild examples were trained on, and "
            "the threshold was set on some of these known ones."
            + ("" if given.is_holdout else " The labelled ones were trained on, too: fresh data is rejected more often.")
        ),
    )


def _histograms(detector: Detector, before: Detector, seen: dict[str, Seen], given: Given) -> list[Panel]:
    labels = ("holdout" if given.is_holdout else "labelled", "wild")
    return [
        Panel(
            title,
            "Right of the dashed line is rejected. Wild data is a mixture: most of it lies where the known lies.",
            figures.histogram(key, seen[key].known, seen[key].wild, threshold, labels),
        )
        for title, key, threshold in (
            ("Before: the energy of the classifier as it was", "before", before.threshold),
            ("After: the score of the trained detector", "after", detector.threshold),
        )
    ]


def _galleries(detector: Detector, after: Seen, given: Given) -> list[Panel]:
    spec, threshold = detector.classifier.spec, detector.threshold
    assert spec is not None  # noqa: S101 - asked before
    highest, alarms = np.argsort(-after.wild), np.argsort(-after.known)
    wild = [f"{name}, {score:.1f}" for name, score in zip(after.wild_classes, after.wild, strict=True)]
    known = [f"{name}, {score:.1f}" for name, score in zip(given.classes, after.known, strict=True)]
    return [
        gallery(
            "Wild and rejected",
            "The highest scores first. Below each: the class it would have been given, and the score.",
            Chosen(given.wild, highest[after.wild[highest] > threshold], wild, spec),
        ),
        gallery(
            "Wild and just accepted",
            "The next ones to be rejected if the threshold were lower.",
            Chosen(given.wild, highest[after.wild[highest] <= threshold], wild, spec),
        ),
        gallery(
            "False alarms",
            "Known examples that are rejected. Below each: its class and the score.",
            Chosen(given.known, alarms[after.known[alarms] > threshold], known, spec),
        ),
    ]


def _look(detector: Detector, given: Given) -> Seen:
    return Seen(*detector.score_and_classify(given.wild), *detector.score_and_classify(given.known))


def _some(examples: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """At most so many of them, evenly spaced."""
    chosen: npt.NDArray[Any] = examples[np.linspace(0, len(examples) - 1, min(len(examples), LOOKED_AT)).astype(int)]
    return chosen

"""The page of a user's own fit. No unknown is labelled here, so it shows what can be shown without labels."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wildood.data.structures import batch_length, map_structure
from wildood.detect.detector import Detector
from wildood.evaluate.intervals import Share
from wildood.evaluate.metrics import accepting_threshold, accuracy
from wildood.report import figures
from wildood.report.page import Gallery, gallery, is_picture, render
from wildood.report.table import Column, Row, Table, percent
from wildood.settings import settings_text
from wildood.train.history import Row as History

CONFIDENCE = 0.95  # of the interval of the headline
MOST_EXAMPLES = 2000  # of each kind that a page scores
Examples = Any  # an array, or a dict of arrays


class _Answers(NamedTuple):
    """What a detector says of wild and of known examples: scores, classes and rejections, and the threshold to draw."""

    wild: npt.NDArray[np.float32]
    wild_classes: npt.NDArray[np.int64]
    known: npt.NDArray[np.float32]
    known_classes: npt.NDArray[np.int64]
    wild_rejected: npt.NDArray[np.bool_]
    known_rejected: npt.NDArray[np.bool_]
    threshold: float


def fit_page(
    detector: Detector,
    before: Detector,
    wild: Examples,
    known: tuple[Examples, Examples],
    *,
    is_holdout: bool,
    command: str,
    settings: str,
) -> str:
    """The page of a fit.

    Args:
        detector: the result of the fit.
        before: the energy of the starting classifier; both are compared at one false-alarm rate, not at its threshold.
        wild: wild examples that training did not see.
        known: ID examples with their classes: the holdout, or labelled ones.
        is_holdout: whether the ID examples are the holdout.
        command: what was typed.
        settings: the effective settings as TOML.
    """
    wild, (x, y) = _some(wild), (_some(known[0]), _some(known[1]))
    measured = detector.trial or detector  # which has not seen this wild data
    after = _ask(measured, wild, x)
    start = _ask(before, wild, x, accepted=max(1 - float(np.mean(after.known_rejected)), 1 / len(y)))
    name = "holdout" if is_holdout else "labelled"
    record = detector.record
    start_kept = record.get("assessment", {}).get("start_kept", False)
    heads = ("wild rejected", f"{name} rejected", f"{name} accuracy")
    columns = [Column(""), *(Column(head, digits=percent(1)) for head in heads)]
    rows = [
        _row("before: its energy", start, y),
        _row(f"after: {'start kept' if start_kept else record['method']['name']}", after, y, strong=True),
    ]
    drawn = {
        title: figures.histogram(key, each.known, each.wild, each.threshold, (name, "wild"))
        for title, key, each in (
            ("Before: the energy of the classifier as it was", "before", start),
            (f"After: the score of the {'trial' if detector.trial else 'finished detector'}", "after", after),
        )
    }
    return render(
        "fit.html",
        title="A classifier that says “unknown”",
        detector=detector,
        confidence=f"{100 * CONFIDENCE:g} %",
        before=Share.of(start.wild_rejected, CONFIDENCE),
        after=Share.of(after.wild_rejected, CONFIDENCE),
        known_rejected=float(np.mean(after.known_rejected)),
        wild_count=len(after.wild),
        known_count=len(y),
        known_name=name,
        holdout_trained=_holdout_trained(record),
        retrained=record.get("retrained"),
        rejected=Table(columns, rows),
        histograms=drawn,
        galleries=_galleries(detector, after, wild, x, y),
        provenance=provenance(detector, {"command": command, "seed": str(record["seed"])}),
        settings=settings,
        **training(detector.history, record),
    )


def _holdout_trained(record: Mapping[str, Any]) -> bool:
    """Whether a part of the holdout has trained the detector that is deployed."""
    from_holdout = record.get("drift", {}).get("found", False) and "fresh" not in record["data"]
    return from_holdout and not record.get("assessment", {}).get("start_kept", False)


def training(history: Sequence[History], record: Mapping[str, Any]) -> dict[str, Any]:
    """What the template of a training needs: its figures, and the record of what was kept.

    The record has the method and its settings, `keep`, and `kept_epoch` where it is known.
    """
    last, method = history[-1], record["method"]
    # Whether examples known to be OOD chose the epoch, and not unlabelled wild data.
    kind = "OOD data" if record["keep"] == "as_published" or "ood" in record.get("data", {}) else "wild data"
    drawn: dict[str, Any] = {}
    if "lambda_false_alarm" in last:
        loss = method.get("false_alarm_loss", "sigmoid" if method["name"] == "Woods" else "hinge")
        drawn["constraint"] = figures.constraint("constraint", history, method["alpha"], figures.CONSTRAINT_NAMES[loss])
        drawn["classification"] = figures.classification("classification", history)
        drawn["multipliers"] = figures.multipliers("multipliers", history)
    elif "loss" in last:  # one figure for each stage; 0 if there are no stages
        stages = groupby(history, key=lambda row: int(row.get("stage", 0)))
        drawn["loss"] = {stage: figures.loss(f"loss-{stage}" if stage else "loss", list(rows)) for stage, rows in stages}
    if "w" in last:
        drawn["slope"] = figures.slope("slope", history)
    if "acceptance" in last:
        drawn["acceptance"] = figures.acceptance("acceptance", history, record.get("kept_epoch"), kind)
    return {"training": drawn, "history": history, "record": {"kept_epoch": None, **record}, "chosen_on": kind}


def provenance(detector: Detector, items: dict[str, str]) -> dict[str, str]:
    """Settings and versions of a fit, after other items."""
    record = detector.record
    return {
        **items,
        "method": f"{record['method']['name']}: {settings_text(record['method'])}",
        "schedule": settings_text(record["schedule"]),
        "threshold": f"{detector.threshold_text}: {detector.promise_text}",
        "versions": settings_text(record["versions"]),
    }


def _row(name: str, answers: _Answers, classes: Examples, *, strong: bool = False) -> Row:
    shares = np.mean(answers.wild_rejected), np.mean(answers.known_rejected), accuracy(answers.known_classes, classes)
    return Row.of(name, *(float(share) for share in shares), strong=strong)


def _galleries(detector: Detector, after: _Answers, wild: Examples, x: Examples, y: Examples) -> dict[str, Gallery]:
    """The examples by what the detector does with them; none if they are no pictures."""
    spec = detector.classifier.spec
    if not is_picture(spec, detector.example.shape):
        return {}
    highest, alarms = np.argsort(-after.wild), np.argsort(-after.known)
    wild_captions = [f"{name}, {score:.3g}" for name, score in zip(after.wild_classes, after.wild, strict=True)]
    known_captions = [f"{name}, {score:.3g}" for name, score in zip(y, after.known, strict=True)]
    return {
        "rejected": gallery(wild, highest[after.wild_rejected[highest]], wild_captions, spec),
        "accepted": gallery(wild, highest[~after.wild_rejected[highest]], wild_captions, spec),
        "false_alarms": gallery(x, alarms[after.known_rejected[alarms]], known_captions, spec),
    }


def _ask(detector: Detector, wild: Examples, known: Examples, accepted: float | None = None) -> _Answers:
    """What a detector says: at its own thresholds, or at one that accepts this share of the known examples."""
    wild_scores, wild_classes = detector.score_and_classify(wild)
    scores, classes = detector.score_and_classify(known)
    if accepted is None:
        threshold = detector.threshold
        rejected = ~detector.accepts(wild_scores, wild_classes), ~detector.accepts(scores, classes)
    else:
        threshold = accepting_threshold(scores, accepted)
        rejected = wild_scores > threshold, scores > threshold
    return _Answers(wild_scores, wild_classes, scores, classes, *rejected, threshold)


def _some(examples: Examples) -> Examples:
    """At most `MOST_EXAMPLES` of them, evenly spaced."""
    count = batch_length(examples)
    numbers = np.linspace(0, count - 1, min(count, MOST_EXAMPLES)).astype(int)
    return map_structure(lambda part: part[numbers], examples)

"""Sections that every report of a training has: how it went, and how it was made."""

from collections.abc import Mapping, Sequence
from typing import Any

from wildood.detect.detector import Detector
from wildood.report import figures
from wildood.report.page import Panel, Section, code, definitions
from wildood.report.tables import settings_text
from wildood.train.history import Row


def training_section(detector: Detector) -> Section:
    """How the training of a detector went."""
    return Section("The training", training_panels(detector.history, detector.record))


def training_panels(history: Sequence[Row], record: Mapping[str, Any]) -> list[Panel]:
    """The constraints and multipliers, or the loss; w; and what chose the epoch.

    Args:
        history: a row for each epoch.
        record: with the method and its settings, `keep`, and `kept_epoch` where it is known.

    >>> rows = [{"step": 0, "loss": 2.0}, {"step": 5, "loss": 1.5}]
    >>> [panel.title for panel in training_panels(rows, {"method": {"name": "OutlierExposure"}, "keep": "best"})]
    ['The loss']
    >>> staged = [{"stage": stage, **row} for stage in (1, 2) for row in rows]
    >>> [panel.title for panel in training_panels(staged, {"method": {"name": "Csi"}, "keep": "best"})]
    ['The loss of stage 1', 'The loss of stage 2']
    """
    last = history[-1]
    panels = []
    if "lambda_false_alarm" in last:
        panels += _constraint_panels(history, record["method"])
    elif "loss" in last:
        panels += _loss_panels(history)
    if "w" in last:
        panels.append(
            Panel(
                "The slope w",
                "How sharply the energy is turned into known or unknown. A high energy means unknown where w is negative.",
                figures.slope("slope", history),
            )
        )
    if "acceptance" in last:
        known = record["keep"] == "as_published" or "ood" in record.get("data", {})  # then OOD examples chose
        kept, aside = record.get("kept_epoch"), "OOD data" if known else "wild data"
        says = _kept(history, kept, aside, record["keep"])
        title = "Which epoch was kept" if kept is not None else "What is accepted"
        panels.append(Panel(title, says, figures.acceptance("acceptance", history, kept, aside)))
    return panels


def _loss_panels(history: Sequence[Row]) -> list[Panel]:
    """One figure, or one for each stage: their losses are not the same."""
    says = "What training minimises, as the mean of each epoch."
    stages = sorted({int(row["stage"]) for row in history if "stage" in row})
    if not stages:
        return [Panel("The loss", says, figures.loss("loss", history))]
    return [
        Panel(f"The loss of stage {stage}", says, figures.loss(f"loss-{stage}", [r for r in history if r["stage"] == stage]))
        for stage in stages
    ]


def _constraint_panels(history: Sequence[Row], method: Mapping[str, Any]) -> list[Panel]:
    soft = "soft false-alarm rate" if method["name"] == "Woods" else "mean hinge, max(1 + g, 0)"
    limit = "twice the cross-entropy it started with there" if method["tau"] is None else f"set to {method['tau']:g}"
    return [
        Panel(
            "The constraint on false alarms",
            "Training may reject known data only up to the limit. What is shown is the loss that training can "
            "differentiate, on labelled data and on data set aside that it does not train on; the deployed threshold is set "
            "afterwards.",
            figures.constraint("constraint", history, method["alpha"], soft),
        ),
        Panel(
            "The constraint on classification",
            f"On labelled data, the classifier must stay below the limit τ, {limit}. Data set aside may lie higher: no "
            "constraint holds it.",
            figures.classification("classification", history),
        ),
        Panel(
            "The multipliers",
            "How strongly each constraint pulls: a multiplier rises while its constraint is violated and falls while there "
            "is slack."
            + (
                " As published, both constraints share one."
                if method.get("shared_multiplier", method.get("published"))
                else ""
            ),
            figures.multipliers("multipliers", history),
        ),
    ]


def _kept(history: Sequence[Row], kept: int | None, aside: str, keep: str) -> str:
    if kept is None:
        return f"The share of the {aside} that was set aside that is accepted, each epoch at its own threshold."
    if keep != "last" and kept == 0:
        return "No epoch was shown to be better than the start, so the start was kept."
    start, end = (100 * history[number]["acceptance"] for number in (0, kept))
    accepted = (
        f"Of the {aside} that was set aside, {end:.1f} % are accepted at the epoch that was kept (step "
        f"{history[kept]['step']:.0f}), {start:.1f} % at the start, each at its own threshold."
    )
    if keep == "last":
        return f"{accepted} The last epoch is kept, as asked."
    if keep == "as_published":
        return f"{accepted} The first epoch with the least is kept, whatever its accuracy, as in the released code."
    unlabelled = ", and no label of an unknown is needed to see it" if aside == "wild data" else ""
    return (
        f"{accepted} Less is better{unlabelled}. Of the epochs that cannot be told from "
        "the best one on these examples, and that keep the accuracy, the last is kept."
    )


def making_section(detector: Detector, more: dict[str, str], settings: str = "") -> Section:
    """Settings, seeds, versions; and a file of settings that can be passed back, if there is one."""
    record = detector.record
    items = {
        **more,
        "method": f"{record['method']['name']}: {settings_text(record['method'])}",
        "schedule": settings_text(record["schedule"]),
        "threshold": f"{detector.threshold_text}: {detector.promise_text}",
        "versions": settings_text(record["versions"]),
    }
    says = "With these, the same command makes the same numbers on the same machine with the same number of threads."
    panels = [Panel("Settings, seeds, versions", says, definitions(items))]
    if settings:
        panels.append(Panel("settings.toml", "To be passed back with --config.", code(settings)))
    return Section("How it was made", panels, wide=True)

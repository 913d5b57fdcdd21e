"""Sections that every report of a training has: how it went, and how it was made."""

from collections.abc import Sequence

from wildood.detect.detector import Detector
from wildood.report import figures
from wildood.report.page import Panel, Section, definitions
from wildood.report.tables import settings_text
from wildood.train.history import Row


def training_section(detector: Detector) -> Section:
    """The constraints and multipliers, or the loss; w; and what chose the epoch."""
    history = detector.history
    last = history[-1]
    panels = _constraint_panels(detector) if "lambda_false_alarm" in last else [_loss_panel(history)]
    if "w" in last:
        panels.append(
            Panel(
                "The slope w",
                "How sharply the energy is turned into known or unknown; negative, so that a high energy means unknown.",
                figures.slope("slope", history),
            )
        )
    if "acceptance" in last:
        kept = detector.record["kept_epoch"]
        says = _kept(history, kept, chosen=detector.record["keep"] == "best")
        panels.append(Panel("Which epoch was kept", says, figures.acceptance("acceptance", history, kept)))
    return Section("The training", panels)


def _loss_panel(history: Sequence[Row]) -> Panel:
    return Panel("The loss", "What training minimises, as the mean of each epoch.", figures.loss("loss", history))


def _constraint_panels(detector: Detector) -> list[Panel]:
    history, method = detector.history, detector.record["method"]
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
            f"On labelled data, the classifier must stay below the limit τ, {limit}; on data that it was not trained on, "
            "its loss is higher from the start.",
            figures.classification("classification", history),
        ),
        Panel(
            "The multipliers",
            "How strongly each constraint pulls: a multiplier rises while its constraint is violated and falls while there "
            "is slack.",
            figures.multipliers("multipliers", history),
        ),
    ]


def _kept(history: Sequence[Row], kept: int, *, chosen: bool) -> str:
    if chosen and kept == 0:
        return "No epoch was better than the start, so the starting weights were kept."
    accepted = (
        f"Of wild data that was set aside, {100 * history[kept]['acceptance']:.1f} % are accepted at the epoch that was "
        f"kept (step {history[kept]['step']:.0f}); at the start it was {100 * history[0]['acceptance']:.1f} %."
    )
    if not chosen:
        return f"{accepted} It is the last one, as asked."
    return (
        f"{accepted} No label of an unknown was needed: the less wild data is accepted at the same false-alarm rate, the "
        "better, as long as the accuracy holds."
    )


def making_section(detector: Detector, more: dict[str, str]) -> Section:
    """Settings, seeds, versions."""
    record = detector.record
    items = {
        **more,
        "method": f"{record['method']['name']}: {settings_text(record['method'])}",
        "schedule": settings_text(record["schedule"]),
        "threshold": f"{detector.threshold:.6g}: {detector.promise}",
        "versions": settings_text(record["versions"]),
    }
    says = "With these, the same command makes the same numbers on the same machine."
    return Section("How it was made", [Panel("Settings, seeds, versions", says, definitions(items))], wide=True)

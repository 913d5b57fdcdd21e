"""Sections that every report of a training has: how it went, and how it was made."""

from collections.abc import Sequence

from wildood.detect.detector import Detector
from wildood.report import figures
from wildood.report.page import Panel, Section, code, definitions
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
                "How sharply the energy is turned into known or unknown. A high energy means unknown where w is negative.",
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
            f"On labelled data, the classifier must stay below the limit τ, {limit}. Data set aside may lie higher: no "
            "constraint holds it.",
            figures.classification("classification", history),
        ),
        Panel(
            "The multipliers",
            "How strongly each constraint pulls: a multiplier rises while its constraint is violated and falls while there "
            "is slack." + (" As published, both constraints share one." if method["published"] else ""),
            figures.multipliers("multipliers", history),
        ),
    ]


def _kept(history: Sequence[Row], kept: int, *, chosen: bool) -> str:
    if chosen and kept == 0:
        return "No epoch was better than the start, so the starting weights were kept."
    start, end = (100 * history[number]["acceptance"] for number in (0, kept))
    accepted = (
        f"Of the wild data that was set aside, {end:.1f} % are accepted at the epoch that was kept (step "
        f"{history[kept]['step']:.0f}), {start:.1f} % at the start, each at its own threshold."
    )
    if not chosen:
        return f"{accepted} The last epoch is kept, as asked."
    return (
        f"{accepted} Less is better, and no label of an unknown is needed to see it. Of the epochs that cannot be told from "
        "the best one on these examples, and that keep the accuracy, the last is kept."
    )


def making_section(detector: Detector, more: dict[str, str], settings: str = "") -> Section:
    """Settings, seeds, versions; and a file of settings that can be passed back, if there is one."""
    record = detector.record
    items = {
        **more,
        "method": f"{record['method']['name']}: {settings_text(record['method'])}",
        "schedule": settings_text(record["schedule"]),
        "threshold": f"{detector.threshold:.6g}: {detector.promise}",
        "versions": settings_text(record["versions"]),
    }
    says = "With these, the same command makes the same numbers on the same machine with the same number of threads."
    panels = [Panel("Settings, seeds, versions", says, definitions(items))]
    if settings:
        panels.append(Panel("settings.toml", "To be passed back with --config.", code(settings)))
    return Section("How it was made", panels, wide=True)

"""Sections that every report of a training has: how it went, and how it was made."""

from collections.abc import Sequence

from wildood.detect.detector import Detector
from wildood.report import figures
from wildood.report.page import Panel, Section, definitions
from wildood.report.tables import settings_text
from wildood.train.history import Row


def training_section(detector: Detector) -> Section:
    """The constraints, the multipliers, w and what chose the epoch."""
    history, record = detector.history, detector.record
    alpha, kept = record["method"]["alpha"], record["kept_epoch"]
    panels = [
        Panel(
            "The constraint on false alarms",
            "Training may reject known data only up to the limit. The soft rate is what training can differentiate, on the "
            "labelled data it sees and on holdout data that it does not; the deployed threshold is set afterwards.",
            figures.constraint("constraint", history, alpha),
        ),
        Panel(
            "The constraint on classification",
            "On labelled data, the classifier must stay below the limit τ, which is twice the cross-entropy it started with "
            "there; on the holdout, which it does not train on, its loss is higher from the start.",
            figures.classification("classification", history),
        ),
        Panel(
            "The multipliers",
            "How strongly each constraint pulls: a multiplier rises while its constraint is violated and falls while there "
            "is slack.",
            figures.multipliers("multipliers", history),
        ),
    ]
    if "w" in history[-1]:
        panels.append(
            Panel(
                "The slope w",
                "How sharply the energy is turned into known or unknown; negative, so that a high energy means unknown.",
                figures.slope("slope", history),
            )
        )
    if "acceptance" in history[-1]:
        panels.append(
            Panel(
                "Which epoch was kept",
                f"{_kept(history, kept)} No label of an unknown was needed: the less wild data is accepted at the same "
                "false-alarm rate, the better, as long as the accuracy holds.",
                figures.acceptance("acceptance", history, kept),
            )
        )
    return Section("The training", panels)


def _kept(history: Sequence[Row], kept: int) -> str:
    if kept == 0:
        return "No epoch was better than the start, so the starting weights were kept."
    return (
        f"Of wild data that was set aside, {100 * history[kept]['acceptance']:.1f} % are accepted at the epoch that was "
        f"kept (step {history[kept]['step']:.0f}); at the start it was {100 * history[0]['acceptance']:.1f} %."
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

"""The report of an evaluation: what is caught of each OOD set and at what cost, by class, and the worst mistakes."""

from collections.abc import Sequence
from html import escape

import numpy as np

from wildood.detect.detector import Detector
from wildood.experiments.evaluation import CONFIDENCE, Decisions, Measured
from wildood.report import figures
from wildood.report.evaluation_tables import (
    CONVENTION,
    UNITS,
    UNKNOWABLE,
    Cells,
    class_cells,
    id_cells,
    ood_cells,
    promise_text,
    shared_examples,
    unmatched_names,
    used_before,
)
from wildood.report.gallery import Pictures, can_be_shown, gallery
from wildood.report.page import Panel, Section, definitions, note, page, table
from wildood.report.tables import settings_text

CLASSES = 20  # as many as are shown of a long list
IN_ROC = 4  # as many as a reader can tell apart
LONGEST = 28  # letters of a set's name in a legend


def evaluation_page(measured: Measured, making: dict[str, str]) -> str:
    """The page; `making` says what was typed, and whatever else made the numbers."""
    sections = [
        Section("What is caught, and at what cost", _tables(measured), wide=True),
        Section("Scores", [*_densities(measured), *_rocs(measured)]),
        Section("False alarms by class", _classes(measured)),
        Section("How it was made", [_making(measured.detector, making)], wide=True),
    ]
    pictures = _galleries(measured)
    if pictures:
        sections.insert(3, Section("The most confident mistakes", pictures, wide=True))
    return page("What this detector catches, and what it costs", _lead(measured), sections)


def _lead(measured: Measured) -> str:
    found = measured.evaluation
    over = f"{len(found.ood)} OOD sets, each counting alike" if len(found.ood) > 1 else found.ood[0].name
    accuracy = "" if found.id.accuracy is None else f" Its classifier is right on {100 * found.id.accuracy.value:.1f} %."
    return (
        f"<p>It says “unknown” to <strong>{100 * found.average.caught:.1f} %</strong> of the unknown examples "
        f"({escape(over)}), and to <strong>{100 * found.id.false_alarms.value:.1f} %</strong> of the known ones "
        f"({escape(found.id.name)}).{accuracy}</p>"
        f"<p>{escape(promise_text(measured.promise))}</p>"
    )


def _tables(measured: Measured) -> list[Panel]:
    found = measured.evaluation
    leaked = shared_examples(found)
    accuracy = (
        "The examples have no labels, so there is no accuracy."
        if found.id.accuracy is None
        else "Accuracy is the classifier's own, whether or not an example is rejected; then that of the accepted ones."
    )
    return [
        Panel(
            "What is caught of each OOD set",
            f"{UNITS} ↑ higher is better, ↓ lower is better.",
            _table(ood_cells(found))
            + note(
                f"{CONVENTION} AUROC is the probability that an OOD example scores higher than an ID example. AUPR-in and "
                "AUPR-out are average precisions with ID and with OOD as the positive class; they depend on how many "
                "examples each set has, so compare them between detectors, not between sets. The bootstrap knows only "
                "these examples: the interval of an AUROC near 100 % is too narrow, and one without width says no more than "
                "that no resample differs."
            )
            + (note(leaked) if leaked else ""),
        ),
        Panel(
            "What it costs on ID data",
            f"{accuracy} False alarms are the ID examples that are rejected at the deployed threshold.",
            _table(id_cells(found)) + "".join(map(note, [*used_before(found), *unmatched_names(found), UNKNOWABLE])),
        ),
    ]


def _densities(measured: Measured) -> list[Panel]:
    thresholds = measured.detector.class_thresholds
    what = "Right of the dashed line is rejected." + (
        "" if thresholds is None else " Each class has its own threshold: shown is how far a score lies above or below it."
    )

    def shown(answers: Decisions) -> figures.Scores:
        return answers.scores if thresholds is None else answers.margins

    threshold = measured.detector.threshold if thresholds is None else 0.0
    axis = figures.SCORE if thresholds is None else figures.MARGIN
    return [
        Panel(
            f"Scores of {answers.name}",
            f"{what} Caught: {100 * result.caught.value:.1f} %.",
            figures.histogram(f"scores-{number}", shown(measured.known), shown(answers), threshold, ("ID", "OOD"), axis),
        )
        for number, (answers, result) in enumerate(zip(measured.unknown, measured.evaluation.ood, strict=True))
    ]


def _rocs(measured: Measured) -> list[Panel]:
    known, threshold = measured.known, measured.detector.threshold
    false_alarms = measured.evaluation.id.false_alarms.value
    caught = [result.caught.value for result in measured.evaluation.ood]
    several = measured.detector.class_thresholds is not None
    says = "Further up and to the left is better. The dot is where the detector operates; only false-alarm rates up to 30 % "
    says += "are shown, or up to the dot." + (
        " It has a threshold for each class, so the dot may lie beside the curve of one for all." if several else ""
    )
    panels = []
    for part, numbers in enumerate(_parts(len(caught))):
        labels = _legend([measured.unknown[number].name for number in numbers], numbers, numbered=len(caught) > IN_ROC)
        scores = {label: (known.scores, measured.unknown[number].scores, threshold) for number, label in labels.items()}
        points = {label: (false_alarms, caught[number]) for number, label in labels.items()}
        title = "Caught against cost, at every threshold"
        title += f": sets {numbers[0] + 1} to {numbers[-1] + 1}" if len(caught) > IN_ROC else ""
        panels.append(Panel(title, says, figures.roc(f"roc-{part}", scores, points=points)))
    return panels


def _parts(count: int) -> list[range]:
    return [range(start, min(start + IN_ROC, count)) for start in range(0, count, IN_ROC)]


def _legend(names: Sequence[str], numbers: Sequence[int], *, numbered: bool) -> dict[int, str]:
    """Names that can stand in a legend: short, and with their numbers where the title counts sets or a name needs it.

    >>> _legend(["svhn", "lsun"], [0, 1], numbered=False)
    {0: 'svhn', 1: 'lsun'}
    """
    short = [name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}" for name in names]
    # A name that begins with _ is hidden there, and of two that end alike one would be lost.
    numbered = numbered or len(set(short)) < len(short) or any(name.startswith("_") for name in short)
    return {number: f"{number + 1}: {name}" if numbered else name for number, name in zip(numbers, short, strict=True)}


def _classes(measured: Measured) -> list[Panel]:
    found, promise = measured.evaluation.id, measured.detector.promise
    by_class = promise is not None and promise.by_class
    cells = class_cells(measured.evaluation, measured.classes, CLASSES)
    shares = sorted(found.false_alarms_by_class.items(), key=lambda item: -item[1].value)[:CLASSES]
    bars = [(measured.classes[number], share.value, share.low, share.high) for number, share in shares]
    whose = "Classes are the labels of the examples."
    if found.classes_are == "predicted":
        why = "a rate is promised for each of these" if by_class else "the examples have no labels"
        whose = f"Classes are what the classifier predicts: {why}."
    left_out = len(found.false_alarms_by_class) - len(shares)
    rest = f" The {CLASSES} highest are shown; metrics.json has the other {left_out}, too." if left_out else ""
    promised = (
        "A rate is promised for each predicted class, none for the true ones."
        if by_class
        else "A promise is about all classes together: one class may bear more."
    )
    return [
        Panel(
            "Who bears the false alarms",
            f"{whose} A line is the {100 * CONFIDENCE:g} % interval of one class.{rest}",
            # The line is where something is promised: in each predicted class, never in a true one.
            figures.by_class("classes", bars, promise.alpha if promise is not None and promise.by_class else None),
        ),
        Panel("The same in numbers", f"In percent. {promised}", _table(cells)),
    ]


def _galleries(measured: Measured) -> list[Panel]:
    spec = measured.detector.classifier.spec
    names = measured.classes
    panels = []
    for answers in measured.unknown:
        if spec is not None and can_be_shown(answers.images.examples.shape[1:], spec):
            captions = _captions([names[number] for number in answers.classes], answers)
            chosen = Pictures(np.asarray(answers.images.examples), answers.mistakes_if_ood, captions, spec)
            says = "Unknowns that it takes for known, the lowest scores first. Below each: what it is called, and the score."
            panels.append(gallery(f"{answers.name}, accepted", says, chosen))
    known = measured.known
    if spec is not None and can_be_shown(known.images.examples.shape[1:], spec):
        labels = known.classes if known.images.labels is None else np.asarray(known.images.labels)
        what = "what it is called" if known.images.labels is None else "what it is"
        says = f"False alarms, the highest scores first. Below each: {what}, and the score."
        chosen = Pictures(
            np.asarray(known.images.examples),
            known.mistakes_if_id,
            _captions([names[number] for number in labels], known),
            spec,
        )
        panels.append(gallery(f"{known.name}, rejected", says, chosen))
    return panels


def _captions(names: Sequence[str], answers: Decisions) -> list[str]:
    return [f"{name}, {score:.3g}" for name, score in zip(names, answers.scores, strict=True)]


def _making(detector: Detector, making: dict[str, str]) -> Panel:
    items = {
        **making,
        "score": f"{type(detector.scorer).__name__}, higher = more OOD",
        "threshold": f"{detector.threshold_text}: {detector.promise_text if detector.promise else 'nothing is promised'}",
        "made with": settings_text(detector.record.get("versions", {})),
    }
    return Panel("Command, detector, versions", "metrics.json holds every number of this page.", definitions(items))


def _table(cells: Cells) -> str:
    rows = [[name, *(cell.replace(", ", ",\u00a0") for cell in others)] for name, *others in cells.rows]
    return table(cells.header, rows, cells.strong)

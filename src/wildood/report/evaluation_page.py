"""An evaluation as its reader gets it: tables as Markdown and LaTeX, `metrics.json`, and the page."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from wildood.data.fingerprint import role_text
from wildood.detect.bulk import json_number
from wildood.detect.card import escape_markdown, one_line
from wildood.detect.detector import Detector, Example, versions
from wildood.evaluate.intervals import Estimate, Share, percent_digits
from wildood.experiments.evaluation import (
    CONFIDENCE,
    Average,
    Decisions,
    Evaluation,
    IdResult,
    OodResult,
    PromiseCheck,
    SetDecisions,
)
from wildood.report import figures
from wildood.report.page import SHOWN, Gallery, gallery, is_picture, render
from wildood.report.table import Column, Row, Table, TableCell, to_latex, to_markdown
from wildood.settings import settings_text

if TYPE_CHECKING:
    from wildood.report.evaluation import EvaluationReport

FORMAT = 1  # of metrics.json: names stay as they are, others may join
CLASSES = 20  # as many as are shown of a long list
IN_ROC = 4  # as many curves as a reader can tell apart
LONGEST = 28  # letters of a set's name in a legend
UNITS = (
    f"In percent, with {100 * CONFIDENCE:g} % intervals in brackets: exact (Clopper-Pearson) for counted shares, of the "
    "bootstrap for FPR95 (but never narrower than the exact one) and AUROC."
)
CONVENTION = (
    "FPR95 is the share of OOD that is accepted when 95 % of ID is accepted (ID is the positive class, as in the paper); "
    "caught is the share of OOD that is rejected at the deployed threshold."
)
UNKNOWABLE = (
    "A set that the detector was fitted on, or that set its threshold, is recognised as a whole, and a line says so. "
    "Whether single examples were used, or the starting classifier was trained on them, cannot be seen: if so, the "
    "numbers are better than they will be in service."
)


def ood_table(evaluation: Evaluation) -> Table:
    """One row for each OOD set, and their mean where there are several.

    >>> from types import SimpleNamespace
    >>> fpr95, auroc, caught = Estimate(0.1, 0.0, 0.2), Estimate(0.98, 0.97, 0.99), Share(0.9, 0.6, 1.0, 9, 10)
    >>> result = OodResult("svhn", 10, fpr95, auroc, aupr_in=0.97, aupr_out=0.96, caught=caught, also_in_id=0)
    >>> table = ood_table(SimpleNamespace(ood=[result]))
    >>> table.texts(table.rows[0])
    ['svhn', '90.0 [60.0, 100.0]', '10.0 [0.0, 20.0]', '98.0 [97.0, 99.0]', '97.0', '96.0', '10']
    """
    heads = ["caught ↑", "FPR95 ↓", "AUROC ↑", "AUPR-in ↑", "AUPR-out ↑"]
    columns = [Column("OOD set"), *(Column(head, digits=percent_digits) for head in heads), _EXAMPLES]
    rows = [Row.of(each.name, _cell(each.caught), *_detection(each), each.examples) for each in evaluation.ood]
    if len(rows) > 1:
        average = evaluation.average
        rows.append(Row.of("mean of the sets", average.caught, *_detection(average), "", strong=True))
    return Table(columns, rows)


def id_table(evaluation: Evaluation) -> Table:
    """Accuracy and false alarms on the ID set."""
    return _known_table("ID set", evaluation.id)


def all_tables(evaluation: Evaluation) -> list[Table]:
    """Those of the OOD sets, of the ID set and, if there is one, of the shifted set."""
    shifted = [] if evaluation.shifted is None else [_known_table("shifted set", evaluation.shifted)]
    return [ood_table(evaluation), id_table(evaluation), *shifted]


def _known_table(kind: str, result: IdResult) -> Table:
    shares = {
        "accuracy ↑": result.accuracy,
        "accuracy of the accepted ↑": result.accuracy_of_accepted,
        "false alarms ↓": result.false_alarms,
    }
    columns = [Column(f"{kind}: {result.name}"), Column("share", digits=percent_digits), _EXAMPLES]
    rows = [Row.of(name, _cell(share), share.examples) for name, share in shares.items() if share is not None]
    return Table(columns, rows)


def class_table(evaluation: Evaluation, names: Sequence[str], most: int) -> Table:
    """False alarms of each class, the highest share first; no more rows than `most`."""
    shares = _highest_classes(evaluation)[:most]
    columns = [Column(f"{evaluation.id.classes_are} class"), Column("false alarms ↓", digits=percent_digits), _EXAMPLES]
    return Table(columns, [Row.of(names[each], _cell(share), share.examples) for each, share in shares])


def evaluation_markdown(evaluation: Evaluation, promise: PromiseCheck) -> str:
    """The tables with what to know about them, as Markdown."""
    tables = map(to_markdown, all_tables(evaluation))
    return "\n\n".join([*tables, *map(escape_markdown, _notes(evaluation, promise))]) + "\n"


def evaluation_latex(evaluation: Evaluation, promise: PromiseCheck) -> str:
    """The tables as LaTeX with booktabs; what to know about them is in comments."""
    tables = "\n\n".join(map(to_latex, all_tables(evaluation)))
    notes = [f"% {one_line(note)}" for note in _notes(evaluation, promise)]
    return "\n".join([r"% \usepackage{booktabs}", *notes, tables]) + "\n"


def promise_text(check: PromiseCheck) -> str:
    """What the measured false alarms say of the promised rate, as a sentence."""
    return f"False alarms: {check.says}."


def used_before(evaluation: Evaluation) -> list[str]:
    """A sentence for each set that had a role in making the detector."""
    shifted = () if evaluation.shifted is None else (evaluation.shifted,)
    sets: tuple[IdResult | OodResult, ...] = (evaluation.id, *evaluation.ood, *shifted)
    used = [(each.name, role_text(each.role_of)) for each in sets if each.role_of]
    return [f"{name}: these examples {role}: what is measured here is not new." for name, role in used]


def not_promised(evaluation: Evaluation) -> str:
    """That the promise is not about the shifted set; empty without one."""
    name = evaluation.shifted and evaluation.shifted.name
    return f"{name}: known examples that have changed since the holdout; no rate is promised for them." if name else ""


def shared_examples(evaluation: Evaluation) -> str:
    """Which OOD sets have examples that are in the ID set, too; empty if none has."""
    counts = [f"{each.also_in_id:,} of {each.examples:,} in {each.name}" for each in evaluation.ood if each.also_in_id]
    return f"Examples that are in {evaluation.id.name}, too: {', '.join(counts)}." if counts else ""


def metrics_record(report: "EvaluationReport") -> dict[str, Any]:
    """The content of `metrics.json`: every number, the detector, and the command that made it."""
    detector, names, thresholds = report.detector, report.classes, report.detector.class_thresholds
    bootstrap = {"how": "percentile", "resamples": report.resamples, "seed": report.seed}
    return {
        "format": FORMAT,
        "command": report.command,
        "versions": versions(),
        "convention": "shares from 0 to 1; fpr95: OOD accepted when 95 % of ID is accepted (ID is the positive class)",
        "intervals": {"confidence": CONFIDENCE, "bootstrap": bootstrap, "counted_shares": "Clopper-Pearson"},
        "detector": {
            "directory": report.directory,
            "threshold": json_number(detector.threshold),
            "class_thresholds": None if thresholds is None else list(map(json_number, thresholds.tolist())),
            "promise": None if detector.promise is None else asdict(detector.promise),
            "record": _finite(detector.record),
        },
        "promise": promise_record(detector, report.promise),
        "id": _known_record(report.id, report.known, names),
        "ood": [
            {**_result(result), "data": each.where, "mistakes": _listed(each, each.mistakes_if_ood, names)}
            for result, each in zip(report.ood, report.unknown, strict=True)
        ],
        "average": asdict(report.average),
        "shifted": report.shifted and report.shifted_known and _known_record(report.shifted, report.shifted_known, names),
    }


def _known_record(result: IdResult, answers: SetDecisions, names: Sequence[str]) -> dict[str, Any]:
    """The numbers of a known set, and its first false alarms."""
    by_class = result.false_alarms_by_class
    return {
        **_result(result),
        "data": answers.where,
        "false_alarms_by_class": [
            {"class": number, "name": names[number], **asdict(share)} for number, share in by_class.items()
        ],
        "mistakes": _listed(answers, answers.mistakes_if_id, names),
    }


def promise_record(detector: Detector, check: PromiseCheck) -> dict[str, Any]:
    """A promise in JSON files: what was promised, and what was measured."""
    return {"promised": None if detector.promise is None else asdict(detector.promise), **asdict(check)}


def evaluation_page(report: "EvaluationReport") -> str:
    """The page."""
    detector, promise, shares = report.detector, report.detector.promise, _highest_classes(report)[:CLASSES]
    by_class = promise is not None and promise.by_class
    bars = [(report.classes[number], share.value, share.low, share.high) for number, share in shares]
    origin = {"command": report.command, "detector": report.directory}
    items = {
        **{name: text for name, text in origin.items() if text},
        "measured with": settings_text(versions()),
        "score": f"{type(detector.scorer).__name__}, higher = more OOD",
        "threshold": f"{detector.threshold_text}: {detector.promise_text if promise else 'nothing is promised'}",
        "made with": settings_text(detector.record.get("versions", {})),
    }
    return render(
        "evaluation.html",
        title="What this detector catches, and what it costs",
        evaluation=report,
        promise_text=promise_text(report.promise),
        units=UNITS,
        convention=CONVENTION,
        confidence=f"{100 * CONFIDENCE:g} %",
        ood_table=ood_table(report),
        id_table=id_table(report),
        shifted_table=_known_table("shifted set", report.shifted) if report.shifted else None,
        shifted_note=not_promised(report),
        class_table=class_table(report, report.classes, CLASSES),
        ood_note=shared_examples(report),
        id_notes=[*used_before(report), *_unmatched_names(report), UNKNOWABLE],
        class_thresholds=detector.class_thresholds is not None,
        by_class=by_class,
        most_classes=CLASSES,
        left_out=len(report.id.false_alarms_by_class) - len(shares),
        histograms=_histograms(report),
        rocs=_rocs(report),
        # A rate is promised, and so drawn, in each predicted class, never in a true one.
        by_class_figure=figures.by_class("classes", bars, promise.alpha if promise is not None and by_class else None),
        galleries=_galleries(report),
        provenance=items,
    )


_EXAMPLES = Column("examples", digits="{:,}".format)


def _cell(estimate: Estimate | Share) -> TableCell:
    return TableCell(estimate.value, interval=(estimate.low, estimate.high))


def _detection(result: OodResult | Average) -> list[TableCell]:
    return [_cell(result.fpr95), _cell(result.auroc), TableCell(result.aupr_in), TableCell(result.aupr_out)]


def _highest_classes(evaluation: Evaluation) -> list[tuple[int, Share]]:
    """The false alarms of each class, by its number, the highest share first."""
    return sorted(evaluation.id.false_alarms_by_class.items(), key=lambda item: -item[1].value)


def _unmatched_names(evaluation: Evaluation) -> list[str]:
    """A sentence if the classes of the ID set could not be matched by name, or none."""
    note = "the detector has no names for its classes, so those of the labels are numbered in their order."
    return [f"{evaluation.id.name}: {note}"] if evaluation.id.unmatched_names else []


def _notes(evaluation: Evaluation, promise: PromiseCheck) -> list[str]:
    notes = [UNITS, CONVENTION, promise_text(promise), not_promised(evaluation), *used_before(evaluation), UNKNOWABLE]
    return list(filter(None, [*notes, *_unmatched_names(evaluation), shared_examples(evaluation)]))


def _result(result: IdResult | OodResult) -> dict[str, Any]:
    """The numbers of a set; what it was to the detector before has another name in files."""
    return {"used_as" if name == "role_of" else name: value for name, value in asdict(result).items()}


def _listed(answers: SetDecisions, numbers: npt.NDArray[np.intp], names: Sequence[str]) -> list[dict[str, Any]]:
    """The first mistakes of a set, as many as the page shows."""
    return [
        {
            "example": answers.files[number] if len(answers.files) else number,
            "score": json_number(float(answers.scores[number])),
            "predicted": names[answers.classes[number]],
        }
        for number in numbers[:SHOWN].tolist()
    ]


def _finite(value: Any) -> Any:
    """A record with its infinite settings, such as a clip of inf, as text."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return json_number(value) if isinstance(value, float) else value


def _histograms(report: "EvaluationReport") -> list[Markup]:
    """Of each OOD set: scores, or their distance from the threshold of their class."""
    by_class = report.detector.class_thresholds is not None
    threshold, axis = (0.0, figures.MARGIN) if by_class else (report.detector.threshold, figures.SCORE)

    def shown(answers: Decisions) -> figures.Scores:
        return answers.margins if by_class else answers.scores

    return [
        figures.histogram(f"scores-{number}", shown(report.known), shown(answers), threshold, ("ID", "OOD"), axis)
        for number, answers in enumerate(report.unknown)
    ]


def _rocs(report: "EvaluationReport") -> dict[str, Markup]:
    """Figures of a few OOD sets each, by which sets they show."""
    known, threshold = report.known, report.detector.threshold
    false_alarms = report.id.false_alarms.value
    caught = [result.caught.value for result in report.ood]
    several = len(caught) > IN_ROC
    rocs = {}
    for part, start in enumerate(range(0, len(caught), IN_ROC)):
        numbers = range(start, min(start + IN_ROC, len(caught)))
        labels = _legend([report.unknown[number].name for number in numbers], numbers, numbered=several)
        scores = {label: (known.scores, report.unknown[number].scores, threshold) for number, label in labels.items()}
        points = {label: (false_alarms, caught[number]) for number, label in labels.items()}
        title = f": sets {numbers[0] + 1} to {numbers[-1] + 1}" if several else ""
        rocs[title] = figures.roc(f"roc-{part}", scores, points=points)
    return rocs


def _legend(names: Sequence[str], numbers: Sequence[int], *, numbered: bool) -> dict[int, str]:
    """Names that can stand in a legend: short, and with their numbers where the title counts sets or a name needs it."""
    short = [name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}" for name in names]
    # Matplotlib hides a name that begins with _, and of two that end alike one would be lost.
    numbered = numbered or len(set(short)) < len(short) or any(name.startswith("_") for name in short)
    return {number: f"{number + 1}: {name}" if numbered else name for number, name in zip(numbers, short, strict=True)}


def _galleries(report: "EvaluationReport") -> dict[str, list[tuple[str, Gallery]]]:
    """The most confident mistakes of each set that holds pictures, by kind."""
    spec, names, known = report.detector.classifier.spec, report.classes, report.known

    def pictures(answers: SetDecisions, numbers: npt.NDArray[np.intp], classes: Any) -> list[tuple[str, Gallery]]:
        if not is_picture(spec, Example.of(answers.source).shape):
            return []
        captions = [f"{names[each]}, {score:.3g}" for each, score in zip(classes, answers.scores, strict=True)]
        return [(answers.name, gallery(answers.source, numbers, captions, spec))]

    accepted = [each for answers in report.unknown for each in pictures(answers, answers.mistakes_if_ood, answers.classes)]
    labels = known.classes if known.labels is None else known.labels
    return {"accepted": accepted, "rejected": pictures(known, known.mistakes_if_id, labels)}

"""An inspection as its reader gets it: `inspection.json`, and the page."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

import numpy as np
from markupsafe import Markup

from wildood.data.images import Images
from wildood.data.inputs import InputSpec
from wildood.detect.bulk import json_number
from wildood.detect.detector import Detector, versions
from wildood.evaluate.intervals import in_percent, percent_digits
from wildood.evaluate.mixture import FprByShare
from wildood.report import figures
from wildood.report.evaluation_page import promise_record
from wildood.report.inspection import Choice, Inspection, borderline, label_first, most_ood
from wildood.report.page import Gallery, gallery, is_picture, render, settings_text
from wildood.report.table import Column, Row, Table

LONGEST = 12  # letters of a file's name below its picture


def inspection_record(detector: Detector, inspection: Inspection, traffic: Images, top: int) -> dict[str, Any]:
    """What `inspection.json` holds: everything that was found, and `top` examples of each kind.

    >>> import torch, wildood
    >>> from wildood.experiments.evaluation import Decisions
    >>> from wildood.report.inspection import inspect_traffic
    >>> x = np.random.default_rng(0).normal(size=(99, 1)).astype("f")
    >>> detector = wildood.posthoc(torch.nn.Linear(1, 2), wildood.EnergyScore(), holdout=x)
    >>> inspection = inspect_traffic(detector, Decisions.of(detector, *detector.score_and_classify(x)))
    >>> record = inspection_record(detector, inspection, Images(x, where="inbox"), top=3)
    >>> record["wild"], record["examples"], record["found"], [row["why"] for row in record["label_first"]]
    ('inbox', 99, False, ['just rejected', 'just accepted', 'highest score'])
    """
    share, decided = inspection.unknown, inspection.traffic
    kinds = {"label_first": label_first, "most_ood": most_ood, "borderline": borderline}
    return {
        "wild": traffic.where,
        "examples": len(decided.scores),
        "confidence": inspection.confidence,
        "found": inspection.found,
        "unknown": {
            "says": inspection.says,
            "tested": share is not None,
            "bound": share and share.bound,
            "estimate": share and share.estimate,
            "p_value": share and share.p_value,
            "compared_with": share and inspection.known_name,
            "id_examples": share and share.holdout,
        },
        "rejected": asdict(inspection.rejected),
        "promise": promise_record(detector, inspection.promise),
        "fpr_by_share": _fpr_rows(inspection.fpr()),
        **{name: _examples(choose(decided, top), detector, inspection, traffic.names) for name, choose in kinds.items()},
        "versions": versions(),
    }


def inspection_page(
    detector: Detector, inspection: Inspection, traffic: Images, record: dict[str, Any], command: str
) -> str:
    """The page of an inspection.

    Args:
        detector: what decided on the traffic.
        inspection: what was found.
        traffic: the examples, and their files' names.
        record: the `inspection_record` of it.
        command: what was typed.
    """
    promise, spec = detector.promise, detector.classifier.spec
    sheets = {}
    if spec is not None and is_picture(traffic.examples.shape[1:], spec):
        sheets = {kind: _sheet(record[kind], traffic, spec) for kind in ("most_ood", "borderline")}
    provenance = {
        "command": command,
        "traffic": f"{len(inspection.traffic.scores)} examples from {traffic.where}",
        "threshold": f"{detector.threshold_text}: {detector.promise_text}",
        **({"assumes": promise.assumption} if promise is not None and promise.unseen else {}),
        "versions": settings_text(detector.record.get("versions", {})),
    }
    return render(
        "inspection.html",
        title="What is in this traffic",
        inspection=inspection,
        count=len(inspection.traffic.scores),
        where=traffic.where,
        confidence=f"{100 * inspection.confidence:g} %",
        numbers=_numbers(inspection),
        promise=_promise(detector, inspection),
        by_class=detector.class_thresholds is not None,
        histogram=_histogram(detector, inspection),
        **_accepted_unknowns(inspection),
        label_first=_label_first(record["label_first"]),
        sheets=sheets,
        provenance=provenance,
    )


def _fpr_rows(curve: FprByShare | None) -> list[dict[str, Any]] | None:
    if curve is None:
        return None
    columns = {"pi": curve.share, "fpr": curve.fpr, "low": curve.lower, "high": curve.upper, "possible": curve.possible}
    return [dict(zip(columns, row, strict=True)) for row in zip(*(each.tolist() for each in columns.values()), strict=True)]


def _examples(
    choices: Sequence[Choice], detector: Detector, inspection: Inspection, files: Sequence[str]
) -> list[dict[str, Any]]:
    """The chosen examples; `example`, `score`, `decision` and `class` are those of `wildood score`."""
    decided, p_values = inspection.traffic, inspection.p_values
    return [
        {
            "example": files[number] if files else number,
            "number": number,
            "why": why,
            "score": json_number(float(decided.scores[number])),
            "p_value": None if p_values is None else float(p_values[number]),
            "decision": "unknown" if decided.rejected[number] else "known",
            "class": detector.class_name(decided.classes[number]),
        }
        for number, why in choices
    ]


def _numbers(inspection: Inspection) -> Table:
    unknown, rejected = inspection.unknown, inspection.rejected
    rows = []
    if unknown is not None:
        sure = f"at {100 * inspection.confidence:g} % confidence"
        rows = [
            Row.of("unknown, at least", in_percent(unknown.bound), sure, strong=inspection.found),
            Row.of("unknown, a guess", in_percent(unknown.estimate), "no guarantee"),
            Row.of("p-value of “nothing is unknown”", f"{unknown.p_value:.2g}", ""),
        ]
    rows.append(Row.of("rejected by the detector", in_percent(rejected.value), rejected.limits))
    return Table([Column(""), Column("value"), Column("limits")], rows)


def _promise(detector: Detector, inspection: Inspection) -> dict[str, str]:
    """What is known about the promise, by name."""
    check, items = inspection.promise, {}
    if detector.promise is not None:
        items["promised" if detector.promise.unseen else "aimed at"] = f"at most {100 * detector.promise.alpha:g} %"
    if check.rate is not None:
        items["false alarms on --id"] = f"{in_percent(check.rate.value)} ({check.rate.limits})"
    if check.by_luck is not None:
        items["p-value"] = f"{check.by_luck:.2g}, of “these are drawn like the holdout”"
    return items


def _histogram(detector: Detector, inspection: Inspection) -> Markup | None:
    by_class, known, traffic = detector.class_thresholds is not None, inspection.known, inspection.traffic
    if known is not None:
        name = inspection.known_name
        groups = (known.margins, traffic.margins) if by_class else (known.scores, traffic.scores)
    elif detector.holdout_scores is not None and not by_class:
        name, groups = "examples of the threshold", (detector.holdout_scores.astype(np.float64), traffic.scores)
    else:
        return None
    threshold, axis = (0.0, figures.MARGIN) if by_class else (detector.threshold, figures.SCORE)
    return figures.histogram("scores", *groups, threshold, (name, "traffic"), axis)


def _accepted_unknowns(inspection: Inspection) -> dict[str, Any]:
    """How much of the unknown is accepted: a curve and a table over pi, never one number."""
    bound, rows = inspection.least_possible, _fpr_rows(inspection.fpr())
    if rows is None:
        return {"fpr_table": None}
    fits = any(row["possible"] for row in rows if row["pi"] <= 0.5)
    curve = inspection.fpr(np.linspace(0.005, 0.5 if bound < 0.25 and fits else 1.0, 200))
    assert curve is not None  # noqa: S101 - as the rows
    cells = []
    for row in rows:
        pi = f"{in_percent(bound)}, the least possible" if row["pi"] == bound else f"{100 * row['pi']:g} %"
        band = in_percent(row["fpr"]), f"{percent_digits(row['low'])} to {in_percent(row['high'])}"
        cells.append(Row.of(pi, *(band if row["possible"] else ("refuted", ""))))
    return {
        "fpr_table": Table([Column("if π is"), Column("accepted"), Column("band")], cells),
        "fpr_figure": figures.accepted_unknowns("fpr", curve, bound),
        "fpr_fits": fits,
        "each_confidence": f"{50 * (1 + inspection.confidence):g} %",
    }


def _label_first(rows: Sequence[dict[str, Any]]) -> Table:
    tested = rows[0]["p_value"] is not None
    heads = ["", "example", "why", "score", *(["p-value"] if tested else []), "class"]
    cells = []
    for rank, row in enumerate(rows, 1):
        p_value = [f"{row['p_value']:.2g}"] if tested else []
        score = f"{float(row['score']):.4g}"
        cells.append(Row.of(rank, str(row["example"]), row["why"], score, *p_value, str(row["class"])))
    return Table([Column(head) for head in heads], cells)


def _sheet(rows: Sequence[dict[str, Any]], traffic: Images, spec: InputSpec) -> Gallery:
    images = np.asarray(traffic.examples[[row["number"] for row in rows]])
    captions = [f"{_short(row['example'])}: {row['class']}, {float(row['score']):.3g}" for row in rows]
    return gallery(images, np.arange(len(rows)), captions, spec, most=len(rows))


def _short(example: Any) -> str:
    """A number, or the end of a file's name."""
    name = PurePath(str(example)).stem
    return name if len(name) <= LONGEST else f"…{name[-LONGEST:]}"

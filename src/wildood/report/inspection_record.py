"""An inspection as data: what `inspection.json` holds, and what the page lists."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from wildood.data.images import Images
from wildood.detect.bulk import json_number
from wildood.detect.checks import versions
from wildood.detect.detector import Detector
from wildood.report.inspection import Inspection
from wildood.report.labelling import Choice, borderline, label_first, most_ood
from wildood.report.promise_record import promise_record


def inspection_record(detector: Detector, found: Inspection, traffic: Images, top: int) -> dict[str, Any]:
    """Everything that was found, and of the examples `top` of each kind.

    >>> import numpy as np, torch, wildood
    >>> from wildood.experiments.evaluation import Decisions
    >>> from wildood.report.inspection import inspected
    >>> x = np.random.default_rng(0).normal(size=(99, 1)).astype("f")
    >>> detector = wildood.posthoc(torch.nn.Linear(1, 2), wildood.EnergyScore(), holdout=x)
    >>> found = inspected(detector, Decisions.of(detector, *detector.score_and_classify(x)))
    >>> record = inspection_record(detector, found, Images(x, where="inbox"), top=3)
    >>> record["wild"], record["examples"], record["found"], [row["why"] for row in record["label_first"]]
    ('inbox', 99, False, ['just rejected', 'just accepted', 'highest score'])
    """
    kinds = {"label_first": label_first, "most_ood": most_ood, "borderline": borderline}
    return {
        "wild": traffic.where,
        "examples": len(found.traffic.scores),
        "confidence": found.confidence,
        "found": found.found,
        "unknown": _unknown(found),
        "rejected": asdict(found.rejected),
        "promise": promise_record(detector, found.promise),
        "fpr_by_share": _fpr(found),
        **{name: _rows(choose(found.traffic, top), detector, found, traffic.names) for name, choose in kinds.items()},
        "versions": versions(),
    }


def _unknown(found: Inspection) -> dict[str, Any]:
    """The bound, the estimate and the test; or why there are none."""
    share = found.unknown
    return {
        "says": found.says,
        "tested": share is not None,
        "bound": share and share.bound,
        "estimate": share and share.estimate,
        "p_value": share and share.p_value,
        "compared_with": share and found.known_name,
        "id_examples": share and share.holdout,
    }


def _fpr(found: Inspection) -> list[dict[str, Any]] | None:
    told = found.fpr()
    if told is None:
        return None
    columns = (told.share, told.fpr, told.lower, told.upper, told.possible)
    names = ("pi", "fpr", "low", "high", "possible")
    return [dict(zip(names, row, strict=True)) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _rows(choices: Sequence[Choice], detector: Detector, found: Inspection, files: Sequence[str]) -> list[dict[str, Any]]:
    """The chosen examples; `example`, `score`, `decision` and `class` are those of `wildood score`."""
    decided, p_values = found.traffic, found.p_values
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

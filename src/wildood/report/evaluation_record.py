"""What `metrics.json` holds of an evaluation: every number and what made it. Names stay as they are; others may join."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wildood.detect.bulk import json_number
from wildood.detect.checks import versions
from wildood.experiments.evaluation import CONFIDENCE, Measured, SetDecisions
from wildood.report.promise_record import promise_record

FORMAT = 1
LISTED = 16  # mistakes of each set, at most: as many as the page shows


def metrics_record(measured: Measured, directory: Path, command: str) -> dict[str, Any]:
    """The whole record, of values that JSON has; shares are from 0 to 1.

    Args:
        measured: the detector and what it answered.
        directory: where the detector was read from.
        command: what was typed.
    """
    detector, evaluation, names = measured.detector, measured.evaluation, measured.classes
    by_class = evaluation.id.false_alarms_by_class
    each = detector.class_thresholds
    bootstrap = {"how": "percentile", "resamples": evaluation.resamples, "seed": evaluation.seed}
    return {
        "format": FORMAT,
        "command": command,
        "versions": versions(),
        "convention": "shares from 0 to 1; fpr95: OOD accepted when 95 % of ID is accepted (ID is the positive class)",
        "intervals": {"confidence": CONFIDENCE, "bootstrap": bootstrap, "counted_shares": "Clopper-Pearson"},
        "detector": {
            "directory": str(directory),
            "threshold": json_number(detector.threshold),
            "class_thresholds": None if each is None else [json_number(threshold) for threshold in each.tolist()],
            "promise": None if detector.promise is None else asdict(detector.promise),
            "record": _finite(detector.record),
        },
        "promise": promise_record(detector, measured.promise),
        "id": {
            **asdict(evaluation.id),
            "data": measured.known.images.where,
            "false_alarms_by_class": [
                {"class": number, "name": names[number], **asdict(share)} for number, share in by_class.items()
            ],
            "mistakes": _listed(measured.known, measured.known.mistakes_if_id, names),
        },
        "ood": [
            {
                **asdict(result),
                "data": answers.images.where,
                "mistakes": _listed(answers, answers.mistakes_if_ood, names),
            }
            for result, answers in zip(evaluation.ood, measured.unknown, strict=True)
        ],
        "average": asdict(evaluation.average),
    }


def _listed(answers: SetDecisions, numbers: npt.NDArray[np.intp], names: Sequence[str]) -> list[dict[str, Any]]:
    files = answers.images.names
    return [
        {
            "example": files[number] if len(files) else number,
            "score": json_number(float(answers.scores[number])),
            "predicted": names[answers.classes[number]],
        }
        for number in numbers[:LISTED].tolist()
    ]


def _finite(value: Any) -> Any:
    """A record with its infinite settings, such as a clip of inf, as text."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return json_number(value) if isinstance(value, float) else value

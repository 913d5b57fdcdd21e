"""Which of several scores to use: by data that is set aside for it, and by OOD labels only if the caller gives some."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wildood.data.sources import Source
from wildood.errors import InputError
from wildood.evaluate.metrics import fpr_at_tpr
from wildood.evaluate.thresholds import check_finite, conformal_threshold
from wildood.models.classifier import Classifier
from wildood.scores.perturbation import PerturbedScore
from wildood.scores.score import Score, score_all


class Chosen(NamedTuple):
    """A score, and how it was chosen, as JSON-ready data."""

    score: Score
    record: dict[str, Any]


def choose(
    candidates: Sequence[Score],
    classifier: Classifier,
    selection: Source,
    alpha: float,
    wild: Source | None = None,
    ood: Source | None = None,
) -> Chosen:
    """The candidate with the lowest criterion; of equal ones the first.

    - `ood` given: the share of it accepted when 1 - alpha of ID is. The caller has OOD labels and says so.
    - `wild` given: the share of wild data accepted at the candidate's own ID threshold (the paper's Appendix C).
    - ID data alone: the mean score of ID examples, as in Generalized ODIN. It can only compare sizes of a step on the input.
    """
    if len(candidates) == 1:
        return Chosen(candidates[0], {})
    varying = [
        name for name in candidates[0].settings if len({str(candidate.settings[name]) for candidate in candidates}) > 1
    ]
    if wild is None and ood is None and (varying != ["epsilon"] or not isinstance(candidates[0], PerturbedScore)):
        raise InputError(
            f"{type(candidates[0]).__name__}: {varying[0]} cannot be chosen on ID data alone: give it, or wild= to choose by"
        )

    def scores(candidate: Score, source: Source) -> npt.NDArray[np.float32]:
        return score_all(classifier, source, candidate, lambda found: found.scores).numpy()

    def criterion(candidate: Score) -> float:
        known = scores(candidate, selection)
        check_finite(known)
        if ood is not None:
            return fpr_at_tpr(known, scores(candidate, ood), 1 - alpha)
        if wild is not None:
            return float(np.mean(scores(candidate, wild) <= conformal_threshold(known, alpha)))
        return float(np.mean(known))

    values = [criterion(candidate) for candidate in candidates]
    tried = [
        {**{name: candidate.settings[name] for name in varying}, "criterion": value}
        for candidate, value in zip(candidates, values, strict=True)
    ]
    by = "OOD labels" if ood is not None else "wild acceptance" if wild is not None else "mean score of ID"
    return Chosen(candidates[int(np.argmin(values))], {"by": by, "tried": tried})

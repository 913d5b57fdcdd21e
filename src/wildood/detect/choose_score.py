"""The choice among settings of a score, by data that is used for nothing else, and by OOD labels only if there are some."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from wildood.data.sources import Source
from wildood.errors import InputError
from wildood.evaluate.metrics import fpr_at_tpr
from wildood.evaluate.thresholds import check_finite, conformal_threshold
from wildood.models.classifier import Classifier
from wildood.scores.perturbation import PerturbedScore
from wildood.scores.score import Score, score_all


class ChosenScore(NamedTuple):
    """A score, and how it was chosen, as JSON-ready data."""

    score: Score
    record: dict[str, Any]


def choose_score(
    candidates: Sequence[Score],
    classifier: Classifier,
    selection: Source,
    alpha: float,
    wild: Source | None = None,
    ood: Source | None = None,
) -> ChosenScore:
    """The candidate with the lowest criterion, the first of equal ones.

    The criterion is, by what is given:

    - `ood`: the share of it accepted when 1 - alpha of ID is. It needs OOD labels.
    - `wild`: the share of it accepted at the candidate's own ID threshold (the paper's Appendix C).
    - neither: the mean score of ID examples, as in Generalized ODIN. It can only compare sizes of a step on the input.
    """
    if len(candidates) == 1:
        return ChosenScore(candidates[0], {})
    settings = candidates[0].settings
    varying = [name for name in settings if len({str(each.settings[name]) for each in candidates}) > 1]
    if wild is None and ood is None and (varying != ["epsilon"] or not isinstance(candidates[0], PerturbedScore)):
        raise InputError(
            f"{type(candidates[0]).__name__}: {varying[0]} cannot be chosen on ID data alone: give it, or wild= to choose by"
        )

    def criterion(candidate: Score) -> float:
        known, _ = score_all(classifier, selection, candidate)
        check_finite(known)
        if ood is not None:
            return fpr_at_tpr(known, score_all(classifier, ood, candidate)[0], 1 - alpha)
        if wild is not None:
            return float(np.mean(score_all(classifier, wild, candidate)[0] <= conformal_threshold(known, alpha)))
        return float(np.mean(known))

    values = [criterion(candidate) for candidate in candidates]
    tried = [
        {**{name: candidate.settings[name] for name in varying}, "criterion": value}
        for candidate, value in zip(candidates, values, strict=True)
    ]
    by = "OOD labels" if ood is not None else "wild acceptance" if wild is not None else "mean score of ID"
    return ChosenScore(candidates[int(np.argmin(values))], {"by": by, "tried": tried})

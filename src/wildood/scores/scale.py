"""SCALE (Xu et al., 2024) and ASH (Djurisic et al., 2023): the energy of features that are scaled by how peaked they are."""

from typing import ClassVar

import torch
from torch import Tensor

from wildood.data.sources import Source
from wildood.models.classifier import Classifier
from wildood.scores.labelled import LEAST_NORM, labelled_features, refuse_negative
from wildood.scores.shaping import ShapedScore, check_percentile, kept_count
from wildood.settings import check_choice, optional

PERCENTILES = (65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)


class Scale(ShapedScore):
    """s(x) = E(W φ exp(r) + b), r = Σ_j φ_j / Σ_{j in top} φ_j, over the features of x above their own percentile.

    The features must not be negative. percentile = None has it chosen by wild acceptance.

    >>> Scale().percentile
    85.0
    """

    paper = "Xu et al., Scaling for Training-Time and Post-hoc Out-Of-Distribution Detection Enhancement, 2024"
    grid: ClassVar = {"percentile": PERCENTILES}

    def __init__(self, percentile: float | None = 85.0) -> None:
        percentile = optional(check_percentile)(percentile, "Scale: percentile")
        super().__init__(percentile=percentile)
        self.percentile = percentile

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Copy the last layer; refuse negative features."""
        super().fit(classifier, labelled)
        refuse_negative(labelled_features(classifier, labelled, "Scale"), "Scale")

    def shape(self, features: Tensor) -> Tensor:
        """All features, times exp(r)."""
        top = features.topk(kept_count(features.shape[1], self.setting("percentile")), dim=1).values
        return features * _peakedness(features, top).exp()


class Ash(ShapedScore):
    """s(x) = E(W g(φ) + b), where g keeps only the features of x above their own percentile, and changes them by `variant`.

    - "b": each becomes the sum of all features over the number of those that are kept. One that is 0 stays 0.
    - "s": each is multiplied by exp(r), r = Σ_j φ_j / Σ_{j in top} φ_j.

    The features must not be negative. A setting that is None is chosen by wild acceptance.

    >>> Ash().settings
    {'percentile': 90.0, 'variant': 'b'}
    """

    paper = "Djurisic et al., Extremely Simple Activation Shaping for Out-of-Distribution Detection, 2023"
    grid: ClassVar = {"percentile": PERCENTILES, "variant": ("b", "s")}

    def __init__(self, percentile: float | None = 90.0, variant: str | None = "b") -> None:
        percentile = optional(check_percentile)(percentile, "Ash: percentile")
        variant = optional(check_choice)(variant, "Ash: variant", ("b", "s"))
        super().__init__(percentile=percentile, variant=variant)
        self.percentile, self.variant = percentile, variant

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Copy the last layer; refuse negative features."""
        super().fit(classifier, labelled)
        refuse_negative(labelled_features(classifier, labelled, "Ash"), "Ash")

    def shape(self, features: Tensor) -> Tensor:
        """The largest features, changed; 0 in the place of the others."""
        top = features.topk(kept_count(features.shape[1], self.setting("percentile")), dim=1)
        if self.setting("variant") == "b":
            mean = features.sum(1, keepdim=True) / top.values.shape[1]
            kept = mean * (top.values > 0)  # which of several zeros are among the largest is chance
        else:
            kept = top.values * _peakedness(features, top.values).exp()
        return torch.zeros_like(features).scatter(1, top.indices, kept)


def _peakedness(features: Tensor, top: Tensor) -> Tensor:
    """r, at least 1 where there are positive features: the sum of all features over that of the largest."""
    return features.sum(1, keepdim=True) / top.sum(1, keepdim=True).clamp(min=LEAST_NORM)

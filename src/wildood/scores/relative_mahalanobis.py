"""The relative Mahalanobis distance (Ren et al., 2021): to the nearest class, less that to all known data."""

from torch import Tensor

from wildood.data.sources import Source
from wildood.models.classifier import Classifier, Outputs
from wildood.scores.mahalanobis import class_moments, inverse_root, nearest_square, tied_gaussians
from wildood.scores.score import Needs, Score


class RelativeMahalanobis(Score):
    """s(x) = min_c (φ - μ_c)ᵀ Σ⁺ (φ - μ_c) / 2 - (φ - μ)ᵀ Σ₀⁺ (φ - μ) / 2, for the features φ of x.

    μ_c and Σ are those of `Mahalanobis`; μ and Σ₀ are the mean and the covariance of all features, whatever their class. The
    difference leaves out how unusual the features are for any class, which hides what is unusual for each of them.

    >>> RelativeMahalanobis().needs.labels
    True
    """

    paper = "Ren et al., A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection, 2021"
    needs = Needs(labelled=True, labels=True, features=True)
    centre: Tensor  # μ
    whitening: Tensor  # W, with W Wᵀ = Σ⁺
    background: Tensor  # the same for Σ₀
    means: Tensor  # Wᵀ(μ_c - μ), one row per class

    def __init__(self) -> None:
        super().__init__()
        self.declare("centre", "whitening", "background", "means")

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Compute both Gaussians, in one pass and in double precision."""
        moments = class_moments(classifier, labelled)
        self.centre, self.whitening, self.means = tied_gaussians(moments, "RelativeMahalanobis")
        self.background = inverse_root(moments.total).float()

    def forward(self, outputs: Outputs) -> Tensor:
        """Half the difference of the squared distances."""
        centred = outputs.features_or_refuse() - self.centre
        return 0.5 * (nearest_square(centred @ self.whitening, self.means) - (centred @ self.background).square().sum(1))

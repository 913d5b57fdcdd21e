"""The Mahalanobis score of Lee et al. (2018), on the penultimate features as in Liu et al. (2020)."""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from wildood.data.sources import Source
from wildood.errors import InputError
from wildood.models.classifier import Classifier, Outputs, evaluating, forward_all
from wildood.scores.perturbation import PerturbedScore
from wildood.scores.score import Needs


class Mahalanobis(PerturbedScore):
    """s(x) = min_c (φ(x~) - μ_c)ᵀ Σ⁺ (φ(x~) - μ_c) / 2, where x~ is the perturbed input.

    μ_c is the mean of the features φ of class c, Σ their covariance around the class means, the same for all classes. The
    pseudo-inverse Σ⁺ leaves out directions without variance. A class without labelled examples is left out.

    >>> Mahalanobis(epsilon=0.0).needs.labels
    True
    """

    paper = "Lee et al., A Simple Unified Framework for Detecting OOD Samples, 2018"
    needs = Needs(labelled=True, labels=True, features=True, gradients=True)
    grid: ClassVar = {"epsilon": (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.005, 0.01)}
    centre: Tensor  # the mean of all features
    whitening: Tensor  # W, with W Wᵀ = Σ⁺
    means: Tensor  # Wᵀ(μ_c - centre), one row per class

    def __init__(self, epsilon: float | None = None) -> None:
        super().__init__(epsilon=epsilon)
        self.declare("centre", "whitening", "means")

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Compute the class means and the covariance of the features, in one pass and in double precision."""
        moments = class_moments(classifier, labelled)
        self.centre, self.whitening, self.means = tied_gaussians(moments, "Mahalanobis")

    def forward(self, outputs: Outputs) -> Tensor:
        """Half the squared distance to the nearest class mean."""
        return 0.5 * nearest_square((outputs.features_or_refuse() - self.centre) @ self.whitening, self.means)


class ClassMoments(NamedTuple):
    """Moments of the features of labelled data, in double precision.

    Attributes:
        centre: the mean of all features.
        means: of each class that has examples.
        within: the covariance around the class means.
        total: the covariance around the centre.
    """

    centre: Tensor
    means: Tensor
    within: Tensor
    total: Tensor


def class_moments(classifier: Classifier, labelled: Source) -> ClassMoments:
    """The moments, in one pass."""
    counts, sums, products = torch.zeros(0), torch.zeros(0), torch.zeros(0)
    with evaluating(classifier):
        for outputs, labels in forward_all(classifier, labelled):
            features, classes = outputs.features_or_refuse().double(), outputs.logits.shape[1]
            assert labels is not None  # noqa: S101 - labelled
            member = torch.nn.functional.one_hot(labels, classes).double()
            if not len(counts):
                counts, sums = features.new_zeros(classes), features.new_zeros(classes, features.shape[1])
                products = features.new_zeros(features.shape[1], features.shape[1])
            counts += member.sum(0)
            sums += member.T @ features
            products += features.T @ features
    present = counts > 0
    means, centre = sums[present] / counts[present, None], sums.sum(0) / counts.sum()
    within = (products - means.T @ (means * counts[present, None])) / counts.sum()
    return ClassMoments(centre, means, within, products / counts.sum() - torch.outer(centre, centre))


def tied_gaussians(moments: ClassMoments, score: str) -> tuple[Tensor, Tensor, Tensor]:
    """The centre of all features, W with W Wᵀ = Σ⁺, and Wᵀ(μ_c - centre), one row per class, in single precision."""
    whitening = inverse_root(moments.within)
    if whitening.shape[1] == 0:
        raise InputError(f"{score}: the labelled features do not vary within their classes: give more examples")
    means = (moments.means - moments.centre) @ whitening
    return moments.centre.float(), whitening.float(), means.float()


def nearest_square(points: Tensor, means: Tensor) -> Tensor:
    """The squared distance of each point to the nearest of the means.

    >>> nearest_square(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0], [3.0, 3.0]]))
    tensor([1.])
    """
    # |z - m|² = |z|² - 2 z·m + |m|²; the features are centred first, so that little is cancelled
    return points.square().sum(1) + (means.square().sum(1) - 2 * points @ means.T).amin(1)


def inverse_root(covariance: Tensor) -> Tensor:
    """W with W Wᵀ = Σ⁺: eigenvectors over the roots of their eigenvalues, without those that are numerically zero.

    The features have single precision: an eigenvalue that rounding alone can produce counts as zero.
    """
    values, vectors = torch.linalg.eigh(covariance)
    spread = values.clamp(min=0).sqrt()
    kept = spread > spread.max() * len(values) * torch.finfo(torch.float32).eps
    root: Tensor = vectors[:, kept] / spread[kept]
    return root.contiguous()

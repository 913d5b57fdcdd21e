"""The energy, the distance to the nearest neighbours and the relative Mahalanobis distance, added in standard units."""

import torch
from torch import Tensor, nn

from wildood.data.sources import Source
from wildood.models.classifier import Classifier, Outputs, evaluating, forward_all
from wildood.scores.energy import EnergyScore
from wildood.scores.knn import Knn
from wildood.scores.relative_mahalanobis import RelativeMahalanobis
from wildood.scores.score import Needs, Score

NEIGHBOURS = 50  # of KNN, as in its paper


class Ensemble(Score):
    """s(x) = Σ_i (s_i(x) - m_i) / d_i over three scores s_i, with the median m_i and the spread d_i of each on ID examples.

    The three look at different things: the energy at the logits, KNN at the density of the features, and the relative
    Mahalanobis distance at the classes. What one of them misses, another one often sees. d_i is half the range between the
    16 % and the 84 % quantile, which is the standard deviation of a normal distribution, and which outliers do not change.

    `fit` takes the units from labelled data. A classifier is surer of what it was trained on: `standardise` takes them from
    unseen ID examples instead, as `wildood.fit` does.

    >>> Ensemble().needs.features
    True
    """

    paper = "ours; the scores are of Liu et al., 2020, Sun et al., 2022, and Ren et al., 2021"
    needs = Needs(labelled=True, labels=True, features=True)
    centre: Tensor  # m
    scale: Tensor  # d; infinite for a score that does not vary

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList([EnergyScore(), Knn(NEIGHBOURS), RelativeMahalanobis()])
        self.declare("centre", "scale")

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Fit the scores, and take their units from the same data."""
        self.fit_members(classifier, labelled)
        self.standardise(classifier, labelled)

    def fit_members(self, classifier: Classifier, labelled: Source) -> None:
        """Fit the scores, for a caller that takes their units from other data: those of labelled data cost most of `fit`."""
        for member in self.members:
            assert isinstance(member, Score)  # noqa: S101 - for mypy: the list holds modules
            member.fit(classifier, labelled)

    def standardise(self, classifier: Classifier, known: Source) -> None:
        """Take the units of the scores from these ID examples."""
        with evaluating(classifier):
            scores = torch.cat([self._scores(outputs).double() for outputs, _ in forward_all(classifier, known)])
        low, middle, high = scores.quantile(scores.new_tensor([0.16, 0.5, 0.84]), dim=0)
        spread = (high - low) / 2
        spread = torch.where(spread > 0, spread, scores.std(dim=0))  # of mostly equal scores
        self.centre, self.scale = middle.float(), torch.where(spread > 0, spread, torch.inf).float()

    def forward(self, outputs: Outputs) -> Tensor:
        """The sum of the standardised scores."""
        return ((self._scores(outputs) - self.centre) / self.scale).sum(1)

    def _scores(self, outputs: Outputs) -> Tensor:
        return torch.stack([member(outputs) for member in self.members], dim=1)

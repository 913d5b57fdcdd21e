"""Deep nearest neighbours (Sun et al., 2022): the distance to the k-th nearest labelled example in feature space."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from wildood.data.sources import Source
from wildood.errors import InputError
from wildood.models.classifier import Classifier, Outputs, each_output
from wildood.scores.score import Needs, Score
from wildood.settings import check_count, optional

_BLOCK = 8192  # examples of the bank that are compared at once, so that memory does not grow with the bank


class Knn(Score):
    """s(x) = |z(x) - z_(k)|, where z = φ/|φ| are normalised features and z_(k) is the k-th nearest of the labelled examples.

    The search is exact: |z - z'|² = 2 - 2 z·z', so that the k-th nearest neighbour has the k-th largest inner product. The
    distance is that of the difference, because 2 - 2 z·z' loses all digits of a small one.

    k = None has it chosen by wild acceptance. The paper takes 50 for CIFAR-10.

    >>> Knn().k
    50
    """

    paper = "Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, 2022"
    needs = Needs(labelled=True, features=True)
    grid: ClassVar = {"k": (1, 5, 10, 20, 50, 100, 200)}
    bank: Tensor  # the normalised features of the labelled examples

    def __init__(self, k: int | None = 50) -> None:
        k = optional(check_count)(k, "Knn: k")
        super().__init__(k=k)
        self.k = k
        self.register_buffer("bank", torch.empty(0))

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Store the normalised features of every labelled example."""
        self.bank = each_output(classifier, labelled, _directions).to(classifier.device)
        if self.k is not None and self.k > len(self.bank):
            raise InputError(f"Knn: k is {self.k}, but labelled has {len(self.bank)} examples: give a smaller k")

    def forward(self, outputs: Outputs) -> Tensor:
        """The distance to the k-th nearest neighbour."""
        directions = _directions(outputs)
        neighbour = self.bank[kth_largest_product(directions, self.bank, self.setting("k"))]
        distances: Tensor = torch.linalg.vector_norm(directions - neighbour, dim=1)
        return distances

    def candidates(self) -> list[Score]:
        """One per k of the grid that the bank is large enough for, unless k is set."""
        if self.k is not None:
            return [self]
        return [score for score in super().candidates() if score.setting("k") <= len(self.bank)]


def kth_largest_product(queries: Tensor, bank: Tensor, k: int) -> Tensor:
    """The row of the bank with the k-th largest inner product with each query, block by block.

    >>> kth_largest_product(torch.tensor([[1.0]]), torch.tensor([[3.0], [1.0], [2.0]]), k=2)
    tensor([2])
    """
    best = queries[:, :0]  # not len(queries), which an export would take for a constant
    rows = best.long()
    for number, block in enumerate(torch.split(bank, _BLOCK)):
        products = queries @ block.T
        largest = products.topk(min(k, products.shape[1]), dim=1, sorted=False)
        best = torch.cat([best, largest.values], dim=1)
        rows = torch.cat([rows, largest.indices + number * _BLOCK], dim=1)
        kept = best.topk(min(k, best.shape[1]), dim=1, sorted=False)
        best, rows = kept.values, rows.gather(1, kept.indices)
    return rows.gather(1, best.argmin(1, keepdim=True)).squeeze(1)


def _directions(outputs: Outputs) -> Tensor:
    return F.normalize(outputs.features_or_refuse(), dim=1)

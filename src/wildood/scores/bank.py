"""The bank of labelled features, and the search for the nearest of them: what KNN and NNGuide have in common."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from wildood.data.sources import Source
from wildood.errors import InputError
from wildood.models.classifier import Classifier, Outputs
from wildood.scores.labelled import labelled_features
from wildood.scores.score import Needs, Score
from wildood.settings import check_count, optional

_BLOCK = 8192  # examples of the bank that are compared at once, so that memory does not grow with the bank


class BankScore(Score):
    """A score by the k labelled examples whose features have the nearest direction; `fit` stores them all.

    k = None has it chosen by wild acceptance.
    """

    needs = Needs(labelled=True, features=True)
    grid: ClassVar = {"k": (1, 5, 10, 20, 50, 100, 200)}
    bank: Tensor  # the normalised features of the labelled examples

    def __init__(self, k: int | None) -> None:
        k = optional(check_count)(k, f"{type(self).__name__}: k")
        super().__init__(k=k)
        self.k = k
        self.declare("bank")

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Store the normalised features of every labelled example."""
        name = type(self).__name__
        self.bank = F.normalize(labelled_features(classifier, labelled, name), dim=1).to(classifier.device)
        if self.k is not None and self.k > len(self.bank):
            raise InputError(f"{name}: k is {self.k}, but labelled has {len(self.bank)} examples: give a smaller k")

    def candidates(self) -> list[Score]:
        """One per k of the grid that the bank is large enough for, unless k is set."""
        if self.k is not None:
            return [self]
        return [score for score in super().candidates() if score.setting("k") <= len(self.bank)]


def directions(outputs: Outputs) -> Tensor:
    """The normalised features."""
    return F.normalize(outputs.features_or_refuse(), dim=1)


def largest_products(queries: Tensor, bank: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest inner products of each query with rows of the bank, and these rows, block by block, in any order.

    >>> products, rows = largest_products(torch.tensor([[1.0]]), torch.tensor([[3.0], [1.0], [2.0]]), k=2)
    >>> sorted(products[0].tolist()), sorted(rows[0].tolist())
    ([2.0, 3.0], [0, 2])
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
    return best, rows

"""Deep nearest neighbours (Sun et al., 2022): the distance to the k-th nearest labelled example, in feature space."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from wildood.data.sources import Source
from wildood.errors import InputError
from wildood.models.classifier import Classifier, Outputs, each_output
from wildood.scores.score import About, Score
from wildood.settings import check_count, optional

_BLOCK = 8192  # how many examples of the bank are compared at once: memory does not grow with the bank


class Knn(Score):
    """s(x) = the Euclidean distance of φ(x)/|φ(x)| to its k-th nearest neighbour among the labelled examples; exact.

    Attributes:
        k: which neighbour; None to have it chosen by wild acceptance. 50 is the original's choice for CIFAR-10.

    >>> Knn().k
    50
    """

    about: ClassVar[About] = About(
        "Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, 2022", labelled=True, features=True
    )
    ks = (1, 5, 10, 20, 50, 100, 200)
    bank: Tensor

    def __init__(self, k: int | None = 50) -> None:
        k = optional(check_count)(k, "Knn: k")
        super().__init__(k=k)
        self.k = k
        self.register_buffer("bank", torch.empty(0))

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Keep the normalised features of every labelled example."""
        self.bank = each_output(classifier, labelled, _directions).to(classifier.device)
        if self.k is not None and self.k > len(self.bank):
            raise InputError(f"Knn: k is {self.k}, but labelled has {len(self.bank)} examples: give a smaller k")

    def forward(self, outputs: Outputs) -> Tensor:
        """The distance to the k-th nearest neighbour, for each example."""
        if self.k is None:
            raise InputError("Knn: k is None: give a number, or wild data to choose it by")
        cosine = kth_largest_product(_directions(outputs), self.bank, self.k)
        return (2 - 2 * cosine).clamp(min=0).sqrt()

    def candidates(self) -> list[Score]:
        """One for each k, unless it is given."""
        return [self] if self.k is not None else [self.with_settings(k=k) for k in self.ks if k <= len(self.bank)]


def kth_largest_product(queries: Tensor, bank: Tensor, k: int) -> Tensor:
    """The k-th largest inner product of each query with the bank, block by block.

    >>> kth_largest_product(torch.tensor([[1.0]]), torch.tensor([[3.0], [1.0], [2.0]]), k=2)
    tensor([2.])
    """
    best = queries.new_empty(len(queries), 0)
    for block in torch.split(bank, _BLOCK):
        products = queries @ block.T
        best = torch.cat([best, products.topk(min(k, products.shape[1]), dim=1, sorted=False).values], dim=1)
        best = best.topk(min(k, best.shape[1]), dim=1, sorted=False).values
    return best.amin(1)


def _directions(outputs: Outputs) -> Tensor:
    return F.normalize(outputs.features_or_refuse(), dim=1)

"""Deep nearest neighbours (Sun et al., 2022): the distance to the k-th nearest labelled example in feature space."""

import torch
from torch import Tensor

from wildood.models.classifier import Outputs
from wildood.scores.bank import BankScore, directions, largest_products


class Knn(BankScore):
    """s(x) = |z(x) - z_(k)|, where z = φ/|φ| are normalised features and z_(k) is the k-th nearest of the labelled examples.

    The search is exact: |z - z'|² = 2 - 2 z·z', so that the k-th nearest neighbour has the k-th largest inner product. The
    distance is that of the difference, because 2 - 2 z·z' loses all digits of a small one.

    k = None has it chosen by wild acceptance. The paper takes 50 for CIFAR-10.

    >>> Knn().k
    50
    """

    paper = "Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, 2022"

    def __init__(self, k: int | None = 50) -> None:
        super().__init__(k)

    def forward(self, outputs: Outputs) -> Tensor:
        """The distance to the k-th nearest neighbour."""
        own = directions(outputs)
        neighbour = self.bank[kth_largest_product(own, self.bank, self.setting("k"))]
        distances: Tensor = torch.linalg.vector_norm(own - neighbour, dim=1)
        return distances


def kth_largest_product(queries: Tensor, bank: Tensor, k: int) -> Tensor:
    """The row of the bank with the k-th largest inner product with each query.

    >>> kth_largest_product(torch.tensor([[1.0]]), torch.tensor([[3.0], [1.0], [2.0]]), k=2)
    tensor([2])
    """
    products, rows = largest_products(queries, bank, k)
    return rows.gather(1, products.argmin(1, keepdim=True)).squeeze(1)

"""Heads on the penultimate features: the OOD head of WOODS-alt, and the decomposed confidence of GODIN."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class OodHead(nn.Module):
    """g(x): one hidden layer of 300 units with ReLU on the penultimate features, one logit; large means OOD.

    >>> OodHead(features=64)(torch.zeros(5, 64)).shape
    torch.Size([5])
    """

    def __init__(self, features: int, hidden: int = 300) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, features: Tensor) -> Tensor:
        """One logit for each feature vector."""
        logit: Tensor = self.layers(features)
        return logit.squeeze(-1)


class DeConfHead(nn.Module):
    """DeConf-C: logits f_i = h_i / g with h_i = cos(w_i, φ) and g = σ(BatchNorm(a·φ + b)).

    >>> DeConfHead(features=8, classes=3)(torch.randn(5, 8)).shape
    torch.Size([5, 3])
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.settings = {"features": features, "classes": classes}
        self.directions = nn.Parameter(torch.empty(classes, features))
        nn.init.kaiming_normal_(self.directions, nonlinearity="relu")
        self.confidence = nn.Sequential(nn.Linear(features, 1), nn.BatchNorm1d(1), nn.Sigmoid())

    def forward(self, features: Tensor) -> Tensor:
        """The logits f."""
        logits: Tensor = cosines(features, self.directions) / self.confidence(features)
        return logits


def cosines(features: Tensor, directions: Tensor) -> Tensor:
    """cos(w_i, φ) for each example and class; a norm below 1e-4 counts as that.

    >>> cosines(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
    tensor([[0., 1.]])
    """
    return F.normalize(features, dim=1, eps=1e-4) @ F.normalize(directions, dim=1, eps=1e-4).T

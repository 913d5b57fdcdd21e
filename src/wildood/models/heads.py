"""The OOD head of WOODS-alt."""

from torch import Tensor, nn


class OodHead(nn.Module):
    """g(x): one hidden layer of 300 units with ReLU on the penultimate features, one logit; large means OOD.

    >>> import torch
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

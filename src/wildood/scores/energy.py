"""The energy score of Liu et al. (2020), which is also the score of WOODS."""

import torch
from torch import Tensor

from wildood.models.outputs import Outputs
from wildood.scores.score import Score


def energy(logits: Tensor) -> Tensor:
    """E(x) = -log Σ_j exp f_j(x): low where the classifier has seen the like.

    >>> energy(torch.zeros(1, 4)).item() == -torch.tensor(4.0).log().item()
    True
    """
    return -torch.logsumexp(logits, dim=1)


class EnergyScore(Score):
    """The energy of the logits.

    >>> EnergyScore()(Outputs(torch.tensor([[9.0, 0.0], [0.1, 0.0]]))).argmax().item()
    1
    """

    def forward(self, outputs: Outputs) -> Tensor:
        """E(x) for each example."""
        return energy(outputs.logits)

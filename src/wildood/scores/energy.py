"""The energy score of Liu et al. (2020), which is also the score of WOODS."""

from typing import ClassVar

import torch
from torch import Tensor

from wildood.models.classifier import Outputs
from wildood.scores.score import Score
from wildood.settings import check_positive, optional


def energy(logits: Tensor) -> Tensor:
    """E(x) = -log Σ_j exp f_j(x), for logits f: low for ID examples.

    >>> energy(torch.zeros(1, 4)).item() == -torch.tensor(4.0).log().item()
    True
    """
    return -torch.logsumexp(logits, dim=1)


class EnergyScore(Score):
    """s(x) = -T log Σ_j exp(f_j(x) / T), the energy of the logits f at temperature T; None has T chosen by wild acceptance.

    >>> EnergyScore()(Outputs(torch.tensor([[9.0, 0.0], [0.1, 0.0]]))).argmax().item()
    1
    """

    paper = "Liu et al., Energy-based Out-of-distribution Detection, 2020"
    grid: ClassVar = {"temperature": (1.0, 10.0, 100.0, 1000.0)}

    def __init__(self, temperature: float | None = 1.0) -> None:
        temperature = optional(check_positive)(temperature, "EnergyScore: temperature")
        super().__init__(temperature=temperature)
        self.temperature = temperature

    def forward(self, outputs: Outputs) -> Tensor:
        """T E(x) of the logits over T."""
        temperature: float = self.setting("temperature")
        return temperature * energy(outputs.logits / temperature)

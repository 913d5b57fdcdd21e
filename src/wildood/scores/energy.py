"""The energy score of Liu et al. (2020), which is also the score of WOODS."""

from typing import ClassVar

import torch
from torch import Tensor

from wildood.errors import InputError
from wildood.models.classifier import Outputs
from wildood.scores.score import About, Score
from wildood.settings import check_positive, optional


def energy(logits: Tensor) -> Tensor:
    """E(x) = -log Σ_j exp f_j(x): low where the classifier has seen the like.

    >>> energy(torch.zeros(1, 4)).item() == -torch.tensor(4.0).log().item()
    True
    """
    return -torch.logsumexp(logits, dim=1)


class EnergyScore(Score):
    """The energy of the logits at a temperature: -T log Σ_j exp(f_j(x) / T).

    Attributes:
        temperature: T; None to have it chosen by wild acceptance.

    >>> EnergyScore()(Outputs(torch.tensor([[9.0, 0.0], [0.1, 0.0]]))).argmax().item()
    1
    """

    about: ClassVar[About] = About("Liu et al., Energy-based Out-of-distribution Detection, 2020")
    temperatures = (1.0, 10.0, 100.0, 1000.0)

    def __init__(self, temperature: float | None = 1.0) -> None:
        temperature = optional(check_positive)(temperature, "EnergyScore: temperature")
        super().__init__(temperature=temperature)
        self.temperature = temperature

    def forward(self, outputs: Outputs) -> Tensor:
        """E(x) for each example."""
        if self.temperature is None:
            raise InputError("EnergyScore: temperature is None: give a number, or wild data to choose it by")
        return self.temperature * energy(outputs.logits / self.temperature)

    def candidates(self) -> list[Score]:
        """One for each temperature, unless it is given."""
        return [self] if self.temperature is not None else [self.with_settings(temperature=t) for t in self.temperatures]

"""ODIN (Liang, Li, Srikant, 2018): a softmax with temperature, on a perturbed input."""

from typing import ClassVar

from torch import Tensor

from wildood.models.classifier import Outputs
from wildood.scores.perturbation import PerturbedScore
from wildood.scores.score import Needs
from wildood.settings import check_number


class Odin(PerturbedScore):
    """s(x) = -max_k softmax(f(x~) / T)_k, where x~ = x - ε sign(∇_x CE(f(x) / T, argmax f)) / std is the perturbed input.

    temperature = None has T chosen by wild acceptance, together with ε.

    >>> import torch
    >>> Odin(epsilon=0.0)(Outputs(torch.tensor([[9.0, 0.0], [0.1, 0.0]]))).argmax().item()
    1
    >>> len(Odin(temperature=None).candidates()), len(Odin(temperature=None, epsilon=0.0).candidates())
    (40, 4)
    """

    paper = "Liang et al., Enhancing the Reliability of OOD Image Detection, 2018"
    needs = Needs(gradients=True)
    grid: ClassVar = {
        "temperature": (1.0, 10.0, 100.0, 1000.0),
        "epsilon": (0.0, 0.0004, 0.0008, 0.0014, 0.002, 0.0024, 0.0028, 0.0032, 0.0038, 0.0048),
    }

    def __init__(self, temperature: float | None = 1000.0, epsilon: float | None = None) -> None:
        super().__init__(epsilon=epsilon)
        if temperature is not None:
            expected = "a positive number, or None to have it chosen"
            temperature = check_number(temperature, "Odin: temperature", expected, above=0)
        # Temperature first: a message names the first setting that is to be chosen, and ID data alone can choose epsilon.
        self.settings = {"temperature": temperature, "epsilon": self.epsilon}
        self.temperature = temperature

    def forward(self, outputs: Outputs) -> Tensor:
        """Minus the largest probability."""
        return -self._scaled_logits(outputs).softmax(1).amax(1)

    def lower(self, outputs: Outputs) -> Tensor:
        """CE(f(x) / T, argmax f), the cross-entropy of the predicted class."""
        return -self._scaled_logits(outputs).log_softmax(1).amax(1)

    def _scaled_logits(self, outputs: Outputs) -> Tensor:
        temperature: float = self.setting("temperature")
        return outputs.logits / temperature

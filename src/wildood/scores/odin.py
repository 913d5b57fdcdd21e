"""ODIN (Liang, Li, Srikant, 2018): a softened softmax after a step on the input."""

from typing import ClassVar

from torch import Tensor

from wildood.errors import InputError
from wildood.models.outputs import Outputs
from wildood.scores.perturbation import PerturbedScore
from wildood.scores.score import About


class Odin(PerturbedScore):
    """s(x) = -max_k softmax(f(x~) / T)_k, with x~ = x - epsilon sign(∇_x CE(f(x) / T, argmax f)) / std.

    >>> import torch
    >>> Odin(epsilon=0.0)(Outputs(torch.tensor([[9.0, 0.0], [0.1, 0.0]]))).argmax().item()
    1
    """

    about: ClassVar[About] = About("Liang et al., Enhancing the Reliability of OOD Image Detection, 2018", gradients=True)
    epsilons = (0.0, 0.0004, 0.0008, 0.0014, 0.002, 0.0024, 0.0028, 0.0032, 0.0038, 0.0048)

    def __init__(self, temperature: float = 1000.0, epsilon: float | None = None) -> None:
        super().__init__(epsilon=epsilon, temperature=temperature)
        if not isinstance(temperature, int | float) or not temperature > 0:
            raise InputError(f"Odin: temperature is {temperature!r}: give a positive number")
        self.temperature = temperature

    def forward(self, outputs: Outputs) -> Tensor:
        """Minus the probability of the most probable class, for each example."""
        return -(outputs.logits / self.temperature).softmax(1).amax(1)

    def lower(self, outputs: Outputs) -> Tensor:
        """The cross-entropy of the predicted class: -log of that probability."""
        return -(outputs.logits / self.temperature).log_softmax(1).amax(1)

"""ODIN (Liang, Li, Srikant, 2018): a softened softmax after a step on the input."""

from typing import ClassVar

from torch import Tensor

from wildood.errors import InputError
from wildood.models.classifier import Outputs
from wildood.scores.perturbation import PerturbedScore
from wildood.scores.score import About, Score
from wildood.settings import check_number


class Odin(PerturbedScore):
    """s(x) = -max_k softmax(f(x~) / T)_k, with x~ = x - epsilon sign(∇_x CE(f(x) / T, argmax f)) / std.

    Attributes:
        temperature: T; None to have it chosen among `temperatures` by wild acceptance, together with epsilon.

    >>> import torch
    >>> Odin(epsilon=0.0)(Outputs(torch.tensor([[9.0, 0.0], [0.1, 0.0]]))).argmax().item()
    1
    >>> len(Odin(temperature=None).candidates()), len(Odin(temperature=None, epsilon=0.0).candidates())
    (40, 4)
    """

    about: ClassVar[About] = About("Liang et al., Enhancing the Reliability of OOD Image Detection, 2018", gradients=True)
    temperatures = (1.0, 10.0, 100.0, 1000.0)
    epsilons = (0.0, 0.0004, 0.0008, 0.0014, 0.002, 0.0024, 0.0028, 0.0032, 0.0038, 0.0048)

    def __init__(self, temperature: float | None = 1000.0, epsilon: float | None = None) -> None:
        super().__init__(epsilon=epsilon)
        expected = "a positive number, or None to have it chosen"
        if temperature is not None:
            temperature = check_number(temperature, "Odin: temperature", expected, above=0)
        # Before epsilon, as in the constructor: of two settings that are chosen, a message names the first, and ID data
        # alone can choose epsilon.
        self.settings = {"temperature": temperature, "epsilon": self.epsilon}
        self.temperature = temperature

    def forward(self, outputs: Outputs) -> Tensor:
        """Minus the probability of the most probable class, for each example."""
        return -self._softened(outputs).softmax(1).amax(1)

    def lower(self, outputs: Outputs) -> Tensor:
        """The cross-entropy of the predicted class: -log of that probability."""
        return -self._softened(outputs).log_softmax(1).amax(1)

    def candidates(self) -> list[Score]:
        """One for each pair of a temperature and an epsilon, unless they are given."""
        stepped = super().candidates()
        if self.temperature is not None:
            return stepped
        return [score.with_settings(temperature=value) for value in self.temperatures for score in stepped]

    def _softened(self, outputs: Outputs) -> Tensor:
        if self.temperature is None:
            raise InputError("Odin: temperature is None: give a number, or wild data to choose it by")
        return outputs.logits / self.temperature

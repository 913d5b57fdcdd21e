"""A step on the input that lowers the score, as ODIN, Mahalanobis and GODIN take: it helps ID more than OOD."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from wildood.errors import InputError
from wildood.models.classifier import Classifier, Outputs
from wildood.scores.score import Score, Scored
from wildood.settings import check_number


def step_down(
    classifier: Classifier, raw: Tensor, lower: Callable[[Outputs], Tensor], epsilon: float
) -> tuple[Tensor, Outputs]:
    """x~ = x - epsilon sign(∇_x lower(x)) / std, with sign(0) = 1; and the outputs for x itself.

    Epsilon is in units of the raw scale from 0 to 1: the model's input is divided by the input spec's std, and so is the
    step. Without an input spec, it is in units of the model's input. Returned is the model's input after the step.
    """
    batch = classifier.prepare(raw)
    if batch.dtype in {torch.float16, torch.bfloat16}:
        raise InputError(
            f"a step of {epsilon} on the input is lost in {batch.dtype}: give the model in float32, or epsilon=0"
        )
    if not batch.is_floating_point():
        raise InputError("the model takes whole numbers, which have no gradient: give a score without a perturbation")
    with torch.inference_mode(mode=False):  # the caller may be in it, and a tensor that was made there has no gradient
        batch = batch.detach().clone().requires_grad_()
        outputs = classifier.outputs(batch)
        lowered = lower(outputs).sum()
        gradient = torch.autograd.grad(lowered, batch, allow_unused=True)[0] if lowered.requires_grad else None
    if gradient is None:
        raise InputError("the model's output has no gradient with respect to its input: give epsilon=0 or another score")
    sign = torch.where(gradient >= 0, 1.0, -1.0).to(batch.dtype)
    if classifier.spec is not None:
        sign = sign / torch.tensor(classifier.spec.std, device=batch.device, dtype=batch.dtype).view(1, -1, 1, 1)
    stepped = batch.detach() - epsilon * sign
    features = None if outputs.features is None else outputs.features.detach()
    return stepped, Outputs(outputs.logits.detach(), features)


def check_epsilon(epsilon: Any, name: str) -> float | None:
    """The size of a step on the input, or None to have it chosen.

    >>> check_epsilon(0, "Odin: epsilon")
    0.0
    """
    expected = "a size from 0 on, or None to have it chosen"
    return None if epsilon is None else check_number(epsilon, name, expected, least=0)


class PerturbedScore(Score):
    """A score of the input after a step of size epsilon that lowers it.

    Attributes:
        epsilon: the size of the step; None to have it chosen among `epsilons`, 0 for no step.
    """

    epsilons: tuple[float, ...] = (0.0,)

    def __init__(self, epsilon: float | None = None, **settings: Any) -> None:
        epsilon = check_epsilon(epsilon, f"{type(self).__name__}: epsilon")
        super().__init__(epsilon=epsilon, **settings)
        self.epsilon = epsilon

    def lower(self, outputs: Outputs) -> Tensor:
        """What the step lowers, for each example: the score, or something whose gradient has the same sign."""
        scores: Tensor = self(outputs)
        return scores

    def of(self, classifier: Classifier, raw: Tensor) -> Scored:
        """The scores after the step, and the outputs before it."""
        if self.epsilon is None:
            raise InputError(f"{type(self).__name__}: epsilon is None: posthoc and fit choose it, or give a number")
        if self.epsilon == 0:
            return super().of(classifier, raw)
        stepped, outputs = step_down(classifier, raw, self.lower, self.epsilon)
        return Scored(self(classifier.outputs(stepped)), outputs)

    def candidates(self) -> list[Score]:
        """One for each epsilon, unless it is given."""
        return [self] if self.epsilon is not None else [self.with_settings(epsilon=value) for value in self.epsilons]

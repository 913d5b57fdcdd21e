"""The input perturbation of ODIN, Mahalanobis and GODIN: a step that lowers the score, of ID inputs more than of OOD."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from wildood.data.inputs import InputSpec
from wildood.data.structures import Raw, one_tensor
from wildood.errors import InputError
from wildood.models.classifier import Classifier, Outputs
from wildood.scores.score import Score, Scored
from wildood.settings import check_number


def perturb(classifier: Classifier, raw: Raw, lower: Callable[[Outputs], Tensor], epsilon: float) -> tuple[Tensor, Outputs]:
    """The perturbed input x~ = x - ε sign(∇_x lower(x)) / std, with sign(0) = 1, and the outputs for x itself.

    ε is on the raw scale from 0 to 1: the input spec divides the input by std, and so the step. Without an input spec, ε is
    on the scale of the model's input.
    """
    batch = one_tensor(classifier.prepare(raw), "a step on the input (epsilon)")
    if batch.dtype in {torch.float16, torch.bfloat16}:
        raise InputError(
            f"a step of {epsilon} on the input is lost in {batch.dtype}: give the model in float32, or epsilon=0"
        )
    if not batch.is_floating_point():
        raise InputError("the model takes whole numbers, which have no gradient: give a score without a perturbation")
    with torch.inference_mode(mode=False):  # in which a caller may be, and tensors have no gradient
        batch = batch.detach().clone().requires_grad_()
        outputs = classifier.outputs(batch)
        lowered = lower(outputs).sum()
        gradient = torch.autograd.grad(lowered, batch, allow_unused=True)[0] if lowered.requires_grad else None
    if gradient is None:
        raise InputError("the model's output has no gradient with respect to its input: give epsilon=0 or another score")
    sign = torch.where(gradient >= 0, 1.0, -1.0).to(batch.dtype)
    if isinstance(classifier.spec, InputSpec):
        sign = sign / torch.tensor(classifier.spec.std, device=batch.device, dtype=batch.dtype).view(1, -1, 1, 1)
    perturbed = batch.detach() - epsilon * sign
    features = None if outputs.features is None else outputs.features.detach()
    return perturbed, Outputs(outputs.logits.detach(), features)


def check_epsilon(epsilon: Any, name: str) -> float | None:
    """The size of a step on the input, or None to have it chosen."""
    expected = "a size from 0 on, or None to have it chosen"
    return None if epsilon is None else check_number(epsilon, name, expected, least=0)


class PerturbedScore(Score):
    """A score of the perturbed input; ε is the size of the step: None to have it chosen, 0 for no step."""

    def __init__(self, epsilon: float | None = None, **settings: Any) -> None:
        epsilon = check_epsilon(epsilon, f"{type(self).__name__}: epsilon")
        super().__init__(epsilon=epsilon, **settings)
        self.epsilon = epsilon

    def lower(self, outputs: Outputs) -> Tensor:
        """What the step lowers: the score, or a quantity whose gradient has the same sign."""
        scores: Tensor = self(outputs)
        return scores

    def of(self, classifier: Classifier, raw: Raw) -> Scored:
        """The scores of the perturbed input, and the outputs of the input itself."""
        epsilon = self.setting("epsilon")
        if epsilon == 0:
            return super().of(classifier, raw)
        perturbed, outputs = perturb(classifier, raw, self.lower, epsilon)
        return Scored(self(classifier.outputs(perturbed)), outputs)

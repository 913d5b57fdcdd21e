"""Gradient transforms, between the backward pass and the optimiser's step: the preconditioner and the clip."""

import math
from collections.abc import Callable

from torch import nn

from wildood.methods.objective import Objective, Precondition
from wildood.methods.schedule import Schedule

Transform = Callable[[], None]


class Preconditioner:
    """Multiply the gradient G of a layer's weight by its whitening matrix M, and divide that of its bias by its scale.

    The layer is weight = start + V M, where SGD moves V. The gradient of V is G M, and a step of V moves the weight by that
    times M again: so the transform is applied twice, and the clip between the two measures the gradient of V. (It is the
    input side of K-FAC, Martens & Grosse 2015, computed once.)

    With a shared direction, weight = start + (V + 1 uᵀ) M, 1 a vector of ones. A step of V and u moves the weight along
    (I + 11ᵀ) G M M, so each application also multiplies by the root of I + 11ᵀ from the left: the mean of the rows counts
    √(1 + rows) times.

    If the logits are c times what the layer makes, the gradient of its bias is c times that of the logits. Unscaled, it
    would take up the clip where c is large.

    >>> import torch
    >>> weight = nn.Parameter(torch.zeros(3, 1))
    >>> weight.grad = torch.tensor([[2.0], [1.0], [0.0]])
    >>> Preconditioner(Precondition(weight, torch.eye(1), shared=True))()
    >>> weight.grad.T
    tensor([[3., 2., 1.]])
    """

    def __init__(self, layer: Precondition) -> None:
        self.layer = layer

    def __call__(self) -> None:
        """Once: G M."""
        weight, matrix, shared, scale, bias = self.layer
        if bias is not None and bias.grad is not None and scale != 1:
            bias.grad /= scale
        if weight.grad is None:
            return
        gradient = weight.grad.float() @ matrix
        if shared:
            gradient += (math.sqrt(1 + len(gradient)) - 1) * gradient.mean(0)
        weight.grad = gradient.to(weight.grad.dtype)


class Clip:
    """Shorten a gradient, over all parameters, that is longer than this.

    >>> import torch
    >>> weight = nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> Clip([weight], longest=1.0)()
    >>> weight.grad
    tensor([0.6000, 0.8000])
    """

    def __init__(self, parameters: list[nn.Parameter], longest: float) -> None:
        self.parameters, self.longest = parameters, longest

    def __call__(self) -> None:
        """Shorten it."""
        nn.utils.clip_grad_norm_(self.parameters, self.longest)


def gradient_transforms(objective: Objective, schedule: Schedule) -> list[Transform]:
    """What is done to the gradient in each step, in order.

    >>> from wildood.methods.objective import CrossEntropyObjective
    >>> from wildood.models.classifier import Classifier
    >>> [type(each).__name__ for each in gradient_transforms(CrossEntropyObjective(Classifier(nn.Linear(2, 3))), Schedule())]
    ['Clip']
    """
    precondition = [] if objective.precondition is None else [Preconditioner(objective.precondition)]
    clip = [Clip(list(objective.parameters()), schedule.clip)] if schedule.clip else []
    return [*precondition, *clip, *precondition]

"""LARS (You, Gitman and Ginsburg, 2017): SGD in which a tensor of weights moves in proportion to its own length."""

from typing import Any

import torch
from torch import Tensor

TRUST, EPSILON = 0.001, 1e-8


class Lars(torch.optim.SGD):
    """SGD with momentum, not Nesterov's, on gradients that `adapted` has scaled; weight decay is part of the scaling.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> weight.grad = torch.tensor([0.0, 2.0])
    >>> Lars([{"params": [weight]}], lr=1.0, momentum=0.9, weight_decay=0.0).step()
    >>> weight.data  # a step of 0.001 times 5, the length of the weight
    tensor([3.0000, 3.9950])
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(groups, lr=lr, momentum=momentum, weight_decay=weight_decay)
        for group in self.param_groups:  # SGD itself must not decay once more
            group["decay"], group["weight_decay"] = group["weight_decay"], 0.0
        self.register_step_pre_hook(_adapt)


def adapted(weight: Tensor, gradient: Tensor, decay: float) -> Tensor:
    """(g + decay w) · 0.001 |w| / (|g| + decay |w| + 1e-8); where w or g is zero, g + decay w.

    >>> adapted(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0]), decay=0.0)
    tensor([0.0000, 0.0050])
    """
    length, slope = weight.norm(), gradient.norm()
    rate = TRUST * length / (slope + decay * length + EPSILON)
    return (gradient + decay * weight) * torch.where((length > 0) & (slope > 0), rate, 1.0)


@torch.no_grad()
def _adapt(optimiser: torch.optim.Optimizer, _args: Any, _named: Any) -> None:
    for group in optimiser.param_groups:
        for weight in group["params"]:
            if weight.grad is not None:
                weight.grad = adapted(weight, weight.grad, group["decay"])

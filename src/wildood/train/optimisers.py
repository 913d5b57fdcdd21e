"""The optimisers: SGD with Nesterov momentum, and LARS."""

from typing import Any

import torch
from torch import Tensor, nn

from wildood.methods.objective import Objective
from wildood.methods.schedule import Schedule

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


def optimiser_of(objective: Objective, schedule: Schedule) -> torch.optim.Optimizer:
    """The one that the objective asks for."""
    return (lars if objective.optimiser == "lars" else sgd)(objective, schedule)


def sgd(objective: Objective, schedule: Schedule) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum, if any; weight decay on all parameters but those that the objective excepts."""
    nesterov = schedule.momentum > 0  # torch knows none without momentum
    return torch.optim.SGD(_groups(objective), nesterov=nesterov, **_rates(schedule))


def lars(objective: Objective, schedule: Schedule) -> torch.optim.Optimizer:
    """LARS with momentum; weight decay as for SGD."""
    return Lars(_groups(objective), **_rates(schedule))


def clip_gradient(objective: Objective, longest: float) -> None:
    """Shorten a longer gradient (0: leave it); a layer in white coordinates has its length, and takes its step, in these."""
    whiten = objective.whitening
    if whiten is not None:
        whiten()
    if longest:
        nn.utils.clip_grad_norm_(objective.parameters(), longest)
    if whiten is not None:
        whiten()


def _groups(objective: Objective) -> list[dict[str, Any]]:
    excepted = {id(parameter) for parameter in objective.without_decay()}
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in trained if id(parameter) not in excepted]},
        {"params": [parameter for parameter in trained if id(parameter) in excepted], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _rates(schedule: Schedule) -> dict[str, Any]:
    return {"lr": schedule.lr, "momentum": schedule.momentum, "weight_decay": schedule.weight_decay}

"""The optimisers of all methods: SGD with Nesterov momentum, and LARS for those that ask for it."""

from typing import Any

import torch
from torch import nn

from wildood.methods.objective import Objective
from wildood.methods.schedule import Schedule
from wildood.train.lars import Lars


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

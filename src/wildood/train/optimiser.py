"""The optimiser of every method: SGD with Nesterov momentum."""

from typing import Any

import torch

from wildood.methods.objective import Objective
from wildood.methods.schedule import Schedule


def sgd(objective: Objective, schedule: Schedule) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum; weight decay on all parameters but those that the objective excepts."""
    excepted = {id(parameter) for parameter in objective.without_decay()}
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in trained if id(parameter) not in excepted]},
        {"params": [parameter for parameter in trained if id(parameter) in excepted], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(
        [group for group in groups if group["params"]],
        lr=schedule.lr,
        momentum=schedule.momentum,
        nesterov=True,
        weight_decay=schedule.weight_decay,
    )

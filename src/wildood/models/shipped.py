"""The models that ship with wildood, by the name under which a saved detector remembers them."""

from typing import Any

from torch import nn

from wildood.models.resnet import ResNet20
from wildood.models.small import MLP, SmallCNN
from wildood.models.wide_resnet import WideResNet

MODELS: dict[str, type[nn.Module]] = {cls.__name__: cls for cls in (WideResNet, ResNet20, SmallCNN, MLP)}


def describe_model(model: nn.Module) -> dict[str, Any] | None:
    """Name and settings of a shipped model, from which it can be built again; None for a user's own.

    >>> describe_model(MLP(4, 3))
    {'name': 'MLP', 'settings': {'inputs': 4, 'classes': 3, 'hidden': [128, 64]}}
    """
    if MODELS.get(type(model).__name__) is not type(model):
        return None
    return {"name": type(model).__name__, "settings": model.settings}

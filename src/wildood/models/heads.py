"""Heads on the penultimate features: the OOD head of WOODS-alt, those that take the place of a classifier's last layer."""

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wildood.data.augmentation import rotations
from wildood.data.structures import Raw, one_tensor


class OodHead(nn.Module):
    """g(x): one hidden layer of 300 units with ReLU on the penultimate features, one logit; large means OOD.

    With `hidden=0` it is linear.

    >>> OodHead(features=64)(torch.zeros(5, 64)).shape
    torch.Size([5])
    """

    def __init__(self, features: int, hidden: int = 300) -> None:
        super().__init__()
        body = (nn.Linear(features, hidden), nn.ReLU()) if hidden else ()
        self.layers = nn.Sequential(*body, nn.Linear(hidden or features, 1))

    def forward(self, features: Tensor) -> Tensor:
        """One logit for each feature vector."""
        logit: Tensor = self.layers(features)
        return logit.squeeze(-1)


class Head(nn.Module):
    """Logits of features, in the place of a classifier's last layer.

    Attributes:
        settings: the constructor's arguments, as JSON-ready data.
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.settings = {"features": features, "classes": classes}

    def logits_and_features(self, features_of: Callable[[Raw], Tensor], batch: Raw) -> tuple[Tensor, Tensor]:
        """The logits and the features of a batch of model inputs; a head may ask for features of other views of it."""
        features = features_of(batch)
        return self(features), features


class DeConfHead(Head):
    """DeConf-C: logits f_i = h_i / g with h_i = cos(w_i, φ) and g = σ(BatchNorm(a·φ + b)).

    >>> DeConfHead(features=8, classes=3)(torch.randn(5, 8)).shape
    torch.Size([5, 3])
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.directions = nn.Parameter(torch.empty(classes, features))
        nn.init.kaiming_normal_(self.directions, nonlinearity="relu")
        self.confidence = nn.Sequential(nn.Linear(features, 1), nn.BatchNorm1d(1), nn.Sigmoid())

    def forward(self, features: Tensor) -> Tensor:
        """The logits f."""
        logits: Tensor = cosines(features, self.directions) / self.confidence(features)
        return logits


class JointHead(Head):
    """CSI's: the logits of class and rotation together, marginalised: 1/4 Σ_r joint(φ(x turned r times))[K r : K (r + 1)].

    Two more layers, for the class alone and for the rotation alone, are trained beside the joint one, as published.

    >>> JointHead(features=8, classes=3)(torch.randn(4 * 5, 8)).shape  # the features of five images in four rotations
    torch.Size([5, 3])
    """

    turns: ClassVar[int] = 4

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.linear = nn.Linear(features, classes)
        self.rotation = nn.Linear(features, self.turns)
        self.joint = nn.Linear(features, self.turns * classes)

    def forward(self, features: Tensor) -> Tensor:
        """One logit for each class: of images whose features are given as `rotations` orders them."""
        logits: Tensor = self.joint(features)
        each = logits.view(self.turns, -1, self.turns, self.settings["classes"])  # turned, image, said to be turned, class
        return torch.stack([each[turn, :, turn] for turn in range(self.turns)]).mean(0)

    def logits_and_features(self, features_of: Callable[[Raw], Tensor], batch: Raw) -> tuple[Tensor, Tensor]:
        """The logits from all four rotations, and the features of the images as they are."""
        images = one_tensor(batch, "this head")
        features = features_of(rotations(images))
        return self(features), features[: len(images)]


HEADS: dict[str, type[Head]] = {cls.__name__: cls for cls in (DeConfHead, JointHead)}


def cosines(features: Tensor, directions: Tensor) -> Tensor:
    """cos(w_i, φ) for each example and class; a norm below 1e-4 counts as that.

    >>> cosines(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
    tensor([[0., 1.]])
    """
    return F.normalize(features, dim=1, eps=1e-4) @ F.normalize(directions, dim=1, eps=1e-4).T

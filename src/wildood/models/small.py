"""Classifiers that train in seconds on a CPU: a CNN for small images and an MLP for anything flat."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from wildood.settings import check_integer, check_width


class SmallCNN(nn.Module):
    """Two convolutions, each with ReLU and 2x2 max pooling, one hidden layer, and the linear `head`.

    `size` is the height and width of the square images; `width` is the number of channels of the first convolution,
    and the second has twice as many. The defaults fit the 8x8 digits of scikit-learn.

    >>> import torch
    >>> SmallCNN(10)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10, *, channels: int = 1, width: int = 16, size: int = 8, hidden: int = 64) -> None:
        super().__init__()
        least = "at least 4, for two poolings leave nothing of less, and at most 1024"
        classes, channels = check_width(classes, "classes"), check_width(channels, "channels")
        width, size = check_width(width, "width"), check_integer(size, "size", least, least=4, most=1024)
        hidden = check_width(hidden, "hidden")
        self.settings = {"classes": classes, "channels": channels, "width": width, "size": size, "hidden": hidden}
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * (size // 4) ** 2, hidden),
            nn.ReLU(),
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """One logit per class for each image."""
        logits: Tensor = self.head(self.body(x))
        return logits


class MLP(nn.Module):
    """A linear layer and ReLU per hidden size, then the linear `head`; examples of any shape are flattened first.

    >>> import torch
    >>> MLP(64, 10)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, inputs: int, classes: int, *, hidden: int | Sequence[int] = (128, 64)) -> None:
        super().__init__()
        inputs, classes = check_width(inputs, "inputs"), check_width(classes, "classes")
        listed = list(hidden) if isinstance(hidden, tuple | list) else [hidden]
        hidden = [check_width(each, "hidden") for each in listed]
        self.settings = {"inputs": inputs, "classes": classes, "hidden": hidden}
        sizes = [inputs, *hidden]
        self.body = nn.Sequential(nn.Flatten())
        for before, after in pairwise(sizes):
            self.body.extend([nn.Linear(before, after), nn.ReLU()])
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """One logit per class for each example."""
        logits: Tensor = self.head(self.body(x))
        return logits

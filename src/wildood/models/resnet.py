"""The CIFAR ResNet-20 of the deep residual learning paper, with shortcuts that have no parameters."""

import torch.nn.functional as F
from torch import Tensor, nn

from wildood.settings import check_width


class ResNet20(nn.Module):
    """ResNet-20 of He et al. (2016), section 4.2, with "option A" shortcuts.

    Three groups of three blocks with 16, 32 and 64 channels, the mean over all positions, and one linear layer.

    >>> import torch
    >>> ResNet20(10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10, *, channels: int = 3) -> None:
        super().__init__()
        classes, channels = check_width(classes, "classes"), check_width(channels, "channels")
        self.settings = {"classes": classes, "channels": channels}
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(_Block(16, 16), _Block(16, 16), _Block(16, 16))
        self.layer2 = nn.Sequential(_Block(16, 32), _Block(32, 32), _Block(32, 32))
        self.layer3 = nn.Sequential(_Block(32, 64), _Block(64, 64), _Block(64, 64))
        self.linear = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """One logit per class for each image."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(x.mean(dim=(2, 3)))
        return logits


class _Block(nn.Module):
    """Conv-BN-ReLU, conv-BN, plus the shortcut, then ReLU; more channels go with half the size."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=1 if inputs == outputs else 2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        residual: Tensor = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(_shortcut(x, residual.shape[1]) + residual)


def _shortcut(x: Tensor, channels: int) -> Tensor:
    """Option A: every second row and column, with zero channels half in front and half behind; x if channels stay."""
    missing = channels - x.shape[1]
    if missing == 0:
        return x
    return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, missing // 2, missing - missing // 2))

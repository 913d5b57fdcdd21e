"""The paper's classifier: a Wide ResNet with the parameter names of the public WOODS and outlier-exposure code."""

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from wildood.errors import InputError
from wildood.settings import check_integer, check_number, check_width


class WideResNet(nn.Module):
    """Wide ResNet of Zagoruyko & Komodakis (2016); the defaults are the paper's WRN-40-2 with dropout 0.3.

    Three groups of (depth - 4) / 6 pre-activation blocks with 16k, 32k and 64k channels, where k is `widen`; then
    BatchNorm, ReLU, the mean over all positions (so any image size will do) and one linear layer.

    >>> import torch
    >>> WideResNet(10, depth=10, widen=1)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, classes: int = 10, *, depth: int = 40, widen: int = 2, dropout: float = 0.3, channels: int = 3
    ) -> None:
        super().__init__()
        steps = "6n + 4 with n >= 1, such as 10, 16, 28 or 40"
        depth = check_integer(depth, "depth", steps, least=10, most=10_000)
        if (depth - 4) % 6 != 0:
            raise InputError(f"depth is {depth}: give {steps}")
        classes, channels = check_width(classes, "classes"), check_width(channels, "channels")
        widen = check_integer(widen, "widen", least=1, most=100)
        dropout = check_number(dropout, "dropout", "a share from 0 to 1", least=0, most=1)
        self.settings = {"classes": classes, "depth": depth, "widen": widen, "dropout": dropout, "channels": channels}
        blocks = (depth - 4) // 6
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.block1 = _group(blocks, 16, 16 * widen, stride=1, dropout=dropout)
        self.block2 = _group(blocks, 16 * widen, 32 * widen, stride=2, dropout=dropout)
        self.block3 = _group(blocks, 32 * widen, 64 * widen, stride=2, dropout=dropout)
        self.bn1 = nn.BatchNorm2d(64 * widen)
        self.fc = nn.Linear(64 * widen, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        """One logit per class for each image."""
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        logits: Tensor = self.fc(F.relu(self.bn1(x)).mean(dim=(2, 3)))
        return logits


class _Block(nn.Module):
    """BN-ReLU-conv, BN-ReLU-dropout-conv, plus a shortcut: x itself, or a convolution of the first BN-ReLU's output."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        # The public weights say "convShortcut".
        self.convShortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        shortcut = x if self.convShortcut is None else self.convShortcut(active)
        residual: Tensor = self.conv2(self.dropout(F.relu(self.bn2(self.conv1(active)))))
        return shortcut + residual


def _group(blocks: int, inputs: int, outputs: int, *, stride: int, dropout: float) -> nn.Sequential:
    """Blocks of which only the first changes channels and size."""
    first = _Block(inputs, outputs, stride=stride, dropout=dropout)
    rest = [_Block(outputs, outputs, stride=1, dropout=dropout) for _ in range(blocks - 1)]
    # The public weights have a "layer" between the group and its blocks.
    return nn.Sequential(OrderedDict(layer=nn.Sequential(first, *rest)))

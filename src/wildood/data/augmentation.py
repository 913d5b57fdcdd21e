"""Random flips and crops of whole batches of images, each image with its own."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 4


def flip_and_crop(images: Tensor, layout: Literal["NHWC", "NCHW"], rng: torch.Generator) -> Tensor:
    """Flip each image with probability 1/2, pad it by 4 black pixels on each side, and crop it at a random place.

    >>> images = torch.arange(2 * 3 * 3).view(2, 3, 3, 1).to(torch.uint8)
    >>> flip_and_crop(images, "NHWC", torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 3, 1])
    """
    if layout == "NCHW":
        return flip_and_crop(images.permute(0, 2, 3, 1), "NHWC", rng).permute(0, 3, 1, 2)
    count, height, width, _ = images.shape
    device = images.device
    flipped = (torch.rand(count, generator=rng) < 0.5).to(device)
    rows, columns = torch.randint(0, 2 * PADDING + 1, (2, count), generator=rng).to(device)
    # Without copying a padded batch twice: a flip is a crop that reads its columns from right to left.
    ahead = torch.arange(width, device=device)
    across = torch.where(flipped[:, None], width - 1 - ahead, ahead) + columns[:, None]
    down = rows[:, None] + torch.arange(height, device=device)
    padded = F.pad(images, (0, 0, PADDING, PADDING, PADDING, PADDING))
    return padded[torch.arange(count, device=device)[:, None, None], down[:, :, None], across[:, None, :]]

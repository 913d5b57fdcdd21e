"""Random flips and crops of whole batches of images, each image with its own."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 4  # black pixels on each side
WHOLE = slice(None)  # a share that is all of a batch


def flip_and_crop(
    images: Tensor, layout: Literal["NHWC", "NCHW"], rng: torch.Generator, of: int | None = None, share: slice = WHOLE
) -> Tensor:
    """Flip each image with probability 1/2, pad it by 4 black pixels on each side, and crop it at a random place.

    Images that are a share of a larger batch, of `of` images, get what they would get in it.

    >>> images = torch.arange(2 * 3 * 3).view(2, 3, 3, 1).to(torch.uint8)
    >>> flip_and_crop(images, "NHWC", torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 3, 1])
    """
    if layout == "NCHW":
        return flip_and_crop(images.permute(0, 2, 3, 1), "NHWC", rng, of, share).permute(0, 3, 1, 2)
    count, height, width, _ = images.shape
    device, drawn = images.device, count if of is None else of
    flipped = (torch.rand(drawn, generator=rng) < 0.5)[share].to(device)
    rows, columns = torch.randint(0, 2 * PADDING + 1, (2, drawn), generator=rng)[:, share].to(device)
    # Without copying a padded batch twice: a flip is a crop that reads its columns from right to left.
    ahead = torch.arange(width, device=device)
    across = torch.where(flipped[:, None], width - 1 - ahead, ahead) + columns[:, None]
    down = rows[:, None] + torch.arange(height, device=device)
    padded = F.pad(images, (0, 0, PADDING, PADDING, PADDING, PADDING))
    return padded[torch.arange(count, device=device)[:, None, None], down[:, :, None], across[:, None, :]]

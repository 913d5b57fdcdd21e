"""Augmentations of image batches: flip and crop for training; SimCLR's views and rotations for CSI."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 4  # black pixels on each side
WHOLE = slice(None)  # a share that is the whole batch
JITTERED, GREYED, FLIPPED = 0.8, 0.2, 0.5  # probabilities
STRENGTH, HUE = 0.4, 0.1  # of brightness, contrast and saturation; of hue, as a share of the circle
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)  # of the crop, before it is resized
_LUMA = (0.299, 0.587, 0.114)


def flip_and_crop(
    images: Tensor, layout: Literal["NHWC", "NCHW"], rng: torch.Generator, of: int | None = None, share: slice = WHOLE
) -> Tensor:
    """Flip each image with probability 1/2, pad it by 4 black pixels on each side, and crop it at a random place.

    If the images are the share `share` of a batch of `of` images, they get the draws that they would get in that batch.

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
    # One copy of the padded batch: a flip is a crop that reads its columns from right to left.
    from_left = torch.arange(width, device=device)
    column_indices = torch.where(flipped[:, None], width - 1 - from_left, from_left) + columns[:, None]
    row_indices = rows[:, None] + torch.arange(height, device=device)
    padded = F.pad(images, (0, 0, PADDING, PADDING, PADDING, PADDING))
    return padded[torch.arange(count, device=device)[:, None, None], row_indices[:, :, None], column_indices[:, None, :]]


def random_view(images: Tensor, rng: torch.Generator, *, flip: bool = True) -> Tensor:
    """One view of each image: resized crop, flip, colour jitter, sometimes grey (SimCLR's, with CSI's settings).

    Args:
        images: (batch, channels, height, width), floats from 0 to 1.
        rng: the generator of all draws.
        flip: whether half of them are flipped; not for rotated images, which a flip would rotate the other way.
    """
    return _resized_crop(_random_grey(_colour_jitter(images, rng), rng), rng, flip=flip)


def random_flip(images: Tensor, rng: torch.Generator) -> Tensor:
    """Flip each image, left to right, with probability 1/2.

    >>> random_flip(torch.tensor([[[[1, 2]]]] * 4), torch.Generator().manual_seed(0)).flatten(1).tolist()
    [[2, 1], [1, 2], [2, 1], [2, 1]]
    """
    chosen = (torch.rand(len(images), generator=rng) < FLIPPED).to(images.device)
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(3), images)


def rotations(images: Tensor) -> Tensor:
    """All images, then all of them rotated by 90, 180 and 270 degrees: four times as many.

    >>> rotations(torch.tensor([[[[1, 2], [3, 4]]]]))[:, 0].flatten(1).tolist()
    [[1, 2, 3, 4], [2, 4, 1, 3], [4, 3, 2, 1], [3, 1, 4, 2]]
    """
    return torch.cat([torch.rot90(images, turns, (2, 3)) for turns in range(4)])


def _uniform(count: int, low: float, high: float, rng: torch.Generator, like: Tensor) -> Tensor:
    """One draw for each image, in a shape that broadcasts with it."""
    return (low + (high - low) * torch.rand(count, generator=rng)).to(like.device).view(-1, 1, 1, 1)


def _colour_jitter(images: Tensor, rng: torch.Generator) -> Tensor:
    count = len(images)
    chosen = _uniform(count, 0, 1, rng, images) < JITTERED
    brightness, contrast, saturation = (_uniform(count, 1 - STRENGTH, 1 + STRENGTH, rng, images) for _ in range(3))
    hue = _uniform(count, -HUE, HUE, rng, images)
    changed = (images * brightness).clamp(0, 1)
    mean = _grey(changed).mean((2, 3), keepdim=True)
    changed = (mean + contrast * (changed - mean)).clamp(0, 1)
    if images.shape[1] == 3:
        grey = _grey(changed)
        changed = _shift_hue((grey + saturation * (changed - grey)).clamp(0, 1), hue)
    return torch.where(chosen, changed, images)


def _random_grey(images: Tensor, rng: torch.Generator) -> Tensor:
    chosen = _uniform(len(images), 0, 1, rng, images) < GREYED
    return torch.where(chosen, _grey(images).expand_as(images), images)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    return (images * torch.tensor(_LUMA, device=images.device).view(1, 3, 1, 1)).sum(1, keepdim=True)


def _shift_hue(images: Tensor, hue: Tensor) -> Tensor:
    """Shift the hue of each image by a share of the circle; saturation and value stay (HSV)."""
    value, _ = images.max(1, keepdim=True)
    chroma = value - images.amin(1, keepdim=True)
    red, green, blue = (images[:, channel : channel + 1] for channel in range(3))
    safe = chroma.clamp_min(1e-12)
    sector = torch.where(
        value == red,
        ((green - blue) / safe) % 6,
        torch.where(value == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    sector = (sector + 6 * hue) % 6
    # f(n) = V - C max(0, min(k, 4 - k, 1)), k = (n + H) mod 6, for n = 5, 3, 1: red, green, blue
    offsets = (sector + torch.tensor([5.0, 3.0, 1.0], device=images.device).view(1, 3, 1, 1)) % 6
    return value - chroma * torch.minimum(offsets, 4 - offsets).clamp(0, 1)


def _resized_crop(images: Tensor, rng: torch.Generator, *, flip: bool) -> Tensor:
    """A crop of each image of random area, aspect and place, perhaps flipped, resized to the whole (bilinear)."""
    count = len(images)
    area, place_x, place_y = (torch.rand(count, generator=rng) for _ in range(3))
    aspect = torch.empty(count).uniform_(*(torch.tensor(ASPECT).log().tolist()), generator=rng).exp()
    area = AREA[0] + (AREA[1] - AREA[0]) * area
    width, height = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
    flipped = 1 - 2 * (torch.rand(count, generator=rng) < FLIPPED).float() if flip else torch.ones(count)
    left, top = (1 - width) * (2 * place_x - 1), (1 - height) * (2 * place_y - 1)
    zero = torch.zeros(count)
    rows = [torch.stack([flipped * width, zero, left], 1), torch.stack([zero, height, top], 1)]
    grid = F.affine_grid(torch.stack(rows, 1).to(images), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)

"""The input spec: how a raw example becomes model input. It is saved with the detector."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wildood.data.sources import check_dense
from wildood.data.structures import Raw, map_structure
from wildood.data.tables import TableSpec
from wildood.errors import InputError
from wildood.settings import check_choice, check_integer, check_number, quoted

LARGEST = 1 << 16  # pixels along a side: more is a typing error, and could not be allocated


@dataclass(frozen=True)
class InputSpec:
    """Images in, normalised float batches in NCHW out.

    uint8 values are divided by 255, floats are taken as scaled already; then (x - mean) / std for each channel.

    Attributes:
        layout: where the channels of a raw batch are: "NHWC" (as images are stored) or "NCHW" (as torch has them).
        mean: one number for each channel.
        std: one number for each channel.
        size: height and width to resize to (bilinear, antialiased), or one number for both; None takes images as they are.

    >>> spec = InputSpec(mean=(0.5,), std=(0.25,))
    >>> spec(torch.full((2, 4, 4, 1), 255, dtype=torch.uint8)).shape
    torch.Size([2, 1, 4, 4])
    >>> spec(torch.full((2, 4, 4, 1), 255, dtype=torch.uint8)).max().item()
    2.0
    """

    layout: Literal["NHWC", "NCHW"] = "NHWC"
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    size: tuple[int, int] | int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _numbers(self.mean, "mean"))
        object.__setattr__(self, "std", _numbers(self.std, "std"))
        check_choice(self.layout, "layout", ("NHWC", "NCHW"))
        if len(self.mean) != len(self.std) or not self.mean:
            raise InputError(f"mean has {len(self.mean)} and std {len(self.std)} values: give both one for each channel")
        if min(self.std) <= 0:
            raise InputError(f"std is {self.std}: every value must be positive")
        if max(self.mean) > 1:
            raise InputError(f"mean is {self.mean}: it is for values from 0 to 1, divide mean and std by 255")
        object.__setattr__(self, "size", check_size(self.size))

    def __call__(self, raw: Tensor) -> Tensor:
        """A raw batch as model input."""
        return self.normalised(self.scaled(raw))

    def scaled(self, raw: Tensor) -> Tensor:
        """A raw batch in NCHW, resized, with values from 0 to 1: everything but the normalisation."""
        self.check(raw)
        images = raw.permute(0, 3, 1, 2) if self.layout == "NHWC" else raw
        scaled = images.float() / 255 if images.dtype == torch.uint8 else images.float()
        if self.size is not None and tuple(scaled.shape[2:]) != self.size:
            scaled = F.interpolate(scaled, size=self.size, mode="bilinear", antialias=True)
        return scaled

    def normalised(self, scaled: Tensor) -> Tensor:
        """A batch from `scaled`, as model input."""
        mean = torch.tensor(self.mean, device=scaled.device).view(1, -1, 1, 1)
        std = torch.tensor(self.std, device=scaled.device).view(1, -1, 1, 1)
        return ((scaled - mean) / std).contiguous(memory_format=torch.channels_last)

    def check(self, raw: Tensor) -> None:
        """Refuse a batch that this spec cannot read."""
        if raw.ndim != 4:
            axis = "add the channel axis to grey images, x[..., None]" if raw.ndim == 3 else "leave input= out"
            raise InputError(f"an input spec is for images, but a batch has shape {tuple(raw.shape)}: {axis}")
        if raw.dtype != torch.uint8 and not raw.is_floating_point():
            raise InputError(f"images have dtype {raw.dtype}: give uint8 from 0 to 255, or floats that are scaled already")
        if raw.dtype != torch.uint8 and raw.numel() and float(raw.max()) > 2:
            raise InputError(f"float images reach {float(raw.max()):g}: give uint8 from 0 to 255, or floats from 0 to 1")
        channels = raw.shape[3 if self.layout == "NHWC" else 1]
        if len(self.mean) not in {1, channels}:
            raise InputError(
                f"a batch of shape {tuple(raw.shape)} has {channels} channels in layout {self.layout}, but mean and std "
                f"have {len(self.mean)} values: give one for each channel, or the other layout"
            )

    def to_dict(self) -> dict[str, Any]:
        """The spec as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The spec that `to_dict` described."""
        settings: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
        return cls(**settings)


def _numbers(values: Any, name: str) -> tuple[float, ...]:
    """One finite number for each channel, from a sequence or an array with one axis."""
    plain = check_dense(values, name) if isinstance(values, Tensor) else values
    listed = plain.tolist() if isinstance(plain, Tensor | np.ndarray) and plain.ndim == 1 else plain
    if not isinstance(listed, tuple | list):
        raise InputError(f"{name} is {quoted(values)}: give one number for each channel, such as (0.5,)")
    return tuple(check_number(value, name, "one finite number for each channel, such as (0.5,)") for value in listed)


def check_size(size: Any) -> tuple[int, int] | None:
    """A height and a width, from both or from one number; None stays None."""
    if size is None:
        return None
    expected = f"a number of pixels, or a height and a width, as in 32 or (32, 48), {LARGEST:,} at most"
    sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2:
        raise InputError(f"size is {quoted(size)}: give {expected}")
    height, width = (check_integer(side, "size", expected, most=LARGEST) for side in sides)
    return height, width


Spec = InputSpec | TableSpec


def to_model_input(raw: Raw, spec: Spec | None, dtype: torch.dtype = torch.float32) -> Raw:
    """A raw batch as model input: images by their spec; else floats in the model's dtype, and the rest unchanged.

    The rows of a table became model input when the table was read.
    """
    if not isinstance(raw, Tensor):
        if spec is not None:
            raise InputError("an input spec is for one array: leave input= out, and give each part as the model takes it")
        prepared: Raw = map_structure(lambda part: part.to(dtype) if part.is_floating_point() else part, raw)
        return prepared
    if isinstance(spec, InputSpec):
        return spec(raw).to(dtype)
    if raw.dtype == torch.uint8:
        raise InputError(
            "uint8 examples need an input spec: pass input=InputSpec(mean=..., std=...) with the values that the model was "
            "trained with"
        )
    return raw.to(dtype) if raw.is_floating_point() else raw

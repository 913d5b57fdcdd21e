"""Structured examples: what a model takes may be a tensor, or a dict, tuple or list of tensors, also nested.

All tensors of a batch have the examples along their first axis.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wildood.errors import InputError

Raw = Tensor | dict[str, Any] | tuple[Any, ...] | list[Any]  # a batch of raw examples


def is_structure(value: Any) -> bool:
    """Whether a value is a dict, tuple or list of parts, and no array.

    >>> is_structure({"ids": torch.zeros(2)}), is_structure(torch.zeros(2))
    (True, False)
    """
    return isinstance(value, Mapping | tuple | list)


def map_structure(function: Callable[..., Any], *structures: Any) -> Any:
    """The structure of what the function makes of each part of a structure, or of the same parts of several.

    >>> map_structure(len, {"ids": [torch.zeros(2), torch.zeros(3)]})
    {'ids': [2, 3]}
    """
    first = structures[0]
    if isinstance(first, Mapping):
        return {key: map_structure(function, *(each[key] for each in structures)) for key in first}
    if isinstance(first, tuple | list):
        parts = [map_structure(function, *each) for each in zip(*structures, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)  # a namedtuple has fields
    return function(*structures)


def parts_of(structure: Any, name: str = "x") -> Iterator[tuple[str, Any]]:
    """Each part of a structure with its name, as Python would write it.

    >>> [name for name, _ in parts_of({"ids": 1, "pair": (2, 3)})]
    ["x['ids']", "x['pair'][0]", "x['pair'][1]"]
    """
    if isinstance(structure, Mapping):
        for key, value in structure.items():
            yield from parts_of(value, f"{name}[{key!r}]")
    elif isinstance(structure, tuple | list):
        for number, value in enumerate(structure):
            yield from parts_of(value, f"{name}[{number}]")
    else:
        yield name, structure


def tensors_of(batch: Raw) -> list[Tensor]:
    """The tensors of a batch."""
    return [batch] if isinstance(batch, Tensor) else [part for _, part in parts_of(batch)]


def one_tensor(batch: Raw, what: str) -> Tensor:
    """A batch that is one tensor, for what takes no structures."""
    if not isinstance(batch, Tensor):
        raise InputError(f"{what} is for models that take one array, but an example is a {type(batch).__name__}")
    return batch


def batch_length(batch: Raw) -> int:
    """The number of examples in a batch."""
    return len(tensors_of(batch)[0])


def have_equal_shapes(batches: Sequence[Raw]) -> bool:
    """Whether the examples of batches have the same shapes, so that they can be concatenated: padded texts may not."""
    shapes = {tuple(tensor.shape[1:] for tensor in tensors_of(batch)) for batch in batches}
    return len(shapes) == 1


def concatenate(batches: Sequence[Raw]) -> Raw:
    """One batch of several, one after the other, on the device of the first.

    >>> concatenate([{"x": torch.zeros(2, 3)}, {"x": torch.zeros(4, 3)}])["x"].shape
    torch.Size([6, 3])
    """
    if not have_equal_shapes(batches):
        shapes = " and ".join(shape_text(batch) for batch in batches[:2])
        raise InputError(f"examples of different shapes cannot share a batch ({shapes}): pad all sources alike")
    batch: Raw = map_structure(lambda *parts: torch.cat([part.to(parts[0].device) for part in parts]), *batches)
    return batch


def to_device(batch: Raw, device: torch.device) -> Raw:
    """The batch on a device."""
    moved: Raw = map_structure(lambda part: part.to(device), batch)
    return moved


def shape_text(batch: Raw) -> str:
    """The shapes and dtypes of a batch, for messages.

    >>> shape_text(torch.zeros(2, 3)), shape_text({"ids": torch.zeros(2, dtype=torch.int64)})
    ('shape (2, 3) and dtype torch.float32', "x['ids'] of shape (2,) and dtype torch.int64")
    """
    if isinstance(batch, Tensor):
        return f"shape {tuple(batch.shape)} and dtype {batch.dtype}"
    return ", ".join(f"{name} of shape {tuple(part.shape)} and dtype {part.dtype}" for name, part in parts_of(batch))

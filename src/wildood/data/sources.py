"""Sources: examples by their index, from arrays, tensors or datasets, read in batches of raw examples."""

import hashlib
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from wildood.data.sampling import Indices
from wildood.errors import InputError
from wildood.settings import quoted

BLOCK_BYTES = 1 << 24  # how much of an array is checked or hashed at once
_BYTES_HASHED = 1 << 30  # of an array, about: hashing more would delay the start
Array = Tensor | np.ndarray[Any, Any]
_ITEM_ACCESS = {"__getitem__", "__torch_function__", "__array_function__"}  # what a subclass of an array may redefine
_FINGERPRINTED = 16  # examples of a dataset that its fingerprint is made from


class Source(Protocol):
    """Examples by their index: raw inputs, and labels where there are any."""

    def __len__(self) -> int: ...

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """The raw examples at these indices, as one batch, and their labels."""

    def fingerprint(self, *, labels: bool = True) -> str:
        """A short text that differs where the data differs; without `labels`, only where the examples do."""


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Examples in one array, in memory or in a memory map. It must not change: its fingerprint is computed once."""

    examples: Array
    labels: Array | None = None

    def __len__(self) -> int:
        return len(self.examples)

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """The raw examples at these indices, and their labels."""
        labels = None if self.labels is None else _rows(self.labels, indices).long()
        return _rows(self.examples, indices), labels

    def fingerprint(self, *, labels: bool = True) -> str:
        """A hash of every byte, or of about a gigabyte spread over a larger array."""
        alone, with_labels = self._fingerprints
        return with_labels if labels else alone

    @cached_property
    def _fingerprints(self) -> tuple[str, str]:
        """Without and with labels, from one pass over the memory."""
        texts = []
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.examples, self.labels):
            if array is not None:
                dtype = array.dtype if isinstance(array, Tensor) else array.dtype.newbyteorder("=")
                digest.update(f"{tuple(array.shape)} {str(dtype).removeprefix('torch.')}".encode())
                every = max(1, array.nbytes // _BYTES_HASHED)
                for number, (_, block) in enumerate(blocks(array)):
                    if number % every == 0:
                        digest.update(memory_of(block))
            texts.append(digest.hexdigest())
        return texts[0], texts[1]


@dataclass(frozen=True, eq=False)
class DatasetSource:
    """Examples read one by one from a `torch.utils.data.Dataset` (or anything with `__len__` and `__getitem__`)."""

    dataset: Any
    labelled: bool
    name: str

    def __len__(self) -> int:
        return len(self.dataset)

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """The examples at these indices stacked into a batch, and their labels; each is checked as it is read."""
        examples, labels = [], []
        for index in indices.tolist():
            item = self.dataset[index]
            pair = item if isinstance(item, tuple | list) and item else (item,)
            examples.append(self._example(pair[0], index))
            if self.labelled:
                labels.append(self._label(pair, index))
        if any(example.shape != examples[0].shape for example in examples):
            shapes = sorted({tuple(example.shape) for example in examples})
            raise InputError(f"{self.name}: examples have different shapes, such as {shapes[:2]}: give them all the same")
        return torch.stack(examples), torch.tensor(labels) if self.labelled else None

    def _example(self, value: Any, index: int) -> Tensor:
        if isinstance(value, np.ma.MaskedArray):
            check_plain(value, f"{self.name}: example {index}")
        try:
            # A copy of an array that may not be written to: torch would warn about sharing it.
            example = torch.as_tensor(native(np.array(value)) if isinstance(value, np.ndarray) else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"{self.name}: example {index} is a {type(value).__name__}: a dataset must give an array or a tensor "
                "for each index" + (", with its class" if self.labelled else "")
            ) from error
        check_dense(example, f"{self.name}: example {index}")
        if example.ndim == 0 or example.numel() == 0:
            raise InputError(
                f"{self.name}: example {index} has shape {tuple(example.shape)}: give an array with at least one number"
            )
        if not torch.isfinite(example).all():
            raise InputError(f"{self.name}: example {index} holds NaN or infinity: repair or drop such examples")
        return example.detach()

    def _label(self, pair: Any, index: int) -> int:
        if len(pair) != 2:
            raise InputError(
                f"{self.name}: a labelled dataset must give (x, y) for each index, {index} has {len(pair)} parts"
            )
        try:
            label = operator.index(pair[1].item() if hasattr(pair[1], "item") else pair[1])
            np.int64(label)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # several values, none, or too large a number
            value = quoted(pair[1])
            raise InputError(f"{self.name}: the label of example {index} is {value}: give an integer class") from error
        return label

    @property
    def is_repeatable(self) -> bool:
        """Whether a few of its examples are the same at two readings; augmentation, for one, changes them."""
        first, second = self._readings
        return first == second

    def fingerprint(self, *, labels: bool = True) -> str:
        """Its type and length, and a hash of a few examples unless they differ from one reading to the next."""
        name = f"{type(self.dataset).__module__}.{type(self.dataset).__qualname__}[{len(self)}]"
        first, second = (reading[labels] for reading in self._readings)
        return f"{name} {first}" if first == second else name

    @cached_property
    def _readings(self) -> list[tuple[str, str]]:
        """The hashes, without and with labels, of a few examples that are read twice."""
        few = torch.linspace(0, len(self) - 1, min(_FINGERPRINTED, len(self))).long()
        readings = [ArraySource(*self.gather(few)) for _ in range(2)]
        return [(each.fingerprint(labels=False), each.fingerprint()) for each in readings]


@dataclass(frozen=True, eq=False)
class Part:
    """Some of a source's examples, as a source."""

    source: Source
    indices: Indices

    def __len__(self) -> int:
        return len(self.indices)

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """The examples at these places of the part."""
        return self.source.gather(self.indices[indices])

    def fingerprint(self, *, labels: bool = True) -> str:
        """The whole source's, and a hash of the indices."""
        which = self.indices.numpy().data if isinstance(self.indices, Tensor) else repr(self.indices).encode()
        return f"{self.source.fingerprint(labels=labels)}/{hashlib.blake2b(which, digest_size=8).hexdigest()}"


def check_plain(array: Array, name: str) -> Array:
    """The array, or tensor; a subclass whose items may differ from what its memory holds is refused."""
    plain: type[Any] = Tensor if isinstance(array, Tensor) else np.ndarray
    kinds = type(array).__mro__[: type(array).__mro__.index(plain)]
    own = [kind for kind in kinds if kind not in {np.memmap, nn.Parameter} and _ITEM_ACCESS & vars(kind).keys()]
    if not own:
        return array
    masked = isinstance(array, np.ma.MaskedArray)
    instead = "x.filled(0)" if masked else f"{'torch' if plain is Tensor else 'np'}.stack([x[i] for i in range(len(x))])"
    raise InputError(
        f"{name} is a {type(array).__name__}, whose items may differ from its memory: give a plain array or tensor, such as "
        f"{instead}"
    )


def check_dense(tensor: Tensor, name: str) -> Tensor:
    """The tensor; one without numbers in memory at fixed places, or with numbers torch cannot compute with, is refused."""
    if tensor.is_meta:
        raise InputError(f"{name} is a tensor on the meta device, without data: give one that holds the examples")
    if tensor.is_quantized:
        raise InputError(f"{name} is a quantized tensor: give its values, as {name}.dequantize() does")
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else "sparse" if "sparse" in str(tensor.layout) else str(tensor.layout)
        raise InputError(f"{name} is a {kind} tensor: give a dense one, as {name}.to_dense() does")
    if tensor.is_complex() or (tensor.is_floating_point() and tensor.dtype.itemsize == 1):
        raise InputError(f"{name} has dtype {tensor.dtype}: give float32 numbers or uint8 images")
    return tensor


def native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array in this machine's byte order, the only one that torch reads."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def is_mapped(source: Source) -> bool:
    """Whether a source's examples are read from the disk when they are gathered."""
    if isinstance(source, Part):
        return is_mapped(source.source)
    return isinstance(source, ArraySource) and isinstance(source.examples, np.memmap)


def memory_of(values: Array) -> memoryview:
    """The bytes of an array or tensor, for a hash; numpy has no bfloat16, so a tensor is read as bytes."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().resolve_neg().contiguous().flatten().view(torch.uint8).numpy()
    return np.ascontiguousarray(native(values)).data


def blocks(array: Array) -> Iterator[tuple[int, Array]]:
    """Views of a large array, one after the other, with the number of their first row."""
    rows = max(1, BLOCK_BYTES * len(array) // max(1, array.nbytes))
    for start in range(0, len(array), rows):
        yield start, array[start : start + rows]


def _rows(array: Array, indices: Tensor) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach()[indices.to(array.device)]
    return torch.from_numpy(native(np.asarray(array[indices.numpy()])))

"""What a user calls data (arrays, tensors, datasets), checked once and read in batches of raw examples."""

import hashlib
import operator
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from wildood.errors import InputError

_ROWS = 4096  # how many examples are looked at together when a whole array is checked or hashed


class Source(Protocol):
    """Examples by their index: raw inputs, and labels where there are any."""

    def __len__(self) -> int: ...

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """The raw examples at these indices, as one batch, and their labels."""
        ...

    def fingerprint(self) -> str:
        """A short text that is another one when the data is."""
        ...


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Examples that live in memory (or in a memory map) as one array; a batch is gathered, nothing is copied whole.

    >>> source = ArraySource(np.arange(6.0).reshape(3, 2), np.array([0, 1, 0]))
    >>> source.gather(torch.tensor([2, 0]))
    (tensor([[4., 5.], [0., 1.]], dtype=torch.float64), tensor([0, 0]))
    """

    examples: Tensor | np.ndarray[Any, Any]
    labels: Tensor | np.ndarray[Any, Any] | None = None

    def __len__(self) -> int:
        return len(self.examples)

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """The raw examples at these indices, and their labels."""
        labels = None if self.labels is None else _rows(self.labels, indices).long()
        return _rows(self.examples, indices), labels

    def fingerprint(self) -> str:
        """A hash of every byte."""
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.examples, self.labels):
            if array is not None:
                digest.update(f"{tuple(array.shape)} {str(array.dtype).removeprefix('torch.')}".encode())
                for start in range(0, len(array), _ROWS):
                    block = array[start : start + _ROWS]
                    rows = _bytes(block) if isinstance(block, Tensor) else np.ascontiguousarray(block)
                    digest.update(rows.data)
        return digest.hexdigest()


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
            pair = item if isinstance(item, tuple | list) else (item,)
            examples.append(self._example(pair[0], index))
            if self.labelled:
                labels.append(self._label(pair, index))
        if any(example.shape != examples[0].shape for example in examples):
            shapes = sorted({tuple(example.shape) for example in examples})
            raise InputError(f"{self.name}: examples have different shapes, such as {shapes[:2]}: give them all the same")
        return torch.stack(examples), torch.tensor(labels) if self.labelled else None

    def _example(self, value: Any, index: int) -> Tensor:
        try:
            # A copy of an array that may not be written to: torch would warn about sharing it.
            example = torch.as_tensor(np.array(value) if isinstance(value, np.ndarray) else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"{self.name}: example {index} is a {type(value).__name__}: a dataset must give an array or a tensor "
                "for each index" + (", with its class" if self.labelled else "")
            ) from error
        if not torch.isfinite(example).all():
            raise InputError(f"{self.name}: example {index} holds NaN or infinity: repair or drop such examples")
        return example.detach()

    def _label(self, pair: Any, index: int) -> int:
        if len(pair) != 2:
            raise InputError(
                f"{self.name}: a labelled dataset must give (x, y) for each index, {index} has {len(pair)} parts"
            )
        try:
            return operator.index(pair[1].item() if hasattr(pair[1], "item") else pair[1])
        except TypeError as error:
            raise InputError(f"{self.name}: the label of example {index} is {pair[1]!r}: give an integer class") from error

    def fingerprint(self) -> str:
        """Its type and length: reading every example could be slow, and random transforms would never agree."""
        return f"{type(self.dataset).__module__}.{type(self.dataset).__qualname__}[{len(self)}]"


@dataclass(frozen=True, eq=False)
class Part:
    """Some of a source's examples, as a source.

    >>> len(Part(ArraySource(np.zeros((5, 2))), torch.tensor([0, 3])))
    2
    """

    source: Source
    indices: Tensor

    def __len__(self) -> int:
        return len(self.indices)

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """The examples at these places of the part."""
        return self.source.gather(self.indices[indices])

    def fingerprint(self) -> str:
        """The whole source's, and which part of it."""
        return f"{self.source.fingerprint()}/{hashlib.blake2b(self.indices.numpy().data, digest_size=8).hexdigest()}"


def all_labels(source: Source) -> Tensor:
    """Every label of a labelled source.

    >>> all_labels(ArraySource(np.zeros((3, 2)), np.array([2, 0, 1])))
    tensor([2, 0, 1])
    """
    labels = [source.gather(block)[1] for block in torch.split(torch.arange(len(source)), _ROWS)]
    return torch.cat([block for block in labels if block is not None])


def labelled_source(data: Any, name: str) -> Source:
    """`(x, y)` or a dataset of pairs, as a checked source.

    >>> len(labelled_source((np.zeros((4, 2)), np.array([0, 1, 0, 1])), "labelled"))
    4
    >>> labelled_source((np.zeros((4, 2)), np.array([0.0, 1.0, 0.0, 1.0])), "labelled")
    Traceback (most recent call last):
    wildood.errors.InputError: labelled: labels have dtype float64 and shape (4,): give one integer class for each example
    """
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, np.ndarray | Tensor):
        raise InputError(f"{name} is an array alone: give its labels, too, as in {name}=(x, y)")
    if isinstance(data, tuple | list) and len(data) == 2:
        examples, labels = _array(data[0], f"{name} x"), _array(data[1], f"{name} y")
        if labels.ndim != 1 or not _is_integer(labels):
            raise InputError(
                f"{name}: labels have dtype {str(labels.dtype).removeprefix('torch.')} and shape {tuple(labels.shape)}: "
                "give one integer class for each example"
            )
        if len(examples) != len(labels):
            raise InputError(
                f"{name}: {len(examples)} examples but {len(labels)} labels: give as many of one as of the other"
            )
        if len(labels) and int(labels.min()) < 0:
            raise InputError(
                f"{name}: a label is {int(labels.min())}: classes count from 0, and unlabelled examples belong in wild"
            )
        return ArraySource(_checked(examples, name), labels)
    if isinstance(data, tuple | list):
        raise InputError(f"{name} is a {type(data).__name__} of {len(data)}: give (x, y)")
    return _dataset(data, name, labelled=True, instead=f"{name}=(x, y)")


def unlabelled_source(data: Any, name: str) -> Source:
    """`x` or a dataset (labels in it are not looked at), as a checked source.

    >>> len(unlabelled_source(np.zeros((4, 2)), "wild"))
    4
    """
    if isinstance(data, TensorDataset):
        data = data.tensors[0]
    if isinstance(data, tuple | list):
        raise InputError(f"{name} is a {type(data).__name__} of {len(data)}: give x alone, as one array, without labels")
    if isinstance(data, np.ndarray | Tensor):
        return ArraySource(_checked(_array(data, name), name))
    return _dataset(data, name, labelled=False, instead=f"{name}=x")


def _dataset(data: Any, name: str, *, labelled: bool, instead: str) -> DatasetSource:
    """A map-style dataset; anything else is refused with the line to write instead."""
    if isinstance(data, DataLoader):
        raise InputError(f"{name} is a DataLoader: wildood makes its own batches, write {name}=loader.dataset instead")
    if isinstance(data, dict):
        keys = [repr(key) for key in data][: 2 if labelled else 1]
        picked = ", ".join(f"data[{key}]" for key in keys)
        raise InputError(f"{name} is a dict: write {name}={f'({picked})' if labelled else picked} instead")
    if isinstance(data, str | bytes | IterableDataset) or not (
        isinstance(data, Dataset | Sized) and hasattr(data, "__getitem__")
    ):
        raise InputError(f"{name} is a {type(data).__name__}: give {instead} with arrays or tensors, or a map-style Dataset")
    if not isinstance(data, Sized) or len(data) == 0:
        raise InputError(f"{name} is empty: give at least one example")
    return DatasetSource(data, labelled, name)


def _array(data: Any, name: str) -> Tensor | np.ndarray[Any, Any]:
    if isinstance(data, Tensor | np.ndarray):
        return data
    raise InputError(
        f"{name} is a {type(data).__name__}: give a numpy array or a torch tensor, such as np.asarray({name[-1]})"
    )


def _checked(examples: Tensor | np.ndarray[Any, Any], name: str) -> Tensor | np.ndarray[Any, Any]:
    """Refuse what cannot be trained on: no examples, no axis beside the examples', objects, NaN or infinity."""
    if examples.ndim < 2 or len(examples) == 0:
        hint = f" (add the batch axis to a single example: {name}[None])" if examples.ndim == 1 and len(examples) else ""
        raise InputError(f"{name} has shape {tuple(examples.shape)}: give at least one example, along the first axis{hint}")
    if not _is_readable(examples):
        raise InputError(f"{name} has dtype {examples.dtype}: give float32 numbers or uint8 images")
    if _is_integer(examples):
        return examples
    for start in range(0, len(examples), _ROWS):
        block = examples[start : start + _ROWS]
        finite = block.isfinite().flatten(1).all(1) if isinstance(block, Tensor) else np.isfinite(block).all(_axes(block))
        if not bool(finite.all()):
            bad = start + int((~torch.as_tensor(finite)).nonzero()[0])
            raise InputError(f"{name}: example {bad} holds NaN or infinity: repair or drop such examples")
    return examples


def _is_readable(examples: Tensor | np.ndarray[Any, Any]) -> bool:
    """Real numbers of a kind that torch has."""
    if isinstance(examples, Tensor):
        return not (examples.is_complex() or examples.dtype == torch.bool)
    if examples.dtype.kind not in "fiu":
        return False
    try:
        torch.from_numpy(np.empty(0, examples.dtype))
    except TypeError:
        return False
    return True


def _bytes(block: Tensor) -> np.ndarray[Any, Any]:
    """A tensor's memory; numpy has no bfloat16, so it is read as bytes."""
    return block.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


def _axes(block: np.ndarray[Any, Any]) -> tuple[int, ...]:
    return tuple(range(1, block.ndim))


def _is_integer(array: Tensor | np.ndarray[Any, Any]) -> bool:
    if isinstance(array, np.ndarray):
        return array.dtype.kind in "iu"
    return not (array.is_floating_point() or array.is_complex() or array.dtype == torch.bool)


def _rows(array: Tensor | np.ndarray[Any, Any], indices: Tensor) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach()[indices.to(array.device)]
    return torch.from_numpy(np.asarray(array[indices.numpy()]))

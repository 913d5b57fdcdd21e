"""Sources: examples by their index, from arrays, tensors or datasets, read in batches of raw examples."""

import hashlib
import logging
import operator
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing import get_context
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data._utils import worker

from wildood.data.hugging_face import LABEL_KEYS, is_hugging_face
from wildood.data.sampling import Indices
from wildood.data.structures import Raw, is_structure, map_structure, parts_of, shape_text, tensors_of
from wildood.data.tables import is_frame
from wildood.errors import InputError
from wildood.settings import quoted

BLOCK_BYTES = 1 << 24  # how much of an array is checked or hashed at once
_BYTES_HASHED = 1 << 30  # of an array, about: hashing more would delay the start
Array = Tensor | np.ndarray[Any, Any]
_ITEM_ACCESS = {"__getitem__", "__torch_function__", "__array_function__"}  # what a subclass of an array may redefine
CACHED_BYTES = 1 << 29  # of the items of a dataset that are kept in memory
_LONG = 10.0  # seconds of reading a dataset after which workers are worth a line
_LOGGER = logging.getLogger("wildood")
SEVERAL_LABELS = " (one-hot: y.argmax(1); several labels for each example: fit a detector for each, as with y[:, 0])"
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch has no `index_select` for them
_FINGERPRINTED = 16  # examples of a dataset that its fingerprint is made from


class Source(Protocol):
    """Examples by their index: raw inputs, and labels where there are any."""

    def __len__(self) -> int: ...

    def gather(self, indices: Tensor) -> tuple[Raw, Tensor | None]:
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
class StructuredSource:
    """Examples of several arrays of one length: a dict, tuple or list of `ArraySource`s, also nested.

    >>> both = StructuredSource({"ids": ArraySource(np.zeros((5, 3))), "mask": ArraySource(np.ones((5, 3)))})
    >>> {name: tuple(part.shape) for name, part in both.gather(torch.arange(2))[0].items()}
    {'ids': (2, 3), 'mask': (2, 3)}
    """

    parts: Any
    labels: Array | None = None
    where: str = ""  # the file, as the user named it, if they come from one
    classes: tuple[str, ...] = ()  # the names of the classes, in the order of the labels; empty if there are none

    def __len__(self) -> int:
        return len(next(iter(parts_of(self.parts)))[1])

    def gather(self, indices: Tensor) -> tuple[Raw, Tensor | None]:
        """The raw examples at these indices, as a structure of tensors, and their labels."""
        labels = None if self.labels is None else _rows(self.labels, indices).long()
        return map_structure(lambda part: part.gather(indices)[0], self.parts), labels

    def fingerprint(self, *, labels: bool = True) -> str:
        """A hash of the names and the fingerprints of the parts, and of the labels."""
        digest = hashlib.blake2b(digest_size=16)
        for name, part in parts_of(self.parts):
            digest.update(f"{name} {part.fingerprint()} ".encode())
        if labels and self.labels is not None:
            digest.update(ArraySource(self.labels).fingerprint().encode())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class DatasetSource:
    """Examples read one by one from a `torch.utils.data.Dataset` (or anything with `__len__` and `__getitem__`).

    An item is `x`, a pair `(x, y)`, or a dict: its "label" or "labels" is the class, and the rest is x. Items that are the
    same at each reading are kept in memory, up to `CACHED_BYTES`, so that slow ones are read once.

    Attributes:
        dataset: what is read.
        labelled: whether the classes are read, too; else they are ignored.
        name: what messages call it.
        collate: makes a batch of a list of items, as a `DataLoader`'s; by default, examples of one shape are stacked.
        workers: processes that read items; 0 reads them in this one.
        worker_init_fn: called in each worker with its number, as a `DataLoader`'s.
    """

    dataset: Any
    labelled: bool
    name: str
    collate: Callable[[list[Any]], Any] | None = None
    workers: int = 0
    worker_init_fn: Callable[[int], None] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def gather(self, indices: Tensor) -> tuple[Raw, Tensor | None]:
        """The examples at these indices as a batch, and their labels; each is checked as it is read."""
        numbers, cache = indices.tolist(), self._cache
        missing = [number for number in dict.fromkeys(numbers) if number not in cache]
        found = {number: self.checked(item, number) for number, item in zip(missing, self._read(missing), strict=True)}
        for number, item in found.items():
            cache.add(number, item)
        return self.batch([found[number] if number in found else cache[number] for number in numbers])

    def checked(self, item: Any, number: int) -> Any:
        """An item as `batch` takes it: as it is for `collate`, else an example and a class, of the shape of the others."""
        if self.collate is not None:
            return item
        example, label = self._pair(item, number)
        own = _Shapes(tuple(name for name, _ in parts_of(example)), tuple(tuple(each.shape) for each in tensors_of(example)))
        first = self._cache.shapes = self._cache.shapes or own
        if own.names != first.names:
            raise InputError(f"{self.name}: examples have different parts: give the same ones in every example")
        if own.shapes != first.shapes:
            pairs = zip(own.names, own.shapes, first.shapes, strict=True)
            part, *such = next((part, *sorted((one, other))) for part, one, other in pairs if one != other)
            of = f" of {part}" if is_structure(example) else ""
            raise InputError(
                f"{self.name}: examples have different shapes, such as {such[0]} and {such[1]}{of}: give them all the same, "
                "or a DataLoader with a collate_fn that pads them"
            )
        return example, label

    def batch(self, items: list[Any]) -> tuple[Raw, Tensor | None]:
        """A batch of checked items, and their labels."""
        if self.collate is not None:
            return self._collated(self.collate(items), len(items))
        batch = map_structure(lambda *parts: torch.stack(parts), *(example for example, _ in items))
        return batch, torch.tensor([label for _, label in items]) if self.labelled else None

    def _read(self, numbers: list[int]) -> list[Any]:
        """The items as they are now. What workers draw follows from torch's generator, if items differ at each reading."""
        if not self.workers or not numbers:
            return _items_of(self.dataset, numbers)
        seed = 0 if self.is_repeatable else int(torch.randint(1 << 31, ()))
        chunks = [numbers[first :: self.workers] for first in range(self.workers)]
        found: dict[int, Any] = {}
        seeds = range(seed, seed + self.workers)
        for chunk, items in zip(chunks, self._pool.map(_read_in_worker, chunks, seeds), strict=True):
            found |= zip(chunk, map(from_process, items), strict=True)
        return [found[number] for number in numbers]

    @cached_property
    def _pool(self) -> ProcessPoolExecutor:
        """The workers; they are forked, as those of a DataLoader, so that a dataset need not be pickled."""
        context = get_context("fork")
        begin = partial(_begin_worker, self.dataset, self.workers, context.Value("i", 0), self.worker_init_fn)
        return ProcessPoolExecutor(self.workers, context, begin)

    @cached_property
    def _cache(self) -> "_Cache":
        return _Cache(CACHED_BYTES if self.is_repeatable else 0)

    def _pair(self, item: Any, index: int) -> tuple[Any, int]:
        """The example and the class of an item; 0 where classes are not read."""
        if isinstance(item, Mapping):
            named = dict(item)
            labels = [named.pop(key) for key in LABEL_KEYS if key in named]
            example, parts = named, [named, *labels]
        else:
            parts = list(item) if isinstance(item, tuple | list) and item else [item]
            example = parts[0]
        if not self.labelled:
            return self._example(example, index), 0
        if len(parts) != 2:
            pair = f"a key {LABEL_KEYS[0]!r} or {LABEL_KEYS[1]!r}" if isinstance(item, Mapping) else "(x, y)"
            raise InputError(
                f"{self.name}: a labelled dataset must give {pair} for each index, {index} has "
                + ("none" if isinstance(item, Mapping) else f"{len(parts)} parts")
            )
        return self._example(example, index), self._label(parts[1], index)

    def _collated(self, batch: Any, count: int) -> tuple[Raw, Tensor | None]:
        """The examples and the classes in what `collate` made."""
        labels = None
        if isinstance(batch, Mapping):
            named = dict(batch)
            given = [named.pop(key) for key in LABEL_KEYS if key in named]
            examples, labels = named, given[0] if given else None
        elif isinstance(batch, tuple | list) and len(batch) == 2:
            examples, labels = batch
        else:
            examples = batch[0] if isinstance(batch, tuple | list) and len(batch) == 1 else batch
        examples = self._parts(examples, f"{self.name}: what collate_fn made")
        if not tensors_of(examples) or any(tensor.ndim == 0 or len(tensor) != count for tensor in tensors_of(examples)):
            raise InputError(f"{self.name}: collate_fn made no batch of {count} examples: {shape_text(examples)}")
        if not self.labelled:
            return examples, None
        if labels is None:
            raise InputError(f"{self.name}: collate_fn made a batch without classes: return (x, y), or a dict with 'labels'")
        return examples, torch.as_tensor(labels).long()

    def _example(self, value: Any, index: int) -> Any:
        if _is_several(value):
            return self._parts(value, f"{self.name}: a part of example {index}")
        example = self._tensor(value, f"{self.name}: example {index}")
        if example.ndim == 0 or example.numel() == 0:
            raise InputError(
                f"{self.name}: example {index} has shape {tuple(example.shape)}: give an array with at least one number"
            )
        return example

    def _parts(self, value: Any, what: str) -> Any:
        """The tensors of a structure; a list of numbers is one of them."""
        if not _is_several(value):
            return self._tensor(value, what)
        if isinstance(value, Mapping):
            return {key: self._parts(part, f"{what} ({key!r})") for key, part in value.items()}
        return tuple(self._parts(part, what) for part in value)

    def _tensor(self, value: Any, what: str) -> Tensor:
        if isinstance(value, np.ma.MaskedArray):
            check_plain(value, what)
        if is_frame(value):
            raise InputError(
                f"{what} is a {type(value).__name__}: give tables whole, with input=spec, or rows of spec(table)"
            )
        try:
            # A copy of an array that may not be written to: torch would warn about sharing it.
            tensor = torch.as_tensor(native(np.array(value)) if isinstance(value, np.ndarray) else value)
        except (TypeError, ValueError, RuntimeError) as error:
            instead = "a dataset must give an array or a tensor for each index" + (
                ", with its class" if self.labelled else ""
            )
            raise InputError(f"{what} is a {type(value).__name__}: {instead}") from error
        check_dense(tensor, what)
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise InputError(f"{what} holds NaN or infinity: repair or drop such examples")
        return tensor.detach()

    def _label(self, value: Any, index: int) -> int:
        try:
            label = operator.index(value.item() if hasattr(value, "item") else value)
            np.int64(label)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # several values, none, or too large a number
            several = isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0
            raise InputError(
                f"{self.name}: the label of example {index} is {quoted(value)}: give an integer class"
                + (SEVERAL_LABELS if several else "")
            ) from error
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
        began = perf_counter()
        readings = [self._hashes(few) for _ in range(2)]
        seconds = (perf_counter() - began) / max(1, 2 * len(few))
        if not self.workers and seconds * len(self) > _LONG:
            text = "%s: %s examples take %.1f ms each to read: a DataLoader with num_workers=4 reads four at a time"
            _LOGGER.info(text, self.name, f"{len(self):,}", 1000 * seconds)
        return readings

    def _hashes(self, few: Tensor) -> tuple[str, str]:
        """Hashes of some examples as they are read now, without and with labels."""
        fresh = replace(self, workers=0)
        fresh.__dict__["_cache"] = _Cache(0)  # nothing is kept: this is to see whether items change
        digest, labels = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
        for index in few:
            batch, label = fresh.gather(index[None])
            for name, part in parts_of(batch):
                digest.update(f"{name} {tuple(part.shape)} {part.dtype}".encode() + memory_of(part))
            labels.update(str(label).encode())
        return digest.hexdigest(), digest.hexdigest() + labels.hexdigest()


def _is_several(value: Any) -> bool:
    """Whether a value is a structure of arrays, and not a list of numbers."""
    if isinstance(value, tuple | list):
        return bool(value) and all(isinstance(part, Tensor | np.ndarray) or _is_several(part) for part in value)
    return isinstance(value, Mapping)


class _Shapes(NamedTuple):
    """The parts of an example and their shapes."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


class _Cache(dict[int, Any]):
    """Items by their number, as many as so many bytes hold; and the shapes of the first one."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = most
        self.shapes: _Shapes | None = None

    def add(self, number: int, item: Any) -> None:
        """Keep an item, if there is room for it."""
        size = bytes_of(item)
        if size <= self.left:
            self[number] = item
            self.left -= size


def bytes_of(item: Any) -> int:
    """How much memory an item takes, about.

    >>> bytes_of((torch.zeros(2, 3), {"ids": np.zeros(5, np.int64)}, 7))
    128
    """
    parts = [part for _, part in parts_of(item)]
    return sum(part.nbytes if isinstance(part, Tensor | np.ndarray) else 64 for part in parts)


_WORKERS_DATASET: list[Any] = []  # of a worker process: what it reads


def _begin_worker(dataset: Any, count: int, begun: Any, worker_init_fn: Callable[[int], None] | None) -> None:
    torch.set_num_threads(1)
    _WORKERS_DATASET.append(dataset)
    with begun.get_lock():
        number = begun.value
        begun.value += 1
    # What torch.utils.data.get_worker_info() returns, which datasets and their worker_init_fn ask.
    worker._worker_info = worker.WorkerInfo(id=number, num_workers=count, seed=torch.initial_seed(), dataset=dataset)  # noqa: SLF001
    if worker_init_fn is not None:
        worker_init_fn(number)


def _read_in_worker(numbers: list[int], seed: int) -> list[Any]:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what a user's dataset may draw from
    random.seed(seed)
    return [for_process(item) for item in _items_of(_WORKERS_DATASET[-1], numbers)]


def _items_of(dataset: Any, numbers: list[int]) -> list[Any]:
    """Items one by one; those of a Hugging Face dataset at once, which is several times as fast."""
    if is_hugging_face(dataset) and numbers:
        items: list[Any] = dataset.__getitems__(numbers)
        return items
    return [dataset[number] for number in numbers]


class _Sent(NamedTuple):
    """A tensor on its way from one process to another, as an array: torch would open a file for each tensor."""

    array: np.ndarray[Any, Any]


def for_process(item: Any) -> Any:
    """An item as it is sent to another process; `from_process` makes it what it was.

    >>> from_process(for_process({"x": [torch.ones(2)], "id": "a"}))
    {'x': [tensor([1., 1.])], 'id': 'a'}
    """
    if type(item) is Tensor and item.device.type == "cpu" and item.layout == torch.strided and item.dtype != torch.bfloat16:
        return _Sent(item.detach().resolve_conj().resolve_neg().numpy())
    return _each_part(for_process, item)


def from_process(item: Any) -> Any:
    """What `for_process` was given."""
    return torch.from_numpy(item.array) if isinstance(item, _Sent) else _each_part(from_process, item)


def _each_part(function: Callable[[Any], Any], item: Any) -> Any:
    if type(item) is dict:
        return {key: function(value) for key, value in item.items()}
    return type(item)(map(function, item)) if type(item) in {tuple, list} else item


@dataclass(frozen=True, eq=False)
class Part:
    """Some of a source's examples, as a source."""

    source: Source
    indices: Indices

    def __len__(self) -> int:
        return len(self.indices)

    def gather(self, indices: Tensor) -> tuple[Raw, Tensor | None]:
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
    # Of contiguous memory, `index_select` and `take` copy whole rows, several times as fast as indexing.
    if isinstance(array, Tensor):
        array, indices = array.detach(), indices.to(array.device)
        return array.index_select(0, indices) if array.is_contiguous() and array.dtype not in _UNSIGNED else array[indices]
    is_plain = array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative  # `take` would copy others whole
    rows = array.take(indices.numpy(), axis=0) if is_plain else array[indices.numpy()]
    return torch.from_numpy(native(np.asarray(rows)))

"""Examples in many files, memory-mapped: `.npy` for arrays, safetensors for structured examples."""

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from wildood.data.files import DamagedFileError, dump_tensors
from wildood.data.sources import BLOCK_BYTES, Array, ArraySource, DatasetSource, Part, Source, StructuredSource
from wildood.data.structures import Raw, concatenate, have_equal_shapes, map_structure, parts_of, shape_text, tensors_of
from wildood.errors import InputError

SUFFIXES = (".npy", ".safetensors")
_BYTES_HASHED = 1 << 30  # of the examples, about: hashing more would delay the start
Integers = npt.NDArray[np.int64]


def layout_of(batch: Raw) -> str:
    """The parts of an example, their dtypes and shapes, as JSON. Examples of one layout fit in one file.

    >>> layout_of({"ids": torch.zeros(8, 20, dtype=torch.int64)})
    '{"dict": {"ids": ["int64", [20]]}}'
    """
    return json.dumps(_described(batch))


def _described(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return [str(batch.dtype).removeprefix("torch."), list(batch.shape[1:])]
    if isinstance(batch, dict):
        return {"dict": {name: _described(part) for name, part in batch.items()}}
    return {"tuple": [_described(part) for part in batch]}


def examples_file(batch: Raw) -> tuple[str, bytes]:
    """A batch of examples as a file: its suffix and its content; `open_examples` reads it.

    >>> examples_file(torch.zeros(2, 3))[0], examples_file((torch.zeros(2, 3), torch.zeros(2)))[0]
    ('.npy', '.safetensors')
    """
    if isinstance(batch, Tensor) and batch.dtype != torch.bfloat16:  # which numpy has not
        content = io.BytesIO()
        np.save(content, batch.detach().cpu().contiguous().numpy(), allow_pickle=False)
        return SUFFIXES[0], content.getvalue()
    tensors = {str(number): tensor for number, tensor in enumerate(tensors_of(batch))}
    return SUFFIXES[1], dump_tensors(tensors, {"layout": layout_of(batch)})


def open_examples(path: Path) -> Source:
    """The examples of a file that `examples_file` made, memory-mapped: they are read from the disk when they are needed."""
    try:
        if path.suffix == SUFFIXES[0]:
            return ArraySource(np.load(path, mmap_mode="r", allow_pickle=False))
        with safe_open(path, "pt") as file:
            layout = json.loads(file.metadata()["layout"])
            tensors = [file.get_tensor(str(number)) for number in range(len(file.keys()))]
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, EOFError) as error:
        raise DamagedFileError(f"{path} holds no examples ({error})") from error
    arrays = iter(tensors)
    parts = _built(layout, arrays)
    return parts if isinstance(parts, ArraySource) else StructuredSource(parts)


def _built(layout: Any, arrays: Iterator[Array]) -> Any:
    if isinstance(layout, list):
        return ArraySource(next(arrays))
    if "dict" in layout:
        return {name: _built(part, arrays) for name, part in layout["dict"].items()}
    return tuple(_built(part, arrays) for part in layout["tuple"])


@dataclass(frozen=True, eq=False)
class MappedSource:
    """Chosen examples of several sources, in any order, as one source; of structured examples, the sizes may differ.

    In a batch, structured examples of different sizes are padded with zeros at the end. The fingerprint is that of the
    examples, whichever files they are in.

    Attributes:
        sources: where the examples are.
        which: the number of each example's source.
        rows: its index there.
        labels: its class, if there are classes.

    >>> first, second = ArraySource(np.zeros((5, 1))), ArraySource(np.ones((5, 1)))
    >>> both = MappedSource((first, second), np.array([1, 0, 1]), np.array([4, 0, 2]))
    >>> both.gather(torch.arange(3))[0].flatten().tolist()
    [1.0, 0.0, 1.0]
    """

    sources: tuple[Source, ...]
    which: Integers
    rows: Integers
    labels: Array | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, indices: Tensor) -> tuple[Raw, Tensor | None]:
        """The raw examples at these indices, as one batch, and their labels."""
        asked = indices.cpu().numpy()
        which, rows = self.which[asked], torch.from_numpy(self.rows[asked])
        order = np.argsort(which, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(which[order])) + 1)
        batches = [self.sources[which[some[0]]].gather(rows[torch.from_numpy(some)])[0] for some in groups if len(some)]
        back = torch.from_numpy(np.argsort(order))
        batch = map_structure(lambda part: part[back], concatenate(_padded(batches)))
        return batch, None if self.labels is None else torch.as_tensor(np.asarray(self.labels)[asked]).long()

    def fingerprint(self, *, labels: bool = True) -> str:
        """A hash of the bytes of every example, or of about a gigabyte spread over them, and of the labels."""
        label = "" if not labels or self.labels is None else ArraySource(self.labels).fingerprint()
        return hashlib.blake2b(f"{self._hash}{label}".encode(), digest_size=16).hexdigest() if label else self._hash

    @property
    def is_padded(self) -> bool:
        """Whether examples have different sizes, so that an example depends on its batch."""
        return len({layout_of(source.gather(torch.arange(1))[0]) for source in self.sources}) > 1

    @cached_property
    def _hash(self) -> str:
        """Over the rows one by one, so that it does not depend on their files."""
        digest = hashlib.blake2b(f"{len(self)}".encode(), digest_size=16)
        firsts = [source.gather(torch.arange(1))[0] for source in self.sources]
        sizes = np.array([sum(part.nbytes for part in tensors_of(first)) for first in firsts])
        every = max(1, int(sizes[self.which].sum()) // _BYTES_HASHED)
        rows, last = np.arange(0, len(self), every), ""
        which = self.which[rows]
        for some in np.split(rows, np.flatnonzero(np.diff(which)) + 1):  # runs of rows in one file
            number = int(self.which[some[0]])
            if (layout := layout_of(firsts[number])) != last:
                digest.update(layout.encode())
                last = layout
            for block in torch.split(torch.from_numpy(self.rows[some]), max(1, BLOCK_BYTES // max(1, int(sizes[number])))):
                batch = self.sources[number].gather(block)[0]
                parts = [_bytes_of_rows(part) for part in tensors_of(batch)]
                digest.update(np.ascontiguousarray(np.concatenate(parts, axis=1)).data)
        return digest.hexdigest()


def _bytes_of_rows(tensor: Tensor) -> npt.NDArray[np.uint8]:
    rows: npt.NDArray[np.uint8] = tensor.contiguous().view(len(tensor), -1).view(torch.uint8).numpy()
    return rows


def _padded(batches: list[Raw]) -> list[Raw]:
    """Batches of the same parts; those of structures are padded to the largest."""
    kinds = [[(name, part.is_floating_point()) for name, part in parts_of(batch)] for batch in batches]
    if any(each != kinds[0] for each in kinds):
        texts = " and ".join(sorted({shape_text(batch) for batch in batches})[:2])
        raise InputError(f"examples have different parts or types ({texts}): give the same in every example")
    if have_equal_shapes(batches) or isinstance(batches[0], Tensor):
        return batches
    shapes = [[part.shape[1:] for part in tensors_of(batch)] for batch in batches]
    if any(len({len(shape) for shape in same}) > 1 for same in zip(*shapes, strict=True)):
        raise InputError("examples have parts of different numbers of axes: give the same in every example")
    largest = [[max(sizes) for sizes in zip(*same, strict=True)] for same in zip(*shapes, strict=True)]
    padded = []
    for batch in batches:
        sizes = iter(largest)
        padded.append(map_structure(lambda part, sizes=sizes: _pad(part, next(sizes)), batch))
    return padded


def _pad(part: Tensor, sizes: list[int]) -> Tensor:
    missing = [size - own for size, own in zip(sizes, part.shape[1:], strict=True)]
    return F.pad(part, [width for each in reversed(missing) for width in (0, each)]) if any(missing) else part


def read_ahead(sources: Sequence[Source]) -> bool:
    """Whether a thread should read the next batch: data is on the disk, or workers read it.

    Not where a dataset is read in this process: it may be bound to its thread, or draw from torch's generator. What workers
    draw follows from that generator, too, so that items which differ at each reading are not read ahead.
    """
    whole = [undivided(source) for source in sources]
    datasets = [source for source in whole if isinstance(source, DatasetSource)]
    if any(not source.workers or not source.is_repeatable for source in datasets):
        return False
    return bool(datasets) or any(map(_is_mapped, whole))


def undivided(source: Source) -> Source:
    """What a part, or a part of a part, is taken from."""
    while isinstance(source, Part):
        source = source.source
    return source


def _is_mapped(source: Source) -> bool:
    if isinstance(source, MappedSource):
        return True
    if isinstance(source, StructuredSource):
        return any(_is_mapped(part) for _, part in parts_of(source.parts))
    return isinstance(source, ArraySource) and isinstance(source.examples, np.memmap)

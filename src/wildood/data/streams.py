"""Streams: examples that come one after the other and cannot be indexed, from generators and `IterableDataset`s."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import islice
from time import monotonic
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, default_convert

from wildood.data.sampling import generator
from wildood.data.sources import CACHED_BYTES, DatasetSource, bytes_of
from wildood.data.structures import map_structure
from wildood.data.workers import for_process, from_process
from wildood.errors import InputError

STREAM_BYTES = CACHED_BYTES  # of the examples of a stream that are kept in memory
STREAM_EXAMPLES = 1_000_000  # of a stream that are read at most: it may be endless
_OBJECT = 1024  # bytes that an example takes beside its numbers, about
_PATIENCE = 10.0  # seconds of reading after which a line says what is going on
NO_EXAMPLE = "{} is a stream that gave no example: give a new one, for an iterator can be read only once"
_LOGGER = logging.getLogger("wildood")


def is_stream(data: Any) -> bool:
    """Whether examples can be read one after the other, but not by their index.

    >>> is_stream(iter([1, 2])), is_stream([1, 2]), is_stream(torch.zeros(2))
    (True, False, False)
    """
    if isinstance(data, DataLoader):
        return is_stream(data.dataset)
    by_index = isinstance(data, Sized) and hasattr(data, "__getitem__") and not isinstance(data, IterableDataset)
    return isinstance(data, Iterable) and not by_index and not isinstance(data, Mapping)


def collate_of(data: Any) -> Callable[[list[Any]], Any] | None:
    """What a DataLoader makes a batch of items with; None where examples of one shape are stacked."""
    own = data.collate_fn if isinstance(data, DataLoader) else None
    # Not `own in {...}`: a dataclass, as those of Hugging Face, has no hash.
    return None if own is default_collate or own is default_convert else own


@dataclass(frozen=True, eq=False)
class Stream:
    """The items of a stream, from its beginning; a DataLoader's workers read them, and its collate_fn makes batches.

    Attributes:
        data: what is iterated over.
        name: what messages call it.
    """

    data: Any
    name: str

    def sample(self, *, labelled: bool | None) -> tuple[DatasetSource, list[Any]]:
        """A uniform sample of the first 1,000,000 examples, checked, as many as memory may hold; then in a random order.

        The same stream gives the same sample, whatever the seed of the run. Without `labelled`, the first item decides
        whether there are classes.
        """
        kept: list[Any] = []
        source, rng, read, size = self._source(labelled=bool(labelled)), generator(0, "stream"), 0, 0
        late, is_full = monotonic() + _PATIENCE, False
        for read, item in enumerate(islice(self._items(), STREAM_EXAMPLES), 1):
            if read == 1 and labelled is None:
                source = self._source(labelled=self._has_class(item))
            # Reservoir sampling: each of the examples so far is kept with the same probability.
            place = int(torch.randint(read, (), generator=rng)) if is_full else len(kept)
            if place < len(kept):
                size -= _size(kept[place])
                kept[place] = _copied(source.checked(item, read - 1))
            elif not is_full:
                kept.append(_copied(source.checked(item, read - 1)))
            else:
                continue
            size += _size(kept[place])
            while size > STREAM_BYTES and len(kept) > 1:
                is_full, drop = True, int(torch.randint(len(kept), (), generator=rng))
                size -= _size(kept[drop])
                kept[drop] = kept[-1]
                kept.pop()
            if monotonic() > late:
                late = float("inf")
                text = "%s: reading a stream to its end, or %s examples; itertools.islice(stream, n) gives fewer"
                _LOGGER.info(text, self.name, f"{STREAM_EXAMPLES:,}")
        if not kept:
            raise InputError(NO_EXAMPLE.format(self.name))
        self._log(read, len(kept))
        return source, kept

    def batches(self, count: int) -> Iterator[tuple[DatasetSource, list[Any]]]:
        """All examples, checked, in their order, so many at a time."""
        source, items = self._source(labelled=False), enumerate(self._items())
        for first in items:
            yield source, [source.checked(item, number) for number, item in [first, *islice(items, count - 1)]]

    def _source(self, *, labelled: bool) -> DatasetSource:
        return DatasetSource((), labelled, self.name, collate_of(self.data))

    def _items(self) -> Iterator[Any]:
        """The items one by one, in the order that the DataLoader would read them in."""
        data = self.data
        if not isinstance(data, DataLoader):
            return iter(data)
        if not data.num_workers:
            return iter(data.dataset)
        loader = DataLoader(
            data.dataset,
            batch_size=data.batch_size,
            collate_fn=for_process,
            num_workers=data.num_workers,
            worker_init_fn=data.worker_init_fn,
            multiprocessing_context=data.multiprocessing_context,
            prefetch_factor=data.prefetch_factor,
            timeout=data.timeout,
            generator=data.generator,
        )
        if data.batch_size is None:
            return map(from_process, loader)
        return (item for items in loader for item in from_process(items))

    def _has_class(self, item: Any) -> bool:
        source = self._source(labelled=True)
        try:
            source.batch([source.checked(item, 0)])
        except InputError:
            return False
        return True

    def _log(self, read: int, kept: int) -> None:
        limit = " (the limit: it may have more)" if read == STREAM_EXAMPLES else ""
        share = "all " if kept == read else f"{kept:,} of them, drawn at random, "
        text = "%s: %s examples were read from the stream%s: %sare kept in memory"
        level = logging.WARNING if limit or kept < read else logging.INFO
        _LOGGER.log(level, text, self.name, f"{read:,}", limit, share)


def _copied(item: Any) -> Any:
    """An item of its own: a stream may use one array again for each example, or give views of a larger one."""
    return map_structure(lambda part: part.clone() if isinstance(part, torch.Tensor) else _copy(part), item)


def _copy(part: Any) -> Any:
    return part.copy() if hasattr(part, "nbytes") else part


def _size(item: Any) -> int:
    return bytes_of(item) + _OBJECT

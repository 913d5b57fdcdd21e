"""Processes that read the items of a dataset, and how items get from one process to another."""

import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data._utils import worker

from wildood.data.hugging_face import is_hugging_face

_WORKERS_DATASET: list[Any] = []  # of a worker process: what it reads


def workers_of(dataset: Any, count: int, worker_init_fn: Callable[[int], None] | None) -> ProcessPoolExecutor:
    """The workers; they are forked, as those of a DataLoader, so that a dataset need not be pickled."""
    context = get_context("fork")
    return ProcessPoolExecutor(count, context, partial(_begin_worker, dataset, count, context.Value("i", 0), worker_init_fn))


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


def read_in_worker(numbers: list[int], seed: int) -> list[Any]:
    """The items at these numbers, as they are sent; in a worker, whose draws follow from the seed."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what a user's dataset may draw from
    random.seed(seed)
    return [for_process(item) for item in items_of(_WORKERS_DATASET[-1], numbers)]


def items_of(dataset: Any, numbers: list[int]) -> list[Any]:
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

"""The processes of a run: which one this is, and what they tell each other; one process tells nobody anything.

A launcher such as torchrun starts them, each with the same command.
"""

import atexit
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, Never

import torch
import torch.distributed as dist
from torch import Tensor

from wildood.errors import TrainingError


class Place(NamedTuple):
    """The number of a process, and how many there are."""

    rank: int
    world: int


def place() -> Place:
    """Which of the processes of the run this is; without a launcher, there is one.

    >>> place()
    Place(rank=0, world=1)
    """
    if dist.is_available() and dist.is_initialized():
        return Place(dist.get_rank(), dist.get_world_size())
    if dist.is_available() and dist.is_torchelastic_launched():
        return Place(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    return Place(0, 1)


def is_first() -> bool:
    """Whether this is the process that writes files and says what there is to say.

    >>> is_first()
    True
    """
    return place().rank == 0


def join() -> Place:
    """Meet the other processes, once in the life of each; a group that the user has made is used as it is.

    >>> join()
    Place(rank=0, world=1)
    """
    if place().world > 1 and not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        # At the end, not after each training: the launcher's store still holds the addresses of the first meeting.
        atexit.register(dist.destroy_process_group)
    return place()


def total(values: Tensor) -> Tensor:
    """The sum of what all processes give, the same bits on each; it waits for all of them.

    >>> total(torch.tensor([1.5, 2.0]))
    tensor([1.5000, 2.0000])
    """
    if place().world == 1:
        return values
    summed = values.detach().to(_device(), torch.float64, copy=True)
    dist.all_reduce(summed)
    return summed.to(values)


def from_first(content: bytes | None) -> bytes | None:
    """What the first process gives, on all of them: only that one needs the file it is from.

    >>> from_first(b"abc")
    b'abc'
    """
    rank, world = place()
    if world == 1:
        return content
    mine = content if rank == 0 else None
    length = int(total(torch.tensor(0 if mine is None else len(mine) + 1)))
    if length == 0:
        return None
    sent = (
        torch.zeros(length - 1, dtype=torch.uint8) if mine is None else torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    )
    sent = sent.to(_device())
    dist.broadcast(sent, src=0)
    return sent.cpu().numpy().tobytes()


@contextmanager
def connected(*, saved: bool) -> Iterator[None]:
    """Say in one line that another process has ended, in the place of what torch says of sockets.

    A launcher that misses one process ends the others with SIGTERM: the line must be out before.
    """
    if place().world == 1:
        yield
        return
    lost = TrainingError(
        "another process of this run ended, or the run was told to end: start it again with the same command"
        + (", it goes on from its last checkpoint" if saved else "")
    )

    def end(_signal: int, _frame: FrameType | None) -> Never:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise lost

    main = threading.current_thread() is threading.main_thread()
    own = main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if own:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    except RuntimeError as error:
        if not _is_of_the_connection(error):
            raise
        if own:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise lost from error
    finally:
        if own and signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_of_the_connection(error: RuntimeError) -> bool:
    """Gloo's errors have no class of their own, but name its source file."""
    return isinstance(error, dist.DistError) or "gloo/" in str(error)


def _device() -> torch.device:
    """Where this group of processes can send from: a user's may know GPUs only."""
    return torch.device("cpu" if "cpu:" in dist.get_backend_config() else "cuda")

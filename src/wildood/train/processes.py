"""The processes of a run: which one this is, and what they tell each other; one process tells nobody anything.

A launcher such as torchrun starts them, each with the same command.
"""

import atexit
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, Never

import torch
import torch.distributed as dist
from torch import Tensor

from wildood.errors import TrainingError

SECONDS = 5  # in which a process that has lost another says so; its launcher's SIGTERM must not come before


class Process(NamedTuple):
    """The number of a process, and how many there are."""

    rank: int
    world: int


def this_process() -> Process:
    """Which of the processes of the run this is; without a launcher, there is one.

    >>> this_process()
    Process(rank=0, world=1)
    """
    if dist.is_available() and dist.is_initialized():
        return Process(dist.get_rank(), dist.get_world_size())
    if dist.is_available() and dist.is_torchelastic_launched():
        return Process(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    return Process(0, 1)


def is_first() -> bool:
    """Whether this is the process that writes files and says what there is to say.

    >>> is_first()
    True
    """
    return this_process().rank == 0


def join() -> Process:
    """Meet the other processes, once in the life of each; a group that the user has made is used as it is.

    >>> join()
    Process(rank=0, world=1)
    """
    if this_process().world > 1 and not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        # At the end, not after each training: the launcher's store still holds the addresses of the first meeting.
        atexit.register(_leave)
    return this_process()


def total(values: Tensor) -> Tensor:
    """The sum of what all processes give, the same bits on each; it waits for all of them.

    >>> total(torch.tensor([1.5, 2.0]))
    tensor([1.5000, 2.0000])
    """
    if this_process().world == 1:
        return values
    summed = values.detach().to(_device(), torch.float64, copy=True)
    dist.all_reduce(summed)
    return summed.to(values)


def from_first(content: bytes | None) -> bytes | None:
    """What the first process gives, on all of them: only that one needs the file it is from.

    >>> from_first(b"abc")
    b'abc'
    """
    rank, world = this_process()
    if world == 1:
        return content
    mine = content if rank == 0 else None
    length = int(total(torch.tensor(0 if mine is None else len(mine) + 1)))
    if length == 0:
        return None
    if length == 1:
        return b""  # torch can make no tensor of it
    sent = (
        torch.zeros(length - 1, dtype=torch.uint8) if mine is None else torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    )
    sent = sent.to(_device())
    dist.broadcast(sent, src=0)
    return sent.cpu().numpy().tobytes()


@contextmanager
def told_if_another_ends(*, saved: bool) -> Iterator[None]:
    """Say in one line that another process has ended, in the place of what torch says of sockets.

    A launcher that misses one process ends the others with SIGTERM: the line must be out before.
    """
    if this_process().world == 1:
        yield
        return
    lost = TrainingError(
        "another process of this run ended, or the run was told to end: start it again with the same command"
        + (", it goes on from its last checkpoint, if there is one yet" if saved else "")
    )

    def end(_signal: int, _frame: FrameType | None) -> Never:
        _let_pass_for_a_while(signal.SIGTERM)
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
            _let_pass_for_a_while(signal.SIGTERM)
        raise lost from error
    finally:
        if own and signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _let_pass_for_a_while(number: int) -> None:
    """Do not end by this signal while a line is on its way to the screen; later, it has its usual effect."""
    until = time.monotonic() + SECONDS

    def come(number: int, _frame: FrameType | None) -> None:
        if time.monotonic() >= until:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    signal.signal(number, come)


def _leave() -> None:
    """The user may have left already."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _is_of_the_connection(error: RuntimeError) -> bool:
    """Gloo's errors have no class of their own, but name its source file."""
    return isinstance(error, dist.DistError) or "gloo/" in str(error)


def _device() -> torch.device:
    """Where this group of processes can send from: a user's may know GPUs only."""
    return torch.device("cpu" if "cpu:" in dist.get_backend_config() else "cuda")

"""One process or several: who they are, what they exchange, and one step of all of them."""

import atexit
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, Never

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from wildood.data.sampling import seeded
from wildood.data.sources import Part, Source
from wildood.errors import InputError, TrainingError
from wildood.methods.objective import Batch, Objective, Terms
from wildood.methods.schedule import Schedule
from wildood.models.classifier import EVAL_BATCH, Classifier, chosen_device

SECONDS = 5  # in which a process that has lost another says so; its launcher's SIGTERM must not come before

logger = logging.getLogger("wildood")


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


def all_reduce_sum(values: Tensor) -> Tensor:
    """The sum of what all processes give, the same bits on each; it waits for all of them.

    >>> all_reduce_sum(torch.tensor([1.5, 2.0]))
    tensor([1.5000, 2.0000])
    """
    if this_process().world == 1:
        return values
    summed = values.detach().to(_device(), torch.float64, copy=True)
    dist.all_reduce(summed)
    return summed.to(values)


def broadcast(content: bytes | None) -> bytes | None:
    """What the first process gives, on all of them: only that one needs the file it is from.

    >>> broadcast(b"abc")
    b'abc'
    """
    rank, world = this_process()
    if world == 1:
        return content
    mine = content if rank == 0 else None
    length = int(all_reduce_sum(torch.tensor(0 if mine is None else len(mine) + 1)))
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


def any_process(*flags: bool) -> list[bool]:
    """Whether some process has set each flag; it waits for all of them.

    >>> any_process(True, False)
    [True, False]
    """
    if this_process().world == 1:
        return list(flags)
    return [bool(count) for count in all_reduce_sum(torch.tensor(flags, dtype=torch.float64))]


@contextmanager
def peer_failure_message() -> Iterator[None]:
    """If another process ends, say so in one line instead of torch's message about sockets.

    A launcher that misses one process ends the others with SIGTERM: the line must be out before.
    """
    if this_process().world == 1:
        yield
        return
    lost = TrainingError(
        "another process of this run ended, or the run was told to end: start it again with the same command; with a run "
        "directory, it goes on from its last checkpoint"
    )

    def end(_signal: int, _frame: FrameType | None) -> Never:
        _ignore_signal_briefly(signal.SIGTERM)
        raise lost

    main = threading.current_thread() is threading.main_thread()
    own = main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if own:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    except RuntimeError as error:
        if not _is_connection_error(error):
            raise
        if own:
            _ignore_signal_briefly(signal.SIGTERM)
        raise lost from error
    finally:
        if own and signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _ignore_signal_briefly(number: int) -> None:
    """Do not end by this signal while a line is on its way to the screen; later, it has its usual effect."""
    until = time.monotonic() + SECONDS

    def handle(number: int, _frame: FrameType | None) -> None:
        if time.monotonic() >= until:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    signal.signal(number, handle)


def _leave() -> None:
    """The user may have left already."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _is_connection_error(error: RuntimeError) -> bool:
    """Gloo's errors have no class of their own, but name its source file."""
    return isinstance(error, dist.DistError) or "gloo/" in str(error)


def _device() -> torch.device:
    """Where this group of processes can send from: a user's may know GPUs only."""
    return torch.device("cpu" if "cpu:" in dist.get_backend_config() else "cuda")


def check_same_on_all_processes(given: dict[str, Any]) -> None:
    """Refuse, in all processes alike, a run whose processes were given different things.

    >>> check_same_on_all_processes({"seed": 0, "data": {"labelled": "5d41"}})
    """
    mine = {name: json.dumps(value) for name, value in flat(given).items()}
    with peer_failure_message():
        first: dict[str, str] = json.loads(broadcast(json.dumps(mine).encode()) or b"{}")
        # Counted by the first one's names: what another has besides is in the last place.
        differs = [mine.get(name) != value for name, value in first.items()] + [not mine.keys() <= first.keys()]
        counts = all_reduce_sum(torch.tensor(differs, dtype=torch.float64)).tolist()
    others = [shown for shown, count in zip([*map(in_words, first), "settings"], counts, strict=True) if count]
    if others:
        raise InputError(
            f"every process must be given the same data, model and settings, but {', '.join(others)} differ between the "
            "processes: give the whole data to each (batches are divided among them), and seed what makes the model"
        )


def in_words(key: str) -> str:
    """A part of a run's identity as a person would name it.

    >>> in_words("data.wild"), in_words("model"), in_words("schedule.lr")
    ('the wild data', 'the starting weights', 'schedule.lr')
    """
    if key == "model":
        return "the starting weights"
    return f"the {key.removeprefix('data.')} data" if key.startswith("data.") else key


def flat(record: Any, prefix: str = "") -> dict[str, Any]:
    """A nested record as one level of dotted names.

    >>> flat({"data": {"wild": "5d41"}, "seed": 0})
    {'data.wild': '5d41', 'seed': 0}
    """
    if not isinstance(record, dict):
        return {prefix: record}
    return {
        name: value
        for key, inner in record.items()
        for name, value in flat(inner, f"{prefix}.{key}" if prefix else key).items()
    }


class Buffers:
    """The buffers of a module that processes share: of floating ones the mean over the batch, of others the first's.

    Attributes:
        moving: the names of those that some process has moved so far, the same on all of them. Only these are sent: a mask
            of a million numbers that never changes is not.

    >>> norm = nn.BatchNorm1d(2)
    >>> buffers = Buffers(norm, share=1.0)
    >>> buffers.receive(buffers.message())
    >>> buffers.moving
    []
    >>> _ = norm(torch.randn(4, 2))
    >>> buffers.receive(buffers.message())
    >>> buffers.moving
    ['running_mean', 'running_var', 'num_batches_tracked']
    """

    def __init__(self, module: nn.Module, share: float) -> None:
        self.module, self.share = module, share
        self.moving: list[str] = []
        # By their values: torch's own BatchNorm moves its statistics without a new version of the tensor.
        self._start = {name: buffer.detach().clone() for name, buffer in self._all().items()}

    def message(self) -> Tensor:
        """After a forward pass: for each buffer whether it has moved; then this process's part of those that do."""
        moved = [float(self._has_moved(name, buffer)) for name, buffer in self._all().items()]
        return torch.cat([torch.tensor(moved, dtype=torch.float64), self._parts(self.moving)])

    def receive(self, summed: Tensor) -> None:
        """Take over the sum of all processes' messages."""
        names = list(self._all())
        moved, sums = summed[: len(names)].tolist(), summed[len(names) :]
        self._put(self.moving, sums)
        new = [name for name, count in zip(names, moved, strict=True) if count]
        if new:
            self._put(new, all_reduce_sum(self._parts(new)))
            self.moving += new
            for name in new:
                self._start.pop(name, None)

    def _all(self) -> dict[str, Tensor]:
        return {name: buffer for name, buffer in self.module.named_buffers() if not buffer.is_complex()}

    def _has_moved(self, name: str, buffer: Tensor) -> bool:
        """For the first time."""
        if name in self.moving:
            return False
        return name not in self._start or not torch.equal(buffer, self._start[name])

    def _parts(self, names: list[str]) -> Tensor:
        if not names:
            return torch.zeros(0, dtype=torch.float64)
        buffers, first = self._all(), float(this_process().rank == 0)
        parts = [
            (self.share if buffers[name].is_floating_point() else first) * buffers[name].detach().double().flatten()
            for name in names
        ]
        return torch.cat(parts).cpu()

    def _put(self, names: list[str], sums: Tensor) -> None:
        if not names:
            return
        every = self._all()
        buffers = [every[name] for name in names]
        parts = torch.split(sums.to(buffers[0].device), [buffer.numel() for buffer in buffers])
        for buffer, value in zip(buffers, parts, strict=True):
            buffer.data.copy_(value.view_as(buffer))  # the backward pass has noted the buffer, but does not read it


class ShardedPass:
    """This process's batches of a source: whole batches of the pass of one process, so that all numbers are the same.

    Attributes:
        part: what this process looks at; it may be empty.

    >>> import numpy as np
    >>> from wildood.data.sources import ArraySource
    >>> divided = ShardedPass(ArraySource(np.zeros((5, 2))))
    >>> divided.gather([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 5.0])])
    tensor([1., 2., 3., 4., 5.])
    """

    def __init__(self, source: Source) -> None:
        rank, world = this_process()
        self.part, self._length = source, len(source)
        self._places: Tensor | None = None
        if world > 1:
            places = torch.arange(len(source))
            self._places = places[places // EVAL_BATCH % world == rank]
            self.part = Part(source, self._places)

    def gather(self, results: list[Tensor]) -> Tensor:
        """The results of all processes, batch by batch, in the order of the source."""
        if self._places is None:
            return torch.cat(results)
        values = torch.zeros(self._length, dtype=torch.float64)
        values[self._places] = torch.cat([*results, torch.zeros(0)]).double()
        return all_reduce_sum(values)


@contextmanager
def synchronised_batch_norm(objective: Objective, *, by_batch: bool) -> Iterator[None]:
    """Let BatchNorm that normalises by the batch use those of all processes, which torch can do on GPUs only; else say so.

    Without `by_batch`, only layers without running statistics normalise by the batch.
    """
    layers = [layer for layer in _batch_norm_layers(objective) if by_batch or layer.running_mean is None]
    if this_process().world == 1 or not layers:
        yield
        return
    on_gpu = objective.classifier.device.type == "cuda"
    if any(not (on_gpu and _is_plain_batch_norm(layer)) for layer in layers):
        logger.info("BatchNorm normalises by each process's share of a batch: one process would give another result")
    if not on_gpu:
        yield
        return
    with synchronised(objective):
        yield


@contextmanager
def synchronised(objective: Objective) -> Iterator[None]:
    """SyncBatchNorm, with the same tensors, in the place of each layer that normalises by the batch; then these again.

    Layers that stay in evaluation mode are left alone, and so are those that do more than torch's BatchNorm.
    """
    layers = [layer for layer in _batch_norm_layers(objective) if _is_plain_batch_norm(layer)]
    others = {layer: nn.SyncBatchNorm.convert_sync_batchnorm(layer) for layer in layers}  # type: ignore[no-untyped-call]
    places = [
        (module, name, child)
        for module in objective.modules()
        for name, child in module._modules.items()  # noqa: SLF001 - children() names one that stands twice only once
        if child in others
    ]
    for layer, other in others.items():  # features may be caught there, and a user may have hooks of their own
        vars(other).update({name: value for name, value in vars(layer).items() if "_hooks" in name})
    for module, name, layer in places:
        setattr(module, name, others[layer])
    try:
        yield
    finally:
        for module, name, layer in places:
            setattr(module, name, layer.train(others[layer].training))


def _batch_norm_layers(objective: Objective) -> list[_BatchNorm]:
    """The layers that normalise by the batch; not those that stay in evaluation mode, or know the other processes."""
    found = (part for part in objective.train().modules() if isinstance(part, _BatchNorm) and part.training)
    return [part for part in found if not isinstance(part, nn.SyncBatchNorm)]


def _is_plain_batch_norm(layer: _BatchNorm) -> bool:
    return type(layer).forward is _BatchNorm.forward


class OneProcess:
    """The strategy of one process: the terms of a batch are those of the objective."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    def __call__(self, batch: Batch, step: int) -> Terms:  # noqa: ARG002 - what a strategy gets
        """The terms of the batch."""
        terms: Terms = self.objective(batch)
        return terms


class SeveralProcesses:
    """The strategy of several processes: each computes a share of the batch, and all have the terms of the whole batch.

    With n_r of the n examples on process r, a mean over the batch is m = Σ_r (n_r / n) m_r, and its gradient likewise. But
    ∂psi(m) = psi'(m) Σ_r (n_r / n) ∂m_r needs the m of all. So the terms get the value m and the gradient of (n_r / n) m_r:
    what is made of them is the Lagrangian of the whole batch on every process. DDP takes the mean of the gradients over
    the processes where the sum is meant, hence n_r / n times their number.
    """

    def __init__(self, objective: Objective, schedule: Schedule, seed: int) -> None:
        self.objective, self.seed = objective, seed
        self.rank, self.world = this_process()
        self.share = len(range(self.rank, schedule.batch, self.world)) / schedule.batch
        self.buffers = Buffers(objective, self.share)
        # A layer whose place a head has taken gets no gradient, and a model may leave out others in some steps.
        self.ddp = DistributedDataParallel(_Wrapped(objective), find_unused_parameters=True)
        self.ddp.broadcast_buffers = False  # `buffers` does that; as an argument it has another name since torch 2.13
        if objective.precondition is not None:  # the first process's matrix: another machine may round otherwise
            matrix = objective.precondition.matrix
            matrix.copy_(all_reduce_sum(matrix if self.rank == 0 else torch.zeros_like(matrix)))

    def __call__(self, batch: Batch, step: int) -> Terms:
        """The terms of the whole batch, from this process's share of it."""
        # The noise of dropout differs between processes, and a resumed run has the same again.
        noise = f"model in process {self.rank} of {self.world} at step {step}"
        with seeded(self.seed, noise, self.objective.classifier.device):
            terms: Terms = self.ddp(batch)
        own = [terms.loss, *terms.constraints.values()]
        shares = self.share * torch.stack([value.detach().double() for value in own]).cpu()
        summed = all_reduce_sum(torch.cat([shares, self.buffers.message()]))
        self.buffers.receive(summed[len(own) :])
        loss, *constraints = (
            value.to(mine.dtype) + self.world * self.share * (mine - mine.detach())
            for mine, value in zip(own, summed[: len(own)].to(own[0].device), strict=True)
        )
        return Terms(loss, dict(zip(terms.constraints, constraints, strict=True)))


def strategy_for(objective: Objective, schedule: Schedule, seed: int) -> OneProcess | SeveralProcesses:
    """How this process computes the terms of a batch."""
    return OneProcess(objective) if this_process().world == 1 else SeveralProcesses(objective, schedule, seed)


class _Wrapped(nn.Module):
    """An objective, and a parameter that is never used: without one, DDP warns of each run that looking for it is slow."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective
        self.unused = nn.Parameter(torch.zeros(1, device=objective.classifier.device))

    def forward(self, batch: Batch) -> Terms:
        terms: Terms = self.objective(batch)
        return terms


def check_distributed(schedule: Schedule) -> None:
    """Refuse a batch that several processes cannot share.

    >>> check_distributed(Schedule(batch=2))
    """
    world = this_process().world
    if schedule.batch < 2 * world:
        raise InputError(
            f"the schedule's batch is {schedule.batch}, for {world} processes: give at least {2 * world}, or start fewer"
        )


def training_device(model: nn.Module, device: str | torch.device | None = None) -> torch.device | None:
    """Join the other processes; where this process's copy of a model goes: to the device that the user named, if any.

    Of several processes, each uses the GPU that the launcher gave it.

    >>> training_device(nn.Linear(2, 3)), training_device(nn.Linear(2, 3), "cpu")
    (None, device(type='cpu'))
    """
    named = None if device is None else chosen_device(device)
    device = Classifier(model).device if named is None else named
    if join().world == 1 or device.type == "cpu":
        return named
    if device.type != "cuda":
        raise InputError(
            f"the model is on {device.type}, where processes cannot share a run: move it to the CPU or to CUDA, or start it "
            "without torchrun, in one process"
        )
    if "LOCAL_RANK" not in os.environ:
        return named
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))

"""One step of several processes: each computes a share of the batch, all of them have its loss, constraints and gradient."""

import os

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wildood.data.sampling import lent_generator
from wildood.errors import InputError
from wildood.methods.objective import Batch, Objective, Terms
from wildood.methods.schedule import Schedule
from wildood.models.outputs import Classifier
from wildood.train.buffers import Buffers
from wildood.train.processes import join, this_process, total


class Together:
    """An objective on a batch that the processes of a run share.

    With n_r of the n examples on process r, a mean over the batch is m = Σ_r (n_r / n) m_r, and its gradient likewise. But
    ∂psi(m) = psi'(m) Σ_r (n_r / n) ∂m_r needs the m of all. So the terms get the value m and the gradient of (n_r / n) m_r:
    what is made of them is the Lagrangian of the whole batch on every process. DDP takes the mean of the gradients over
    the processes where the sum is meant, hence n_r / n times their number.

    Attributes:
        stop: whether some process was asked to stop, as of the last step.
        save: whether some process was to save.
    """

    def __init__(self, objective: Objective, schedule: Schedule, seed: int) -> None:
        self.objective, self.seed = objective, seed
        self.stop = self.save = False
        self.rank, self.world = this_process()
        self.share = len(range(self.rank, schedule.batch, self.world)) / schedule.batch
        self.buffers = Buffers(objective, self.share)
        # A layer whose place a head has taken gets no gradient, and a model may leave out others in some steps.
        self.ddp = DistributedDataParallel(_Wrapped(objective), find_unused_parameters=True)
        self.ddp.broadcast_buffers = False  # `buffers` does that; as an argument it has another name since torch 2.13
        if objective.whitening is not None:  # the first one's: on another machine it may be rounded otherwise
            matrix = objective.whitening.matrix
            matrix.copy_(total(matrix if self.rank == 0 else torch.zeros_like(matrix)))

    def __call__(self, batch: Batch, step: int, *, stop: bool, save: bool) -> Terms:
        """The terms of the whole batch, from this process's share of it."""
        # The noise of dropout differs between processes, and a resumed run has the same again.
        noise = f"model in process {self.rank} of {self.world} at step {step}"
        with lent_generator(self.seed, noise, self.objective.classifier.device):
            terms: Terms = self.ddp(batch)
        own = [terms.loss, *terms.constraints.values()]
        shares = self.share * torch.stack([value.detach().double() for value in own]).cpu()
        told = [shares, torch.tensor([stop, save], dtype=torch.float64), self.buffers.told()]
        heard = total(torch.cat(told))
        values, asked = heard[: len(own)].to(own[0].device), heard[len(own) : len(own) + 2]
        self.stop, self.save = (asked > 0).tolist()
        self.buffers.heard(heard[len(own) + 2 :])
        loss, *constraints = (
            value.to(mine.dtype) + self.world * self.share * (mine - mine.detach())
            for mine, value in zip(own, values, strict=True)
        )
        return Terms(loss, dict(zip(terms.constraints, constraints, strict=True)))


class _Wrapped(nn.Module):
    """An objective, and a parameter that is never used: without one, DDP warns of each run that looking for it is slow."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective
        self.unused = nn.Parameter(torch.zeros(1, device=objective.classifier.device))

    def forward(self, batch: Batch) -> Terms:
        terms: Terms = self.objective(batch)
        return terms


def check_together(objective: Objective, schedule: Schedule) -> None:
    """Refuse what several processes cannot share.

    >>> from wildood.methods.cross_entropy import CrossEntropyObjective
    >>> check_together(CrossEntropyObjective(Classifier(nn.Linear(2, 3))), Schedule(batch=2))
    """
    world = this_process().world
    if world > 1 and not objective.per_example:
        raise InputError(
            f"this method compares the examples of a batch with each other, so that {world} processes cannot share one: "
            "start it without torchrun, in one process"
        )
    if schedule.batch < 2 * world:
        raise InputError(
            f"the schedule's batch is {schedule.batch}, for {world} processes: give at least {2 * world}, or start fewer"
        )


def settle(model: nn.Module) -> torch.device | None:
    """Join the other processes; where this process's copy of a model goes, if the launcher gave a GPU to each.

    >>> settle(nn.Linear(2, 3))
    """
    device = Classifier(model).device
    if join().world == 1 or device.type == "cpu":
        return None
    if device.type != "cuda":
        raise InputError(
            f"the model is on {device.type}, where processes cannot share a run: move it to the CPU or to CUDA, or start it "
            "without torchrun, in one process"
        )
    if "LOCAL_RANK" not in os.environ:
        return None
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))

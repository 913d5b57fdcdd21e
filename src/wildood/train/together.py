"""One step of several processes: each computes a share of the batch, all of them have its loss, constraints and gradient."""

import os

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from wildood.data.sampling import lent_generator
from wildood.errors import InputError
from wildood.methods.objective import Batch, Objective, Terms
from wildood.methods.schedule import Schedule
from wildood.models.outputs import Classifier
from wildood.train.processes import join, this_process, total
from wildood.train.progress import logger


class Together:
    """An objective on a batch that the processes of a run share.

    With n_r of the n examples on process r, a mean over the batch is m = Σ_r (n_r / n) m_r, and its gradient likewise. But
    ∂psi(m) = psi'(m) Σ_r (n_r / n) ∂m_r needs the m of all. So the terms get the value m and the gradient of (n_r / n) m_r:
    what is made of them is the Lagrangian of the whole batch on every process. DDP takes the mean of the gradients over
    the processes where the sum is meant, hence n_r / n times their number.

    Attributes:
        stop: whether some process was asked to stop, as of the last step.
    """

    def __init__(self, objective: Objective, schedule: Schedule, seed: int) -> None:
        self.objective, self.seed, self.stop = objective, seed, False
        self.rank, self.world = this_process()
        self.share = len(range(self.rank, schedule.batch, self.world)) / schedule.batch
        _join_statistics(objective)
        # A layer whose place a head has taken gets no gradient, and a model may leave out others in some steps.
        self.ddp = DistributedDataParallel(_Wrapped(objective), find_unused_parameters=True)

    def __call__(self, batch: Batch, step: int, *, stop: bool) -> Terms:
        """The terms of the whole batch, from this process's share of it."""
        # The noise of dropout differs between processes, and a resumed run has the same again.
        noise = f"model in process {self.rank} of {self.world} at step {step}"
        with lent_generator(self.seed, noise, self.objective.classifier.device):
            terms: Terms = self.ddp(batch)
        own = [terms.loss, *terms.constraints.values()]
        running = _running_statistics(self.objective)
        told = [*own, own[0].new_tensor(float(stop)), *running]
        heard = total(self.share * torch.cat([value.detach().double().flatten() for value in told]))
        values, stopping, statistics = heard[: len(own)], heard[len(own)], heard[len(own) + 1 :]
        self.stop = bool(stopping > 0)
        for buffer, mean in zip(running, torch.split(statistics, [kept.numel() for kept in running]), strict=True):
            buffer.data.copy_(mean.view_as(buffer))  # the backward pass has noted the buffer, but does not read it
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


def settle(classifier: Classifier) -> None:
    """Join the other processes; a model on a GPU goes to the one that the launcher gave to this process.

    >>> settle(Classifier(nn.Linear(2, 3)))
    """
    if join().world > 1 and classifier.device.type == "cuda" and "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        classifier.model.to("cuda")


def _join_statistics(objective: Objective) -> None:
    """Let BatchNorm normalise by the whole batch, which torch has for GPUs only; elsewhere, say what it does."""
    if objective.classifier.device.type == "cuda":
        nn.SyncBatchNorm.convert_sync_batchnorm(objective)  # type: ignore[no-untyped-call]
    elif _normalising(objective.train()):
        logger.info("BatchNorm normalises by each process's share of a batch: one process would give another result")


def _running_statistics(objective: Objective) -> list[Tensor]:
    """Those of BatchNorm, which each process has moved by its own share; SyncBatchNorm moves all of them alike."""
    moved = [part for part in _normalising(objective) if not isinstance(part, nn.SyncBatchNorm)]
    return [kept for part in moved for kept in (part.running_mean, part.running_var) if kept is not None]


def _normalising(objective: Objective) -> list[_BatchNorm]:
    """The layers that normalise by the batch; not those that stay in evaluation mode."""
    return [part for part in objective.modules() if isinstance(part, _BatchNorm) and part.training]

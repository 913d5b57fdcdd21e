"""Algorithm 1 of the paper: the one training loop, for methods with constraints and for methods without.

`Training.step` is lines 4 and 5, `Training.end_epoch` lines 7 to 13. Everything else that a run does (history, checkpoints,
choice of the epoch, progress, early stopping, timing, Ctrl-C) is a callback; what is done to gradients is a list of
transforms; one process or several is a strategy.
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, NamedTuple

import torch

from wildood.data.judged import Judged
from wildood.data.sampling import seeded
from wildood.data.sources import Source
from wildood.data.wild import Wild
from wildood.errors import TrainingError
from wildood.methods.objective import Objective, Terms
from wildood.methods.schedule import END, Schedule
from wildood.train.averaging import WeightAverage
from wildood.train.batches import Batches, prefetched
from wildood.train.callbacks import Callback, CallOnEpoch, OnEpoch
from wildood.train.checkpoint import Checkpoint, HistoryFile, RunDirectory
from wildood.train.distributed import check_distributed, join, peer_failure_message, strategy_for, synchronised_batch_norm
from wildood.train.history import Row
from wildood.train.lagrangian import AugmentedLagrangian, MeanConstraints
from wildood.train.monitor import full_constraints
from wildood.train.progress import LogEpochs, ShowProgress, Timing
from wildood.train.selection import SelectEpoch, TimeLimit
from wildood.train.transforms import gradient_transforms


class Training:
    """A run: what is trained, on what, how; and where it is.

    Several processes each make the same one, and have the same state after each step.

    Attributes:
        objective: the method at work; trained in place.
        labelled: ID examples with classes.
        wild: wild data, for methods that use it.
        schedule: how long and how fast.
        seed: decides every random draw.
        fresh: ID examples as they come now, for the constraint on false alarms.
        fresh_share: their share of the ID examples of a batch.
        judged: wild examples that a person has called known or unknown.
        callbacks: what else to do, in this order.
        steps: the number of steps so far.
        total: the number of steps in all, unless a callback ends the run before.
        history: one row for the start and one for each epoch.
    """

    def __init__(
        self,
        objective: Objective,
        labelled: Source,
        wild: Wild | None,
        schedule: Schedule,
        seed: int,
        callbacks: Sequence[Callback] = (),
        fresh: Source | None = None,
        fresh_share: float = 0.5,
        judged: Judged | None = None,
    ) -> None:
        self.objective, self.labelled, self.wild, self.schedule, self.seed = objective, labelled, wild, schedule, seed
        self.fresh, self.fresh_share = fresh, fresh_share
        self.callbacks = list(callbacks)
        self.steps, self.stopped = 0, False
        self.history: list[Row] = []
        self.per_epoch, self.total = schedule.length(len(labelled), [len(pool) for pool in wild.pools] if wild else [])
        self.images_per_step = schedule.batch * (1 if wild is None else 2)
        self.average = WeightAverage(objective) if schedule.averaging else None
        objective.normalisation = schedule.normalisation
        self.lagrangian = AugmentedLagrangian(objective.duals, objective.classifier.device)
        self.optimiser = objective.optimiser(schedule)
        self.transforms = gradient_transforms(objective, schedule)
        check_distributed(schedule)
        data = labelled, wild, schedule, seed, objective.classifier, *join()
        self.batches = prefetched(Batches(*data, fresh=fresh, fresh_share=fresh_share, judged=judged))
        self.epoch_loss, self.epoch_constraints = torch.zeros(()), MeanConstraints()

    def train(self) -> list[Row]:
        """Run to the end of the schedule, from the last checkpoint if there is one; the history."""
        device = self.objective.classifier.device
        by_batch = self.wild is None or self.schedule.normalisation == "batch"
        batch_norm = synchronised_batch_norm(self.objective, by_batch=by_batch)
        with peer_failure_message(), seeded(self.seed, "model", device), batch_norm:
            self.strategy = strategy_for(self.objective, self.schedule, self.seed)
            self._call("on_train_begin")
            if not self.history:
                self._end_row({})  # the start
            with ExitStack() as stack:
                for each in (self.batches, *(callback.context(self) for callback in self.callbacks)):
                    stack.enter_context(each)
                self.objective.train()
                while not self.is_over:
                    self._call("on_step_begin")
                    if not self.is_over:
                        self.step()
                        self._call("on_step_end")
                    if self.epoch_constraints.count and (self.is_over or self.schedule.is_look(self.steps, self.per_epoch)):
                        self.end_epoch()
                if self.average is not None:
                    self.average.keep()
                self._call("on_train_end")
        self.optimiser.zero_grad(set_to_none=True)
        return self.history

    def step(self) -> None:
        """Lines 4 and 5 of Algorithm 1: sample a batch, and descend its augmented Lagrangian."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.schedule.lr_at(self.steps, self.per_epoch, self.total)
        batch = self.batches.draw()  # line 4: sample a batch
        terms: Terms = self.strategy(batch, self.steps)
        lagrangian = self.lagrangian(terms)  # line 4: its augmented Lagrangian
        self._check(lagrangian)
        self.optimiser.zero_grad(set_to_none=True)
        lagrangian.backward()  # type: ignore[no-untyped-call]
        for transform in self.transforms:
            transform()
        self.optimiser.step()  # line 5
        constraints = {name: c.detach() for name, c in terms.constraints.items()}
        if self.schedule.duals == "step":
            self.lagrangian.ascend(constraints)  # line 7, in each step instead of each epoch
        self.epoch_loss = self.epoch_loss + terms.loss.detach()
        self.epoch_constraints.add(constraints, 1)
        self.steps += 1
        if self.average is not None:
            self.average.update(self.steps)

    def end_epoch(self) -> None:
        """Lines 7 to 13 of Algorithm 1: dual ascent, then larger penalties for constraints that are not met."""
        self.check_weights()
        constraints = self.epoch_constraints.means()
        if self.schedule.duals == "epoch":
            constraints = full_constraints(self.objective, self.labelled, self.fresh, self.fresh_share)
            self.lagrangian.check_names(constraints)
            self.lagrangian.ascend(constraints)  # line 7
        self.lagrangian.grow(constraints)  # lines 8 to 13
        loss = float(self.epoch_loss) / self.epoch_constraints.count
        self.epoch_loss, self.epoch_constraints = torch.zeros(()), MeanConstraints()
        self._end_row(
            {
                "wild_loss" if self.lagrangian.multipliers else "loss": loss,
                **{name: float(value) for name, value in constraints.items()},
                "lr": self.optimiser.param_groups[0]["lr"],
            }
        )

    @property
    def is_over(self) -> bool:
        """Whether there is no further step."""
        return self.stopped or self.steps >= self.total

    def begin_end(self) -> None:
        """Let the steps so far be all but the last ones, in which the learning rate falls; the end begins once."""
        self.total = min(self.total, math.ceil(self.steps / (1 - END)))

    def stop(self) -> None:
        """Take no further step."""
        self.stopped = True

    def _end_row(self, row: Row) -> None:
        """Add a row to the history, and let the callbacks complete it."""
        row = {"epoch": len(self.history), "step": self.steps, **row, **self.lagrangian.watch()}
        with nullcontext() if self.average is None else self.average.applied():
            row |= self.objective.watch()
            self.history.append(row)
            for callback in self.callbacks:
                callback.on_epoch_end(self, row)
                row.update({name: value.item() for name, value in row.items() if hasattr(value, "item")})  # numpy's, torch's
        self.objective.train()  # a callback may have left another mode

    def _call(self, hook: str) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self)

    def _check(self, lagrangian: torch.Tensor) -> None:
        if not math.isfinite(value := lagrangian.item()):
            raise self._not_finite(f"the loss became {value}")
        if not lagrangian.requires_grad:
            raise TrainingError(
                "the model's output has no gradient: nothing can be trained, leave out detach() and no_grad()"
            )

    def check_weights(self) -> None:
        """Refuse weights that are not finite: a step from a finite loss can lead there, and they must not be saved."""
        if not all(bool(torch.isfinite(tensor).all()) for tensor in self.objective.state_dict().values()):
            raise self._not_finite("the weights became infinite or NaN")

    def _not_finite(self, what: str) -> TrainingError:
        where = f"{what} at step {self.steps} (lr {self.optimiser.param_groups[0]['lr']:g})"
        saved = [callback.run.checkpoint_path for callback in self.callbacks if isinstance(callback, Checkpoint)]
        last = "".join(f"; the last good checkpoint is {path}" for path in saved if path.exists())
        return TrainingError(f"{where}: try a smaller lr, as in schedule=Schedule(steps=..., lr=...){last}")

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs to end with the same bits."""
        device = self.objective.classifier.device
        return {
            "step": self.steps,
            "total": self.total,
            "stopped": self.stopped,
            "history": self.history,
            "objective": self.objective.state_dict(),
            "average": {} if self.average is None else self.average.weights,
            "optimiser": self.optimiser.state_dict(),
            "lagrangian": self.lagrangian.state_dict(),
            "batches": self.batches.state_dict(),
            "epoch": [self.epoch_constraints.count, self.epoch_constraints.sums, self.epoch_loss],
            "callbacks": [[type(callback).__name__, callback.state_dict()] for callback in self.callbacks],
            "generator": torch.get_rng_state(),
            "cuda_generator": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        device = self.objective.classifier.device
        self.steps, self.total, self.stopped, self.history = (
            state[name] for name in ("step", "total", "stopped", "history")
        )
        self.objective.load_state_dict(state["objective"])
        if self.average is not None:
            self.average.weights = {name: value.to(device) for name, value in state["average"].items()}
        self.optimiser.load_state_dict(state["optimiser"])
        self.lagrangian.load_state_dict(state["lagrangian"])
        self.batches.load_state_dict(state["batches"])
        self.epoch_constraints.count, sums, self.epoch_loss = state["epoch"]
        self.epoch_constraints.sums = {name: value.to(device) for name, value in sums.items()}
        waiting = list(self.callbacks)
        for name, saved in state["callbacks"]:  # by name: the caller may have given others than before
            for callback in (each for each in waiting if type(each).__name__ == name):
                callback.load_state_dict(saved)
                waiting.remove(callback)
                break
        torch.set_rng_state(state["generator"])
        if device.type == "cuda" and state["cuda_generator"] is not None:
            torch.cuda.set_rng_state(state["cuda_generator"], device)


class Result(NamedTuple):
    """A finished run: its history, and the number of the epoch whose weights the objective has."""

    history: list[Row]
    kept: int


def train(
    objective: Objective,
    labelled: Source,
    wild: Wild | None,
    schedule: Schedule,
    seed: int,
    *,
    fresh: Source | None = None,
    fresh_share: float = 0.5,
    judged: Judged | None = None,
    select: SelectEpoch | None = None,
    run: RunDirectory | None = None,
    callbacks: Sequence[Callback] = (),
    on_epoch: OnEpoch | None = None,
) -> Result:
    """Train an objective in place, with the callbacks that every run has.

    Args:
        objective: the method at work.
        labelled: ID examples with classes.
        wild: wild data, for methods that use it.
        schedule: how long and how fast.
        seed: decides every random draw.
        fresh: ID examples as they come now, for the constraint on false alarms beside the labelled ones.
        fresh_share: their share of the ID examples of a batch.
        judged: wild examples that a person has called known or unknown, for methods that use them.
        select: looks at data set aside and chooses the epoch; without it, the last one is kept.
        run: where checkpoints and history go.
        callbacks: the user's.
        on_epoch: called with each row of the history, on the first process.
    """
    # The checkpoint first: it resumes the run before others begin, saves a step before others begin the next one, and saves
    # the end before the weights of another epoch are restored. The user's callbacks before what writes the rows.
    every: list[Callback] = [] if run is None else [Checkpoint(run)]
    every += [Timing(), TimeLimit(), *([] if select is None else [select]), *callbacks]
    every += [] if run is None else [HistoryFile(run)]
    every += [LogEpochs(), ShowProgress(), *([] if on_epoch is None else [CallOnEpoch(on_epoch)])]
    history = Training(objective, labelled, wild, schedule, seed, every, fresh, fresh_share, judged).train()
    return Result(history, len(history) - 1 if select is None else select.kept)

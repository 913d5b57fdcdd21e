"""The one training loop: Algorithm 1, for methods with constraints and for methods without."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from wildood.data.sampling import seeded
from wildood.data.sources import Source, is_mapped
from wildood.data.wild import Wild
from wildood.errors import TrainingError
from wildood.evaluate.selection import Mask, Selection
from wildood.methods.objective import Objective, Terms
from wildood.methods.schedule import Schedule
from wildood.scores.energy import EnergyScore
from wildood.train.batches import Batches, Prefetch
from wildood.train.checkpoint import RunDirectory, not_finite
from wildood.train.distributed import (
    DistributedStep,
    check_distributed,
    is_first,
    join,
    peer_failure_message,
    synchronised_batch_norm,
    total,
)
from wildood.train.early_stopping import Constraints, EarlyStopping
from wildood.train.history import Row, row_line
from wildood.train.interruption import defer_interrupt
from wildood.train.lagrangian import AugmentedLagrangian, MeanConstraints
from wildood.train.monitor import Monitor, full_constraints
from wildood.train.optimisers import clip_gradient, optimiser_of
from wildood.train.progress import logger, progress_bar
from wildood.train.selection_state import load_selection, selection_state

Keep = Literal["best", "last", "as_published"]
OnEpoch = Callable[[Row], None]
OnStep = Callable[[int, Objective], None]


@dataclass
class Training:
    """A run: what is trained, on what, how; and where it is.

    Of several processes, each makes the same one and has the same state after each step; the first one alone writes.

    Attributes:
        objective: the method at work; trained in place.
        labelled: ID examples with classes.
        wild: wild data, for methods that use it.
        schedule: how long and how fast.
        seed: decides every random draw.
        monitor: data set aside, looked at after each epoch (or less often, where that would take long).
        keep: which epoch's weights the objective has at the end.
        run: where checkpoints and history go.
        on_epoch: called with each row of the history, on the first process.
        on_step: called after each step with its number (benchmarks look at the model there).
        checkpoint_seconds: how often to save, at most; rarer where saving is slow.
        stage: its number, if it is one of several; each row of the history says it.
    """

    objective: Objective
    labelled: Source
    wild: Wild | None
    schedule: Schedule
    seed: int
    monitor: Monitor | None = None
    keep: Keep = "best"
    run: RunDirectory | None = None
    on_epoch: OnEpoch | None = None
    on_step: OnStep | None = None
    checkpoint_seconds: float = 10.0
    stage: int | None = None
    step: int = field(default=0, init=False)
    history: list[Row] = field(default_factory=list, init=False)
    selection: Selection = field(init=False)
    kept: int = field(default=0, init=False)
    settling: EarlyStopping = field(default_factory=EarlyStopping, init=False)
    loss_sum: Tensor = field(init=False)
    epoch_seconds: float = field(init=False)
    epoch_constraints: MeanConstraints = field(init=False)

    def __post_init__(self) -> None:
        pools = [len(pool) for pool in self.wild.pools] if self.wild is not None else []
        self.per_epoch, self.total = self.schedule.length(len(self.labelled), pools)
        self.images = self.schedule.batch * (1 if self.wild is None else 2)  # of a step
        self.row_every = self.schedule.row_every(self.per_epoch, self.images, self.monitor.examples if self.monitor else 0)
        self.selection = Selection(as_published=self.keep == "as_published")
        self.lagrangian = AugmentedLagrangian(self.objective.duals, self.objective.classifier.device)
        self.optimiser = optimiser_of(self.objective, self.schedule)
        check_distributed(self.objective, self.schedule)
        self.process = join()
        self.batches = Batches(self.labelled, self.wild, self.schedule, self.seed, self.objective.classifier, *self.process)
        self.together: DistributedStep | None = None
        self.kept_weights: dict[str, Tensor] = {}
        self.ahead: Prefetch | None = None
        self._start_epoch()

    def train(self) -> list[Row]:
        """Run to the end of the schedule, from the last checkpoint if there is one; the history."""
        device = self.objective.classifier.device
        told = peer_failure_message(saved=self.run is not None)
        with told, seeded(self.seed, "model", device), synchronised_batch_norm(self.objective):
            if self.process.world > 1:
                self.together = DistributedStep(self.objective, self.schedule, self.seed)
            self._resume_or_begin()
            self._train()
        if self.keep != "last" and self.kept_weights:
            self.objective.load_state_dict(self.kept_weights)
        self.optimiser.zero_grad(set_to_none=True)
        return self.history

    def _train(self) -> None:
        self.began = time.monotonic()
        self.save_next = self.began + self.checkpoint_seconds
        self.first_step = self.step
        pools = (self.labelled, *(() if self.wild is None else self.wild.pools))
        ahead = Prefetch(self.batches.draw, self.batches.state_dict) if any(map(is_mapped, pools)) else nullcontext()
        watched = defer_interrupt(wanted=self.run is not None)
        bar_ends = self.total if self.schedule.rounds is None else None  # rounds end nobody knows when
        with watched as ctrl_c, ahead as self.ahead, progress_bar(bar_ends, self.step) as bar:
            while not self._is_over():
                self._one_step(stop=ctrl_c.came, save=self._is_to_save())
                bar.at(self.step)
                if self.schedule.is_end(self.step, self.row_every) or self.step == self.total:
                    self._end_epoch()
                if self.on_step is not None:
                    self.on_step(self.step, self.objective)
                # Read once: what comes while the run is saved stops it after the next step.
                stop, save = ctrl_c.came, self._is_to_save()
                if self.together is not None:  # all processes do the same in the same step
                    stop, save = self.together.stop, self.together.save
                if self.run is not None and (stop or save or self._is_over()):
                    self._check_weights()
                    self._save(self.run)
                if stop:
                    ctrl_c.came = True  # to another process, perhaps
                    total(torch.zeros(1))  # nobody leaves before the run is saved: the launcher would end the others
                    break

    def _is_over(self) -> bool:
        return self.settling.done or self.step >= self.total

    def _is_to_save(self) -> bool:
        return self.run is not None and self.run.writes and time.monotonic() >= self.save_next

    def _save(self, run: RunDirectory) -> None:
        """Write a checkpoint; note when to write the next one, so that saving takes no more than a twentieth of the time."""
        if not run.writes:
            return
        began = time.monotonic()
        run.save(self.state_dict())
        ended = time.monotonic()
        self.save_next = ended + max(self.checkpoint_seconds, 20 * (ended - began) if self.checkpoint_seconds else 0)

    def _one_step(self, *, stop: bool = False, save: bool = False) -> None:
        """Lines 4 and 5 of Algorithm 1: draw a batch, descend the augmented Lagrangian; then the duals, if they move now."""
        began = time.perf_counter()
        self.objective.train()
        for group in self.optimiser.param_groups:
            group["lr"] = self.schedule.lr_at(self.step, self.per_epoch, self.total)
        batch = self.batches.draw() if self.ahead is None else self.ahead.take()
        if self.together is None:
            terms: Terms = self.objective(batch)
        else:
            terms = self.together(batch, self.step, stop=stop, save=save)
        lagrangian = self.lagrangian(terms)
        if not torch.isfinite(lagrangian):
            raise self._not_finite(f"the loss became {lagrangian.item()}")
        if not lagrangian.requires_grad:
            raise TrainingError(
                "the model's output has no gradient: nothing can be trained, leave out detach() and no_grad()"
            )
        self.optimiser.zero_grad(set_to_none=True)
        lagrangian.backward()  # type: ignore[no-untyped-call]
        clip_gradient(self.objective, self.schedule.clip)
        self.optimiser.step()
        constraints = {name: c.detach() for name, c in terms.constraints.items()}
        if self.schedule.duals == "step":
            self.lagrangian.ascend(constraints)
        self.loss_sum = self.loss_sum + terms.loss.detach()
        self.epoch_constraints.add(constraints, 1)
        self.step += 1
        self.epoch_seconds += time.perf_counter() - began

    def _end_epoch(self) -> None:
        """Lines 7 to 13 of Algorithm 1: duals (if they move now), then penalties; then look, note, and keep the best."""
        self._check_weights()
        constraints = self.epoch_constraints.means()
        if self.schedule.duals == "epoch":
            constraints = full_constraints(self.objective, self.labelled)
            self.lagrangian.ascend(constraints)
        self.lagrangian.grow(constraints)
        steps = self.epoch_constraints.count
        self._note(
            {
                "wild_loss" if self.lagrangian.multipliers else "loss": float(self.loss_sum) / steps,
                **{name: float(value) for name, value in constraints.items()},
                "lr": self.optimiser.param_groups[0]["lr"],
                "images_per_second": steps * self.images / self.epoch_seconds,
                "seconds_left": (self.total - self.step) * (time.monotonic() - self.began) / (self.step - self.first_step),
            }
        )
        self._start_epoch()

    def _note(self, row: Row) -> None:
        """Add a row to the history, with what the monitor sees, and keep these weights if they are the best so far."""
        row = {
            **({} if self.stage is None else {"stage": self.stage}),
            "epoch": len(self.history),
            "step": self.step,
            **row,
            **self.lagrangian.watch(),
            **self.objective.watch(),
        }
        self.kept = len(self.history)
        if self.monitor is not None and (self.objective.classifies or not self.history):
            # The start is judged by its energy: a method's own score may need training, as that of a new head does.
            seen = self.monitor(self.objective, None if self.history else EnergyScore())
            row |= seen.row
            if self.keep != "last" and seen.accepted is not None:
                self._judge(seen.accepted, seen.correct, seen.constraints)
                self.kept = self.selection.kept
        self.history.append(row)
        if self.keep != "last" and self.kept == len(self.history) - 1:
            self.kept_weights = {name: value.detach().clone() for name, value in self.objective.state_dict().items()}
        if self.run is not None:
            self.run.add(row)
        if len(self.history) > 1:
            ends, in_rounds = self.schedule.ends(self.row_every, self.total), self.schedule.rounds is not None
            logger.info("%s", row_line(row, ends, rounds=in_rounds))
        if self.on_epoch is not None and is_first():
            self.on_epoch(dict(row))

    def _judge(self, accepted: Mask, correct: Mask, constraints: Constraints) -> None:
        """Whether what was seen is to be kept; and, in rounds, whether it is the end."""
        kept = self.selection.kept
        self.selection.see(accepted, correct)
        if self.schedule.rounds is not None:
            self.settling.see(constraints, self.objective.duals.tol, fell=self.selection.fell)
            if self.settling.strayed:
                self.selection.kept = kept

    def _start_epoch(self) -> None:
        self.epoch_constraints = MeanConstraints()
        self.loss_sum = torch.zeros(())
        self.epoch_seconds = 0.0

    def _resume_or_begin(self) -> None:
        state = None if self.run is None else self.run.checkpoint()
        if state is None:
            if self.run is not None:
                self.run.restart_history([])
            self._note({})
            return
        self.load_state_dict(state)
        if self.run is not None:
            self.run.restart_history(self.history)
            most = "" if self.schedule.rounds is None else "at most "
            logger.info("resuming %s at step %d of %s%d", self.run.path, self.step, most, self.total)

    def _check_weights(self) -> None:
        """A step from a finite loss can still end in weights that are not: these must not be saved or judged."""
        if not all(bool(torch.isfinite(tensor).all()) for tensor in self.objective.state_dict().values()):
            raise self._not_finite("the weights became infinite or NaN")

    def _not_finite(self, what: str) -> TrainingError:
        return not_finite(f"{what} at step {self.step} (lr {self.optimiser.param_groups[0]['lr']:g})", self.run)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs to end with the same bits."""
        device = self.objective.classifier.device
        return {
            "step": self.step,
            "objective": self.objective.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "lagrangian": self.lagrangian.state_dict(),
            "draws": self.batches.state_dict() if self.ahead is None else self.ahead.state,
            "epoch": [self.epoch_constraints.count, self.epoch_constraints.sums, self.loss_sum, self.epoch_seconds],
            "history": self.history,
            "kept": self.kept,
            "settling": asdict(self.settling),
            "selection": selection_state(self.selection),
            "kept_weights": self.kept_weights,
            "generator": torch.get_rng_state(),
            "cuda_generator": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        device = self.objective.classifier.device
        self.step = state["step"]
        self.objective.load_state_dict(state["objective"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.lagrangian.load_state_dict(state["lagrangian"])
        self.batches.load_state_dict(state["draws"])
        self.epoch_constraints.count, sums, self.loss_sum, self.epoch_seconds = state["epoch"]
        self.epoch_constraints.sums = {name: value.to(device) for name, value in sums.items()}
        self.history, self.kept, self.kept_weights = state["history"], state["kept"], state["kept_weights"]
        self.settling = EarlyStopping(**state["settling"])
        load_selection(self.selection, state["selection"])
        torch.set_rng_state(state["generator"])
        if device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_generator"], device)

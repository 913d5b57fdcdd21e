"""Callbacks that decide which epoch to keep, by looks at data set aside, and when to stop."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from wildood.evaluate.selection import Selection
from wildood.methods.schedule import END
from wildood.scores.energy import EnergyScore
from wildood.train.callbacks import Callback
from wildood.train.distributed import any_process
from wildood.train.history import Row
from wildood.train.monitor import Monitor
from wildood.train.progress import logger

if TYPE_CHECKING:
    from wildood.train.loop import Training

Keep = Literal["best", "last", "as_published"]


class SelectEpoch(Callback):
    """Look at data set aside after each epoch; at the end, give the objective the weights of the epoch to keep.

    A schedule that ends by itself ends by these looks.

    Attributes:
        monitor: the data set aside.
        keep: the "best" epoch by wild acceptance, the "last", or the one of the released rule ("as_published").
        only_start: look at the start only: an early stage of a method cannot be judged, and its last epoch is kept.
        kept: the number of the epoch to keep, so far.
        improved: the step of the last epoch that improved wild acceptance by more than chance.
    """

    def __init__(self, monitor: Monitor, keep: Keep = "best", *, only_start: bool = False) -> None:
        self.monitor, self.keep, self.only_start = monitor, keep, only_start
        self.selection = Selection(monitor.alpha, as_published=keep == "as_published")
        self.kept = self.improved = 0
        self.weights: dict[str, Tensor] = {}

    def on_epoch_end(self, training: "Training", row: Row) -> None:
        """Add what is seen to the row, judge the epoch, and keep its weights if it is the best so far."""
        self.kept = current = len(training.history) - 1
        if current and self.only_start:
            return
        # The start is judged by its energy: a method's own score may need training, as that of a new head does.
        look = self.monitor(training.objective, None if current else EnergyScore())
        row |= look.row
        if self.only_start or self.keep == "last" or look.scores is None:
            return
        self.selection.see(look.scores, look.correct)
        self.kept = self.selection.kept
        if self.kept == current:
            self.weights = {name: value.detach().clone() for name, value in training.objective.state_dict().items()}
        if self.selection.improved:
            self.improved = training.steps
        constraints = {name: row[name] for name in training.lagrangian.multipliers if name in row}
        settled = training.schedule.duals == "epoch" or training.lagrangian.is_settled(constraints, training.steps)
        (ended,) = any_process(settled and training.schedule.has_ended(training.steps, self.improved))
        if ended:
            training.begin_end()

    def on_train_end(self, training: "Training") -> None:
        """Give the objective the weights that were kept."""
        if self.weights:
            training.objective.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Any]:
        """The choice so far, and the weights that are kept."""
        selection = {
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in self.selection.state_dict().items()
        }
        return {"kept": self.kept, "improved": self.improved, "selection": selection, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.kept, self.improved, self.weights = state["kept"], state["improved"], state["weights"]
        self.selection.load_state_dict(
            {name: value.numpy() if isinstance(value, Tensor) else value for name, value in state["selection"].items()}
        )


class TimeLimit(Callback):
    """Stop after the schedule's minutes; a resumed run counts those before. Several processes stop in the same step.

    The end, in which the learning rate falls, begins early enough to be over in time.
    """

    def __init__(self) -> None:
        self.seconds, self.began = 0.0, 0.0

    @contextmanager
    def context(self, training: "Training") -> Iterator[None]:  # noqa: ARG002 - every callback gets it
        """Start the clock."""
        self.began = time.monotonic() - self.seconds
        yield

    def on_step_end(self, training: "Training") -> None:
        """Begin the end of the run if most of its time is over; stop it if all of it is."""
        minutes = training.schedule.minutes
        if minutes is None:
            return
        self.seconds = time.monotonic() - self.began
        most, all_of_it = any_process(self.seconds > (1 - END) * 60 * minutes, self.seconds > 60 * minutes)
        if most:
            training.begin_end()
        if all_of_it:
            logger.info("training stops at step %d: its %g minutes are over", training.steps, minutes)
            training.stop()

    def state_dict(self) -> dict[str, Any]:
        """The time that is used up."""
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.seconds = state["seconds"]

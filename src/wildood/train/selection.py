"""Callbacks that look at data set aside after each epoch: which epoch to keep, and when to stop."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from wildood.evaluate.selection import Mask, Selection
from wildood.scores.energy import EnergyScore
from wildood.train.callbacks import Callback
from wildood.train.history import Row
from wildood.train.monitor import Look, Monitor

if TYPE_CHECKING:
    from wildood.train.loop import Training

Keep = Literal["best", "last", "as_published"]


@dataclass
class EarlyStopping:
    """When a run in rounds has nothing more to gain.

    It is done after a round in which wild acceptance has not fallen and the most violated constraint has come no closer. If
    that constraint is violated more than before, the run has `strayed`, and its last round is not to be kept. There is no
    margin: a difference by chance costs one round more, or a round that has not been shown to improve anything.

    >>> stopping = EarlyStopping()
    >>> stopping.update({"c": 0.5}, tol=0.1, fell=False); stopping.done    # the start
    False
    >>> stopping.update({"c": 0.2}, tol=0.1, fell=False); stopping.done    # may yet be met
    False
    >>> stopping.update({"c": 0.3}, tol=0.1, fell=False); stopping.done, stopping.strayed
    (True, True)
    """

    violation: float | None = None
    done: bool = False
    strayed: bool = False

    def update(self, constraints: Mapping[str, float], tol: float, *, fell: bool) -> None:
        """The start, or one more round: the constraints on data set aside, and whether wild acceptance fell."""
        violation = max([0.0, *(c - tol for c in constraints.values())])
        if self.violation is not None:
            self.done = not fell and violation >= self.violation
            self.strayed = self.done and violation > self.violation
        self.violation = violation


class SelectEpoch(Callback):
    """Look at data set aside after each epoch; at the end, give the objective the weights of the epoch to keep.

    Attributes:
        monitor: the data set aside.
        keep: the "best" epoch by wild acceptance, the "last", or the one of the released rule ("as_published").
        only_start: look at the start only: an early stage of a method cannot be judged, and its last epoch is kept.
        kept: the number of the epoch to keep, so far.
    """

    def __init__(self, monitor: Monitor, keep: Keep = "best", *, only_start: bool = False) -> None:
        self.monitor, self.keep, self.only_start = monitor, keep, only_start
        self.selection = Selection(as_published=keep == "as_published")
        self.stopping = EarlyStopping()
        self.kept = 0
        self.weights: dict[str, Tensor] = {}

    def on_epoch_end(self, training: "Training", row: Row) -> None:
        """Add what is seen to the row, judge the epoch, and keep its weights if it is the best so far."""
        self.kept = current = len(training.history) - 1
        if current and self.only_start:
            return
        # The start is judged by its energy: a method's own score may need training, as that of a new head does.
        look = self.monitor(training.objective, None if current else EnergyScore())
        row |= look.row
        if self.only_start or self.keep == "last" or look.accepted is None:
            return
        self._judge(training, look.accepted, look)
        if self.kept == current:
            self.weights = {name: value.detach().clone() for name, value in training.objective.state_dict().items()}

    def _judge(self, training: "Training", accepted: Mask, look: Look) -> None:
        """Which epoch to keep now; and, in rounds, whether this one was the last."""
        before = self.selection.kept
        self.selection.see(accepted, look.correct)
        if training.schedule.rounds is not None:
            self.stopping.update(look.constraints, training.objective.duals.tol, fell=self.selection.fell)
            if self.stopping.strayed:
                self.selection.kept = before
            if self.stopping.done:
                training.stop()
        self.kept = self.selection.kept

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
        return {"kept": self.kept, "selection": selection, "stopping": asdict(self.stopping), "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.kept, self.weights = state["kept"], state["weights"]
        self.stopping = EarlyStopping(**state["stopping"])
        self.selection.load_state_dict(
            {name: value.numpy() if isinstance(value, Tensor) else value for name, value in state["selection"].items()}
        )

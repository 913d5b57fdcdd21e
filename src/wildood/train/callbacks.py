"""Callbacks: whatever a run does besides Algorithm 1. Yours go into `fit(..., callbacks=[...])`."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from wildood.train.distributed import is_first
from wildood.train.history import Row

if TYPE_CHECKING:
    from wildood.train.loop import Training

OnEpoch = Callable[[Row], None]


class Callback:
    """Something to do at fixed points of a run; override the methods you need.

    `training` has `steps`, `total`, `history`, `objective`, `schedule` and `lagrangian`; `training.stop()` ends the run.
    Several processes (torchrun) must decide alike, in the same step.

    >>> import numpy as np, torch, wildood
    >>> class StopAfterThreeSteps(wildood.Callback):
    ...     def on_step_end(self, training):
    ...         if training.steps == 3:
    ...             training.stop()
    >>> x, y = np.random.default_rng(0).normal(size=(600, 2)).astype("float32"), np.arange(600) % 2
    >>> data = (x[:200], y[:200]), x[200:400], (x[400:], y[400:])
    >>> settings = {"schedule": wildood.Schedule(steps=10, batch=32), "keep": "last", "verbose": False}
    >>> detector = wildood.fit(torch.nn.Linear(2, 2), *data, **settings, callbacks=[StopAfterThreeSteps()])
    >>> detector.history[-1]["step"]
    3
    """

    def on_train_begin(self, training: "Training") -> None:
        """Before the first step; a resumed run has been restored."""

    def context(self, training: "Training") -> AbstractContextManager[Any]:  # noqa: ARG002 - for those that need it
        """A context that is entered before the first step and left after the last one, or by an error."""
        return nullcontext()

    def on_step_begin(self, training: "Training") -> None:
        """Before each step: everything that the steps before it led to is done."""

    def on_step_end(self, training: "Training") -> None:
        """After each step."""

    def on_epoch_end(self, training: "Training", row: Row) -> None:
        """After each epoch, and once for the start (epoch 0). `row` is that of the history: columns may be added.

        With `Schedule.averaging`, the objective has its mean weights in this call: what changes them has no effect.
        """

    def on_train_end(self, training: "Training") -> None:
        """After the last step; the objective has the weights that are kept."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold of it: numbers, texts, tensors, lists and dicts."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""


class CallOnEpoch(Callback):
    """Call a function with each row of the history, on the first process: the short form `on_epoch=...`.

    >>> CallOnEpoch(print).on_epoch_end(None, {"epoch": 1})
    {'epoch': 1}
    """

    def __init__(self, function: OnEpoch) -> None:
        self.function = function

    def on_epoch_end(self, training: "Training", row: Row) -> None:  # noqa: ARG002 - the function gets the row alone
        """Call it with a copy, so that it cannot change the history."""
        if is_first():
            self.function(dict(row))


class AddColumns(Callback):
    """Columns with the same value in each row of the history, such as the number of a stage.

    >>> row = {"epoch": 1}
    >>> AddColumns({"stage": 2}).on_epoch_end(None, row); row
    {'stage': 2, 'epoch': 1}
    """

    def __init__(self, columns: Row) -> None:
        self.columns = columns

    def on_epoch_end(self, training: "Training", row: Row) -> None:  # noqa: ARG002 - nothing of it is needed
        """Put them first."""
        others = dict(row)
        row.clear()
        row.update(self.columns | others)

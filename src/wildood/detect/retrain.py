"""Once what was set aside has chosen, it may train: one more training on all wild data, as long as the one before."""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from wildood.detect.drift import Drift
from wildood.detect.split import FitSplit
from wildood.evaluate.selection import Selection
from wildood.methods.objective import Method, Objective, stages_of
from wildood.methods.schedule import Schedule
from wildood.models.classifier import Classifier
from wildood.train.callbacks import Callback
from wildood.train.checkpoint import RunDirectory
from wildood.train.loop import train
from wildood.train.monitor import Monitor, measure_start
from wildood.train.progress import logger

if TYPE_CHECKING:
    from wildood.train.loop import Training

WORTHWHILE = 1 / 3  # of the wild data that is set aside: training on all of it is then on half as much again, or more


class Kept(NamedTuple):
    """A finished training, of which the weights after `step` of `steps` are kept."""

    objective: Objective
    data: FitSplit
    drift: Drift | None
    step: int
    steps: int


def is_worthwhile(method: Method, schedule: Schedule, data: FitSplit) -> bool:
    """Whether to train again: much wild data is set aside, and the training had no length or time that a user gave."""
    if data.wild_aside is None or not schedule.ends_itself or schedule.minutes is not None or len(stages_of(method)) > 1:
        return False
    return data.traffic is not None and len(data.wild_aside) >= WORTHWHILE * wild_count(data)


def wild_count(data: FitSplit) -> int:
    """The number of all wild examples."""
    return 0 if data.traffic is None else sum(map(len, data.traffic.pools))


def train_on_all(
    classifier: Classifier, kept: Kept, method: Method, schedule: Schedule, alpha: float, seed: int, run: RunDirectory | None
) -> Objective | None:
    """Train another copy of the start on all wild data; None if that failed.

    It failed if the result is less accurate than what was kept, or accepts more of what was set aside, which trained it.
    """
    data = kept.data
    assert data.traffic is not None  # noqa: S101 - `is_worthwhile`
    logger.info("training again for %d steps, on all wild data: what was set aside has chosen", kept.step)
    objective = method.objective(classifier, measure_start(classifier, data.labelled, seed, data.traffic))
    train(
        objective,
        data.labelled,
        data.traffic,
        replace(schedule, steps=kept.steps),
        seed,
        fresh=data.fresh,
        fresh_share=0.5 if kept.drift is None else kept.drift.fresh_share(data),
        run=None if run is None else run.stage("all-wild"),
        callbacks=[StopAt(kept.step)],
    )
    monitor, selection = Monitor(data.selection, data.wild_aside, alpha), Selection(alpha)
    for each in (kept.objective, objective):
        look = monitor(each)
        assert look.scores is not None  # noqa: S101 - there is wild data
        selection.see(look.scores, look.correct)
    if not selection.kept:
        logger.info("the training on all wild data failed: the one before is kept")
        return None
    return objective


class StopAt(Callback):
    """Stop after so many steps, wherever the schedule ends.

    >>> StopAt(100).steps
    100
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, training: "Training") -> None:
        """Stop if it is time."""
        if training.steps >= self.steps:
            training.stop()

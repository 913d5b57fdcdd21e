"""A second training on all wild data, including the examples that chose the epoch."""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wildood.data.validation import all_labels
from wildood.data.wild import MOST_ASIDE
from wildood.detect.split import FitSplit, subsample
from wildood.evaluate.metrics import Floats
from wildood.evaluate.selection import Mask, Selection, compare_acceptance, paired_difference
from wildood.methods.objective import Method, Objective, stages_of
from wildood.methods.schedule import Schedule
from wildood.models.classifier import Classifier
from wildood.scores.score import Score, score_all
from wildood.train.callbacks import Callback
from wildood.train.checkpoint import RunDirectory
from wildood.train.distributed import broadcast
from wildood.train.loop import train
from wildood.train.monitor import measure_start

if TYPE_CHECKING:
    from wildood.train.loop import Training

WORTHWHILE = 1 / 3  # of the wild data that is set aside: training on all of it is then on half as much again, or more


def is_worthwhile(method: Method, schedule: Schedule, data: FitSplit) -> bool:
    """Whether to train again: much wild data is set aside, and no length or time of the training was given.

    A method that filters wild data, by `kept`, trains once: its filter has seen what trained, not what was set aside.
    """
    if data.traffic is None or data.wild is None or hasattr(method, "kept"):
        return False
    if schedule.minutes is not None or not schedule.ends_itself:
        return False
    count, trained = (sum(map(len, wild.pools)) for wild in (data.traffic, data.wild))
    return len(stages_of(method)) == 1 and trained <= (1 - WORTHWHILE) * count


def train_on_all(
    classifier: Classifier,
    data: FitSplit,
    method: Method,
    schedule: Schedule,
    *,
    stop: int,
    steps: int,
    fresh_share: float,
    seed: int,
    run: RunDirectory | None,
) -> Objective:
    """Train a start on all wild data until step `stop` of `steps`, as the first training was."""
    objective = method.objective(classifier, measure_start(classifier, data.labelled, seed, data.traffic))
    train(
        objective,
        data.labelled,
        data.traffic,
        replace(schedule, steps=steps),
        seed,
        fresh=data.fresh,
        fresh_share=fresh_share,
        judged=data.judged,
        run=None if run is None else run.stage("all-wild"),
        callbacks=[StopAt(stop)],
    )
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


class Look(NamedTuple):
    """The scores of the holdout examples that choose and of wild ones, and which of the former are classified correctly."""

    known: Floats
    wild: Floats
    correct: Mask


def look_at(classifier: Classifier, score: Score, data: FitSplit, seed: int) -> Look:
    """What a classifier with a score says of them; of much wild data, of a sample."""
    assert data.traffic is not None  # noqa: S101 - `is_worthwhile`
    known, classes = score_all(classifier, data.selection, score)
    wild, _ = score_all(classifier, subsample(data.traffic.whole(seed), MOST_ASIDE, seed), score)
    return Look(known.astype(np.float64), wild.astype(np.float64), classes == all_labels(data.selection).numpy())


def is_as_good(first: Look, second: Look, start: Look, alpha: float) -> bool:
    """Whether the second training did not fail, beside the first one and the start.

    It is no less accurate than the start beyond what an epoch may lose, and does not accept more wild data than the first by
    more than the standard error. No unseen wild data is left to compare them: of one part of it, the first training has seen
    nothing, and of the other part, it has seen nothing else.
    """
    lost, error = paired_difference(start.correct, second.correct)
    more = compare_acceptance((second.known, second.wild), (first.known, first.wild), alpha)
    good = lost <= Selection.accuracy_loss + error + 1e-12 and not more.is_larger_than_its_error
    return broadcast(b"good" if good else b"worse") == b"good"  # all processes decide as the first one does

"""What data set aside says of a model in training: its accuracy, its constraints, and how much wild data it accepts."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wildood.data.sources import Source
from wildood.data.validation import check_labels
from wildood.data.wild import Wild
from wildood.errors import InputError
from wildood.evaluate.metrics import Floats
from wildood.evaluate.selection import Mask
from wildood.evaluate.thresholds import conformal_threshold
from wildood.methods.objective import NO_LABEL, Objective, Start
from wildood.models.classifier import Classifier, evaluating, forward_all
from wildood.models.moments import moments_of
from wildood.scores.score import Score
from wildood.train.distributed import ShardedPass, all_reduce_sum, this_process
from wildood.train.history import Row
from wildood.train.lagrangian import MeanConstraints


class Look(NamedTuple):
    """What the monitor sees.

    Attributes:
        row: columns for the history.
        scores: of the holdout and of the wild examples; None without wild data.
        correct: which of the holdout's are classified correctly.
    """

    row: Row
    scores: tuple[Floats, Floats] | None
    correct: Mask


@dataclass(frozen=True)
class Monitor:
    """ID holdout and wild examples that training does not see.

    Attributes:
        holdout: labelled ID examples.
        wild: wild examples; None for methods that use none.
        alpha: the false-alarm rate at which wild acceptance is measured.
    """

    holdout: Source
    wild: Source | None
    alpha: float

    def __call__(self, objective: Objective, score: Score | None = None) -> Look:
        """Accuracy, holdout_* constraints, and acceptance: the share of wild accepted at the holdout's threshold.

        The score is the objective's unless given.
        """
        score = objective.score if score is None else score
        correct: list[Tensor] = []
        scores: list[Tensor] = []
        constraints = MeanConstraints()
        holdout = ShardedPass(self.holdout)
        with evaluating(objective):
            for outputs, labels in forward_all(objective.classifier, holdout.part):
                assert labels is not None  # noqa: S101 - the holdout is labelled
                correct.append((outputs.logits.argmax(1) == labels).cpu())
                scores.append(score(outputs).cpu())
                constraints.add(objective.constraints(outputs, labels), len(labels))
        right = holdout.gather(correct).bool().numpy()
        row = {"accuracy": float(np.mean(right))}
        row |= {f"holdout_{name}": float(value) for name, value in _means(constraints, objective).items()}
        if self.wild is None:
            return Look(row, None, right)
        scores_of_holdout = holdout.gather(scores).numpy()
        threshold = conformal_threshold(scores_of_holdout, self.alpha)
        wild = ShardedPass(self.wild)
        with evaluating(objective):
            found = [score(outputs).cpu() for outputs, _ in forward_all(objective.classifier, wild.part)]
        scores_of_wild = wild.gather(found).numpy()
        accepted = np.isfinite(scores_of_wild) & (scores_of_wild <= threshold)  # as the detector will
        return Look(row | {"acceptance": float(np.mean(accepted))}, (scores_of_holdout, scores_of_wild), right)


def full_constraints(
    objective: Objective, labelled: Source, fresh: Source | None = None, fresh_share: float = 0.5
) -> dict[str, Tensor]:
    """The constraints on all labelled data, in evaluation mode: line 7 of Algorithm 1 moves the multipliers by them.

    Fresh examples count as they do in a batch. A constraint that needs classes is NaN where they have none, and is then that
    of the labelled data.
    """
    constraints = _constraints_on(objective, labelled)
    if fresh is None:
        return constraints
    others = _constraints_on(objective, fresh)
    return {
        name: torch.where(others[name].isnan(), value, value + fresh_share * (others[name] - value))
        for name, value in constraints.items()
    }


def _constraints_on(objective: Objective, source: Source) -> dict[str, Tensor]:
    mean = MeanConstraints()
    with evaluating(objective):
        for outputs, labels in forward_all(objective.classifier, ShardedPass(source).part):
            classes = (
                outputs.logits.new_full((len(outputs.logits),), NO_LABEL, dtype=torch.int64) if labels is None else labels
            )
            mean.add(objective.constraints(outputs, classes), len(classes))
    return _means(mean, objective)


def _means(mine: MeanConstraints, objective: Objective) -> dict[str, Tensor]:
    """The means over what all processes have looked at."""
    if this_process().world == 1:
        return mine.means()
    names = list(objective.duals.multipliers)
    sums = [float(mine.sums.get(name, 0.0)) for name in names]  # a process may have looked at nothing
    count, *found = all_reduce_sum(torch.tensor([mine.count, *sums], dtype=torch.float64))
    return {name: (everyones / count).float() for name, everyones in zip(names, found, strict=True)}


def measure_start(classifier: Classifier, labelled: Source, seed: int, wild: Wild | None = None) -> Start:
    """What the starting classifier says of the labelled data; a label that it has no class for is refused."""
    loss, correct, count, classes, features = 0.0, 0, 0, 0, 0
    sums: list[Tensor] = []
    few, _ = labelled.gather(torch.arange(min(2, len(labelled))))
    with evaluating(classifier), moments_of(classifier, few) as moments:
        for outputs, labels in forward_all(classifier, labelled):
            assert labels is not None  # noqa: S101 - labelled
            classes = outputs.logits.shape[1]
            check_labels(labels, "labelled", classes)
            loss += float(F.cross_entropy(outputs.logits, labels, reduction="sum"))
            correct += int((outputs.logits.argmax(1) == labels).sum())
            count += len(labels)
            sums.append(outputs.logits.logsumexp(1).cpu())
            features = 0 if outputs.features is None else outputs.features.shape[1]
    if not math.isfinite(loss):
        raise InputError("the model's loss on labelled is not finite: look for NaN or infinity in its examples or weights")
    traffic = 0 if wild is None else sum(map(len, wild.pools))
    return Start(loss / count, correct / count, torch.cat(sums), classes, features, seed, labelled, traffic, moments)

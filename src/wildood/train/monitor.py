"""What data set aside says of a model in training: its accuracy, its constraints, and how much wild data it accepts."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wildood.data.given import check_labels
from wildood.data.sources import Source
from wildood.errors import InputError
from wildood.evaluate.selection import Mask
from wildood.evaluate.thresholds import conformal_threshold
from wildood.methods.objective import Objective, Start
from wildood.models.outputs import Classifier, each_output, evaluating, forward_all
from wildood.train.history import Row
from wildood.train.lagrangian import MeanConstraints


class Seen(NamedTuple):
    """What the monitor saw: a row for the history, and the verdicts that choose an epoch."""

    row: Row
    accepted: Mask | None
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

    def __call__(self, objective: Objective) -> Seen:
        """Accuracy, holdout_* constraints, and acceptance: the share of wild accepted at the holdout's threshold."""
        correct: list[Tensor] = []
        scores: list[Tensor] = []
        constraints = MeanConstraints()
        with evaluating(objective):
            for outputs, labels in forward_all(objective.classifier, self.holdout):
                assert labels is not None  # noqa: S101 - the holdout is labelled
                correct.append((outputs.logits.argmax(1) == labels).cpu())
                scores.append(objective.score(outputs).cpu())
                constraints.add(objective.constraints(outputs, labels), len(labels))
        right = torch.cat(correct).numpy()
        row = {"accuracy": float(np.mean(right))}
        row |= {f"holdout_{name}": float(value) for name, value in constraints.means().items()}
        if self.wild is None:
            return Seen(row, None, right)
        threshold = conformal_threshold(torch.cat(scores).numpy(), self.alpha)
        accepted = each_output(objective.classifier, self.wild, objective.score).numpy() <= threshold
        return Seen(row | {"acceptance": float(np.mean(accepted))}, accepted, right)


def full_constraints(objective: Objective, labelled: Source) -> dict[str, Tensor]:
    """The constraints on all labelled data, in evaluation mode: line 7 of Algorithm 1 moves the multipliers by them."""
    mean = MeanConstraints()
    with evaluating(objective):
        for outputs, labels in forward_all(objective.classifier, labelled):
            assert labels is not None  # noqa: S101 - labelled
            mean.add(objective.constraints(outputs, labels), len(labels))
    return mean.means()


def start_of(classifier: Classifier, labelled: Source, seed: int) -> Start:
    """What the starting classifier says of the labelled data; a label that it has no class for is refused."""
    loss, correct, count, classes, features = 0.0, 0, 0, 0, 0
    sums: list[Tensor] = []
    with evaluating(classifier):
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
    shape = tuple(classifier.prepare(labelled.gather(torch.arange(1))[0]).shape[1:])
    return Start(loss / count, correct / count, torch.cat(sums), classes, features, seed, shape)

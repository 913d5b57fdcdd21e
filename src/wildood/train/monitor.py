"""What data set aside says of a model in training: its accuracy, its constraints, and how much wild data it accepts."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from wildood.data.sources import Source
from wildood.errors import InputError
from wildood.evaluate.selection import Candidate, best_candidate, wild_acceptance
from wildood.evaluate.thresholds import conformal_threshold
from wildood.methods.objective import Objective, Start
from wildood.models.outputs import Classifier, Outputs, evaluating, forward_all
from wildood.scores.score import Score
from wildood.train.history import Row


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

    def __call__(self, objective: Objective) -> Row:
        """accuracy, holdout_* constraints, and acceptance: the share of wild accepted at the holdout's threshold."""
        correct = 0
        scores: list[Tensor] = []
        with evaluating(objective):
            constraints = MeanConstraints()
            for outputs, labels in forward_all(objective.classifier, self.holdout):
                assert labels is not None  # noqa: S101 - the holdout is labelled
                correct += int((outputs.logits.argmax(1) == labels).sum())
                scores.append(objective.score(outputs).cpu())
                constraints.add(objective.constraints(outputs, labels), len(labels))
            row = {"accuracy": correct / len(self.holdout)}
            row |= {f"holdout_{name}": float(value) for name, value in constraints.means().items()}
            if self.wild is not None:
                threshold = conformal_threshold(torch.cat(scores).numpy(), self.alpha)
                row["acceptance"] = wild_acceptance(all_scores(objective.classifier, objective.score, self.wild), threshold)
        return row

    def best(self, history: list[Row]) -> int:
        """The number of the row to keep, by accuracy and wild acceptance; the last where there is no wild data."""
        if self.wild is None:
            return len(history) - 1
        candidates = [Candidate(row["accuracy"], row["acceptance"]) for row in history]
        return best_candidate(candidates, len(self.holdout), len(self.wild))


class MeanConstraints:
    """Sample means of constraints over batches of any sizes.

    >>> mean = MeanConstraints()
    >>> mean.add({"c": torch.tensor(1.0)}, 3); mean.add({"c": torch.tensor(0.0)}, 1)
    >>> mean.means()
    {'c': tensor(0.7500)}
    """

    def __init__(self) -> None:
        self.count = 0
        self.sums: dict[str, Tensor] = {}

    def add(self, constraints: dict[str, Tensor], count: int) -> None:
        """The constraints of a batch of so many examples."""
        self.count += count
        for name, value in constraints.items():
            self.sums[name] = self.sums.get(name, torch.zeros_like(value)) + value.detach() * count

    def means(self) -> dict[str, Tensor]:
        """The mean of each constraint over all examples added."""
        return {name: total / self.count for name, total in self.sums.items()}


def full_constraints(objective: Objective, labelled: Source) -> dict[str, Tensor]:
    """The constraints on all labelled data, in evaluation mode: line 7 of Algorithm 1 moves the multipliers by them."""
    mean = MeanConstraints()
    with evaluating(objective):
        for outputs, labels in forward_all(objective.classifier, labelled):
            assert labels is not None  # noqa: S101 - labelled
            mean.add(objective.constraints(outputs, labels), len(labels))
    return {name: value.clone() for name, value in mean.means().items()}


def start_of(classifier: Classifier, labelled: Source, classes: int, seed: int) -> Start:
    """What the starting classifier says of the labelled data; labels that it has no class for are refused."""
    loss, count, features = 0.0, 0, 0
    sums: list[Tensor] = []
    with evaluating(classifier):
        for outputs, labels in forward_all(classifier, labelled):
            assert labels is not None  # noqa: S101 - labelled
            check_labels(labels, "labelled", classes)
            loss += float(F.cross_entropy(outputs.logits, labels, reduction="sum"))
            count += len(labels)
            sums.append(outputs.logits.logsumexp(1).cpu())
            features = 0 if outputs.features is None else outputs.features.shape[1]
    if not math.isfinite(loss):
        raise InputError("the model's loss on labelled is not finite: look for NaN or infinity in its examples or weights")
    return Start(loss / count, torch.cat(sums), features, seed)


def check_labels(labels: Tensor, name: str, classes: int) -> None:
    """Refuse a label that the model has no class for.

    >>> check_labels(torch.tensor([0, 3]), "holdout", classes=3)
    Traceback (most recent call last):
    wildood.errors.InputError: holdout: a label is 3, but the model has 3 classes: labels count from 0 to 2
    """
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        wrong = lowest if lowest < 0 else highest
        raise InputError(
            f"{name}: a label is {wrong}, but the model has {classes} classes: labels count from 0 to {classes - 1}"
        )


def each_output(classifier: Classifier, source: Source, take: Callable[[Outputs], Tensor]) -> Iterator[Tensor]:
    """What `take` makes of the outputs for a source, batch by batch, on the CPU."""
    with evaluating(classifier):
        for outputs, _ in forward_all(classifier, source):
            yield take(outputs).cpu()


def all_scores(classifier: Classifier, score: Score, source: Source) -> Tensor:
    """The scores of every example of a source."""
    return torch.cat(list(each_output(classifier, source, score)))

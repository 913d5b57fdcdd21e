"""How long and how fast to train: steps, batches, learning rate, and how often the multipliers move."""

from dataclasses import dataclass
from typing import Literal, Self

from wildood.errors import InputError


@dataclass(frozen=True)
class Schedule:
    """SGD with Nesterov momentum, the learning rate multiplied by `factor` at each milestone.

    Attributes:
        steps: how many steps to train; or give `epochs`.
        epochs: how many epochs to train; or give `steps`.
        batch: labelled examples in a step, and as many wild ones.
        lr: the learning rate mu_1 at the start.
        milestones: the shares of the training after which the learning rate falls.
        factor: by what it is multiplied there.
        momentum: Nesterov's.
        weight_decay: of the network's weights.
        duals: move the multipliers once per "epoch", on a full evaluation-mode pass over the labelled data
            (Algorithm 1), or every "step", on the batch.
        epoch: what an epoch is: one pass over the "labelled" data, or over the "shortest" of the labelled data and the
            wild pools, as in the released code.

    >>> Schedule(epochs=2).length(labelled=1000, wild=[300])
    (7, 14)
    >>> Schedule.as_published("stationary").length(labelled=25_000, wild=[17_500, 4_900])
    (38, 3800)
    """

    steps: int | None = None
    epochs: int | None = None
    batch: int = 128
    lr: float = 1e-2
    milestones: tuple[float, ...] = (0.5, 0.75, 0.9)
    factor: float = 0.5
    momentum: float = 0.9
    weight_decay: float = 5e-4
    duals: Literal["epoch", "step"] = "step"
    epoch: Literal["labelled", "shortest"] = "labelled"

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InputError(f"a schedule has steps={self.steps} and epochs={self.epochs}: give exactly one of them")
        positive = {
            "steps": self.steps,
            "epochs": self.epochs,
            "batch": self.batch,
            "lr": self.lr,
            "factor": self.factor,
        }
        for name, value in positive.items():
            if value is not None and value <= 0:
                raise InputError(f"the schedule's {name} is {value}: it must be positive")
        if self.batch < 2:
            raise InputError("the schedule's batch is 1: give at least 2 examples, for batch normalisation")
        if not 0 < self.momentum < 1 or self.weight_decay < 0:
            raise InputError("the schedule's momentum must be in (0, 1) and its weight_decay at least 0")
        if self.duals not in {"epoch", "step"} or self.epoch not in {"labelled", "shortest"}:
            raise InputError("the schedule's duals are 'epoch' or 'step', its epoch is 'labelled' or 'shortest'")
        object.__setattr__(self, "milestones", tuple(sorted(self.milestones)))

    @classmethod
    def as_published(cls, setting: Literal["stationary", "non-stationary"] = "stationary") -> Self:
        """The released code's: lr 1e-3 halved at 50, 75 and 90 % of 100 (stationary) or 50 epochs.

        >>> Schedule.as_published("non-stationary").epochs
        50
        """
        if setting not in {"stationary", "non-stationary"}:
            raise InputError(f"the setting is {setting!r}: give 'stationary' or 'non-stationary'")
        return cls(epochs=100 if setting == "stationary" else 50, lr=1e-3, duals="epoch", epoch="shortest")

    def length(self, labelled: int, wild: list[int]) -> tuple[int, int]:
        """Steps in an epoch, and steps in all, for so many labelled examples and wild pools of these lengths."""
        shortest = min([labelled, *wild]) if self.epoch == "shortest" else labelled
        per_epoch = max(1, shortest // self.batch)
        total = self.steps if self.steps is not None else per_epoch * (self.epochs or 0)
        return per_epoch, total

    def lr_at(self, step: int, per_epoch: int, total: int) -> float:
        """The learning rate of a step; counted in whole epochs where the schedule is.

        >>> schedule = Schedule(steps=100)
        >>> [schedule.lr_at(step, per_epoch=10, total=100) for step in (0, 49, 50, 75, 99)]
        [0.01, 0.01, 0.005, 0.0025, 0.00125]
        """
        if self.epochs is not None:
            step, total = step // per_epoch, self.epochs
        return self.lr * self.factor ** sum(step >= int(share * total) for share in self.milestones)

"""How long and how fast to train: steps, batches, learning rate, and how often the multipliers move."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self, get_args

from wildood.errors import InputError
from wildood.settings import (
    check_choice,
    check_count,
    check_fields,
    check_flag,
    check_number,
    optional,
    quoted,
)

Normalisation = Literal["labelled", "batch"]
IN_ROUNDS: dict[str, Any] = {"steps": 3150, "epochs": None, "rounds": 50}  # 50, 100, 200 ... steps, six rounds at most


@dataclass(frozen=True)
class Schedule:
    """SGD with Nesterov momentum; the learning rate is multiplied by `factor` at each milestone, or falls along a cosine.

    Attributes:
        steps: how many steps to train; 100 if neither steps nor epochs is given.
        epochs: how many epochs to train; or give `steps`.
        batch: labelled examples in a step, and as many wild ones.
        lr: the learning rate mu_1 at the start.
        decay: whether the learning rate falls at the "milestones", or at every step along a "cosine" to 0.
        milestones: the shares of the training after which it falls.
        factor: by what it is multiplied there.
        clip: the longest gradient, over all weights: a longer one is shortened to it, so that a network without
            normalisation stands the same learning rate; 0 for none.
        warmup: the share of the training over which the learning rate first rises from 0.
        augment: flip images at random and crop them, padded by 4 pixels.
        momentum: Nesterov's; 0 for none. (The paper prints 0.09, its released code has 0.9.)
        weight_decay: of the network's weights.
        duals: move the multipliers once per "epoch", on a full pass over the labelled data in evaluation mode, or every
            "step", on the batch.
        epoch: what an epoch is: one pass over the "labelled" data, or over the "shortest" of the labelled data and the
            wild pools, as in the released code.
        normalisation: what BatchNorm normalises by: the "labelled" examples of a batch, as the deployed network normalises
            by ID data, or the whole "batch", as in the released code.
        rounds: train in rounds instead of epochs: the first of so many steps, each twice as long as the one before and with
            a learning rate that falls anew; stop after the first that improves neither wild acceptance nor constraints.

    >>> Schedule(epochs=2).length(labelled=1000, wild=[300])
    (3, 6)
    >>> Schedule.as_published("stationary").length(labelled=25_000, wild=[17_500, 4_900])
    (38, 3800)
    """

    steps: int | None = None
    epochs: int | None = None
    batch: int = 256
    lr: float = 0.03
    decay: Literal["cosine", "milestones"] = "milestones"
    milestones: tuple[float, ...] = (0.5, 0.75, 0.9)
    factor: float = 0.5
    clip: float = 1.0
    warmup: float = 0.0
    augment: bool = False
    momentum: float = 0.9
    weight_decay: float = 5e-4
    duals: Literal["epoch", "step"] = "step"
    epoch: Literal["labelled", "shortest"] = "labelled"
    normalisation: Normalisation = "labelled"
    rounds: int | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise InputError(f"a schedule has steps={quoted(self.steps)} and epochs={quoted(self.epochs)}: give one of them")
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "steps", 100)
        not_negative = partial(check_number, expected="a positive number, or 0 for none", least=0)
        check_fields(
            self,
            "the schedule's ",
            steps=optional(check_count),
            epochs=optional(check_count),
            batch=check_count,
            lr=partial(check_number, expected="a positive number", above=0, most=1e30),
            decay=partial(check_choice, choices=("cosine", "milestones")),
            milestones=_shares,
            factor=partial(check_number, expected="a positive number up to 1", above=0, most=1),
            clip=partial(not_negative, finite=False),
            warmup=partial(check_number, expected="a share of the training, such as 0.1", least=0, below=1),
            augment=check_flag,
            momentum=partial(check_number, expected="a number from 0 to less than 1", least=0, below=1),
            weight_decay=partial(not_negative, most=1e6),
            duals=partial(check_choice, choices=("epoch", "step")),
            epoch=partial(check_choice, choices=("labelled", "shortest")),
            normalisation=partial(check_choice, choices=get_args(Normalisation)),
            rounds=optional(check_count),
        )
        if self.batch < 2:
            raise InputError("the schedule's batch is 1: give at least 2 examples, for batch normalisation")
        if self.rounds is not None and self.duals == "epoch":
            raise InputError("a schedule in rounds moves multipliers every step: give duals='step' (--duals step)")

    @classmethod
    def as_published(cls, setting: Literal["stationary", "non-stationary"] = "stationary") -> Self:
        """The released code's: lr 1e-3 halved at 50, 75 and 90 % of 100 (stationary) or 50 epochs; no clip.

        It is not all of the paper's Algorithm 1: that leaves the epoch's length open, and momentum, which is 0.9 here as in
        the released code, is printed as 0.09 in the paper.

        >>> Schedule.as_published("non-stationary").epochs
        50
        """
        check_choice(setting, "the setting", ("stationary", "non-stationary"))
        epochs = 100 if setting == "stationary" else 50
        same: dict[str, Any] = {"decay": "milestones", "clip": 0.0, "duals": "epoch", "epoch": "shortest"}
        return cls(epochs=epochs, batch=128, lr=1e-3, **same, normalisation="batch")

    @classmethod
    def auto(cls) -> Self:
        """Rounds of 50, 100, 200 and more steps, until one improves neither wild acceptance nor constraints; at most six.

        >>> Schedule.auto().rounds, Schedule.auto().steps
        (50, 3150)
        """
        return cls(**IN_ROUNDS)

    @classmethod
    def pretraining(cls, epochs: int = 100, lr: float = 0.1, warmup: float = 0.0, *, augment: bool = True) -> Self:
        """For a classifier from scratch: the recipe of the paper's WRN-40-2; augment is for images that may be flipped.

        >>> Schedule.pretraining().epochs, Schedule.pretraining().augment
        (100, True)
        """
        return cls(epochs=epochs, batch=128, lr=lr, decay="cosine", clip=0.0, warmup=warmup, augment=augment)

    def length(self, labelled: int, wild: list[int]) -> tuple[int, int]:
        """Steps in an epoch, and steps in all, for so many labelled examples and wild pools of these lengths."""
        shortest = min([labelled, *wild]) if self.epoch == "shortest" else labelled
        per_epoch = max(1, shortest // self.batch)
        total = self.steps if self.steps is not None else per_epoch * (self.epochs or 0)
        return per_epoch, total

    def row_every(self, per_epoch: int, images: int, looked_at: int) -> int:
        """The steps of a row of the history, with a look at so many examples: an epoch, where the schedule counts in them.

        Where it counts in steps, as many epochs as make a look, at a third of training's cost, a twentieth of the row's.

        >>> [Schedule(steps=100).row_every(10, images=512, looked_at=number) for number in (0, 768, 7680)]
        [10, 10, 100]
        """
        if self.steps is None or self.duals == "epoch":
            return per_epoch
        return per_epoch * max(1, math.ceil(20 * looked_at / (3 * images * per_epoch)))

    def is_end(self, step: int, per_epoch: int) -> bool:
        """Whether an epoch, or a round, ends with a step.

        >>> [step for step in range(1, 400) if Schedule.auto().is_end(step, per_epoch=10)]
        [50, 150, 350]
        """
        return step % per_epoch == 0 if self.rounds is None else self._round_of(step) == step

    def ends(self, per_epoch: int, total: int) -> int:
        """How many epochs, or rounds, there are at most.

        >>> Schedule(epochs=3).ends(per_epoch=10, total=30), Schedule.auto().ends(per_epoch=10, total=3150)
        (3, 6)
        """
        return -(-total // per_epoch) if self.rounds is None else (-(-total // self.rounds)).bit_length()

    def _round_of(self, step: int) -> int:
        """The steps before the round that a step is in: rounds, 2 rounds, 4 rounds ... follow each other."""
        first = self.rounds or 1
        return first * ((1 << ((step // first + 1).bit_length() - 1)) - 1)

    def lr_at(self, step: int, per_epoch: int, total: int) -> float:
        """The learning rate of a step; milestones are counted in whole epochs where the schedule is.

        >>> schedule = Schedule(steps=100)
        >>> [schedule.lr_at(step, per_epoch=10, total=100) for step in (0, 49, 50, 75, 99)]
        [0.03, 0.03, 0.015, 0.0075, 0.00375]
        >>> [Schedule.auto().lr_at(step, per_epoch=10, total=3150) for step in (0, 25, 50, 100, 149, 150)]
        [0.03, 0.015, 0.03, 0.015, 0.00375, 0.03]
        """
        if self.rounds is not None:
            began = self._round_of(step)
            step, total = step - began, min(total, 2 * began + self.rounds) - began
        warm = self.warmup * total
        if step < warm:
            return self.lr * (step + 1) / (warm + 1)
        if self.decay == "cosine":
            return self.lr * (1 + math.cos(math.pi * (step - warm) / (total - warm))) / 2
        if self.epochs is not None and self.rounds is None:
            step, total = step // per_epoch, self.epochs
        return self.lr * self.factor ** sum(step >= int(share * total) for share in self.milestones)


def _shares(values: Any, name: str) -> tuple[float, ...]:
    """Shares of the training, in their order."""
    expected = "shares of the training, such as (0.5, 0.75)"
    if not isinstance(values, tuple | list):
        raise InputError(f"{name} is {quoted(values)}: give {expected}")
    return tuple(sorted(check_number(value, name, expected, above=0, below=1) for value in values))

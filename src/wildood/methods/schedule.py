"""How long and how fast to train: steps, batches, learning rate, and how often the multipliers move."""

import math
from dataclasses import dataclass, replace
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

Normalisation = Literal["running", "batch"]
Decay = Literal["end", "cosine", "milestones"]
LOOKS = tuple(int(25 * 2 ** (k / 2)) for k in range(80))  # the steps after which data set aside is looked at
SHORTEST, LONGEST = 100, 3200  # steps of a training that ends by itself
END = 0.2  # the share of the training over which the learning rate falls


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train, by SGD with Nesterov momentum.

    By default, training ends by itself: when twice as many steps have improved nothing. Data set aside is looked at after
    25, 35, 50, 70, 100 ... steps, each time sqrt(2) times as many. The end begins with the first look, at step 100 or later,
    that comes after twice the steps of the last improvement, unless a multiplier is still falling. A quarter as many steps
    follow, in which the learning rate falls. Training takes 100 steps where nothing is set aside to look at, and with a
    warm-up or another decay, which need a known end.

    Attributes:
        steps: how many steps to train, instead of ending by itself.
        epochs: how many epochs to train, likewise; data set aside is then looked at after each.
        minutes: the longest time to train, whatever else ends it: the end begins after four fifths of it, and the step that
            exceeds it is the last one. How far that is depends on the machine, so that such a run cannot be repeated.
        batch: labelled examples in a step, and as many wild ones.
        lr: the learning rate mu_1 at the start.
        decay: how the learning rate falls: to 0 over the last fifth of the training (at the "end"), at the "milestones", or
            along a "cosine" to 0.
        milestones: the shares of the training after which it falls.
        factor: by what it is multiplied there.
        averaging: use the mean of the weights over the steps, in which step t counts as about t^8, so that about the last
            ninth matters. Before the end, it does what a falling learning rate does.
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
        normalisation: what BatchNorm normalises by where a batch has wild examples: its "running" statistics of ID
            data, which stay as they are; or the whole "batch", as in the released code.

    >>> Schedule().ends_itself, Schedule(steps=100).ends_itself
    (True, False)
    >>> Schedule(epochs=2).length(labelled=1000, wild=[300])
    (3, 6)
    >>> Schedule.as_published("stationary").length(labelled=25_000, wild=[17_500, 4_900])
    (38, 3800)
    """

    steps: int | None = None
    epochs: int | None = None
    minutes: float | None = None
    batch: int = 256
    lr: float = 0.03
    decay: Decay = "end"
    milestones: tuple[float, ...] = (0.5, 0.75, 0.9)
    factor: float = 0.5
    averaging: bool = True
    clip: float = 1.0
    warmup: float = 0.0
    augment: bool = False
    momentum: float = 0.9
    weight_decay: float = 5e-4
    duals: Literal["epoch", "step"] = "step"
    epoch: Literal["labelled", "shortest"] = "labelled"
    normalisation: Normalisation = "running"

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise InputError(f"a schedule has steps={quoted(self.steps)} and epochs={quoted(self.epochs)}: give one of them")
        not_negative = partial(check_number, expected="a positive number, or 0 for none", least=0)
        check_fields(
            self,
            "the schedule's ",
            steps=optional(check_count),
            epochs=optional(check_count),
            minutes=optional(partial(check_number, expected="a positive number", above=0)),
            batch=check_count,
            lr=partial(check_number, expected="a positive number", above=0, most=1e30),
            decay=partial(check_choice, choices=get_args(Decay)),
            milestones=_shares,
            factor=partial(check_number, expected="a positive number up to 1", above=0, most=1),
            averaging=check_flag,
            clip=partial(not_negative, finite=False),
            warmup=partial(check_number, expected="a share of the training, such as 0.1", least=0, below=1),
            augment=check_flag,
            momentum=partial(check_number, expected="a number from 0 to less than 1", least=0, below=1),
            weight_decay=partial(not_negative, most=1e6),
            duals=partial(check_choice, choices=("epoch", "step")),
            epoch=partial(check_choice, choices=("labelled", "shortest")),
            normalisation=partial(check_choice, choices=get_args(Normalisation)),
        )
        if self.batch < 2:
            raise InputError("the schedule's batch is 1: give at least 2 examples, for batch normalisation")

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
        same: dict[str, Any] = {
            "decay": "milestones",
            "averaging": False,
            "clip": 0.0,
            "duals": "epoch",
            "epoch": "shortest",
        }
        return cls(epochs=epochs, batch=128, lr=1e-3, **same, normalisation="batch")

    @classmethod
    def pretraining(cls, epochs: int = 100, lr: float = 0.1, warmup: float = 0.0, *, augment: bool = True) -> Self:
        """For a classifier from scratch: the recipe of the paper's WRN-40-2; augment is for images that may be flipped.

        >>> Schedule.pretraining().epochs, Schedule.pretraining().augment
        (100, True)
        """
        same: dict[str, Any] = {"batch": 128, "decay": "cosine", "averaging": False, "clip": 0.0}
        return cls(epochs=epochs, lr=lr, warmup=warmup, augment=augment, **same)

    @property
    def ends_itself(self) -> bool:
        """Whether data set aside decides how long to train."""
        return self.steps is None and self.epochs is None and self.decay == "end" and not self.warmup

    def fixed(self) -> Self:
        """The same, of 100 steps if it has no length: for where nothing is set aside to end it by.

        >>> Schedule().fixed().steps, Schedule(steps=7).fixed().steps
        (100, 7)
        """
        return replace(self, steps=SHORTEST) if self.steps is None and self.epochs is None else self

    def length(self, labelled: int, wild: list[int]) -> tuple[int, int]:
        """Steps in an epoch, and steps in all (at most), for so many labelled examples and wild pools of these lengths."""
        shortest = min([labelled, *wild]) if self.epoch == "shortest" else labelled
        per_epoch = max(1, shortest // self.batch)
        total = self.steps or per_epoch * (self.epochs or 0) or (LONGEST if self.ends_itself else SHORTEST)
        return per_epoch, total

    def is_look(self, step: int, per_epoch: int) -> bool:
        """Whether a row of the history, with a look at data set aside, comes after a step.

        >>> [step for step in range(1, 201) if Schedule().is_look(step, per_epoch=10)]
        [25, 35, 50, 70, 100, 141, 200]
        """
        if self.epochs is not None or self.duals == "epoch":
            return step % per_epoch == 0
        return step in LOOKS

    def looks(self, per_epoch: int, total: int) -> int:
        """How many looks there are in so many steps; the last step has one, too.

        >>> Schedule(epochs=3).looks(per_epoch=10, total=30), Schedule(steps=100).looks(per_epoch=10, total=100)
        (3, 5)
        """
        if self.epochs is not None or self.duals == "epoch":
            return -(-total // per_epoch)
        return sum(step < total for step in LOOKS) + 1

    def has_ended(self, step: int, improved: int) -> bool:
        """Whether the end of a training that ends by itself begins with a step, if `improved` is the last improvement's.

        >>> [Schedule().has_ended(step, improved=70) for step in (100, 141)]
        [False, True]
        """
        return self.ends_itself and step >= max(SHORTEST, 2 * improved)

    def lr_at(self, step: int, per_epoch: int, total: int) -> float:
        """The learning rate of a step; milestones are counted in whole epochs where the schedule is.

        >>> [round(Schedule(steps=100).lr_at(step, per_epoch=10, total=100), 4) for step in (0, 80, 90, 99)]
        [0.03, 0.03, 0.015, 0.0015]
        >>> schedule = Schedule(steps=100, decay="milestones")
        >>> [schedule.lr_at(step, per_epoch=10, total=100) for step in (0, 49, 50, 75, 99)]
        [0.03, 0.03, 0.015, 0.0075, 0.00375]
        """
        warm = self.warmup * total
        if step < warm:
            return self.lr * (step + 1) / (warm + 1)
        if self.decay == "cosine":
            return self.lr * (1 + math.cos(math.pi * (step - warm) / (total - warm))) / 2
        if self.decay == "end":
            return self.lr * min(1.0, (total - step) / (END * total))
        if self.epochs is not None:
            step, total = step // per_epoch, self.epochs
        return self.lr * self.factor ** sum(step >= int(share * total) for share in self.milestones)


def _shares(values: Any, name: str) -> tuple[float, ...]:
    """Shares of the training, in their order."""
    expected = "shares of the training, such as (0.5, 0.75)"
    if not isinstance(values, tuple | list):
        raise InputError(f"{name} is {quoted(values)}: give {expected}")
    return tuple(sorted(check_number(value, name, expected, above=0, below=1) for value in values))

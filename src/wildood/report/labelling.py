"""Which examples a person should look at first: those that one more label says the most about."""

from collections.abc import Iterable
from itertools import zip_longest
from typing import Literal

import numpy as np
import numpy.typing as npt

from wildood.experiments.evaluation import Decisions

Why = Literal["just rejected", "just accepted", "highest score"]
Choice = tuple[int, Why]  # the number of an example, and why it was chosen


def most_ood(decided: Decisions, top: int) -> list[Choice]:
    """The highest scores, the highest first.

    >>> most_ood(Decisions(np.array([1.0, 9.0, 5.0]), *[np.zeros(3)] * 3), top=2)
    [(1, 'highest score'), (2, 'highest score')]
    """
    return _named("highest score", np.argsort(-decided.scores, kind="stable"), top)


def borderline(decided: Decisions, top: int) -> list[Choice]:
    """The nearest above the threshold and the nearest below it, in turn.

    >>> margins = np.array([-9.0, 0.1, -0.2, 4.0])
    >>> borderline(Decisions(margins, np.zeros(4, int), margins > 0, margins), top=3)
    [(1, 'just rejected'), (2, 'just accepted'), (3, 'just rejected')]
    """
    return _in_turn([_just_rejected(decided, top), _just_accepted(decided, top)], top)


def label_first(decided: Decisions, top: int) -> list[Choice]:
    """What to label, the first first: the nearest above the threshold, the nearest below it, the highest, in turn.

    A label near the threshold says whether it lies right, and is worth most to the next fit; a few of the highest scores
    say whether what is found is unknown, or known data that has changed.

    >>> margins = np.array([-9.0, 0.1, -0.2, 4.0])
    >>> label_first(Decisions(margins, np.zeros(4, int), margins > 0, margins), top=3)
    [(1, 'just rejected'), (2, 'just accepted'), (3, 'highest score')]
    """
    return _in_turn([_just_rejected(decided, top), _just_accepted(decided, top), most_ood(decided, top)], top)


def _just_rejected(decided: Decisions, top: int) -> list[Choice]:
    order = np.argsort(decided.margins, kind="stable")
    return _named("just rejected", order[decided.rejected[order]], top)


def _just_accepted(decided: Decisions, top: int) -> list[Choice]:
    order = np.argsort(-decided.margins, kind="stable")
    return _named("just accepted", order[~decided.rejected[order]], top)


def _named(why: Why, numbers: npt.NDArray[np.intp], top: int) -> list[Choice]:
    return [(int(number), why) for number in numbers[:top]]


def _in_turn(queues: Iterable[list[Choice]], top: int) -> list[Choice]:
    """One of each queue after the other, none twice."""
    chosen: dict[int, Why] = {}
    for turn in zip_longest(*queues):
        for choice in turn:
            if choice is not None:
                chosen.setdefault(*choice)
    return list(chosen.items())[:top]

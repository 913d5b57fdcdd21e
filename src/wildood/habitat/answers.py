"""What is recorded of answers, and what is read back: columns of one length."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wildood.data.mapped import MappedSource
from wildood.errors import InputError, as_utf8

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.str_]
LONGEST_REQUEST = 200  # characters of the id of a request


@dataclass(frozen=True)
class Answers:
    """The answers to a batch of examples.

    Attributes:
        request: the id of each example's request.
        detector: the id of the detector that answered.
        score: higher is more unlike known data.
        class_: the class, also where the answer was "unknown".
        known: whether the score was accepted.
        p_value: NaN where the detector promises nothing.
        time: when each was answered; None: now.
        priority: a uniform draw for each, if it has been drawn; those with the smallest in a window are kept.
        shadow: the id of a challenger that scored the same examples, if one did; its scores, and what it accepted.
    """

    request: Sequence[str]
    detector: str
    score: npt.ArrayLike
    class_: npt.ArrayLike
    known: npt.ArrayLike
    p_value: npt.ArrayLike
    time: npt.ArrayLike | None = None
    priority: npt.ArrayLike | None = None
    shadow: str | None = None
    shadow_score: npt.ArrayLike | None = None
    shadow_known: npt.ArrayLike | None = None

    def __len__(self) -> int:
        return len(self.request)

    def take(self, rows: Integers, **changes: Any) -> "Answers":
        """Some of the answers, with changes.

        >>> Answers(["a", "b"], "d0001", [0.5, 2.5], [0, 1], [True, False], [0.7, 0.01]).take(np.array([1])).request
        ['b']
        """
        names = ("score", "class_", "known", "p_value", "time", "priority", "shadow_score", "shadow_known")
        some = {name: np.asarray(getattr(self, name))[rows] for name in names if getattr(self, name) is not None}
        return replace(self, **{"request": [self.request[row] for row in rows.tolist()], **some, **changes})

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The columns as the index names them; `time` and `priority` are NaN where they are still to be filled in."""
        count = len(self)
        has_shadow = self.shadow is not None
        return {
            "request": np.array([as_utf8(str(each))[:LONGEST_REQUEST] for each in self.request], object),
            "time": self._column("time", np.float64),
            "detector": np.full(count, self.detector, object),
            "score": self._column("score", np.float64),
            "class": self._column("class_", np.int64),
            "known": self._column("known", np.int64),
            "p_value": self._column("p_value", np.float64),
            "priority": self._column("priority", np.float64),
            "shadow": np.full(count, self.shadow, object),
            "shadow_score": self._column("shadow_score", np.float64) if has_shadow else np.full(count, None, object),
            "shadow_known": self._column("shadow_known", np.int64) if has_shadow else np.full(count, None, object),
        }

    def _column(self, name: str, dtype: Any) -> npt.NDArray[Any]:
        value = getattr(self, name)
        column = np.full(len(self), np.nan) if value is None else np.asarray(value)
        if column.shape != (len(self),):
            raise InputError(f"{name} has shape {column.shape}: give one value for each of {len(self)} answers")
        return column.astype(dtype)


class Counts(NamedTuple):
    """How many answers there were, how many said "unknown", and how many could not be recorded."""

    seen: int = 0
    unknown: int = 0
    dropped: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """The sums.

        >>> Counts(seen=3).plus(Counts(2, 1))
        Counts(seen=5, unknown=1, dropped=0)
        """
        return Counts(*map(sum, zip(self, other, strict=True)))


@dataclass(frozen=True)
class Rows:
    """Rows of the index in the order of their ids; see `Answers`.

    Attributes:
        has_example: whether the raw example is stored.
        shadow: "" where no challenger scored the example.
    """

    id: Integers
    time: Floats
    request: Texts
    detector: Texts
    score: Floats
    class_: Integers
    known: Flags
    p_value: Floats
    priority: Floats
    has_example: Flags
    shadow: Texts
    shadow_score: Floats
    shadow_known: Flags

    def __len__(self) -> int:
        return len(self.id)

    def at(self, places: Any) -> "Rows":
        """Those at some places."""
        return Rows(**{name: column[places] for name, column in vars(self).items()})


@dataclass(frozen=True)
class Windows:
    """Counters of all answers by windows of time, also of those that were not kept.

    Attributes:
        start: when each window begins, in seconds since 1970.
        seen: how many answers there were.
        unknown: how many of them said "unknown".
        sampled: how many were kept, before retention.
        dropped: how many could not be recorded in time.
        below: only answers with a smaller priority were kept.
    """

    start: Floats
    seen: Integers
    unknown: Integers
    sampled: Integers
    dropped: Integers
    below: Floats

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Judged:
    """Answers that a person has judged.

    Attributes:
        answer: the ids.
        answered: when they were given.
        time: when they were judged.
        who: by whom.
        class_: the class that was named; -1 for "unknown".
        known: the examples judged known, with their classes as labels; None if there are none.
        unknown: the examples judged unknown; None if there are none.
    """

    answer: Integers
    answered: Floats
    time: Floats
    who: Texts
    class_: Integers
    known: MappedSource | None
    unknown: MappedSource | None

    def __len__(self) -> int:
        return len(self.answer)

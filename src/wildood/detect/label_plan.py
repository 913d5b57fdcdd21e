"""Which wild examples a person should label first, if only so many can be: the search of AHA (Bai et al., NeurIPS 2024)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from wildood.data.validation import rows_of
from wildood.data.wild import as_wild
from wildood.detect.detector import Detector, check_detector
from wildood.detect.split import check_seed
from wildood.errors import InputError
from wildood.settings import check_count


class LabelPlan:
    """Asks for one label after the other; each answer decides what is asked next.

    The first half of the budget searches, among the examples in the order of their scores, for the place above which most
    are unknown and below which most are known. It keeps an interval of places and asks for a random one in it. A place costs
    as many errors as there are known answers above it and unknown ones below. After each answer, the interval loses a share
    at the end that costs more errors. The second half asks for the examples nearest to the middle of what is left, above and
    below in turn.

    Attributes:
        budget: how many examples are asked for.
        numbers: those that were answered, in this order.
        is_ood: the answers to them.

    >>> scores = np.arange(1000.0)
    >>> plan = LabelPlan(scores, budget=60)
    >>> for number in plan:
    ...     plan.answer(is_ood=bool(scores[number] > 800))
    >>> bool(abs(np.median(plan.numbers[30:]) - 800) < 60), len(plan.is_ood)
    (True, 60)
    """

    def __init__(self, scores: npt.ArrayLike, budget: int, seed: int = 0) -> None:
        self._order = np.argsort(np.asarray(scores), kind="stable")
        count = len(self._order)
        self.budget = min(budget, count)
        self._answers: dict[int, bool] = {}  # by the place in the order
        self._low, self._high = 0.0, count - 1.0
        self._search = self.budget // 2
        self._kept = min(1.0, (self._search / count) ** (1 / self._search)) if self._search else 1.0  # of the interval
        self._rng = np.random.default_rng(seed)
        self._asked: int | None = None

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The examples that were answered."""
        return self._order[np.fromiter(self._answers, np.int64)].astype(np.int64)

    @property
    def is_ood(self) -> npt.NDArray[np.bool_]:
        """The answers to `numbers`."""
        return np.fromiter(self._answers.values(), bool)

    def __iter__(self) -> Iterator[int]:
        """The number of the next example to label, until the budget is spent; `answer` comes before the next one."""
        while len(self._answers) < self.budget:
            if self._asked is None:
                self._asked = self._next()
            asked = self._asked
            yield int(self._order[asked])
            if self._asked == asked:
                raise InputError(f"example {self._order[asked]} has no answer: call plan.answer(is_ood=...) first")

    def answer(self, *, is_ood: bool) -> None:
        """The person's answer to the example that was asked for last."""
        if self._asked is None:
            raise InputError("no example was asked for: take the next number of the plan first")
        self._answers[self._asked] = bool(is_ood)
        self._asked = None
        if len(self._answers) > self._search:
            return
        lost, costs = (1 - self._kept) * (self._high - self._low), [self._errors(end) for end in (self._low, self._high)]
        shares = (0.5, 0.5) if costs[0] == costs[1] else (1.0, 0.0) if costs[0] > costs[1] else (0.0, 1.0)
        self._low, self._high = self._low + lost * shares[0], self._high - lost * shares[1]

    def _errors(self, place: float) -> int:
        """Known answers above a place, and unknown ones below."""
        return sum((answered > place) != is_ood for answered, is_ood in self._answers.items())

    def _next(self) -> int:
        if len(self._answers) < self._search:
            inside = np.arange(int(np.ceil(self._low)), int(self._high) + 1)
            free = inside[~np.isin(inside, list(self._answers))]
            if len(free):
                return int(self._rng.choice(free))
        places = np.arange(len(self._order))
        free = places[~np.isin(places, list(self._answers))]
        away = free - (self._low + self._high) / 2
        above = len(self._answers) % 2 == 0
        side = free[away >= 0] if above else free[away < 0]
        side = side if len(side) else free
        return int(side[np.argmin(np.abs(side - (self._low + self._high) / 2))])


def label_plan(detector: Detector, wild: Any, budget: int, seed: int = 0) -> LabelPlan:
    """Which of these wild examples a person should label, if `budget` of them can be: as many known as unknown, nearly.

    Most wild examples are known, and most unknown ones that a random sample would hold are easy. So the plan looks for the
    score at which known and unknown examples are mixed, and asks for examples around it. `fit(..., judged=...)` learns from
    the answers.

    Args:
        detector: what `fit`, `posthoc` or `load` returned; its scores put the examples in order.
        wild: unlabelled traffic.
        budget: how many labels there can be.
        seed: of the random examples in the search.

    >>> import torch, wildood
    >>> x, model = np.random.default_rng(0).normal(size=(300, 1)).astype("float32"), torch.nn.Linear(1, 2)
    >>> detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=x)
    >>> plan = wildood.label_plan(detector, x, budget=3)
    >>> for number in plan:
    ...     plan.answer(is_ood=bool(x[number, 0] > 1))
    >>> judged = x[plan.numbers], plan.is_ood
    >>> len(judged[0]), len(judged[1])
    (3, 3)
    """
    check_detector(detector)
    seed, budget = check_seed(seed), check_count(budget, "budget")
    traffic = as_wild(rows_of(wild, detector.classifier.spec, "wild", labels=False)).whole(seed)
    scores = detector.score(traffic)
    return LabelPlan(np.where(np.isfinite(scores), scores, np.inf), budget, seed)

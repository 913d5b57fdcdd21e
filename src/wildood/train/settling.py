"""When a run in rounds has nothing more to gain."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass
class Settling:
    """Done after a round in which wild acceptance has not fallen, and no constraint that is violated has come closer.

    >>> settling = Settling()
    >>> settling.see({"c": 0.5}, tol=0.1, fell=False); settling.done    # it may yet be met
    False
    >>> settling.see({"c": 0.5}, tol=0.1, fell=False); settling.done
    True
    """

    violation: float = math.inf
    done: bool = False

    def see(self, constraints: Mapping[str, Tensor | float], tol: float, *, fell: bool) -> None:
        """One more round: its constraints, and whether wild acceptance fell."""
        violation = max([0.0, *(float(c) - tol for c in constraints.values())])
        came_closer = violation > 0 if math.isinf(self.violation) else violation < self.violation
        self.done = not fell and not came_closer
        self.violation = violation

"""When a run in rounds has nothing more to gain."""

import math
from dataclasses import dataclass


@dataclass
class Settling:
    """Done after a round in which wild acceptance has not fallen and no violated constraint has come closer.

    What it has `strayed` from is a constraint, if the last round ends further from it: such a round is not to be kept.

    >>> settling = Settling()
    >>> settling.see([0.5], tol=0.1, fell=False); settling.done    # the start
    False
    >>> settling.see([0.2], tol=0.1, fell=False); settling.done    # may yet be met
    False
    >>> settling.see([0.3], tol=0.1, fell=False); settling.done, settling.strayed
    (True, True)
    """

    violation: float = math.inf
    done: bool = False
    strayed: bool = False

    def see(self, constraints: list[float], tol: float, *, fell: bool) -> None:
        """The start, or one more round: the constraints on data set aside, and whether wild acceptance fell."""
        violation = max([0.0, *(c - tol for c in constraints)])
        self.done = not fell and violation >= self.violation
        self.strayed = self.done and violation > self.violation
        self.violation = violation

"""When a run in rounds has nothing more to gain."""

from collections.abc import Mapping
from dataclasses import dataclass

Constraints = Mapping[str, float]


@dataclass
class EarlyStopping:
    """Done after a round in which wild acceptance has not fallen and the most violated constraint has come no closer.

    If that one is violated more than before, the run has `strayed`, and the last round is not to be kept. There is no
    margin: a difference by chance costs one round more, or a round that has not been shown to improve anything.

    >>> settling = EarlyStopping()
    >>> settling.see({"c": 0.5}, tol=0.1, fell=False); settling.done    # the start
    False
    >>> settling.see({"c": 0.2}, tol=0.1, fell=False); settling.done    # may yet be met
    False
    >>> settling.see({"c": 0.3}, tol=0.1, fell=False); settling.done, settling.strayed
    (True, True)
    """

    violation: float | None = None
    done: bool = False
    strayed: bool = False

    def see(self, constraints: Constraints, tol: float, *, fell: bool) -> None:
        """The start, or one more round: the constraints on data set aside, and whether wild acceptance fell."""
        violation = max([0.0, *(c - tol for c in constraints.values())])
        if self.violation is not None:
            self.done = not fell and violation >= self.violation
            self.strayed = self.done and violation > self.violation
        self.violation = violation

"""What a directory of runs holds at one moment: results, failures, and how many runs are still to end."""

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from wildood.errors import InputError
from wildood.experiments.store import SCORES, Failure, Result, RunStore, Scores
from wildood.experiments.tables import ResultsTable, result_tables

TITLE = "What was run, and what it found"  # of the page
LISTED = 3  # folders that are left out, or reasons for it, that are named in a sentence


@dataclass(frozen=True)
class Runs:
    """The runs of a store, each looked at once, so that one that ends meanwhile is not counted twice.

    Attributes:
        store: where they are.
        results: of those that are done.
        failures: of those that failed.
        unfinished: how many are under way, or were cut off.
        left_out: the folders that could not be read as runs, and why.
    """

    store: RunStore
    results: tuple[Result, ...]
    failures: tuple[Failure, ...]
    unfinished: int
    left_out: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, store: RunStore) -> Self:
        """Read a store; one without anything to show is refused."""
        if not store.root.is_dir():
            raise InputError(f"{store.root} is no directory: give the one that wildood reproduce wrote its runs to")
        held = store.contents()
        unfinished = len(held.unfinished)
        found = cls(store, held.results, held.failures, unfinished, held.left_out)
        if not (held.results or held.failures or unfinished):
            if held.left_out:
                raise InputError(f"{store.root} holds no runs that can be read: {found.told_left_out()}")
            raise InputError(f"{store.root} holds no runs: give the directory that wildood reproduce wrote them to")
        if not (held.results or held.failures):
            count = "one run that has" if unfinished == 1 else f"{unfinished} runs that have"
            raise InputError(f"{store.root} holds {count} not ended yet: call report again when one has")
        return found

    @cached_property
    def tables(self) -> list[ResultsTable]:
        """The tables that the runs make."""
        return result_tables(self.results, self.failures)

    @cached_property
    def by_name(self) -> dict[str, Result]:
        """The results by the names of their runs."""
        return {result.experiment.name: result for result in self.results}

    def scores(self, result: Result) -> Scores:
        """The scores of a run; nothing if their file is missing or damaged."""
        if not zipfile.is_zipfile(self.store.place(result.experiment) / SCORES):  # missing, or cut off
            return {}
        try:
            return self.store.scores(result.experiment)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
            return {}

    def told(self) -> str:
        """How many there are, as a sentence.

        >>> from pathlib import Path
        >>> Runs(RunStore(Path("runs")), (), (), 2).told()
        '2 runs: none is done, none failed, 2 have not ended.'
        >>> Runs(RunStore(Path("runs")), (), (), 2, (("a1", "it is not TOML"),)).told()
        '2 runs: none is done, none failed, 2 have not ended; 1 folder left out.'
        """
        total = len(self.results) + len(self.failures) + self.unfinished
        runs = "1 run" if total == 1 else f"{total:,} runs"
        parts = [_are(len(self.results), "done")]
        parts.append(f"{len(self.failures):,} failed" if self.failures else "none failed")
        if self.unfinished:
            parts.append(f"{self.unfinished:,} {'has' if self.unfinished == 1 else 'have'} not ended")
        folders = _folders(len(self.left_out))  # any of them may have failed, too
        left_out = f"; {folders} left out" if self.left_out else ""
        return f"{runs}: {', '.join(parts)}{left_out}."

    def left_out_by_reason(self) -> dict[str, list[str]]:
        """The folders that were left out, by why.

        >>> from pathlib import Path
        >>> Runs(RunStore(Path("runs")), (), (), 2, (("a", "no"), ("b", "why"), ("c", "no"))).left_out_by_reason()
        {'no': ['a', 'c'], 'why': ['b']}
        """
        reasons: dict[str, list[str]] = {}
        for name, why in self.left_out:
            reasons.setdefault(why, []).append(name)
        return reasons

    def told_left_out(self) -> str:
        """Which folders were left out, and why, each reason once; empty if none was.

        >>> from pathlib import Path
        >>> Runs(RunStore(Path("runs")), (), (), 2, (("a1", "it is not TOML"),)).told_left_out()
        '1 folder left out: a1: it is not TOML'
        """
        told = [f"{_some(names)}: {why}" for why, names in self.left_out_by_reason().items()]
        return f"{_folders(len(self.left_out))} left out: {_some(told, '; ')}" if told else ""


def _folders(count: int) -> str:
    return "1 folder" if count == 1 else f"{count:,} folders"


def _some(texts: Sequence[str], mark: str = ", ") -> str:
    """The first few.

    >>> _some(list("abcd"))
    'a, b, c, and 1 more'
    """
    more = [f"and {len(texts) - LISTED:,} more"] if len(texts) > LISTED else []
    return mark.join([*texts[:LISTED], *more])


def _are(count: int, what: str) -> str:
    return f"{'none is' if count == 0 else '1 is' if count == 1 else f'{count:,} are'} {what}"

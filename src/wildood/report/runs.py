"""What a directory of runs holds at one moment: results, failures, and how many runs are still to end."""

import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from wildood.errors import InputError
from wildood.experiments.store import SCORES, Failure, Result, RunStore, Scores
from wildood.experiments.tables import ResultsTable, result_tables

TITLE = "What was run, and what it found"  # of the page
LISTED = 3  # folders that are left out and named in a sentence


@dataclass(frozen=True)
class Runs:
    """The runs of a store, each looked at once, so that one that ends meanwhile is not counted twice.

    Attributes:
        store: where they are.
        results: of those that are done.
        failures: of those that failed.
        unfinished: how many are under way, or were cut off.
        left_out: the folders that cannot be read as runs, and why.
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
        results, failures, unfinished = [], [], 0
        for experiment in store.experiments():
            if store.is_done(experiment):
                results.append(store.result(experiment))
            elif (failure := store.failure(experiment)) is not None:
                failures.append(failure)
            else:
                unfinished += 1
        found = cls(store, tuple(results), tuple(failures), unfinished, tuple(store.left_out()))
        if not (results or failures or unfinished):
            if found.left_out:
                raise InputError(f"{store.root} holds no runs that can be read ({found.told_left_out()}): run them again")
            raise InputError(f"{store.root} holds no runs: give the directory that wildood reproduce wrote them to")
        if not (results or failures):
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
        """
        total = len(self.results) + len(self.failures) + self.unfinished
        runs = "1 run" if total == 1 else f"{total:,} runs"
        parts = [_are(len(self.results), "done")]
        parts.append(f"{len(self.failures):,} failed" if self.failures else "none failed")
        if self.unfinished:
            parts.append(f"{self.unfinished:,} {'has' if self.unfinished == 1 else 'have'} not ended")
        return f"{runs}: {', '.join(parts)}."

    def told_left_out(self) -> str:
        """Which folders were left out, and why; empty if none was.

        >>> from pathlib import Path
        >>> Runs(RunStore(Path("runs")), (), (), 2, (("a1", "it is not TOML"),)).told_left_out()
        '1 folder left out: a1: it is not TOML'
        """
        count = len(self.left_out)
        named = [f"{name}: {why}" for name, why in self.left_out[:LISTED]]
        more = [f"and {count - LISTED:,} more"] if count > LISTED else []
        return f"{count:,} {'folder' if count == 1 else 'folders'} left out: {'; '.join([*named, *more])}" if count else ""


def _are(count: int, what: str) -> str:
    return f"{'none is' if count == 0 else '1 is' if count == 1 else f'{count:,} are'} {what}"

"""A directory of runs: a folder for each experiment, named by its hash, that holds its result or why there is none."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import numpy.typing as npt

from wildood.data.files import write_array_file, write_atomically
from wildood.data.locks import locked
from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.results import AGAIN, Failure, OnOod, Result, read_failure, read_result, result_json
from wildood.train.progress import logger

__all__ = ["Failure", "OnOod", "Result", "RunStore", "Scores"]

Scores = Mapping[str, npt.NDArray[np.float32]]
TOML, RESULT, FAILURE, SCORES, LOCK = "experiment.toml", "result.json", "failure.json", "scores.npz", "lock"
ATTEMPTS = "attempts"  # how often a run was begun and not ended
KNOWN = "id"  # the ID test set among a run's scores
DAMAGED = ".damaged"  # behind the name of a file that could not be read, and is kept


@dataclass(frozen=True)
class RunStore:
    """The runs below a directory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     store, energy = RunStore(Path(place)), Experiment("digits", ("digits",), method="energy")
    ...     store.add(Result(energy, {}, 0.9, 0.05, 100), {"id": np.zeros(3, "float32")})
    ...     store.result(energy).accuracy, [len(store.results()), len(store.failures())], store.scores(energy)["id"].shape
    (0.9, [1, 0], (3,))
    """

    root: Path

    def place(self, experiment: Experiment) -> Path:
        """The folder of a run."""
        return self.root / experiment.name

    def check_locks(self) -> None:
        """Refuse a directory on a file system that knows no locks: two processes could not keep apart there."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=self.root, prefix=".lock-") as file, locked(Path(file.name)) as mine:
                known = mine
        except OSError as error:
            raise InputError(f"{self.root} cannot be written to ({error.strerror}): give another --runs") from error
        if not known:
            raise InputError(f"{self.root} is on a file system without locks: give --runs on one that has them")

    @contextmanager
    def claimed(self, experiment: Experiment) -> Iterator[bool]:
        """Take a run for oneself, which gives False if another process has it; a process that ends gives it back."""
        place = self.place(experiment)
        place.mkdir(parents=True, exist_ok=True)
        with locked(place / LOCK) as mine:
            if mine:
                self._mend(experiment)
            yield mine

    def training(self, experiment: Experiment) -> Path:
        """Where a training keeps its checkpoints until it is done."""
        return self.place(experiment) / "training"

    def add(self, result: Result, scores: Scores) -> None:
        """Write what a run found, whole or not at all; its checkpoints go."""
        place = self.place(result.experiment)
        write_atomically(place / TOML, result.experiment.to_toml().encode())
        write_array_file(place / SCORES, **scores)
        write_atomically(place / RESULT, result_json(result).encode())  # last: now it is done
        (place / FAILURE).unlink(missing_ok=True)
        self.clear_training(result.experiment)

    def add_failure(self, failure: Failure) -> None:
        """Write why a run has no result."""
        content = {"error": failure.error, "traceback": failure.traceback, "about": failure.about}
        write_atomically(self.place(failure.experiment) / FAILURE, (json.dumps(content, indent=1) + "\n").encode())

    def forget_failure(self, experiment: Experiment) -> None:
        """Let a run that failed, or whose process died again and again, be tried again."""
        for name in (FAILURE, ATTEMPTS):
            (self.place(experiment) / name).unlink(missing_ok=True)

    @contextmanager
    def attempt(self, experiment: Experiment) -> Iterator[int]:
        """Count how often a run is begun and its process dies before it ends; gives the number of those before."""
        path = self.place(experiment) / ATTEMPTS
        died = len(path.read_bytes()) if path.exists() else 0
        with path.open("ab") as file:
            file.write(b".")
        try:
            yield died
        finally:
            path.unlink(missing_ok=True)

    def clear_training(self, experiment: Experiment) -> None:
        """Remove a run's checkpoints."""
        shutil.rmtree(self.training(experiment), ignore_errors=True)

    def is_done(self, experiment: Experiment) -> bool:
        """Whether a run has a result, and both its files can be read: one that is damaged is to be run again."""
        try:
            self.result(experiment)
            self._check_toml(experiment)
        except (FileNotFoundError, InputError):
            return False
        return True

    def failure(self, experiment: Experiment) -> Failure | None:
        """Why a run has no result, or None if it has not failed."""
        if self.is_done(experiment):
            return None
        try:
            return read_failure(experiment, self.place(experiment) / FAILURE)
        except FileNotFoundError:
            return None

    def result(self, experiment: Experiment) -> Result:
        """What a run found."""
        return read_result(experiment, self.place(experiment) / RESULT)

    def scores(self, experiment: Experiment) -> dict[str, npt.NDArray[np.float32]]:
        """The scores of the test examples: of each OOD set by its name, and of the ID set as "id"."""
        with (self.place(experiment) / SCORES).open("rb") as file, np.load(file) as arrays:
            return dict(arrays)

    def found(self) -> dict[str, Result | Failure | Experiment | str]:
        """For each folder what it holds: a result, a failure, a run that has not ended, or why it cannot be read."""
        folders = {file.parent for name in (TOML, RESULT, FAILURE) for file in self.root.glob(f"*/{name}")}
        return {folder.name: self._held(folder) for folder in sorted(folders)}

    def left_out(self) -> list[tuple[str, str]]:
        """The folders that cannot be read as runs, and why."""
        return [(name, each) for name, each in self.found().items() if isinstance(each, str)]

    def results(self) -> list[Result]:
        """Every result of the directory."""
        return [each for each in self.found().values() if isinstance(each, Result)]

    def failures(self) -> list[Failure]:
        """Every run of the directory that failed and has no result."""
        return [each for each in self.found().values() if isinstance(each, Failure)]

    def _held(self, folder: Path) -> Result | Failure | Experiment | str:
        try:
            experiment = _read_toml(folder / TOML)
            if experiment.name != folder.name:
                return f"another version of wildood made it, and what decides its outcome has changed since: {AGAIN}"
            try:
                return self.result(experiment)
            except FileNotFoundError:
                return self.failure(experiment) or experiment
        except InputError as error:
            return str(error)
        except OSError as error:
            return f"{Path(error.filename or folder).name} cannot be read ({error.strerror}): make it readable"

    def _check_toml(self, experiment: Experiment) -> None:
        if _read_toml(self.place(experiment) / TOML).name != experiment.name:
            raise InputError(f"{TOML} is that of another run: {AGAIN}")

    def _mend(self, experiment: Experiment) -> None:
        """Keep what cannot be read under another name, and write what the run is; for the one who has claimed it."""
        place = self.place(experiment)
        checks: tuple[tuple[str, Callable[[Experiment], object]], ...] = ((RESULT, self.result), (TOML, self._check_toml))
        for name, check in checks:
            if (place / name).exists():
                try:
                    check(experiment)
                except InputError:
                    kept = _free(place / f"{name}{DAMAGED}")
                    (place / name).replace(kept)
                    logger.warning("%s cannot be read: it is kept as %s, and made again", place / name, kept.name)
        if not (place / TOML).exists():
            write_atomically(place / TOML, experiment.to_toml().encode())


def _read_toml(path: Path) -> Experiment:
    try:
        return Experiment.from_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path.name} is not there: {AGAIN}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} cannot be read ({error}): {AGAIN}") from error
    except InputError as error:
        is_own = "--method" in str(error)  # a method of the user's own that is not named: nothing is damaged
        raise InputError(f"{path.name}: {error}" + ("" if is_own else f"; {AGAIN}")) from error


def _free(path: Path) -> Path:
    """The path, or with a number behind it if something has that name."""
    numbered = (path.with_name(f"{path.name}{number}") for number in count(2))
    return path if not path.exists() else next(each for each in numbered if not each.exists())

"""A directory of runs: a folder for each experiment, named by its hash, that holds its result or why there is none."""

import json
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wildood.data.files import locked, write_array_file, write_atomically
from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.results import AGAIN, Failure, Result, read_failure, read_result, result_json
from wildood.methods.shipped import METHODS
from wildood.scores.shipped import NAMES as SCORE_NAMES
from wildood.train.progress import logger

Scores = Mapping[str, npt.NDArray[np.float32]]
TOML, RESULT, FAILURE, SCORES, LOCK = "experiment.toml", "result.json", "failure.json", "scores.npz", "lock"
ATTEMPTS = "attempts"  # how often a run was begun and not ended
KNOWN = "id"  # the ID test set among a run's scores
DAMAGED = ".damaged"  # behind the name of a file that could not be read, and is kept
OTHER = "is that of another run, or of another version of wildood: remove the folder"


class Found(NamedTuple):
    """What a directory of runs holds at one moment.

    Attributes:
        results: of the runs that are done.
        failures: of those that failed and have no result.
        unfinished: those that are under way, or were cut off.
        left_out: the folders that cannot be read as runs, and why.
    """

    results: tuple[Result, ...]
    failures: tuple[Failure, ...]
    unfinished: tuple[Experiment, ...]
    left_out: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RunStore:
    """The runs below a directory.

    >>> import tempfile
    >>> from wildood.experiments.results import OnOod
    >>> energy = Experiment("digits", ("digits",), method="energy")
    >>> result = Result(energy, {"digits": OnOod(0.2, 0.01, 0.9, 0.9, 0.9, 0.1, 100)}, 0.9, 0.05, 100)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     store = RunStore(Path(place))
    ...     store.add(result, {"id": np.zeros(3, "float32")})
    ...     store.result(energy).accuracy, [len(each) for each in store.found()], store.scores(energy)["id"].shape
    (0.9, [1, 0, 0, 0], (3,))
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
        """Whether a run has a result that can be read: one that is damaged is to be run again."""
        try:
            self.result(experiment)
        except (FileNotFoundError, InputError):
            return False
        except OSError as error:  # which no run would mend
            raise InputError(f"{self.place(experiment) / RESULT} {_why(error)}") from error
        return True

    def mend(self, experiments: Sequence[Experiment]) -> None:
        """Write the file of each experiment that is done and whose file is damaged or gone: the result stays."""
        damaged = [each for each in experiments if self.is_done(each) and not self._has_toml(each)]
        if damaged:
            self.check_locks()
        for each in damaged:
            with self.claimed(each):  # whoever takes a run mends it
                pass

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

    def found(self) -> Found:
        """What the folders hold; one that is no run is left out by its name."""
        folders = {file.parent for name in (TOML, RESULT, FAILURE) for file in self.root.glob(f"*/{name}")}
        held = {folder.name: self._held(folder) for folder in sorted(folders)}
        return Found(
            tuple(each for each in held.values() if isinstance(each, Result)),
            tuple(each for each in held.values() if isinstance(each, Failure)),
            tuple(each for each in held.values() if isinstance(each, Experiment)),
            tuple((name, each) for name, each in held.items() if isinstance(each, str)),
        )

    def _held(self, folder: Path) -> Result | Failure | Experiment | str:
        try:
            experiment = _read_toml(folder / TOML)
            try:
                return self.result(experiment)
            except FileNotFoundError:
                return self.failure(experiment) or experiment
        except InputError as error:
            return str(error)
        except OSError as error:
            return f"{Path(error.filename or folder).name} {_why(error)}"

    def _has_toml(self, experiment: Experiment) -> bool:
        try:
            _read_toml(self.place(experiment) / TOML)
        except InputError:
            return False
        return True

    def _mend(self, experiment: Experiment) -> None:
        """Keep what cannot be read under another name, and write what the run is; for the one who has claimed it."""
        place = self.place(experiment)
        readers: dict[str, Callable[[Path], object]] = {RESULT: partial(read_result, experiment), TOML: _read_toml}
        for name, read in readers.items():
            if (place / name).exists():
                try:
                    read(place / name)
                except InputError:
                    kept = _free(place / f"{name}{DAMAGED}")
                    (place / name).replace(kept)
                    logger.warning("%s cannot be read: it is kept as %s, and made again", place / name, kept.name)
        if not (place / TOML).exists():
            write_atomically(place / TOML, experiment.to_toml().encode())


def _read_toml(path: Path) -> Experiment:
    """The experiment of a run; that of another run, whose name its folder does not have, is refused."""
    try:
        text = path.read_text(encoding="utf-8")
        experiment = Experiment.from_toml(text)
    except FileNotFoundError:
        raise InputError(f"{path.name} is not there: {AGAIN}") from None
    except OSError as error:
        raise InputError(f"{path.name} {_why(error)}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} cannot be read ({error}): {AGAIN}") from error
    except InputError as error:
        raise InputError(f"{path.name}: {error}{_advice(text)}") from error
    if experiment.name != path.parent.name:
        raise InputError(f"{path.name} {OTHER}")
    return experiment


def _advice(text: str) -> str:
    """What to do about a text that is no experiment: nothing where it only names a method of the user's own."""
    try:
        method = tomllib.loads(text).get("method")
    except tomllib.TOMLDecodeError:
        return f"; {AGAIN}"
    is_own = isinstance(method, str) and ":" in method and method not in {**METHODS, **SCORE_NAMES}
    return "" if is_own else f"; {AGAIN} if another version of wildood made it"


def _why(error: OSError) -> str:
    return f"cannot be read ({error.strerror}): make it readable, or remove the folder"


def _free(path: Path) -> Path:
    """The path, or with a number behind it if something has that name."""
    numbered = (path.with_name(f"{path.name}{number}") for number in count(2))
    return path if not path.exists() else next(each for each in numbered if not each.exists())

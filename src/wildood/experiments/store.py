"""Results of runs, and the directory that keeps them: a folder for each run, named by the hash of its experiment."""

import json
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from functools import partial
from itertools import chain, count
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import numpy.typing as npt

from wildood.data.files import locked, write_array_file, write_atomically
from wildood.data.schema import SchemaError, check, parse
from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.methods.shipped import METHODS
from wildood.scores.shipped import NAMES as SCORE_NAMES
from wildood.train.history import Row
from wildood.train.progress import logger

Scores = Mapping[str, npt.NDArray[np.float32]]
TOML, RESULT, FAILURE, SCORES, LOCK = "experiment.toml", "result.json", "failure.json", "scores.npz", "lock"
ATTEMPTS = "attempts"  # a file with a byte for each attempt that has not ended
KNOWN = "id"  # the key of the ID test set among a run's scores
DAMAGED = ".damaged"  # suffix of an unreadable file that is kept
JSON_TYPES = {"tests": dict[str, dict[str, Any]], "history": list[dict[str, float | bool]]}  # where fields have others
RUN_AGAIN = "run its wildood reproduce again, or remove the folder"
OTHER_RUN = "is that of another run, or of another version of wildood: remove the folder"


@dataclass(frozen=True)
class OodMetrics:
    """The metrics of a detector on one OOD test set, as shares from 0 to 1.

    Attributes:
        fpr95: the share accepted when 95 % of the ID test examples are accepted (ID is the positive class).
        fpr95_error: its standard error for this one run, from the number of examples.
        aupr_in, aupr_out: the average precision with ID, with OOD as the positive class.
        accepted: the share accepted at the deployed threshold, which was calibrated on the holdout.
    """

    fpr95: float
    fpr95_error: float
    auroc: float
    aupr_in: float
    aupr_out: float
    accepted: float
    examples: int


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        tests: the metrics on each OOD test set, by its name in the experiment.
        accuracy: of the classifier on the ID test examples, rejected or not.
        false_alarms: the share of the ID test examples that is rejected at the deployed threshold.
        examples: how many ID test examples there are.
        acceptance: the share of the validation data accepted at its ID threshold: of wild data (honest) or of OOD data
            (as published). It chooses among settings; None where it was not measured.
        accuracy_lost: on the holdout, against the starting classifier.
        chosen: the settings that the score chose for itself, if any.
        seconds: since the run was last begun or resumed, without what it shares with other runs.
        about: how the result was made: versions, hardware, split.
    """

    experiment: Experiment
    tests: Mapping[str, OodMetrics]
    accuracy: float
    false_alarms: float
    examples: int
    acceptance: float | None = None
    accuracy_lost: float = 0.0
    chosen: Mapping[str, Any] | None = None
    history: Sequence[Row] = ()
    seconds: float = 0.0
    about: Mapping[str, Any] | None = None

    def to_json(self) -> str:
        """As JSON, without the experiment, which has a file of its own."""
        content = {name: value for name, value in vars(self).items() if name != "experiment"}
        return json.dumps({**content, "tests": {name: vars(each) for name, each in self.tests.items()}}, indent=1) + "\n"

    @classmethod
    def from_json(cls, experiment: Experiment, text: str) -> "Result":
        """The result in a JSON text; unknown names, of another version of wildood, are ignored."""
        try:
            values = _known_fields(cls, parse(text.encode(), dict[str, Any]))
            tests = {
                name: OodMetrics(**_known_fields(OodMetrics, each, f"tests.{name}."))
                for name, each in values["tests"].items()
            }
        except SchemaError as error:
            raise InputError(str(error)) from error
        if set(tests) != set(experiment.test):
            tested = ", ".join(tests) or "nothing"
            raise InputError(f"it has tests on {tested}, its experiment on {', '.join(experiment.test)}")
        return cls(experiment, **values | {"tests": tests})


@dataclass(frozen=True)
class Failure:
    """A run that ended with an error: the error in one line, its traceback, and versions, hardware and time."""

    experiment: Experiment
    error: str
    traceback: str
    about: Mapping[str, Any] | None = None


RunOutcome = Result | Failure


def _known_fields(cls: type, content: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The values of a dataclass in a JSON object, checked by their annotations, without the experiment."""
    hints, values = get_type_hints(cls) | JSON_TYPES, {}
    for each in fields(cls):
        if each.name in content:
            values[each.name] = check(content[each.name], hints[each.name], path + each.name)
        elif each.default is MISSING and each.name != "experiment":
            raise SchemaError(f"{path}{each.name} is missing")
    return values


class StoreContents(NamedTuple):
    """The runs of a directory: finished, failed, under way or interrupted; and unreadable folders, with the reason."""

    results: tuple[Result, ...]
    failures: tuple[Failure, ...]
    unfinished: tuple[Experiment, ...]
    left_out: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RunStore:
    """The runs below a directory."""

    root: Path

    def place(self, experiment: Experiment) -> Path:
        """The folder of a run."""
        return self.root / experiment.name

    def training(self, experiment: Experiment) -> Path:
        """The folder of a run's checkpoints."""
        return self.place(experiment) / "training"

    def check_locks(self) -> None:
        """Raise an error if the file system has no locks: two processes could then do the same run."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=self.root, prefix=".lock-") as file, locked(Path(file.name)) as mine:
                has_locks = mine
        except OSError as error:
            raise InputError(f"{self.root} cannot be written to ({error.strerror}): give another --runs") from error
        if not has_locks:
            raise InputError(f"{self.root} is on a file system without locks: give --runs on one that has them")

    @contextmanager
    def claimed(self, experiment: Experiment) -> Iterator[bool]:
        """Lock a run; gives False if another process has it. The lock goes with its process.

        Unreadable files of the run are renamed, and its experiment is written.
        """
        place = self.place(experiment)
        place.mkdir(parents=True, exist_ok=True)
        with locked(place / LOCK) as mine:
            if mine:
                self._repair(experiment)
            yield mine

    def add(self, result: Result, scores: Scores) -> None:
        """Write the result of a run atomically, and remove its checkpoints."""
        place = self.place(result.experiment)
        write_atomically(place / TOML, result.experiment.to_toml().encode())
        write_array_file(place / SCORES, **scores)
        write_atomically(place / RESULT, result.to_json().encode())  # last: it marks the run as done
        (place / FAILURE).unlink(missing_ok=True)
        self.clear_training(result.experiment)

    def add_failure(self, failure: Failure) -> None:
        """Write why a run has no result."""
        content = {"error": failure.error, "traceback": failure.traceback, "about": failure.about}
        write_atomically(self.place(failure.experiment) / FAILURE, (json.dumps(content, indent=1) + "\n").encode())

    def forget_failure(self, experiment: Experiment) -> None:
        """Let a run that failed, or whose process died repeatedly, be tried again."""
        for name in (FAILURE, ATTEMPTS):
            (self.place(experiment) / name).unlink(missing_ok=True)

    @contextmanager
    def attempt(self, experiment: Experiment) -> Iterator[int]:
        """Count the attempts at a run whose process died before the run ended; gives the number of earlier ones."""
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

    def pending(self, experiments: Sequence[Experiment]) -> dict[str, Experiment]:
        """Those that are to be run now, by name: without a readable result; earlier failures are forgotten.

        The experiment of a finished run is written again if its file is damaged or missing.
        """
        waiting = {each.name: each for each in experiments if not self.is_done(each)}
        damaged = [each for each in experiments if each.name not in waiting and not self._has_experiment(each)]
        if waiting or damaged:
            self.check_locks()
        for each in damaged:
            with self.claimed(each):  # which repairs it
                pass
        for each in waiting.values():
            self.forget_failure(each)
        return waiting

    def is_done(self, experiment: Experiment) -> bool:
        """Whether a run has a result that can be read."""
        return isinstance(self.outcome(experiment), Result)

    def outcome(self, experiment: Experiment) -> RunOutcome | None:
        """The result of a run, or its failure, or None if it has not ended; a damaged result is to be made again."""
        try:
            return self.result(experiment)
        except (FileNotFoundError, InputError):
            return self._failure(experiment)
        except OSError as error:  # running it again would not help
            raise InputError(f"{self.place(experiment) / RESULT} {_unreadable(error)}") from error

    def _failure(self, experiment: Experiment) -> Failure | None:
        path = self.place(experiment) / FAILURE
        try:
            return Failure(experiment, **_known_fields(Failure, parse(path.read_bytes(), dict[str, Any])))
        except FileNotFoundError:
            return None
        except (OSError, SchemaError):
            return Failure(experiment, f"why is not known: its {path.name} cannot be read", "")

    def result(self, experiment: Experiment) -> Result:
        """The result of a run; a missing file is a FileNotFoundError, a damaged one an InputError."""
        return _read_result(experiment, self.place(experiment) / RESULT)

    def scores(self, experiment: Experiment) -> dict[str, npt.NDArray[np.float32]]:
        """The scores of the test examples: of each OOD set by its name, and of the ID set as "id"."""
        with (self.place(experiment) / SCORES).open("rb") as file, np.load(file) as arrays:
            return dict(arrays)

    def contents(self) -> StoreContents:
        """All runs of the directory."""
        folders = {file.parent for name in (TOML, RESULT, FAILURE) for file in self.root.glob(f"*/{name}")}
        runs = {folder.name: self._read(folder) for folder in sorted(folders)}
        return StoreContents(
            tuple(each for each in runs.values() if isinstance(each, Result)),
            tuple(each for each in runs.values() if isinstance(each, Failure)),
            tuple(each for each in runs.values() if isinstance(each, Experiment)),
            tuple((name, each) for name, each in runs.items() if isinstance(each, str)),
        )

    def _read(self, folder: Path) -> Result | Failure | Experiment | str:
        """The run in a folder, or why it cannot be read."""
        try:
            experiment = _read_experiment(folder / TOML)
            try:
                return self.result(experiment)
            except FileNotFoundError:
                return self._failure(experiment) or experiment
        except InputError as error:
            return str(error)
        except OSError as error:
            return f"{Path(error.filename or folder).name} {_unreadable(error)}"

    def _has_experiment(self, experiment: Experiment) -> bool:
        try:
            _read_experiment(self.place(experiment) / TOML)
        except InputError:
            return False
        return True

    def _repair(self, experiment: Experiment) -> None:
        """Rename files that cannot be read, and write the experiment if it is missing; the caller has the lock."""
        place = self.place(experiment)
        readers: dict[str, Callable[[Path], object]] = {RESULT: partial(_read_result, experiment), TOML: _read_experiment}
        for path, read in ((place / name, read) for name, read in readers.items()):
            try:
                if path.exists():
                    read(path)
            except InputError:
                kept = path.replace(_unused(path.with_name(f"{path.name}{DAMAGED}")))
                logger.warning("%s cannot be read: it is kept as %s, and made again", path, kept.name)
        if not (place / TOML).exists():
            write_atomically(place / TOML, experiment.to_toml().encode())


def _read_result(experiment: Experiment, path: Path) -> Result:
    try:
        return Result.from_json(experiment, path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path.name} cannot be read ({error}): {RUN_AGAIN}") from error


def _read_experiment(path: Path) -> Experiment:
    """The experiment of a run, whose folder has its name."""
    try:
        text = path.read_text(encoding="utf-8")
        experiment = Experiment.from_toml(text)
    except FileNotFoundError:
        raise InputError(f"{path.name} is not there: {RUN_AGAIN}") from None
    except OSError as error:
        raise InputError(f"{path.name} {_unreadable(error)}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} cannot be read ({error}): {RUN_AGAIN}") from error
    except InputError as error:
        raise InputError(f"{path.name}: {error}{_advice(text)}") from error
    if experiment.name != path.parent.name:
        raise InputError(f"{path.name} {OTHER_RUN}")
    return experiment


def _advice(text: str) -> str:
    """What to do about a text that is no experiment; nothing if it only names a method of the user's own."""
    try:
        method = str(tomllib.loads(text).get("method"))
    except tomllib.TOMLDecodeError:
        return f"; {RUN_AGAIN}"
    is_own = ":" in method and method not in {**METHODS, **SCORE_NAMES}
    return "" if is_own else f"; {RUN_AGAIN} if another version of wildood made it"


def _unreadable(error: OSError) -> str:
    return f"cannot be read ({error.strerror}): make it readable, or remove the folder"


def _unused(path: Path) -> Path:
    """The path, or with a number behind it if a file has that name."""
    names = chain([path.name], (f"{path.name}{number}" for number in count(2)))
    return next(each for each in map(path.with_name, names) if not each.exists())

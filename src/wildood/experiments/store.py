"""A directory of runs: a folder for each experiment, named by its hash, that holds its result or why there is none."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt

from wildood.data.files import write_array_file, write_atomically
from wildood.data.locks import locked
from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.train.history import Row

Scores = Mapping[str, npt.NDArray[np.float32]]
TOML, RESULT, FAILURE, SCORES, LOCK = "experiment.toml", "result.json", "failure.json", "scores.npz", "lock"
ATTEMPTS = "attempts"  # how often a run was begun and not ended
KNOWN = "id"  # the ID test set among a run's scores


@dataclass(frozen=True)
class OnOod:
    """What a run's detector does on one OOD test set: shares from 0 to 1.

    Attributes:
        fpr95: the share accepted when 95 % of the ID test examples are accepted (ID is the positive class).
        fpr95_error: its standard error for this one run, from the number of examples.
        auroc: the probability that an OOD example scores higher than an ID example.
        aupr_in: the average precision with ID as the positive class.
        aupr_out: with OOD as the positive class.
        accepted: the share accepted at the deployed threshold, which the holdout set.
        examples: how many it has.
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
    """What a run found.

    Attributes:
        experiment: what was run.
        tests: for each OOD test set, by its name in the experiment.
        accuracy: of the classifier on the ID test examples, rejected or not.
        false_alarms: the share of the ID test examples that is rejected at the deployed threshold.
        examples: how many ID test examples there were.
        acceptance: the share of the validation data accepted at its ID threshold: of wild data (honest) or of OOD data
            (as published). It chooses among settings; None where nothing was measured.
        accuracy_lost: on the holdout, against the starting classifier.
        chosen: the settings that the score chose for itself, if any.
        history: of the training.
        seconds: how long it took, since it was last begun or resumed, without what it shares with other runs.
        about: versions, hardware, split and more: how it was made.
    """

    experiment: Experiment
    tests: Mapping[str, OnOod]
    accuracy: float
    false_alarms: float
    examples: int
    acceptance: float | None = None
    accuracy_lost: float = 0.0
    chosen: Mapping[str, Any] | None = None
    history: Sequence[Row] = ()
    seconds: float = 0.0
    about: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Failure:
    """A run that ended with an error: what it was, in one line, its traceback, and versions, hardware and time."""

    experiment: Experiment
    error: str
    traceback: str
    about: Mapping[str, Any] | None = None


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
            if mine and not (place / TOML).exists():
                write_atomically(place / TOML, experiment.to_toml().encode())
            yield mine

    def training(self, experiment: Experiment) -> Path:
        """Where a training keeps its checkpoints until it is done."""
        return self.place(experiment) / "training"

    def add(self, result: Result, scores: Scores) -> None:
        """Write what a run found, whole or not at all; its checkpoints go."""
        place = self.place(result.experiment)
        write_atomically(place / TOML, result.experiment.to_toml().encode())
        write_array_file(place / SCORES, **scores)
        content = _as_json(result)
        write_atomically(place / RESULT, (json.dumps(content, indent=1) + "\n").encode())  # last: now it is done
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
        """Whether a run has a result."""
        return (self.place(experiment) / RESULT).exists()

    def failure(self, experiment: Experiment) -> Failure | None:
        """Why a run has no result, or None if it has not failed."""
        if self.is_done(experiment):
            return None
        try:
            content = json.loads((self.place(experiment) / FAILURE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return Failure(experiment, **content)

    def result(self, experiment: Experiment) -> Result:
        """What a run found."""
        content = json.loads((self.place(experiment) / RESULT).read_text(encoding="utf-8"))
        tests = {name: OnOod(**found) for name, found in content.pop("tests").items()}
        return Result(experiment=experiment, tests=tests, **content)

    def scores(self, experiment: Experiment) -> dict[str, npt.NDArray[np.float32]]:
        """The scores of the test examples: of each OOD set by its name, and of the ID set as "id"."""
        with (self.place(experiment) / SCORES).open("rb") as file, np.load(file) as arrays:
            return dict(arrays)

    def experiments(self) -> list[Experiment]:
        """Every run of the directory that can be read, done or not."""
        return [each for each in self._read().values() if isinstance(each, Experiment)]

    def left_out(self) -> list[tuple[str, str]]:
        """The folders that cannot be read as runs, and why."""
        return [(name, each) for name, each in self._read().items() if isinstance(each, str)]

    def results(self) -> list[Result]:
        """Every result of the directory."""
        return [self.result(experiment) for experiment in self.experiments() if self.is_done(experiment)]

    def failures(self) -> list[Failure]:
        """Every run of the directory that failed and has no result."""
        found = (self.failure(experiment) for experiment in self.experiments())
        return [failure for failure in found if failure is not None]

    def _read(self) -> dict[str, Experiment | str]:
        """For each folder its experiment, or why it has none."""
        found: dict[str, Experiment | str] = {}
        for file in sorted(self.root.glob(f"*/{TOML}")):
            try:
                found[file.parent.name] = self._readable(file)
            except (InputError, OSError, TypeError, ValueError, KeyError) as error:
                found[file.parent.name] = " ".join(str(error).split())
        return found

    def _readable(self, file: Path) -> Experiment:
        experiment = Experiment.from_toml(file.read_text(encoding="utf-8"))
        if experiment.name != file.parent.name:
            raise InputError("another version of wildood made it: what decides its outcome has changed since")
        if self.is_done(experiment):
            self.result(experiment)
        self.failure(experiment)
        return experiment


def _as_json(result: Result) -> dict[str, Any]:
    content = {name: value for name, value in vars(result).items() if name != "experiment"}
    return {**content, "tests": {name: vars(found) for name, found in result.tests.items()}}

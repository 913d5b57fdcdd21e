"""What a run found, or why it found nothing: as data, to JSON and back; a file that is no such thing is refused."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Required, TypedDict

from wildood.data.schema import SchemaError, check, parse
from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.train.history import Row

AGAIN = "run its wildood reproduce again, or remove the folder"  # what to do about a run that cannot be read
_NUMBERS = ("accuracy", "false_alarms", "examples", "accuracy_lost", "seconds")


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


class _Failure(TypedDict, total=False):
    error: Required[str]
    traceback: Required[str]
    about: dict[str, Any] | None


def result_json(result: Result) -> str:
    """A result as JSON, without its experiment, which has a file of its own.

    >>> energy = Experiment("digits", ("digits",), method="energy")
    >>> json.loads(result_json(Result(energy, {}, 0.9, 0.05, 100)))["accuracy"]
    0.9
    """
    content = {name: value for name, value in vars(result).items() if name != "experiment"}
    tests = {name: vars(found) for name, found in result.tests.items()}
    return json.dumps({**content, "tests": tests}, indent=1) + "\n"


def result_of(experiment: Experiment, text: str) -> Result:
    """The result that JSON tells; what is no result of the experiment is refused, with what is wrong with it.

    Another version of wildood may have written it: names that are not known are left out, and optional ones may be missing.

    >>> result_of(Experiment("digits", ("digits",), method="energy"), '{"tests": {}}')
    Traceback (most recent call last):
    wildood.errors.InputError: 'accuracy' is missing
    """
    try:
        content = parse(text.encode(), Any)
        tests = {name: OnOod(**_known(OnOod, found)) for name, found in content["tests"].items()}
        result = Result(experiment, **_known(Result, content) | {"tests": tests})
        _check(result)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise InputError(said) from error
    return result


def read_result(experiment: Experiment, path: Path) -> Result:
    """The result in a file; one that holds none is refused, and a file that is not there is a FileNotFoundError."""
    try:
        return result_of(experiment, path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path.name} cannot be read ({error}): {AGAIN}") from error


def read_failure(experiment: Experiment, path: Path) -> Failure:
    """The failure in a file; that a run has failed is known even if its file cannot be read."""
    try:
        content: _Failure = parse(path.read_bytes(), _Failure)
        return Failure(experiment, content["error"], content["traceback"], content.get("about"))
    except FileNotFoundError:
        raise
    except (OSError, SchemaError):
        return Failure(experiment, f"why is not known: its {path.name} cannot be read", "")


def _known(cls: type, content: Any) -> dict[str, Any]:
    """Those of the values that a result, or a part of one, has a name for."""
    if not isinstance(content, Mapping):
        raise TypeError(f"{content!r} is in the place of an object")
    own = [each for each in fields(cls) if each.name != "experiment"]
    for each in own:
        if each.default is MISSING and each.name not in content:
            raise KeyError(each.name)
    return {each.name: content[each.name] for each in own if each.name in content}


def _check(result: Result) -> None:
    """Refuse what has the right names and holds something else than the numbers of this experiment."""
    if set(result.tests) != set(result.experiment.test):
        raise ValueError(f"it has tests on {_listed(result.tests)}, its experiment on {_listed(result.experiment.test)}")
    for ood, found in result.tests.items():
        for name, value in vars(found).items():
            _refuse_unless_number(value, f"{name} on {ood}")
    for name in _NUMBERS:
        _refuse_unless_number(getattr(result, name), name)
    if result.acceptance is not None:
        _refuse_unless_number(result.acceptance, "acceptance")
    if not isinstance(result.history, list):
        raise TypeError(f"history is {result.history!r}, which is no list")
    for row in result.history:
        if not isinstance(row, Mapping):
            raise TypeError(f"the history holds {row!r}, which is no object")
        for name, value in row.items():
            _refuse_unless_number(value, f"{name} in the history")
    for name in ("chosen", "about"):
        if not isinstance(getattr(result, name), Mapping | None):
            raise TypeError(f"{name} is {getattr(result, name)!r}, which is no object")


def _refuse_unless_number(value: object, name: str) -> None:
    try:
        check(value, float | bool)
    except SchemaError as error:
        raise TypeError(f"{name} is {value!r:.80}, which is no number") from error


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"

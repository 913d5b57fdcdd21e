"""An experiment as data: everything that decides the outcome of one run, to and from TOML, with a hash that names it."""

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, Self, cast

from wildood.data.schema import SchemaError, check, check_arguments
from wildood.detect.pretrain import check_schedule
from wildood.errors import InputError
from wildood.methods.objective import Method
from wildood.methods.schedule import Schedule
from wildood.methods.shipped import METHODS
from wildood.models.shipped import MODELS
from wildood.scores.score import Score
from wildood.scores.shipped import NAMES as SCORES

# Of what a run means: another one gives other names (4: baselines by their own loss alone; the best may be the start).
FORMAT = 4
PAPER_MEAN, PAPER_STD = (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)
FINGERPRINT = "sha256:"  # before that of the weights that a run starts from, where they have no name
NONE = "none"  # for a setting whose default is something else; TOML has no word for it


def toml_value(value: object) -> str:
    """A number, a text, a truth value or a list of such as TOML; JSON writes all but what is infinite or no number.

    >>> toml_value([1, 0.5, float("inf"), True, "a"])
    '[1, 0.5, inf, true, "a"]'
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")


def toml_key(name: str) -> str:
    """A name before a value: in quotes where it is not plain."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def is_toml_value(value: object) -> bool:
    """Whether a value comes back from TOML as it was."""
    if isinstance(value, list | tuple):
        return all(map(is_toml_value, value))
    if isinstance(value, str):
        return value == value.encode(errors="ignore").decode()  # half of a pair of surrogates cannot be written
    return isinstance(value, bool | int | float)


@dataclass(frozen=True)
class Experiment:
    """One run: a cell of a table and a seed.

    Settings that are left out are filled in with the method's defaults, or with the published ones where the protocol is
    as published: a new default gives a run another name.

    Attributes:
        id: the ID set: a named one such as `cifar10`, `digits`, or a file below the data root with the arrays
            train_images, train_labels, test_images and test_labels, such as `cifar10.npz`.
        test: the OOD sets to test on: named ones, or files with the array `images`.
        wild: the OOD set in the wild data; None for a run with ID data only.
        pi: the share of OOD in the wild data.
        method: `woods`, `oe`, ... (those that train) or `energy`, `odin`, ... (scores on the starting classifier).
        model_settings: what the network is built with, besides the number of classes.
        mean, std: of each channel, as the network takes its input.
        start: the starting classifier: trained on the "labelled" part, on "all" of the ID training set, a file of
            weights below the data root, or "sha256:..." for weights in the run directory. Weights from a file are assumed
            to have seen all of the ID training set.
        pretraining: the schedule of the starting classifier, where it is to be trained.
        protocol: "honest": no test example and no OOD label chooses anything; "as_published": the released protocol.
        keep: which epoch an honest run keeps: the "last", so that a row is its method, or the "best", as `fit` does, which
            is the start where training is not shown to help.
        seed: decides the split and every draw.

    >>> first = Experiment("cifar10", ("svhn",), "svhn", 0.1, "woods")
    >>> first.settings["alpha"], first.schedule.steps, first.name == Experiment.from_toml(first.to_toml()).name
    (0.05, 100, True)
    """

    id: str
    test: tuple[str, ...]
    wild: str | None = None
    pi: float = 0.0
    method: str = "woods"
    settings: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule | None = None
    model: str = "WideResNet"
    model_settings: Mapping[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] = PAPER_MEAN
    std: tuple[float, ...] = PAPER_STD
    start: str = "labelled"
    pretraining: Schedule | None = None
    protocol: Literal["honest", "as_published"] = "honest"
    keep: Literal["best", "last"] = "last"
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_types()
        self._check()
        object.__setattr__(self, "pi", float(self.pi))  # 1 and 1.0 are one experiment
        recipe = self.recipe()
        if self.wild is None and not isinstance(recipe, Score) and recipe.uses_wild:
            raise InputError(f"{self.method} trains on wild data: give the experiment wild= and pi=")
        object.__setattr__(self, "settings", _settings(recipe))
        if isinstance(recipe, Score):
            object.__setattr__(self, "schedule", None)
        else:
            aside = recipe.uses_wild and self.keep == "best" and self.protocol == "honest"
            schedule = check_schedule(self.schedule, self._schedule(recipe), has_wild_aside=aside)
            object.__setattr__(self, "schedule", schedule)
        if self.start not in {"labelled", "all"}:
            object.__setattr__(self, "pretraining", None)
        elif self.pretraining is None:
            object.__setattr__(self, "pretraining", Schedule.pretraining())
        else:
            object.__setattr__(self, "pretraining", self.pretraining.fixed())
        self._check_values()

    def _check_types(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not each.default and not isinstance(value, Schedule):
                object.__setattr__(self, each.name, _checked(check, _as_json(value), each.type, each.name))

    def _check(self) -> None:
        if self.method not in {**METHODS, **SCORES} and ":" in self.method:
            raise InputError(
                f"an experiment's method is {self.method!r}: it is not wildood's, so name it with --method {self.method}"
            )
        for name, allowed in {"method": [*METHODS, *SCORES], "model": list(MODELS)}.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"an experiment's {name} is {getattr(self, name)!r}: give one of {', '.join(allowed)}")
        if not self.test:
            raise InputError("an experiment has no OOD set to test on: give test=")
        if not 0 <= self.pi <= 1:
            raise InputError(f"an experiment's pi is {self.pi}: give the share of OOD in the wild data, from 0 to 1")
        if (self.wild is None) != (self.pi == 0):
            raise InputError(f"an experiment has wild {self.wild} and pi {self.pi}: give both, or neither")

    def _check_values(self) -> None:
        """Raise an error for values that its file could not hold."""
        for name, value in self.as_dict().items():
            values = {f"{name} {key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
            for what, each in values.items():
                if not is_toml_value(each):
                    raise InputError(f"an experiment's {what} is {each!r}: give a number, text, or a list of such")

    @property
    def trains(self) -> bool:
        """Whether the method trains, or scores an unchanged classifier."""
        return self.method in METHODS

    @property
    def uses_wild(self) -> bool:
        """Whether the method learns from the wild data; others may still choose a setting by it."""
        return self.trains and METHODS[self.method].uses_wild

    @property
    def stationary(self) -> bool:
        """Whether what is tested on is what was in the wild (or nothing was)."""
        return self.wild is None or self.test == (self.wild,)

    @cached_property
    def name(self) -> str:
        """A hash of all that decides the outcome: the name of the run."""
        return self._hash(self.as_dict())

    @cached_property
    def cell(self) -> str:
        """A hash of all but settings and seed: runs of one cell are settings to choose among, and repetitions."""
        return self._hash({key: value for key, value in self.as_dict().items() if key not in {"settings", "seed"}})

    def recipe(self) -> Method | Score:
        """The method with its settings."""
        try:
            if self.method in SCORES:
                return SCORES[self.method](**self.settings)
            cls: Any = METHODS[self.method]
            settings = dict(self.settings)
            if self._is_published and hasattr(cls, "as_published"):
                settings = asdict(cls.as_published()) | settings
            return cast("Method", cls(**settings))
        except TypeError as error:
            raise InputError(f"{self.method}: {str(error).partition(') ')[2] or error}") from error

    def _schedule(self, method: Method) -> Schedule:
        """The method's own; of a run as published that trains on wild data, the released one."""
        if not (self._is_published and method.uses_wild):
            return method.schedule()
        return Schedule.as_published("stationary" if self.stationary else "non-stationary")

    @property
    def _is_published(self) -> bool:
        """Whether the method is to be what the released code runs; one of the user's own is what the user wrote."""
        return self.protocol == "as_published" and ":" not in self.method

    def as_dict(self) -> dict[str, Any]:
        """As plain data for JSON and TOML; fields that are None are left out, except in settings."""
        content = asdict(self)
        content["settings"] = {key: NONE if value is None else value for key, value in self.settings.items()}
        return _plain(content)

    def to_toml(self) -> str:
        """As a file that a person can read and change."""
        content = self.as_dict()
        tables = {key: value for key, value in content.items() if isinstance(value, dict)}
        lines = [f"{key} = {toml_value(value)}" for key, value in content.items() if key not in tables]
        for key, table in tables.items():
            lines += ["", f"[{key}]", *(f"{toml_key(name)} = {toml_value(value)}" for name, value in table.items())]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, text: str) -> Self:
        r"""From a file; an unknown key is an error.

        >>> Experiment.from_toml('id = "cifar10"\ntest = ["svhn"]\nmethod = "energy"\nwind = 3')
        Traceback (most recent call last):
        wildood.errors.InputError: an experiment's wind is not known to this wildood
        """
        try:
            content = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InputError(f"the experiment is not TOML: {error}") from error
        arguments = _checked(check_arguments, content, cls)
        settings = {key: None if value == NONE else value for key, value in arguments.get("settings", {}).items()}
        return cls(**arguments | {"settings": settings})

    @staticmethod
    def _hash(content: Mapping[str, Any]) -> str:
        text = json.dumps({"format": FORMAT, **content}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _checked(check: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return check(*arguments)
    except SchemaError as error:
        raise InputError(f"an experiment's {error}") from error


def _as_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return float(value) if isinstance(value, float) else value  # numpy's, too


def _settings(recipe: Method | Score) -> dict[str, Any]:
    """All settings, with integers as floats where they are floats: 1 and 1.0 are one experiment."""
    if isinstance(recipe, Score):
        return dict(recipe.settings)
    settings: dict[str, Any] = asdict(recipe)  # type: ignore[call-overload]
    floats = {each.name for each in fields(recipe) if each.type in {float, float | None}}  # type: ignore[arg-type]
    return {name: float(value) if name in floats and type(value) is int else value for name, value in settings.items()}


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """Lists for tuples, nothing for None."""
    return {
        key: _plain(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
        for key, value in content.items()
        if value is not None
    }

"""An experiment as data: everything that decides the outcome of one run, to and from TOML, with a hash that names it."""

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, Self, cast

from wildood.detect.pretrain import check_rounds
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
CHOICES = {"protocol": ("honest", "as_published"), "keep": ("best", "last")}
KINDS = {
    "id": (str, "text"),
    "method": (str, "text"),
    "model": (str, "text"),
    "start": (str, "text"),
    "protocol": (str, "text"),
    "keep": (str, "text"),
    "pi": (int | float, "a number"),
    "wild": (str | None, "one set, as text"),
    "seed": (int, "a whole number"),
    "model_settings": (Mapping, "a table, [model_settings]"),
    "settings": (Mapping, "a table, [settings]"),
}
LISTS = {"test": (str, "sets, as text"), "mean": (int | float, "numbers"), "std": (int | float, "numbers")}
REQUIRED = ("id", "test")


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
    """A name before a value: in quotes where it is not plain.

    >>> toml_key("width"), toml_key("the width")
    ('width', '"the width"')
    """
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def is_toml_value(value: object) -> bool:
    r"""Whether a value comes back from TOML as it was.

    >>> [is_toml_value(each) for each in (1, float("nan"), "a", ["a", 1.0], None, [None], {"a": 1}, "\ud800")]
    [True, True, True, True, False, False, False, False]
    """
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
        settings: of the method.
        schedule: of the training.
        model: the network's class.
        model_settings: what it is built with, besides the number of classes.
        mean: of each channel, as the network takes its input.
        std: of each channel.
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
        self._check()
        for name in ("test", "mean", "std"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "pi", float(self.pi))  # 1 and 1.0 are one experiment
        recipe = self.recipe()
        if self.wild is None and not isinstance(recipe, Score) and recipe.uses_wild:
            raise InputError(f"{self.method} trains on wild data: give the experiment wild= and pi=")
        settings = recipe.settings if isinstance(recipe, Score) else asdict(recipe)  # type: ignore[call-overload]
        object.__setattr__(self, "settings", {name: _like_default(recipe, name, value) for name, value in settings.items()})
        if isinstance(recipe, Score):
            object.__setattr__(self, "schedule", None)
        elif self.schedule is None:
            object.__setattr__(self, "schedule", self._schedule(recipe))
        else:
            check_rounds(
                self.schedule, has_wild_aside=recipe.uses_wild and self.keep == "best" and self.protocol == "honest"
            )
        if self.start not in {"labelled", "all"}:
            object.__setattr__(self, "pretraining", None)
        elif self.pretraining is None:
            object.__setattr__(self, "pretraining", Schedule.pretraining())
        else:
            check_rounds(self.pretraining, has_wild_aside=False)
        self._check_values()

    def _check(self) -> None:
        self._check_kinds()
        if self.method not in {**METHODS, **SCORES} and ":" in self.method:
            raise InputError(
                f"an experiment's method is {self.method!r}: it is not wildood's, so name it with --method {self.method}"
            )
        for name, allowed in {"method": [*METHODS, *SCORES], "model": list(MODELS), **CHOICES}.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"an experiment's {name} is {getattr(self, name)!r}: give one of {', '.join(allowed)}")
        if not self.test:
            raise InputError("an experiment has no OOD set to test on: give test=")
        if not 0 <= self.pi <= 1:
            raise InputError(f"an experiment's pi is {self.pi}: give the share of OOD in the wild data, from 0 to 1")
        if (self.wild is None) != (self.pi == 0):
            raise InputError(f"an experiment has wild {self.wild} and pi {self.pi}: give both, or neither")

    def _check_kinds(self) -> None:
        for name, (kind, what) in KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise InputError(f"an experiment's {name} is {value!r}: give {what}")
        for name, (kind, what) in LISTS.items():
            value = getattr(self, name)
            if not isinstance(value, list | tuple) or not all(isinstance(each, kind) for each in value):
                raise InputError(f"an experiment's {name} is {value!r}: give a list of {what}")

        for name in ("schedule", "pretraining"):
            if not isinstance(getattr(self, name), Schedule | None):
                raise InputError(f"an experiment's {name} is {getattr(self, name)!r}: give a Schedule, or leave it out")

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
        wildood.errors.InputError: an experiment has no 'wind': it has id, test, wild, pi, method, settings, schedule, ...
        """
        try:
            content = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InputError(f"the experiment is not TOML: {error}") from error
        _refuse_unknown(content, cls, "an experiment")
        missing = next((name for name in REQUIRED if name not in content), None)
        if missing is not None:
            raise InputError(f"an experiment needs {' and '.join(REQUIRED)}: {missing} is missing")
        try:
            for key in {"schedule", "pretraining", "settings", "model_settings"} & content.keys():
                if not isinstance(content[key], dict):
                    raise InputError(f"an experiment's {key} is {content[key]!r}: give a table, [{key}]")
            for key in {"schedule", "pretraining"} & content.keys():
                _refuse_unknown(content[key], Schedule, f"an experiment's {key}")
                content[key] = Schedule(**content[key])
            settings = {key: None if value == NONE else value for key, value in content.get("settings", {}).items()}
            return cls(**content | {"settings": settings})
        except TypeError as error:
            raise InputError(f"the experiment holds a value of the wrong kind: {error}") from error

    @staticmethod
    def _hash(content: Mapping[str, Any]) -> str:
        text = json.dumps({"format": FORMAT, **content}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _refuse_unknown(content: Mapping[str, Any], cls: type, what: str) -> None:
    known = [setting.name for setting in fields(cls)]
    unknown = next((key for key in content if key not in known), None)
    if unknown is not None:
        raise InputError(f"{what} has no {unknown!r}: it has {', '.join(known)}")


def _like_default(recipe: Method | Score, name: str, value: Any) -> Any:
    """An integer as a float where the setting is one: 1 and 1.0 are one experiment."""
    is_float = any(setting.name == name and setting.type in {float, float | None} for setting in _fields(recipe))
    return float(value) if is_float and isinstance(value, int) and not isinstance(value, bool) else value


def _fields(recipe: Method | Score) -> tuple[Field[Any], ...]:
    return () if isinstance(recipe, Score) else fields(recipe)  # type: ignore[arg-type]


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """Lists for tuples, nothing for None."""
    return {
        key: _plain(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
        for key, value in content.items()
        if value is not None
    }

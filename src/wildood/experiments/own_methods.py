"""Methods and scores of the user's own: imported only if the user names module:Class, never because a file does."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, TypeVar

from wildood.errors import InputError
from wildood.experiments.experiment import is_toml_value
from wildood.methods.schedule import Schedule
from wildood.methods.shipped import METHODS
from wildood.scores.score import Score
from wildood.scores.shipped import NAMES as SCORES

NEEDED, CALLED = ("uses_wild", "uses_features", "alpha"), ("schedule", "objective")  # of a method
CONTRACT = "docs/method.md"
_Own = TypeVar("_Own")


def register(names: Sequence[str]) -> None:
    """Let experiments name these classes, which are imported from the working directory or the environment.

    A class that does not keep the contract of a method or a score is an error, before anything runs.

    >>> register(["os:sep"])
    Traceback (most recent call last):
    wildood.errors.InputError: --method os:sep: it is of type str, no class: give a Score or a method (docs/method.md)
    """
    for name in names:
        try:
            cls = _imported(name)
            if isinstance(cls, type) and issubclass(cls, Score):
                _check_score(cls)
                SCORES[name] = cls
            else:
                _check_method(cls)
                METHODS[name] = cls
        except InputError as error:
            raise InputError(f"--method {name}: {error}") from error


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InputError("give module:Class, as in mymethod:Mine")
    if module.endswith(".py") or "/" in module or "\\" in module:
        stem = Path(module.replace("\\", "/")).stem
        raise InputError(f"give the module, not its file: --method {stem}:{attribute}, called in the directory of {stem}.py")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, SyntaxError, TypeError) as error:  # the last for ..module, which is of no package
        raise InputError(" ".join(str(error).split())) from error
    finally:
        sys.path.pop(0)


def _check_method(cls: Any) -> None:
    if not isinstance(cls, type):
        raise InputError(f"it is of type {type(cls).__name__}, no class: give a Score or a method ({CONTRACT})")
    missing = [name for name in (*NEEDED, *CALLED) if name not in {*dir(cls), *getattr(cls, "__dataclass_fields__", ())}]
    missing += [f"{name}()" for name in CALLED if name not in missing and not callable(getattr(cls, name, None))]
    if len(missing) == len((*NEEDED, *CALLED)):
        raise InputError(f"{cls.__name__} is neither a Score nor a method such as Woods ({CONTRACT})")
    if missing:
        raise InputError(f"{cls.__name__} lacks {', '.join(missing)}, which a method needs ({CONTRACT})")
    # That of a class above it would not know the fields of this one.
    if "__dataclass_fields__" not in vars(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise InputError(f"{cls.__name__} is no frozen dataclass: write @dataclass(frozen=True) above it ({CONTRACT})")
    method: Any = _instance(cls)
    if not isinstance(method.schedule(), Schedule):
        raise InputError(f"schedule() of {cls.__name__} gives no wildood.Schedule: give one ({CONTRACT})")
    _check_settings(cls, asdict(method))


def _check_score(cls: type[Score]) -> None:
    if cls.forward is Score.forward and cls.of is Score.of:
        raise InputError(f"{cls.__name__} lacks forward, which a score needs ({CONTRACT})")
    score = _instance(cls)
    if not hasattr(score, "settings"):
        raise InputError(f"{cls.__name__} has no settings: call super().__init__() with those it has ({CONTRACT})")
    kinds = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    taken = [name for name, each in signature(cls).parameters.items() if each.kind not in kinds]
    lost = [name for name in taken if name not in score.settings]
    if lost:
        problem = (
            f"{cls.__name__} keeps {', '.join(lost)} to itself, so that runs with other values would have the same name"
        )
        raise InputError(f"{problem}: hand all settings to super().__init__() ({CONTRACT})")
    _check_settings(cls, score.settings)


def _instance(cls: type[_Own], **settings: Any) -> _Own:
    try:
        return cls(**settings)
    except TypeError as error:
        reason = str(error).partition("__init__() ")[2] or str(error)
        what = f"its settings {settings}" if settings else "no arguments"
        advice = "hand all of them to super().__init__()" if settings else "give every setting a default"
        raise InputError(f"{cls.__name__} cannot be made with {what} ({reason}): {advice} ({CONTRACT})") from error


def _check_settings(cls: type, settings: Mapping[str, Any]) -> None:
    """Raise an error for settings that a file cannot hold: they name a run."""
    for name, value in settings.items():
        if value is not None and not is_toml_value(value):
            problem = f"{cls.__name__} has the setting {name} = {value!r}, which is not plain data"
            raise InputError(f"{problem}: give a number, text, None, or a list of numbers or text ({CONTRACT})")
    _instance(cls, **settings)

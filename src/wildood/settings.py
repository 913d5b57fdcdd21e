"""Checks of arguments: a number, a choice, a flag, a path; each refusal is one short line. Settings as text."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from numbers import Integral, Real
from pathlib import Path
from reprlib import Repr
from typing import Any

import numpy as np

from wildood.errors import InputError

_LONGEST_NAME = 255  # bytes, on every file system in use
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def quoted(value: Any) -> str:
    """A value as a message shows it: on one line, and short.

    >>> quoted("best"), quoted(0.05), quoted("y" * 500)[:12]
    ("'best'", '0.05', "'yyyyyyyyyyy")
    """
    try:
        return " ".join(_SHORT.repr(value).split())
    except ValueError:  # Python writes out no whole number of more than 4,300 digits
        return f"a very long {type(value).__name__}"


def check_number(
    value: Any,
    name: str,
    expected: str = "a number",
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
    finite: bool = True,
) -> float:
    """A number within the bounds, as a float; numpy's numbers and fractions count, booleans do not.

    Without `finite`, infinity may stand for "no limit".

    >>> check_positive(2, "lr")
    2.0
    >>> check_number("2", "lr", "a positive number", above=0)
    Traceback (most recent call last):
    wildood.errors.InputError: lr is '2': give a positive number
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # a whole number that no float can hold
            number = math.nan
        inside = above < number <= below if number == math.inf else above < number < below
        if (math.isfinite(number) or not finite) and inside and least <= number <= most:
            return number
    raise InputError(f"{name} is {quoted(value)}: give {expected}")


check_positive = partial(check_number, expected="a positive number", above=0)


def check_integer(value: Any, name: str, expected: str = "", *, least: int = 1, most: int = 10**9) -> int:
    """A whole number within the bounds, as an int; numpy's integers count, booleans and 2.0 do not.

    >>> check_integer(0, "k")
    Traceback (most recent call last):
    wildood.errors.InputError: k is 0: give a whole number from 1 to 1000000000
    >>> check_count(10**23, "epochs")
    Traceback (most recent call last):
    wildood.errors.InputError: epochs is 100000000000000000000000: give a positive whole number up to 10^9
    >>> check_width(-64, "inputs")
    Traceback (most recent call last):
    wildood.errors.InputError: inputs is -64: give a whole number from 1 to 1048576
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= most:
        return int(value)
    raise InputError(f"{name} is {quoted(value)}: give {expected or f'a whole number from {least} to {most}'}")


check_count = partial(check_integer, expected="a positive whole number up to 10^9")  # more steps are a slip of the finger
check_width = partial(check_integer, most=1 << 20)  # units, channels or classes that any machine can allocate


def check_flag(value: Any, name: str) -> bool:
    """True or False; numpy's booleans, 0 and 1 count.

    >>> check_flag("no", "frozen")
    Traceback (most recent call last):
    wildood.errors.InputError: frozen is 'no': give True or False
    """
    if isinstance(value, np.bool_ | Integral) and value in {0, 1}:
        return bool(value)
    raise InputError(f"{name} is {quoted(value)}: give True or False")


def check_choice(value: Any, name: str, choices: Sequence[str]) -> str:
    """One of some words.

    >>> check_choice("first", "keep", ("best", "last"))
    Traceback (most recent call last):
    wildood.errors.InputError: keep is 'first': give 'best' or 'last'
    """
    if isinstance(value, str) and value in choices:
        return str(value)
    *others, last = map(repr, choices)
    raise InputError(f"{name} is {quoted(value)}: give {', '.join(others)} or {last}")


def check_path(value: Any, name: str) -> Path:
    """A path that a file can have, whether there is one or not.

    >>> check_path(3, "run_dir")
    Traceback (most recent call last):
    wildood.errors.InputError: run_dir is 3: give a path, as a str or a Path
    """
    try:
        text: Any = os.fspath(value)
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise InputError(f"{name} is {quoted(value)}: give a path, as a str or a Path")
    if not can_be_named(text) or any(len(os.fsencode(part)) > _LONGEST_NAME for part in Path(text).parts):
        raise InputError(f"{name} is {quoted(text)}, which no file can be named: give another path")
    return Path(text)


def can_be_named(text: str) -> bool:
    r"""Whether a path may hold this text: no NUL, and no character outside the system's encoding.

    >>> can_be_named("caf\udce9.png"), can_be_named("a\0b")
    (True, False)
    """
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def check_callable(value: Any, name: str, *arguments: Any) -> Any:
    """A function that can be called with these arguments, as far as its signature says.

    >>> check_callable(lambda: None, "on_epoch", {})
    Traceback (most recent call last):
    wildood.errors.InputError: on_epoch cannot be called (too many positional arguments): give a function of 1 argument(s)
    """
    expected = f"give a function of {len(arguments)} argument(s)"
    if not callable(value):
        raise InputError(f"{name} is {quoted(value)}: {expected}")
    try:
        signature(value).bind(*arguments)
    except TypeError as error:
        raise InputError(f"{name} cannot be called ({error}): {expected}") from error
    except ValueError:  # written in C, it need not say what it takes
        pass
    return value


def optional(check: Callable[..., Any]) -> Callable[..., Any]:
    """A check that lets None through.

    >>> optional(check_integer)(None, "k") is None
    True
    """
    return lambda value, *others: None if value is None else check(value, *others)


def check_fields(settings: Any, owner: str, **checks: Callable[..., Any]) -> None:
    """Replace each field of a frozen dataclass by what its check returns; `owner` precedes the field's name in messages.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Steps:
    ...     count: int
    ...     def __post_init__(self) -> None:
    ...         check_fields(self, "Steps: ", count=check_integer)
    >>> Steps(-1)
    Traceback (most recent call last):
    wildood.errors.InputError: Steps: count is -1: give a whole number from 1 to 1000000000
    """
    for field, check in checks.items():
        object.__setattr__(settings, field, check(getattr(settings, field), f"{owner}{field}"))


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings in one line, without those that are not set.

    >>> settings_text({"name": "Woods", "alpha": 0.05, "tau": None})
    'alpha 0.05'
    """
    return ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None and name != "name")

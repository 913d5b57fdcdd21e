"""Data read back from a file, checked against types: the first value that does not fit is named by its path."""

import inspect
import json
import types
from collections.abc import Callable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

_SHOWN = 60  # characters of a wrong value in a message
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}
_LARGEST = 2**1023  # beyond it, a whole number is no float


class SchemaError(ValueError):
    """A value of another type, or outside its limits; the message names it, and says what was expected."""


class Limit(NamedTuple):
    """What a value must fulfil besides its type, as in `Annotated[float, Limit(lambda value: value > 0, "...")]`.

    Attributes:
        holds: whether a value of the type does.
        words: what is expected, for the message.
    """

    holds: Callable[[Any], bool]
    words: str


class ArgumentsOf(NamedTuple):
    """That an object holds the arguments of a class, as in `Annotated[dict[str, Any], ArgumentsOf(Promise)]`."""

    cls: type


Rate = Annotated[float, Limit(lambda value: 0 < value < 1, "a number between 0 and 1")]
Count = Annotated[int, Limit(lambda value: 0 <= value < 2**63, "a whole number from 0 on")]


def parse(content: bytes, expected: Any) -> Any:
    """What JSON holds, if it is of the expected type.

    >>> parse(b'{"alpha": [0.05, 2]}', dict[str, list[Rate]])
    Traceback (most recent call last):
    wildood.data.schema.SchemaError: alpha[1] is 2, expected a number between 0 and 1
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SchemaError("it is not JSON") from error
    check(value, expected)
    return value


def check(value: Any, expected: Any, path: str = "") -> None:
    """Refuse a value that is not of the expected type.

    Types are those that JSON has (`float` takes whole numbers, `tuple` and `Sequence` are lists), unions and literals of
    them, `TypedDict`s, `Any`, and these with a `Limit` or `ArgumentsOf` in `Annotated`. A `TypedDict` with `total=False` may
    hold other keys, too.

    Args:
        value: what was read.
        expected: its type.
        path: of the value, for the message.

    >>> check({"side": "left"}, dict[str, Literal["input", "output"]], "tap")
    Traceback (most recent call last):
    wildood.data.schema.SchemaError: tap.side is 'left', expected 'input' or 'output'
    """
    origin, arguments = get_origin(expected), get_args(expected)
    if origin is Annotated:
        kind, *limits = arguments
        check(value, kind, path)
        for limit in limits:
            if isinstance(limit, ArgumentsOf):
                check_arguments(value, limit.cls, path)
            if isinstance(limit, Limit) and not limit.holds(value):
                raise _unexpected(value, limit.words, path)
    elif origin in {Required, NotRequired}:
        check(value, arguments[0], path)
    elif origin in {Union, types.UnionType}:
        _check_union(value, expected, path)
    elif is_typeddict(expected):
        _check_keys(value, get_type_hints(expected, include_extras=True), expected.__required_keys__, path)
        if expected.__total__:
            _refuse_others(value, expected.__annotations__, path)
    elif origin in {list, tuple, Sequence}:
        _check_list(value, arguments, path)
    elif origin in {dict, Mapping}:
        _refuse_unless(isinstance(value, dict), value, expected, path)
        for key, each in value.items():
            check(each, arguments[1], _below(path, key))
    elif expected is not Any:
        _refuse_unless(_is_plain(value, expected), value, expected, path)


def check_arguments(value: Any, cls: type, path: str = "") -> None:
    """Refuse an object that does not hold the arguments of a class, by the annotations of its constructor.

    >>> from wildood.data.inputs import InputSpec
    >>> check_arguments({"layout": "HWC"}, InputSpec, "input")
    Traceback (most recent call last):
    wildood.data.schema.SchemaError: input.layout is 'HWC', expected 'NHWC' or 'NCHW'
    """
    parameters = inspect.signature(cls).parameters
    named = {name: each for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD}
    hints = get_type_hints(cls.__init__, include_extras=True)  # type: ignore[misc]
    required = {name for name, each in named.items() if each.default is each.empty}
    _check_keys(value, {name: hints[name] for name in named}, required, path)
    if len(named) == len(parameters):
        _refuse_others(value, named, path)


def _is_plain(value: Any, expected: Any) -> bool:
    if get_origin(expected) is Literal:
        return any(value == each and type(value) is type(each) for each in get_args(expected))
    if expected is float:
        return type(value) is float or (type(value) is int and abs(value) <= _LARGEST)
    return value is None if expected is None else type(value) is expected


def _check_union(value: Any, expected: Any, path: str) -> None:
    inside: SchemaError | None = None  # of an alternative that has the right kind, about something in it
    for each in get_args(expected):
        try:
            check(value, each, path)
        except SchemaError as error:
            is_inside = isinstance(value, dict | list) and not str(error).startswith(f"{path} is ")
            inside = inside or (error if is_inside else None)
        else:
            return
    raise inside or _unexpected(value, _words(expected), path)


def _check_list(value: Any, arguments: tuple[Any, ...], path: str) -> None:
    _refuse_unless(isinstance(value, list), value, list, path)
    each_by_each = len(arguments) > 1 and arguments[-1] is not Ellipsis
    if each_by_each and len(value) != len(arguments):
        raise _unexpected(value, f"a list of {len(arguments)}", path)
    for number, each in enumerate(value):
        check(each, arguments[number if each_by_each else 0], f"{path}[{number}]")


def _check_keys(value: Any, hints: Mapping[str, Any], required: Any, path: str) -> None:
    _refuse_unless(isinstance(value, dict), value, dict, path)
    for key, expected in hints.items():
        if key in value:
            check(value[key], expected, _below(path, key))
        elif key in required:
            raise SchemaError(f"{_below(path, key)} is missing")


def _refuse_others(value: dict[str, Any], known: Any, path: str) -> None:
    for key in value:
        if key not in known:
            raise SchemaError(f"{_below(path, key)} is not known to this wildood")


def _refuse_unless(fits: bool, value: Any, expected: Any, path: str) -> None:
    if not fits:
        raise _unexpected(value, _words(expected), path)


def _unexpected(value: Any, words: str, path: str) -> SchemaError:
    text = repr(value)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return SchemaError(f"{path or 'the whole'} is {shown}, expected {words}")


def _words(expected: Any) -> str:
    """A type as a person would call it."""
    origin, arguments = get_origin(expected), get_args(expected)
    if origin is Annotated:
        return next((each.words for each in arguments if isinstance(each, Limit)), _words(arguments[0]))
    if origin in {Union, types.UnionType}:
        return " or ".join(map(_words, arguments))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if expected is list or origin in {list, tuple, Sequence}:
        return "a list"
    return _NAMES.get(type(None) if expected is None else expected, "an object")


def _below(path: str, key: str) -> str:
    name = key if key.isidentifier() else repr(key)[: _SHOWN + 2]
    return f"{path}.{name}" if path else name

"""Records as JSON and back: dataclasses, checked by their annotations; an error names the first wrong value by its path."""

import inspect
import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
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
    """A condition besides the type, as in `Annotated[float, Limit(lambda value: value > 0, "a positive number")]`."""

    holds: Callable[[Any], bool]  # whether a value of the type is within the limit
    words: str  # what is expected, for the message


class ArgumentsOf(NamedTuple):
    """Marks a dict of arguments for a class, as in `Annotated[dict[str, Any], ArgumentsOf(Promise)]`."""

    cls: type


Rate = Annotated[float, Limit(lambda value: 0 < value < 1, "a number between 0 and 1")]
Count = Annotated[int, Limit(lambda value: 0 <= value < 2**63, "a whole number from 0 on")]


def dump(record: Any) -> bytes:
    """A dataclass as JSON; `parse` gives it back."""
    return json.dumps(asdict(record)).encode()


def parse(content: bytes, expected: Any) -> Any:
    """What JSON holds, as the expected type; see `check`."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SchemaError("it is not JSON") from error
    return check(value, expected)


def check(value: Any, expected: Any, path: str = "") -> Any:
    """The value as the expected type: objects become dataclasses and lists become tuples where those are expected.

    Expected types are those of JSON (`float` takes whole numbers), `Any`, literals, unions, tuples, dataclasses and
    `TypedDict`s of them, and these with a `Limit` or `ArgumentsOf` in `Annotated`. A `TypedDict` with `total=False` may hold
    other keys.

    >>> check({"side": "left"}, dict[str, Literal["input", "output"]], "tap")
    Traceback (most recent call last):
    wildood.data.schema.SchemaError: tap.side is 'left', expected 'input' or 'output'
    """
    origin, arguments = get_origin(expected), get_args(expected)
    if expected is Any:
        return value
    if origin is Annotated:
        return _check_limits(check(value, arguments[0], path), arguments[1:], path)
    if origin in {Required, NotRequired}:
        return check(value, arguments[0], path)
    if origin in {Union, types.UnionType}:
        return _check_union(value, expected, path)
    if is_typeddict(expected):
        hints = get_type_hints(expected, include_extras=True)
        return _check_object(value, hints, expected.__required_keys__, path, closed=expected.__total__)
    if is_dataclass(expected):
        build: Any = expected
        try:
            return build(**check_arguments(value, expected, path))
        except SchemaError:
            raise
        except ValueError as error:
            raise SchemaError(f"{path or 'the whole'}: {error}") from error
    if origin in {list, tuple, Sequence}:
        return _check_list(value, origin, arguments, path)
    if origin in {dict, Mapping}:
        _require_object(value, path)
        return {key: check(each, arguments[1], _below(path, key)) for key, each in value.items()}
    if not _is_plain(value, expected):
        raise _unexpected(value, _words(expected), path)
    return value


def check_arguments(value: Any, cls: Any, path: str = "") -> dict[str, Any]:
    """An object that holds the arguments of a class, checked by the annotations of its constructor."""
    parameters = inspect.signature(cls).parameters.values()
    hints = get_type_hints(cls.__init__, include_extras=True)
    named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    required = {each.name for each in named if each.default is each.empty}
    expected = {each.name: hints[each.name] for each in named}
    return _check_object(value, expected, required, path, closed=len(named) == len(parameters))


def _check_limits(value: Any, limits: Sequence[Any], path: str) -> Any:
    for limit in limits:
        if isinstance(limit, ArgumentsOf):
            check_arguments(value, limit.cls, path)
        if isinstance(limit, Limit) and not limit.holds(value):
            raise _unexpected(value, limit.words, path)
    return value


def _check_union(value: Any, expected: Any, path: str) -> Any:
    inside: SchemaError | None = None  # of an alternative that has the right kind, about something in it
    for each in sorted(get_args(expected), key=lambda each: _shared_fields(value, each), reverse=True):
        try:
            return check(value, each, path)
        except SchemaError as error:
            if isinstance(value, dict | list) and not str(error).startswith(f"{path} is "):
                inside = inside or error
    raise inside or _unexpected(value, _words(expected), path)


def _shared_fields(value: Any, expected: Any) -> int:
    """How many keys of an object are fields of a dataclass: of several, the nearest one says what is wrong."""
    return sum(each.name in value for each in fields(expected)) if is_dataclass(expected) and isinstance(value, dict) else 0


def _check_list(value: Any, origin: Any, arguments: tuple[Any, ...], path: str) -> Any:
    if not isinstance(value, list):
        raise _unexpected(value, "a list", path)
    if len(arguments) == 1 or arguments[-1] is Ellipsis:
        arguments = arguments[:1] * len(value)
    elif len(value) != len(arguments):
        raise _unexpected(value, f"a list of {len(arguments)}", path)
    items = [check(each, arguments[number], f"{path}[{number}]") for number, each in enumerate(value)]
    return tuple(items) if origin is tuple else items


def _check_object(value: Any, hints: Mapping[str, Any], required: Any, path: str, *, closed: bool) -> dict[str, Any]:
    _require_object(value, path)
    checked = dict(value)
    for key, expected in hints.items():
        if key in value:
            checked[key] = check(value[key], expected, _below(path, key))
        elif key in required:
            raise SchemaError(f"{_below(path, key)} is missing")
    unknown = next((key for key in value if key not in hints), None)
    if closed and unknown is not None:
        raise SchemaError(f"{_below(path, unknown)} is not known to this wildood")
    return checked


def _require_object(value: Any, path: str) -> None:
    if not isinstance(value, dict):
        raise _unexpected(value, "an object", path)


def _is_plain(value: Any, expected: Any) -> bool:
    if get_origin(expected) is Literal:
        return any(value == each and type(value) is type(each) for each in get_args(expected))
    if expected is float:
        return type(value) is float or (type(value) is int and abs(value) <= _LARGEST)
    return value is None if expected is None else type(value) is expected


def _unexpected(value: Any, words: str, path: str) -> SchemaError:
    text = repr(value)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return SchemaError(f"{path or 'the whole'} is {shown}, expected {words}")


def _words(expected: Any) -> str:
    """A type as a message names it."""
    origin, arguments = get_origin(expected), get_args(expected)
    if origin is Annotated:
        return next((each.words for each in arguments if isinstance(each, Limit)), _words(arguments[0]))
    if origin in {Union, types.UnionType}:
        return " or ".join(map(_words, arguments))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in {list, tuple, Sequence}:
        return "a list"
    return _NAMES.get(type(None) if expected is None else expected, "an object")


def _below(path: str, key: str) -> str:
    name = key if key.isidentifier() else repr(key)[: _SHOWN + 2]
    return f"{path}.{name}" if path else name

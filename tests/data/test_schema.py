"""What is read from a file is of the expected type, or its first wrong value is named by its path."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict

import pytest

from wildood.data.schema import ArgumentsOf, Count, Rate, SchemaError, check, check_arguments, dump, parse
from wildood.errors import InputError


@dataclass(frozen=True)
class Settings:
    rate: Rate
    name: str = "a"


@dataclass(frozen=True)
class Run:
    first: Settings
    sizes: tuple[Count, ...]
    by_name: dict[str, Settings]
    note: str | None = None

    def __post_init__(self):
        if len(self.sizes) > 2:
            raise InputError("give at most two sizes")


class Closed(TypedDict):
    side: Literal["left", "right"]
    more: NotRequired[list[int] | None]


class Open(TypedDict, total=False):
    name: Required[str]
    count: Count


class Anything:
    def __init__(self, size: int = 1, **settings: Any) -> None: ...


FITS = [
    (3, float),
    (3.5, float),
    (None, None),
    (None, int | None),
    ([1, 2], list[int]),
    ([1], int | Sequence[int]),
    ({"a": [0.5]}, dict[str, list[Rate]]),
    ({"side": "left"}, Closed),
    ({"side": "right", "more": None}, Closed),
    ({"name": "a", "other": []}, Open),
    ({"rate": 0.5}, Annotated[dict[str, Any], ArgumentsOf(Settings)] | None),
    (object, Any),
]


@pytest.mark.parametrize(("value", "expected"), FITS)
def test_a_value_of_the_type_is_taken(value, expected):
    assert check(value, expected) == value


def test_lists_become_tuples_and_objects_dataclasses_where_those_are_expected():
    assert check([1, "a"], tuple[int, str]) == (1, "a")
    assert check({"a": [[1, 2, 3]]}, dict[str, list[tuple[int, ...]]]) == {"a": [(1, 2, 3)]}
    assert check([{"rate": 0.5}, None], list[Settings | None]) == [Settings(0.5), None]


def test_a_record_comes_back_from_its_json():
    run = Run(Settings(0.25, "b"), sizes=(3, 4), by_name={"c": Settings(0.5)})
    assert parse(dump(run), Run) == run
    assert json.loads(dump(run))["first"] == {"rate": 0.25, "name": "b"}


WRONG = [
    (True, int, "a is True, expected a whole number"),
    (True, float, "a is True, expected a number"),
    (10**400, float, f"a is {'1' + '0' * 59}..., expected a number"),
    (1, bool, "a is 1, expected true or false"),
    (2.0, int, "a is 2.0, expected a whole number"),
    ("a\nb", int | None, r"a is 'a\nb', expected a whole number or null"),
    (float("nan"), Rate, "a is nan, expected a number between 0 and 1"),
    (-1, Count, "a is -1, expected a whole number from 0 on"),
    ("up", Literal["left", "right"], "a is 'up', expected 'left' or 'right'"),
    ([1, "x"], list[int], "a[1] is 'x', expected a whole number"),
    ([1], tuple[int, int] | None, "a is [1], expected a list or null"),
    ({}, list[int], "a is {}, expected a list"),
    ([], dict[str, int], "a is [], expected an object"),
    ({"b c": "x"}, dict[str, int], "a.'b c' is 'x', expected a whole number"),
    ({}, Closed, "a.side is missing"),
    ({"side": "left", "else": 1}, Closed, "a.else is not known to this wildood"),
    ({"side": "left", "more": [1, None]}, Closed, "a.more[1] is None, expected a whole number"),
    ({"count": 1}, Open, "a.name is missing"),
    ({"rate": 2}, Annotated[dict[str, Any], ArgumentsOf(Settings)] | None, "a.rate is 2, expected a number between 0 and 1"),
    ({"first": {"rate": 2}, "sizes": [], "by_name": {}}, Run, "a.first.rate is 2, expected a number between 0 and 1"),
    ({"first": {"rate": 0.5}, "sizes": [1, -1], "by_name": {}}, Run, "a.sizes[1] is -1, expected a whole number from 0 on"),
    ({"first": {"rate": 0.5}, "sizes": [1] * 3, "by_name": {}}, Run, "a: give at most two sizes"),
    ({"rate": 0.5, "other": 1}, Settings, "a.other is not known to this wildood"),
    ([], Settings | None, "a is [], expected an object or null"),
]


@pytest.mark.parametrize(("value", "expected", "said"), WRONG)
def test_another_value_is_named_by_its_path(value, expected, said):
    with pytest.raises(SchemaError) as refused:
        check(value, expected, "a")
    assert str(refused.value) == said


def test_arguments_that_a_constructor_takes_by_any_name_are_taken():
    check_arguments({"other": 1}, Anything)
    with pytest.raises(SchemaError, match="size is '1', expected a whole number"):
        check_arguments({"size": "1"}, Anything)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_not_json_is_refused(content):
    with pytest.raises(SchemaError, match="it is not JSON"):
        parse(content, Any)

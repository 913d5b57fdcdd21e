"""The rooms of the house stand in one order, and nobody looks upstairs."""

import ast
import sys
from pathlib import Path

import pytest

import wildood

HOUSE = Path(wildood.__file__).parent
ROOMS = (
    "errors",
    "settings",
    "evaluate",
    "data",
    "models",
    "scores",
    "methods",
    "train",
    "detect",
    "experiments",
    "report",
    "habitat",
    "cli",
)
FILES = sorted(HOUSE.rglob("*.py"))
INSIDE = [path for path in FILES if path.parent != HOUSE or path.stem not in {"__init__", "__main__"}]


def room_of(path):
    """`errors.py` and `settings.py` are rooms of their own; every other file is in the directory it lies in."""
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


def package_of(path):
    return ("wildood", *path.relative_to(HOUSE).parent.parts)


def imported_modules(tree, package):
    """Every module that a file imports, anywhere in it, as a dotted name; `from a import b` gives `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def forbidden_imports(text, path):
    """What the file takes from the package although its room may not."""
    allowed = {f"wildood.{room}" for room in ROOMS[: ROOMS.index(room_of(path)) + 1]} | {"wildood.__version__"}
    return [
        module
        for module in imported_modules(ast.parse(text), package_of(path))
        if module.split(".")[0] == "wildood" and module != "wildood" and ".".join(module.split(".")[:2]) not in allowed
    ]


def names_taken_from_the_package(text):
    """`x` of each `wildood.x` in code."""
    return {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "wildood"
    }


def test_every_directory_and_module_is_a_room():
    assert {room_of(path) for path in INSIDE} <= set(ROOMS)


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: str(path.relative_to(HOUSE)))
def test_a_room_imports_only_from_rooms_before_it(path):
    assert forbidden_imports(path.read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: str(path.relative_to(HOUSE)))
def test_a_room_takes_nothing_but_the_version_from_the_package_itself(path):
    assert names_taken_from_the_package(path.read_text(encoding="utf-8")) <= {"__version__"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from wildood.detect.detector import Detector", ["wildood.detect.detector.Detector"]),
        ("import wildood.cli.main", ["wildood.cli.main"]),
        ("from wildood import fit", ["wildood.fit"]),
        ("from wildood import train", ["wildood.train"]),
        ("from ..train import loop", ["wildood.train.loop"]),
        ("from .. import report", ["wildood.report"]),
        ("def f():\n    from wildood.methods.woods import Woods", ["wildood.methods.woods.Woods"]),
        ("if TYPE_CHECKING:\n    from wildood.train.loop import Training", ["wildood.train.loop.Training"]),
        ("from . import outputs", []),
        ("from .outputs import Outputs", []),
        ("from wildood import __version__", []),
        ("import wildood, torch", []),
        ("from wildood.data.inputs import InputSpec", []),
        ("from wildood.errors import InputError", []),
    ],
)
def test_the_check_itself_sees_every_form_of_import(text, found):
    assert forbidden_imports(text, HOUSE / "models" / "features.py") == found


def test_the_package_itself_imports_only_the_standard_library():
    module_level = [
        node
        for node in ast.parse((HOUSE / "__init__.py").read_text(encoding="utf-8")).body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    tops = {module.split(".")[0] for module in imported_modules(ast.Module(module_level, []), ("wildood",))}
    assert tops <= set(sys.stdlib_module_names)


def test_no_room_has_the_name_of_a_public_name_unless_it_can_be_called():
    """Once imported, a submodule becomes an attribute of the package and would be found instead of the function."""
    assert {room_of(path) for path in FILES} & set(wildood.__all__) == {"evaluate"}
    assert callable(wildood.evaluate)


def test_every_module_says_in_its_first_line_what_it_is_for():
    silent = [str(path.relative_to(HOUSE)) for path in FILES if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert silent == []

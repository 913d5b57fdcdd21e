"""The help of commands that train: options by headings, the first words of each (--help) or everything (--help-all)."""

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import field, fields, make_dataclass
from typing import Annotated, Any, get_type_hints

import tyro

# The headings, and the options below each; further ones of a command are below the last.
GROUPS = {
    "data": (
        *("labelled", "wild", "holdout", "fresh", "label_column", "categorical", "ignore"),
        *("tokenizer", "text_column", "tokens", "mean", "std", "layout", "size"),
        *("skip_broken", "allow_duplicates", "set_aside", "data_root"),
    ),
    "promise": ("alpha", "confidence", "by_class"),
    "training": (
        *("model", "weights", "method", "as_published", "features", "device", "precision", "frozen"),
        *("steps", "epochs", "minutes", "batch", "lr", "keep", "grid", "seed"),
    ),
    "output": ("out", "config", "quiet"),
}
NUMBERS = "NUMBER ..."
METAVARS: dict[Any, str] = {int: "N", int | None: "N", float: "NUMBER", float | None: "NUMBER", tuple[float, ...]: NUMBERS}


def help_of(options: Any, method: str, hidden: Iterable[str], texts: Mapping[str, str], *, in_full: bool) -> type[Any]:
    """A dataclass whose help tyro shows as that of a command.

    The settings of method and schedule that are below no heading of `GROUPS` have one of their own, in full help only.

    Args:
        options: of the command, with their values; `settings` and `schedule` are those of a method, and its schedule.
        method: the heading of its settings.
        hidden: what is not shown.
        texts: other descriptions than those in docstrings.
        in_full: whether everything is shown.
    """
    kept: dict[str, list[Any]] = {group: [] for group in (*GROUPS, method, "schedule")}
    places = {name: group for group, names in GROUPS.items() for name in names}
    for part, rest in ((options, "output"), (options.settings, method), (options.schedule, "schedule")):
        described = _descriptions(type(part)) | {**texts}
        for each in () if part is None else fields(part):
            place = places.get(each.name, rest)
            if each.name not in {*hidden, "settings", "schedule"} and (in_full or place in GROUPS):
                text = described.get(each.name, "")
                line = _line(part, each.name, text if in_full else _first_words(text), is_flag_bare=part is options)
                kept[place].append((each.name, *line))
    order = {name: number for number, name in enumerate(places)}
    headings = {method: type(options.settings).__base__, "schedule": type(options.schedule).__base__}
    groups = []
    for group, lines in kept.items():
        if lines:
            lines.sort(key=lambda line: order.get(line[0], len(order)))
            about = {"__doc__": _doc(headings[group]).partition("\n\n")[0] if group in headings else ""}
            cls = make_dataclass(group, lines, namespace=about)
            groups.append((group.replace("-", "_"), Annotated[cls, tyro.conf.OmitArgPrefixes], field(default_factory=cls)))
    every = "every option in full" + (", with the settings of the --method" if options.settings else "")
    first = [("help_all", Annotated[bool, tyro.conf.arg(help=every, help_behavior_hint="")], field(default=False))]
    return make_dataclass("Help", first + groups, namespace={"__doc__": _doc(type(options)).partition("\n\nAttributes:")[0]})


def _line(part: Any, name: str, text: str, *, is_flag_bare: bool) -> tuple[Any, Any]:
    """The type of an option with its help, and its value."""
    kind, value = get_type_hints(type(part), include_extras=True)[name], getattr(part, name)
    is_flag = kind is bool and is_flag_bare
    hint = "" if value is None or is_flag else None  # "(default: None)" says nothing
    shown = tyro.conf.arg(metavar=METAVARS.get(kind), help=text, help_behavior_hint=hint)
    return Annotated[(kind, shown) if is_flag else (kind, shown, tyro.conf.FlagConversionOff)], field(default=value)


def _first_words(text: str) -> str:
    """A description up to its first full stop, colon, semicolon or bracket.

    >>> _first_words("what to train with: a method (default: woods).")
    'what to train with'
    """
    return re.split(r"[.;:]( |$)| \(", text)[0]


def _descriptions(cls: type[Any]) -> dict[str, str]:
    """What docstrings say of each attribute of a class.

    >>> from wildood.methods.schedule import Schedule
    >>> _descriptions(Schedule)["lr"]
    'the learning rate mu_1 at the start.'
    """
    found = {}
    for each in reversed(cls.__mro__):
        attributes = _doc(each).partition("Attributes:\n")[2]
        for match in re.finditer(r"^    (\w+): (.+(?:\n {8}.+)*)", attributes, re.MULTILINE):
            found[match[1]] = " ".join(match[2].split())
    return found


def _doc(cls: Any) -> str:
    return inspect.cleandoc(cls.__doc__ or "")

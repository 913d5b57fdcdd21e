"""Options of a command as a dataclass that tyro parses; a mistake in them is one line, like every other mistake."""

import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from difflib import get_close_matches
from itertools import groupby
from typing import Any, TypeVar

import tyro

from wildood.errors import InputError
from wildood.settings import can_be_named, quoted

Options = TypeVar("Options")
DATA_ROOT = "of named sets and decoded pictures (default: $WILDOOD_DATA, or the user's cache)."


def named(metavar: str, hint: str = "", help: str | None = None) -> Any:  # noqa: A002 - tyro's word for it
    """How the help names the value of an option, and what it says of its default."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint, help=help)


def parse(
    options: type[Options], command: str, words: Sequence[str], *, default: Options | None = None, partial: bool = False
) -> Options:
    """The options of a command; with a default, each flag has a counterpart such as --no-quiet.

    Args:
        options: a dataclass.
        command: its name.
        words: of the command line.
        default: what is not in the words.
        partial: leave out what is no option, --help too.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Count:
    ...     steps: int = 3
    >>> parse(Count, "count", ["--steps", "5"])
    Count(steps=5)
    >>> parse(Count, "count", ["--stepz", "5"])
    Traceback (most recent call last):
    wildood.errors.InputError: count: unrecognized options: --stepz, 5: did you mean --steps? See wildood count --help
    """
    refuse_nul(words, command)
    errors, output = io.StringIO(), io.StringIO()
    nested = (tyro.conf.OmitArgPrefixes, tyro.conf.SuppressFixed)
    settings: dict[str, Any] = {
        "prog": f"wildood {command}",
        "args": words,
        "default": default,
        "config": (tyro.conf.FlagCreatePairsOff,) if default is None else nested,
        "return_unknown_args": partial,
        "add_help": not partial,
    }
    try:
        # tyro colours its help in a terminal and does not know NO_COLOR.
        with redirect_stderr(errors), redirect_stdout(output if os.environ.get("NO_COLOR") else sys.stdout):
            parsed: Any = tyro.cli(options, **settings)
            found: Options = parsed[0] if partial else parsed
            return found
    except SystemExit as ended:
        sys.stdout.write(output.getvalue())
        if ended.code:
            raise InputError(f"{command}: {_one_line(errors.getvalue())} See wildood {command} --help") from None
        raise


def refuse_nul(words: Iterable[str], command: str) -> None:
    """Refuse what no file name can hold; a shell passes on no NUL, but a file may hold one."""
    odd = next((word for word in words if not can_be_named(word)), None)
    if odd is not None:
        raise InputError(f"{command}: {quoted(odd)} holds a NUL character: leave it out")


def _one_line(boxed: str) -> str:
    """The message in tyro's box: the paragraph below the title, and the nearest of the options that it suggests."""
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line).strip(" │") for line in boxed.splitlines()]
    rule = re.compile(r"[╭╰].*|[─-]+")
    paragraphs: list[list[str]] = [[]] if lines and lines[0].startswith("╭") else []
    for is_rule, group in groupby(lines, key=lambda line: bool(rule.fullmatch(line))):
        if not is_rule:
            paragraphs.append(list(group))
    if len(paragraphs) < 2:  # another version of tyro
        return " ".join(lines).strip()
    text = re.sub(r"\s+", " ", " ".join(paragraphs[1])).strip()
    text = text.split(". Got errors")[0].removesuffix("(required)").strip(" .")
    if text.startswith("Missing from"):
        text = f"missing: {', '.join(line for line in paragraphs[1] if re.fullmatch('[A-Z:]+', line))}"
    wrong_type = r"no type matching .+? could be instantiated from \[(.+)\]|invalid literal .+: (.+)"
    text = re.sub(f"(?i)error parsing (\\S+): (?:{wrong_type})", r"\1 cannot be \2\3", text)
    text = re.sub(r"[Ii]nvalid choice (\S+) for argument '(\S+)'\. Expected", r"\2 cannot be \1: it is", text)
    text = re.sub(r"it is one of \((.+?)\)", _choices, text)
    # tyro's first suggestion need not be the nearest: of --od, it is --model.
    suggested = [line for paragraph in paragraphs[2:] for line in paragraph if line.startswith("--")]
    options = [option for line in suggested for option in re.findall(r"--[\w-]+", line)]
    typed = re.search(r"--[\w-]+", text)
    near = get_close_matches(typed.group(), options, n=1, cutoff=0.0) if typed and typed.group() not in options else []
    return f"{text[:1].lower()}{text[1:]}" + (f": did you mean {near[0]}?" if near else ".")


def _choices(match: re.Match[str]) -> str:
    """Sorted, and without None, which stands for an option that is not given."""
    choices = set(re.findall(r"'(.*?)'", match.group(1))) - {"None"}
    return f"it is one of {', '.join(sorted(choices))}"

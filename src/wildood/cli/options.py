"""Words of the command line made into options; a mistake in them is one line, like every other mistake."""

import io
import os
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from difflib import get_close_matches
from itertools import groupby
from typing import Any, TypeVar

import tyro

from wildood.errors import InputError
from wildood.settings import can_be_named, quoted

Options = TypeVar("Options")


def named(metavar: str, hint: str = "", help: str | None = None) -> Any:  # noqa: A002 - tyro's word for it
    """How the help names the value of an option, and what it says of its default."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint, help=help)


def parse(options: type[Options], command: str, words: Sequence[str], *, negated: bool = False) -> Options:
    """The options of a command; `negated`, for each flag one that takes it back: --no-quiet.

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
    odd = next((word for word in words if not can_be_named(word)), None)  # from a file: no shell passes it on
    if odd is not None:
        raise InputError(f"{command}: {quoted(odd)} holds a NUL character: leave it out")
    said, shown = io.StringIO(), io.StringIO()
    # tyro writes in colour to a terminal, and has not heard of NO_COLOR.
    output = shown if os.environ.get("NO_COLOR") else sys.stdout
    flags = () if negated else (tyro.conf.FlagCreatePairsOff,)
    try:
        with redirect_stderr(said), redirect_stdout(output):
            found: Options = tyro.cli(options, prog=f"wildood {command}", args=words, config=flags)
            return found
    except SystemExit as ended:
        sys.stdout.write(shown.getvalue())
        if ended.code:
            raise InputError(f"{command}: {_one_line(said.getvalue())} See wildood {command} --help") from None
        raise


def _one_line(boxed: str) -> str:
    """What tyro says in a box, of lines or of ASCII: the paragraph below the title, and the first option it suggests."""
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line).strip(" │") for line in boxed.splitlines()]
    rule = re.compile(r"[╭╰].*|[─-]+")
    paragraphs: list[list[str]] = [[]] if lines and lines[0].startswith("╭") else []
    for after_rule, group in groupby(lines, key=lambda line: bool(rule.fullmatch(line))):
        if not after_rule:
            paragraphs.append(list(group))
    if len(paragraphs) < 2:  # another way to say it than was known when this was written
        return " ".join(lines).strip()
    text = re.sub(r"\s+", " ", " ".join(paragraphs[1])).strip()
    text = text.split(". Got errors")[0].removesuffix("(required)").strip(" .")
    if text.startswith("Missing from"):
        text = f"missing: {', '.join(line for line in paragraphs[1] if re.fullmatch('[A-Z:]+', line))}"
    of_no_type = r"no type matching .+? could be instantiated from \[(.+)\]|invalid literal .+: (.+)"
    text = re.sub(f"(?i)error parsing (\\S+): (?:{of_no_type})", r"\1 cannot be \2\3", text)
    text = re.sub(r"[Ii]nvalid choice (\S+) for argument '(\S+)'\. Expected", r"\2 cannot be \1: it is", text)
    text = re.sub(r"it is one of \((.+?)\)", _choices, text)
    # tyro's first suggestion need not be the nearest: of --od, it is --model.
    suggested = [line for paragraph in paragraphs[2:] for line in paragraph if line.startswith("--")]
    options = [option for line in suggested for option in re.findall(r"--[\w-]+", line)]
    typed = re.search(r"--[\w-]+", text)
    near = get_close_matches(typed.group(), options, n=1, cutoff=0.0) if typed and typed.group() not in options else []
    return f"{text[:1].lower()}{text[1:]}" + (f": did you mean {near[0]}?" if near else ".")


def _choices(found: re.Match[str]) -> str:
    """In the same order every time; without None, which stands for an option that is not given."""
    named = sorted(set(re.findall(r"'(.*?)'", found.group(1))) - {"None"})
    return f"it is one of {', '.join(named)}"

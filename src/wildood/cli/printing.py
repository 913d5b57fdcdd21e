"""Results on standard output: lines as they are for a file or a pipe, broken between words for a terminal."""

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping


def say(text: str, indent: int = 0) -> None:
    """Write lines; in a terminal, a long one goes on below, this far to the right. Where nobody reads them, go on.

    >>> say("no terminal, no wrapping")
    no terminal, no wrapping
    """
    try:
        for line in text.splitlines():
            sys.stdout.write(f"{wrapped(line, indent) if sys.stdout.isatty() else line}\n")
        sys.stdout.flush()  # the result before what comes after it: a page that cannot be written must not hide it
    except BrokenPipeError:  # what is written to files after it must not be lost
        write_nowhere()


def write_nowhere() -> None:
    """The reader (head, less) has had enough. Without this, Python complains once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say_named(lines: Mapping[str, str], width: int) -> None:
    """Write texts with their names, in a column of this width, before them.

    >>> say_named({"seed": "0", "model": "MLP"}, width=6)
    seed   0
    model  MLP
    """
    say("\n".join(f"{name:{width}} {' '.join(text.splitlines())}" for name, text in lines.items()), indent=width + 1)


def wrapped(line: str, indent: int = 0, width: int | None = None) -> str:
    """A line broken between words; a word that is longer than a line, such as a path, is left whole.

    >>> print(wrapped("promise    a false-alarm rate of at most 5 %", indent=11, width=30))
    promise    a false-alarm rate
               of at most 5 %
    """
    columns = shutil.get_terminal_size().columns if width is None else width
    return textwrap.fill(
        line,
        columns,
        subsequent_indent=" " * indent if indent < columns // 2 else "",
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )

"""`wildood`: starts a command, and turns what it raises into an exit code. It imports nothing slow before it must."""

import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module

import wildood
from wildood.errors import WildoodError, printable

COMMANDS = {
    "data": "the named image sets: list them, get them, check them",
    "demo": "see what it does: digits, two minutes, a table and a page",
    "evaluate": "measure a saved detector on test data: a table, its files and a page",
    "export": "write a saved detector for other runtimes: torch.export or ONNX",
    "fit": 'teach a classifier to say "unknown" from wild data',
    "habitat": "a detector in service: how it is; its successor: train, compare, promote",
    "inspect": "look at traffic: how much of it is unknown, and what to label first",
    "pretrain": "train a classifier, to start from",
    "reproduce": "run the paper's experiments, or their like for a laptop",
    "report": "tables, figures and a page of what reproduce has run",
    "score": "score examples with a saved detector: known or unknown, and which class",
    "serve": "answer over HTTP with a saved detector, and collect the traffic in a habitat",
    "show": "what a saved detector is, what it promises, how it was made",
}
HELP = f"""usage: wildood COMMAND [OPTIONS]

Teach a deployed PyTorch classifier to say "unknown", from the unlabelled traffic it serves.

commands:
{chr(10).join(f"  {name:10}{what}" for name, what in COMMANDS.items())}

options:
  -h, --help    this text; wildood COMMAND --help for a command's options
  --version     the version
"""
RESUMED = ("fit", "pretrain", "reproduce")
DISTRIBUTED = ("fit", "pretrain")  # under torchrun
NO_MEMORY = "allocate memory|out of memory|not enough memory"  # torch has no exception for it on a CPU
OK, MISTAKE, FOUND, FAILED, INTERRUPTED = 0, 2, 3, 4, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; a bug shows its traceback.

    0: done; 2: a mistake of the user's; 3: inspect or habitat status found unknowns; 4: some runs of reproduce failed;
    130: Ctrl-C.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without ± shows ? instead of a traceback
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in {"-h", "--help"}:
        sys.stdout.write(HELP)
        return OK if words else MISTAKE
    command = words[0]
    if command == "--version":
        sys.stdout.write(f"{wildood.__version__}\n")
        return OK
    if command not in COMMANDS:
        near = get_close_matches(command, COMMANDS, n=1)
        return _mistake(f"no command {command!r}: " + (f"did you mean {near[0]!r}?" if near else "see wildood --help"))
    rank, world = _rank_and_world()
    if world > 1 and command not in DISTRIBUTED:
        them = " and ".join(DISTRIBUTED)
        return _mistake(f"{command} runs in one process: start it without torchrun, which is for {them}")
    try:
        return import_module(f"wildood.cli.{command}").run(words[1:]) or OK
    except WildoodError as error:
        return _mistake(str(error))
    except KeyboardInterrupt:
        resumes = (
            "; called again, training goes on from where it was"
            if command in RESUMED or words[:2] == ["habitat", "refresh"]
            else ""
        )
        if rank == 0:
            sys.stderr.write(f"wildood: interrupted{resumes}\n")
        return INTERRUPTED
    except BrokenPipeError:
        discard_output()
        return OK
    except OSError as error:
        return _mistake(f"{error.filename or 'the output'}: {error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search(NO_MEMORY, str(error)):
            raise
        return _mistake(f"there is not enough memory for these sizes: give smaller ones ({error})")


def _rank_and_world() -> tuple[int, int]:
    """The rank of this process under torchrun and the number of processes, without torch, which is slow to import."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def _mistake(message: str) -> int:
    rank, world = _rank_and_world()
    who = f"wildood (process {rank} of {world})" if world > 1 else "wildood"
    sys.stderr.write(f"{who}: {printable(message)}\n")
    return MISTAKE


def say(text: str, indent: int = 0) -> None:
    """Print a result: lines as they are, but wrapped in a terminal, where continued lines are indented."""
    try:
        for line in text.splitlines():
            sys.stdout.write(f"{wrapped(line, indent) if sys.stdout.isatty() else line}\n")
        sys.stdout.flush()  # before a page is written, which may fail
    except BrokenPipeError:  # the files are written all the same
        discard_output()


def say_named(lines: Mapping[str, str], width: int) -> None:
    """Print texts after their names, which have a column of this width.

    >>> say_named({"seed": "0", "model": "MLP"}, width=6)
    seed   0
    model  MLP
    """
    say("\n".join(f"{name:{width}} {' '.join(text.splitlines())}" for name, text in lines.items()), indent=width + 1)


def discard_output() -> None:
    """Send further output nowhere: the reader (head, less) has closed the pipe, and Python would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def wrapped(line: str, indent: int = 0, width: int | None = None) -> str:
    """A line wrapped between words; a word that is longer than a line, such as a path, stays whole.

    >>> print(wrapped("promise    a false-alarm rate of at most 5 %", indent=11, width=30))
    promise    a false-alarm rate
               of at most 5 %
    """
    columns = shutil.get_terminal_size().columns if width is None else width
    indented = " " * indent if indent < columns // 2 else ""
    return textwrap.fill(
        line, columns, subsequent_indent=indented, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )

"""`wildood`: finds the command and turns what it raises into an exit code; imports nothing slow before it must."""

import io
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

import wildood
from wildood.cli.printing import write_nowhere
from wildood.errors import WildoodError, printable

COMMANDS = {
    "data": "the named image sets: list them, get them, check them",
    "demo": "see what it does: digits, two minutes, a table and a page",
    "evaluate": "measure a saved detector on test data: a table, its files and a page",
    "fit": 'teach a classifier to say "unknown" from wild data',
    "inspect": "look at traffic: how much of it is unknown, and what to label first",
    "pretrain": "train a classifier, to start from",
    "reproduce": "run the paper's experiments, or their like for a laptop",
    "report": "tables, figures and a page of what reproduce has run",
    "score": "score examples with a saved detector: known or unknown, and which class",
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
SHARED = ("fit", "pretrain")  # by several processes
NO_MEMORY = "allocate memory|out of memory|not enough memory"  # torch has no exception for it on a CPU
OK, MISTAKE, FOUND, FAILED, INTERRUPTED = 0, 2, 3, 4, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command: 0 when all is done, 2 for a mistake of the user's, 3 if inspect found unknowns, 130 after Ctrl-C.

    A bug shows its traceback.

    >>> main(["--version"])
    0.1.0
    0
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without ± shows ? instead of a traceback
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in {"-h", "--help"}:
        sys.stdout.write(HELP)
        return OK if words else MISTAKE
    if words[0] == "--version":
        sys.stdout.write(f"{wildood.__version__}\n")
        return OK
    if words[0] not in COMMANDS:
        near = get_close_matches(words[0], COMMANDS, n=1)
        return _mistake(f"no command {words[0]!r}: " + (f"did you mean {near[0]!r}?" if near else "see wildood --help"))
    rank, world = _rank_and_world()
    if world > 1 and words[0] not in SHARED:
        return _mistake(f"{words[0]} runs in one process: start it without torchrun, which is for {' and '.join(SHARED)}")
    code: int | None = OK
    try:
        code = import_module(f"wildood.cli.{words[0]}").run(words[1:])
    except WildoodError as error:
        return _mistake(str(error))
    except KeyboardInterrupt:
        resumes = "; called again, training goes on from where it was" if words[0] in RESUMED else ""
        if rank == 0:
            sys.stderr.write(f"wildood: interrupted{resumes}\n")
        return INTERRUPTED
    except BrokenPipeError:
        write_nowhere()
    except OSError as error:
        return _mistake(f"{error.filename or 'the output'}: {error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search(NO_MEMORY, str(error)):
            raise
        return _mistake(f"there is not enough memory for these sizes: give smaller ones ({error})")
    return OK if code is None else code


def _rank_and_world() -> tuple[int, int]:
    """Which of torchrun's processes this is, and how many there are; without torch, which is slow to import."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def _mistake(message: str) -> int:
    rank, world = _rank_and_world()
    who = f"wildood (process {rank} of {world})" if world > 1 else "wildood"
    sys.stderr.write(f"{who}: {printable(message)}\n")
    return MISTAKE

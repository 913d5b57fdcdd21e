"""`wildood show`: what a saved detector is, what it promises, how it was made."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from wildood.cli.main import say_named
from wildood.cli.options import named, parse
from wildood.detect.card import description_lines
from wildood.detect.storage import read_description


@dataclass(frozen=True)
class ShowOptions:
    """What a saved detector is, what it promises, how it was made. Its weights are not read and no code is imported.

    Attributes:
        detector: the directory that fit wrote.
        json: everything that is known, as JSON.
    """

    detector: Annotated[Path, tyro.conf.Positional, named("DETECTOR")]
    json: bool = False


def run(words: Sequence[str]) -> None:
    """Print a few readable lines, or all of it as JSON."""
    options = parse(ShowOptions, "show", words)
    content = read_description(options.detector)
    if options.json:
        sys.stdout.write(json.dumps(content, indent=2, default=asdict) + "\n")
    else:
        say_named(description_lines(content), width=10)

"""`wildood export`: a saved detector as a file for other runtimes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from wildood.cli.inputs import read_detector
from wildood.cli.main import say
from wildood.cli.options import named, parse


@dataclass(frozen=True)
class ExportOptions:
    """Write a saved detector as .pt2 (torch.export) or .onnx: raw examples in; class or -1, score, known, p-value out.

    The file is tried on blank examples before it is written: it must score them as the detector does.

    Attributes:
        detector: the directory that fit wrote.
        file: where to write; its name ends with .pt2 or .onnx.
        model: module:function that builds a model of your own. For security, loading a detector never imports code.
    """

    detector: Annotated[Path, tyro.conf.Positional, named("DETECTOR")]
    file: Annotated[Path, tyro.conf.Positional, named("FILE")]
    model: Annotated[str | None, named("MODULE:FUNCTION")] = None


def run(words: Sequence[str]) -> None:
    """Write the file, and say what it takes."""
    options = parse(ExportOptions, "export", words)
    detector = read_detector(options)
    path = detector.export(options.file)
    say(f"{path}: {detector.example} in batches of any size; returns class (-1: unknown), score, known and p_value")

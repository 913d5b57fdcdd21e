"""What a detector says of an archive: a line for each example, chunk by chunk, to where it can go on if it is cut off."""

import csv
import io
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Protocol

from wildood.data.archives import Archive
from wildood.data.chunks import Chunk
from wildood.data.files import digest
from wildood.detect.detector import Detector
from wildood.errors import InputError

COLUMNS = ("example", "score", "decision", "class")
Format = Literal["csv", "jsonl"]
_LISTED = 1000  # broken files by their names in the log; all of them are counted
_LOGGER = logging.getLogger("wildood")


@dataclass(frozen=True)
class Lines:
    """What a chunk gave: its text, for how many examples, and the files that were left out, each with the reason."""

    text: str
    examples: int
    broken: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Progress:
    """How far an archive was gone through.

    Attributes:
        listed: examples or files, those included that cannot be read.
        examples: lines that were written.
        broken: files that were left out.
        state: a hash of the states of all chunks up to here.

    >>> import numpy as np
    >>> from wildood.data.chunks import Rows
    >>> Progress(listed=4096, examples=4096).after(Rows(np.zeros((3, 2)), first=4096), Lines("", 3)).examples
    4099
    """

    listed: int = 0
    examples: int = 0
    broken: int = 0
    state: str = ""

    @classmethod
    def of(cls, output: "Output") -> "Progress":
        """How far an output came; one whose note says something else is refused."""
        try:
            found = cls(**output.note)
        except TypeError:
            found = None
        if found is None or any(type(getattr(found, part.name)) is not part.type for part in fields(cls)):
            raise output.refuse("has a damaged note of how far it came")
        return found

    def after(self, chunk: Chunk, lines: Lines) -> "Progress":
        """After one more chunk."""
        return Progress(
            self.listed + chunk.count,
            self.examples + lines.examples,
            self.broken + len(lines.broken),
            _chained(self.state, chunk),
        )


class Output(Protocol):
    """Where lines go.

    Attributes:
        note: the progress that came with the last lines, if there are any already.
    """

    note: dict[str, Any]

    def add(self, text: str, note: Mapping[str, Any]) -> None:
        """More lines, and the progress with them."""
        ...

    def refuse(self, why: str) -> InputError:
        """An error that says why it cannot go on with what is there already."""
        ...


Answer = Callable[[Iterator[Chunk]], Iterator[tuple[Chunk, Lines]]]


def lines_of(detector: Detector, chunk: Chunk, form: Format, threads: int = 1) -> Lines:
    """One line for each example of a chunk: its file or number, score, decision and class; a header before the first.

    >>> import numpy as np, torch, wildood
    >>> from wildood.data.chunks import Rows
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <...>
    >>> x = np.random.default_rng(0).normal(size=(50, 2)).astype("float32")
    >>> detector = wildood.posthoc(torch.nn.Linear(2, 3), wildood.EnergyScore(), holdout=x, alpha=0.1)
    >>> print(lines_of(detector, Rows(np.zeros((1, 2), "float32")), "csv").text)
    example,score,decision,class
    0,-1...,known,...
    """
    found = chunk.read(threads)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if form == "csv" and chunk.first == 0:
        writer.writerow(COLUMNS)
    if not len(found.examples) and found.broken:
        return Lines(text.getvalue(), 0, tuple(found.broken))
    scores, classes = detector.score_and_classify(found.examples)
    decisions = ("known" if accepted else "unknown" for accepted in detector.accepts(scores, classes))
    said = [detector.class_name(number) for number in classes.tolist()]
    rows = zip(found.names, (json_number(float(score)) for score in scores), decisions, said, strict=True)
    if form == "csv":
        writer.writerows(rows)
    else:
        text.writelines(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in rows)
    return Lines(text.getvalue(), len(scores), tuple(found.broken))


def json_number(value: float) -> float | str:
    """A number as JSON can hold it, which has no infinity.

    >>> json_number(-1.5), json_number(float("inf"))
    (-1.5, 'inf')
    """
    return value if math.isfinite(value) else str(value)


def write_lines(archive: Archive, answer: Answer, output: Output, told: Callable[[Progress], None]) -> Progress:
    """Every line of an archive that is not written yet; what was done, all in all.

    A chunk's lines are written as soon as they are known, and are forgotten then.

    Args:
        archive: the examples.
        answer: gives the lines of chunks, in their order; it may be some chunks ahead.
        output: where they go.
        told: hears how far it is, at first and after each chunk.
    """
    at, text = Progress.of(output), ""
    told(at)
    for chunk, lines in answer(_remaining(archive, at, output)):
        for name, why in lines.broken[: max(0, _LISTED - at.broken)]:
            _LOGGER.warning("left out, because it cannot be read: %s (%s)", name, why)
        at = at.after(chunk, lines)
        text += lines.text
        if at.examples:  # a file without any is none to go on from
            output.add(text, asdict(at))
            text = ""
        told(at)
    if not at.examples:
        raise InputError(f"{archive.where}: not one of its pictures ({at.broken}) can be read: repair them, or give others")
    if at.broken:
        _LOGGER.warning("%s: %d left out because they cannot be read", archive.where, at.broken)
    return at


def _remaining(archive: Archive, at: Progress, output: Output) -> Iterator[Chunk]:
    """The chunks that are not done; those that are must be as they were."""
    listed, state = 0, ""
    for chunk in archive.chunks:
        if listed >= at.listed:
            yield chunk
            continue
        listed, state = listed + chunk.count, _chained(state, chunk)
        if listed >= at.listed and (listed, state) != (at.listed, at.state):
            raise output.refuse(f"was begun with other examples than {archive.where} has now")
    if listed < at.listed:
        raise output.refuse(f"was begun with more examples than {archive.where} has now")


def _chained(state: str, chunk: Chunk) -> str:
    return digest(f"{state} {chunk.state}".encode())

"""A run on disk: what it is, its checkpoint and its history; refuses to go on with another run's. Ctrl-C saves it."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from types import FrameType
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from wildood.data.files import DamagedFileError, digest, dump_state, load_state, remove_leftovers, write_atomically
from wildood.data.schema import SchemaError, check, parse
from wildood.errors import CheckpointError
from wildood.train.callbacks import Callback
from wildood.train.distributed import all_reduce_sum, any_process, broadcast, flat, in_words, is_first
from wildood.train.history import Row, append_row, rewrite_rows
from wildood.train.progress import logger

if TYPE_CHECKING:
    from wildood.train.loop import Training

SECONDS = 10.0  # between two checkpoints, at least
FORMAT = 11  # of checkpoints: the same settings in another format are another run (11: mean weights without counts)


class _Checkpoint(TypedDict):
    run: str
    state: dict[str, Any]


class RunDirectory:
    """`run.json` (what the run is), `checkpoint.safetensors` (where it is), `history.jsonl` (what happened).

    A run of several stages has a directory for each, and only `run.json` itself. Of several processes, the first one reads
    and writes; what the others are asked to write is left out. A directory that is removed while the run trains is written
    again, whole.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     RunDirectory(Path(place) / "a", {"seed": 0}).save({"step": 5})
    ...     RunDirectory(Path(place) / "a", {"seed": 0}).checkpoint()
    {'step': 5}
    """

    def __init__(self, path: Path, identity: dict[str, Any], above: "RunDirectory | None" = None) -> None:
        self.path = path
        self.what = identity
        self.above = above
        self.record_path = path / "run.json"
        self.history_path = path / "history.jsonl"
        self.checkpoint_path = path / "checkpoint.safetensors"
        self.expected: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **identity}))
        self.identity = digest(json.dumps(self.expected, sort_keys=True).encode())
        self.rows: list[Row] = []
        self.writes = is_first()
        if self.writes:
            self._claim()

    def _claim(self) -> None:
        """Write who the run is, or see that the one that is there is the same."""
        remove_leftovers(self.path)
        if self.record_path.exists():
            self._same_run()
            return
        if self.checkpoint_path.exists():  # which says itself whose it is
            self._read(self.checkpoint_path.read_bytes())
        try:
            self._write_record()
        except OSError as error:
            raise CheckpointError(
                f"run_dir {self.path} cannot be written ({error.strerror}): give another directory"
            ) from error

    def _write_record(self) -> None:
        write_atomically(self.record_path, json.dumps(self.expected, indent=2).encode())

    def write_again(self) -> None:
        """Write what the run has written before, if somebody has removed it."""
        if self.above is not None:
            self.above.write_again()
        if not self.record_path.exists():
            self._write_record()
        if self.rows and not self.history_path.exists():
            rewrite_rows(self.history_path, self.rows)

    def _same_run(self) -> None:
        try:
            found = parse(self.record_path.read_bytes(), dict[str, Any])
        except SchemaError as error:
            raise CheckpointError(
                f"{self.record_path} is damaged ({error}): remove {self.path} or use another run_dir"
            ) from error
        there, here = flat(found), flat(self.expected)
        differing = [key for key in there | here if there.get(key) != here.get(key)]
        if differing:
            others = ", ".join(in_words(key) for key in differing[1:])
            raise CheckpointError(
                f"{self.path} belongs to another run: {_difference(differing[0], there, here)}"
                + (f" (different, too: {others})" if others else "")
                + ": give the same ones to go on with it, or another directory"
            )

    def stage(self, name: int | str) -> "RunDirectory":
        """The directory of a stage of this run, by its number or its name, below its own."""
        return RunDirectory(self.path / f"stage-{name}", {**self.what, "stage": name}, above=self)

    def checkpoint(self) -> dict[str, Any] | None:
        """The state to go on from, if there is one; the same on all processes, which must all ask for it."""
        content = broadcast(self.checkpoint_path.read_bytes() if self.writes and self.checkpoint_path.exists() else None)
        return None if content is None else self._read(content)

    def _read(self, content: bytes) -> dict[str, Any]:
        """The state in a checkpoint of this run."""
        try:
            saved = load_state(content)
            check(saved, _Checkpoint)
        except (DamagedFileError, SchemaError) as error:
            raise CheckpointError(
                f"{self.checkpoint_path} is damaged ({error}): remove it to start the run again, or use another run_dir"
            ) from error
        if saved["run"] != self.identity:
            raise CheckpointError(
                f"{self.checkpoint_path} belongs to another run: remove it to start this one there, or use another run_dir"
            )
        state: dict[str, Any] = saved["state"]
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint."""
        if self.writes:
            self.write_again()
            write_atomically(self.checkpoint_path, dump_state({"run": self.identity, "state": state}))

    def add(self, row: Row) -> None:
        """Append a row of the history."""
        if self.writes:
            self.write_again()
            append_row(self.history_path, row)
            self.rows.append(row)

    def restart_history(self, rows: list[Row]) -> None:
        """Make the history file agree with the checkpoint."""
        if self.writes:
            rewrite_rows(self.history_path, rows)
            self.rows = list(rows)


def _difference(key: str, there: dict[str, Any], here: dict[str, Any]) -> str:
    """What differs: of weights and data, of which a run knows hashes, that they do; of a setting, its values.

    >>> _difference("model", {"model": "5d41"}, {"model": "402a"})
    'the starting weights differ'
    >>> _difference("seed", {"seed": 0}, {"seed": 1})
    "its seed is 0, this call's is 1"
    """
    if in_words(key) == key:
        return f"its {key} is {_shown(there.get(key))}, this call's is {_shown(here.get(key))}"
    return f"{in_words(key)} {'differ' if key == 'model' else 'differs'}"


def _shown(value: Any) -> str:
    return shorten(str(value), 100, placeholder=" ...")


class HistoryFile(Callback):
    """Write each row of the history to the run's directory as it comes."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run

    def on_epoch_end(self, training: "Training", row: Row) -> None:  # noqa: ARG002 - the row is all there is to write
        """Append the row."""
        self.run.add(row)


class Checkpoint(Callback):
    """Resume the run at its beginning; save it every few seconds, at its end, and at Ctrl-C.

    The first Ctrl-C lets the step end, saves the run and then interrupts it; a second one interrupts at once.

    Attributes:
        run: where to save.
        seconds: between two checkpoints, at least; more where saving would take more than a twentieth of the time.
    """

    def __init__(self, run: RunDirectory, seconds: float | None = None) -> None:
        self.run, self.seconds = run, SECONDS if seconds is None else seconds
        self.saved_step = 0
        self.next_save = 0.0
        self.interrupt = Interrupt()

    def on_train_begin(self, training: "Training") -> None:
        """Go on from the last checkpoint, if there is one; what was written after it is done again."""
        state = self.run.checkpoint()
        if state is not None:
            training.load_state_dict(state)
            self.saved_step = training.steps
            most = "at most " if training.schedule.ends_itself else ""
            logger.info("resuming %s at step %d of %s%d", self.run.path, training.steps, most, training.total)
        self.run.restart_history(training.history)

    @contextmanager
    def context(self, training: "Training") -> Iterator[None]:  # noqa: ARG002 - every callback gets it
        """Defer Ctrl-C."""
        self.next_save = time.monotonic() + self.seconds
        with defer_interrupt() as self.interrupt:
            yield

    def on_step_begin(self, training: "Training") -> None:
        """Save what the last step led to, if it is time; stop after that, if Ctrl-C was pressed."""
        if training.steps == self.saved_step:
            return
        # All processes do the same in the same step, and read the signal once: a later one counts after the next step.
        is_due = self.run.writes and time.monotonic() >= self.next_save
        stop, save = any_process(self.interrupt.received, is_due)
        if stop or save:
            self._save(training)
        if stop:
            all_reduce_sum(torch.zeros(1))  # nobody leaves before the run is saved: the launcher would end the others
            raise KeyboardInterrupt

    def on_train_end(self, training: "Training") -> None:
        """Save the finished run."""
        if training.steps != self.saved_step:
            self._save(training)

    def _save(self, training: "Training") -> None:
        training.check_weights()
        self.saved_step = training.steps
        if self.run.writes:
            began = time.monotonic()
            self.run.save(training.state_dict())
            ended = time.monotonic()
            self.next_save = ended + max(self.seconds, 20 * (ended - began) if self.seconds else 0)


@dataclass
class Interrupt:
    """Whether Ctrl-C was pressed.

    >>> Interrupt().received
    False
    """

    received: bool = False

    def handle(self, _signal: int, _frame: FrameType | None) -> None:
        """Remember the first one; the next one is Python's again, which raises KeyboardInterrupt wherever it is."""
        self.received = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def defer_interrupt() -> Iterator[Interrupt]:
    """Note the first Ctrl-C in the block, and raise KeyboardInterrupt at the end of it.

    It takes the place of Python's own handler only, and only in the main thread, where Python lets it: a handler of the
    user's stays, and so does the choice to ignore the signal.

    >>> before = signal.signal(signal.SIGINT, signal.default_int_handler)
    >>> try:
    ...     with defer_interrupt() as interrupt:
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("the step ends:", interrupt.received)
    ... except KeyboardInterrupt:
    ...     print("then it stops")
    the step ends: True
    then it stops
    >>> _ = signal.signal(signal.SIGINT, before)
    """
    interrupt = Interrupt()
    main = threading.current_thread() is threading.main_thread()
    if not (main and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
        yield interrupt
        return
    signal.signal(signal.SIGINT, interrupt.handle)
    try:
        yield interrupt
    finally:
        if signal.getsignal(signal.SIGINT) == interrupt.handle:  # what a callback has set in the meantime stays
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupt.received:
        raise KeyboardInterrupt

"""What a person sees while training goes on: lines through `logging`, and a bar if standard error is a terminal."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import RLock
from typing import TYPE_CHECKING, Protocol

from wildood.errors import as_utf8
from wildood.train.callbacks import Callback
from wildood.train.distributed import is_first
from wildood.train.history import Row, row_line

if TYPE_CHECKING:
    from wildood.train.loop import Training

logger = logging.getLogger("wildood")
_SHOWING = RLock()


class Bar(Protocol):
    """A progress bar, or nothing in its place."""

    def at(self, step: int) -> None:
        """So many steps are done."""
        ...


class _NoBar:
    def at(self, step: int) -> None:
        """Nothing to show."""


class _Handler(logging.Handler):
    """Lines to standard error, printed by rich while its bar is shown so that they do not cut through it."""

    def __init__(self, console: object | None = None) -> None:
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        line = as_utf8(self.format(record))
        with suppress(OSError):  # nobody reads them any more, or the log's disk is full: training goes on
            if self.console is None:
                sys.stderr.write(f"{line}\n")
            else:
                self.console.print(line, markup=False, highlight=False)  # type: ignore[attr-defined]


@contextmanager
def verbose_logging(*, verbose: bool) -> Iterator[None]:
    """Make wildood's messages visible (with verbose=False, its warnings only) for the length of a block.

    An application whose logging takes INFO messages keeps it that way: its handlers get them, and no others are added. Of
    several processes, only the first one speaks. The logger is the whole process's: of several threads, one is in such a
    block at a time and the others wait.
    """
    with _SHOWING:
        before = logger.level, logger.propagate
        handler, level = _Handler(), logging.INFO if verbose else logging.WARNING
        if not is_first():
            level = logging.CRITICAL
        if level > logging.INFO:
            logger.setLevel(level)
        if not (logger.hasHandlers() and logger.isEnabledFor(level)):
            logger.addHandler(handler)
            logger.setLevel(level)
            logger.propagate = False  # or the application's handlers would print the lines once more
        try:
            yield
        finally:
            logger.removeHandler(handler)
            level, logger.propagate = before
            logger.setLevel(level)


@contextmanager
def progress_bar(total: int | None, done: int, doing: str = "training", unit: str = "steps") -> Iterator[Bar]:
    """A bar over the steps of a run, if anybody can see it; without a total, it counts."""
    own = [handler for handler in logger.handlers if isinstance(handler, _Handler)]
    if not own or not logger.isEnabledFor(logging.INFO) or not sys.stderr.isatty():
        yield _NoBar()
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(doing, total=total, completed=done)
        own[0].console = console

        class _RichBar:
            def at(self, step: int) -> None:
                progress.update(task, completed=step)

        try:
            yield _RichBar()
        finally:
            own[0].console = None


class Timing(Callback):
    """Add images per second to each row of the history, and the seconds left if the schedule fixes the end."""

    def __init__(self) -> None:
        self.began = self.step_began = self.seconds = 0.0
        self.first = self.steps = 0

    @contextmanager
    def context(self, training: "Training") -> Iterator[None]:
        """Note where this process begins."""
        self.began, self.first = time.monotonic(), training.steps
        yield

    def on_step_begin(self, training: "Training") -> None:  # noqa: ARG002 - a clock is all it reads
        """Start the clock."""
        self.step_began = time.perf_counter()

    def on_step_end(self, training: "Training") -> None:  # noqa: ARG002 - a clock is all it reads
        """Stop the clock: looks at data set aside and checkpoints do not count."""
        self.seconds += time.perf_counter() - self.step_began
        self.steps += 1

    def on_epoch_end(self, training: "Training", row: Row) -> None:
        """Add the columns, but for the start."""
        if self.steps:
            row["images_per_second"] = self.steps * training.images_per_step / self.seconds
            elapsed = time.monotonic() - self.began
            if not training.schedule.ends_itself:
                row["seconds_left"] = (training.total - training.steps) * elapsed / (training.steps - self.first)
        self.seconds, self.steps = 0.0, 0


class LogEpochs(Callback):
    """A readable line for each epoch, through `logging`."""

    def on_train_begin(self, training: "Training") -> None:
        """Log the legend."""
        if training.lagrangian.multipliers:
            logger.info("each constraint must become <= 0; λ is its multiplier, β its penalty")

    def on_epoch_end(self, training: "Training", row: Row) -> None:
        """Log the line; the start has none."""
        if len(training.history) == 1:
            return
        logger.info("%s", row_line(row, training.schedule.epochs))


class ShowProgress(Callback):
    """A bar over the steps of the run."""

    def __init__(self) -> None:
        self.bar: Bar = _NoBar()

    @contextmanager
    def context(self, training: "Training") -> Iterator[None]:
        """Show it; how many steps a run takes that ends by itself, nobody knows."""
        total = None if training.schedule.ends_itself else training.total
        with progress_bar(total, training.steps) as self.bar:
            yield

    def on_step_end(self, training: "Training") -> None:
        """Move it."""
        self.bar.at(training.steps)

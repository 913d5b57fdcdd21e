"""Ctrl-C in training: the first one lets the step end and the run be saved, a second one interrupts at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Interruption:
    """Whether Ctrl-C was pressed.

    >>> Interruption().came
    False
    """

    came: bool = False

    def note(self, _signal: int, _frame: FrameType | None) -> None:
        """Remember the first one; the next one is Python's again, which raises KeyboardInterrupt wherever it is."""
        self.came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def defer_interrupt(*, wanted: bool) -> Iterator[Interruption]:
    """Note the first Ctrl-C in the block, and raise KeyboardInterrupt at the end of it.

    It takes the place of Python's own handler only, and only in the main thread, where Python lets it: a handler of the
    user's stays, and so does the choice to ignore the signal.

    >>> before = signal.signal(signal.SIGINT, signal.default_int_handler)
    >>> try:
    ...     with defer_interrupt(wanted=True) as ctrl_c:
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("the step ends:", ctrl_c.came)
    ... except KeyboardInterrupt:
    ...     print("then it stops")
    the step ends: True
    then it stops
    >>> _ = signal.signal(signal.SIGINT, before)
    """
    interruption = Interruption()
    main = threading.current_thread() is threading.main_thread()
    if not (wanted and main and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
        yield interruption
        return
    signal.signal(signal.SIGINT, interruption.note)
    try:
        yield interruption
    finally:
        if signal.getsignal(signal.SIGINT) == interruption.note:  # what a callback has set in the meantime stays
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if interruption.came:
        raise KeyboardInterrupt

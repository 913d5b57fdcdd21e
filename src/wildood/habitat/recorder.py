"""`Recorder`: answers on their way to the store, without delay for those who asked."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from wildood.data.sources import bytes_of
from wildood.data.structures import Raw, batch_length, map_structure
from wildood.errors import InputError, printable
from wildood.habitat.answers import Answers, Counts
from wildood.habitat.habitat import Settings
from wildood.habitat.index import UnavailableError
from wildood.habitat.store import Store

QUEUE_BYTES = 1 << 28  # of raw examples that wait to be stored
FLUSH_BYTES = 1 << 24  # of raw examples after which they are stored at once
RETRY = 30.0  # seconds after which a store that could not be written to is tried again
SWEEP = 60.0  # seconds between two times of upkeep
_LOGGER = logging.getLogger("wildood")


@dataclass(frozen=True)
class Counters:
    """What a recorder has done.

    Attributes:
        seen: how many answers were offered.
        unknown: how many of them said "unknown".
        stored: how many were stored; a full window may have replaced some of them since.
        dropped: how many of the sample were lost: the queue was full, the store could not be written to, or `redact` failed.
        waiting: how many wait to be stored.
        stopped: why nothing is stored at the moment; "" if all is well.
    """

    seen: int
    unknown: int
    stored: int
    dropped: int
    waiting: int
    stopped: str


class Recorder:
    """A bounded queue, and one thread that writes what is in it to the store.

    `offer` neither waits nor raises an error. What does not fit in the queue is dropped and counted. A killed process loses
    what was offered in the last `flush_seconds`, and what was being written.

    Args:
        store: where to.
        settings: of the habitat.
        redact: changes a batch of raw examples before it is stored, in the writer's thread; the settings name it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> place = tempfile.TemporaryDirectory()
    >>> store = Store.create(Path(place.name))
    >>> with Recorder(store, Settings()) as recorder:
    ...     recorder.offer(Answers(["a"], "d0001", [0.5], [0], [True], [0.7]), torch.zeros(1, 3))
    >>> recorder.counters.stored, len(store.rows())
    (1, 1)
    >>> place.cleanup()
    """

    def __init__(self, store: Store, settings: Settings, *, redact: Callable[[Raw], Any] | None = None) -> None:
        if settings.redact is not None and redact is None:
            raise InputError(f"this habitat stores nothing that {settings.redact} has not redacted: give that function, too")
        self._store = store
        self._settings = settings
        self._redact = redact
        self._draws = np.random.default_rng()
        self._has_failed = False
        self._below = (-np.inf, 1.0)  # a window, and the priority below which it still takes answers
        self._retry = self._swept = -np.inf  # when to try again; when the store was put in order
        self._changed = threading.Condition()  # guards what follows
        self._queue: list[_Batch] = []
        self._rows = self._bytes = 0  # of the queue and of what is being written
        self._counts: defaultdict[float, Counts] = defaultdict(Counts)
        self._total, self._stored, self._stopped = Counts(), 0, ""
        self._asked = self._done = 0  # flushes
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="wildood-recorder", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def counters(self) -> Counters:
        """What has happened so far."""
        with self._changed:
            return Counters(*self._total[:2], self._stored, self._total.dropped, self._rows, self._stopped)

    def offer(self, answers: Answers, examples: Raw | None, *, collect: bool = True) -> None:
        """Count a batch of answers, and put its sample into the queue; nothing of it is stored without `collect`."""
        try:
            self._offer(answers, examples, collect=collect)
        except Exception:  # a mistake here must not spoil an answer
            with self._changed:
                is_first, self._has_failed = not self._has_failed, True
            if is_first:
                _LOGGER.exception("answers cannot be recorded; this is said once")

    def _offer(self, answers: Answers, examples: Raw | None, *, collect: bool) -> None:
        count, settings = len(answers), self._settings
        times = np.full(count, self._store.clock()) if answers.time is None else np.asarray(answers.time, np.float64)
        start = float(self._store.window_of(times.max(initial=0)))
        priority = self._draws.random(count)
        window, below = self._below
        kept = np.flatnonzero(priority < (min(settings.sample, below) if start <= window else settings.sample))
        kept = kept if collect else kept[:0]
        raw = None
        if examples is not None and settings.collect == "full" and len(kept):
            if batch_length(examples) != count:
                raise InputError(f"there are {count} answers with {batch_length(examples)} examples: give one for each")
            chosen = torch.from_numpy(kept)
            raw = map_structure(lambda part: part[chosen if isinstance(part, Tensor) else kept], examples)
        size = 0 if raw is None else bytes_of(raw)
        batch = _Batch(answers.take(kept, time=times[kept], priority=priority[kept]), raw, start, size)
        with self._changed:
            fits = self._rows + len(kept) <= settings.queue and self._bytes + batch.bytes <= QUEUE_BYTES
            unknown = count - int(np.count_nonzero(answers.known))
            self._count(start, Counts(count, unknown, 0 if fits else len(kept)))
            if fits and len(kept):
                self._queue.append(batch)
                self._rows += len(kept)
                self._bytes += batch.bytes
                if self._is_due():
                    self._changed.notify_all()

    def flush(self) -> None:
        """Wait until what was offered so far is stored, or has failed to be."""
        with self._changed:
            self._asked += 1
            asked = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= asked or not self._thread.is_alive())

    def close(self) -> None:
        """Store what waits, and end the thread; what cannot be stored is lost, and counted."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _count(self, start: float, counts: Counts) -> None:
        self._total = self._total.plus(counts)
        self._counts[start] = self._counts[start].plus(counts)

    def _is_due(self) -> bool:
        return self._rows >= self._settings.flush_rows or self._bytes >= FLUSH_BYTES

    def _run(self) -> None:
        """The thread: store the queue when it is time, and keep the store in order."""
        closing = False
        while not closing:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or self._asked > self._done or (self._is_due() and not self._stopped),
                    self._settings.flush_seconds,
                )
                closing, asked = self._closing, self._asked
                if self._stopped and monotonic() < self._retry and not closing and asked == self._done:
                    continue
                batches, self._queue = self._queue, []
            self._write([each for each in map(self._redacted, batches) if each is not None])
            self._put_in_order()
            with self._changed:
                self._done = asked
                self._changed.notify_all()
        if self._rows:
            with self._changed:
                self._total = self._total.plus(Counts(dropped=self._rows))
                self._rows = self._bytes = 0
            _LOGGER.warning("%s: %s answers were not stored", self._store.directory, f"{self.counters.dropped:,}")

    def _write(self, batches: "list[_Batch]") -> None:
        """Store batches and counters, or put them back if the store cannot be written to."""
        with self._changed:
            counts = dict(self._counts)
            self._counts.clear()
        if not batches and not counts:
            return
        try:
            rows = [(each.answers, each.examples) for each in batches]
            stored = self._store.extend(rows, per_window=self._settings.per_window, counts=counts)
            self._below = self._store.newest()
        except (OSError, UnavailableError) as error:
            with self._changed:
                self._queue = [*batches, *self._queue]
                for start, each in counts.items():
                    self._counts[start] = self._counts[start].plus(each)
                was_stopped, self._stopped = self._stopped, printable(error)
            self._retry = monotonic() + RETRY
            if not was_stopped:
                text = "%s: nothing is stored (%s); answers go on, and it is tried again every %.0f s"
                _LOGGER.warning(text, self._store.directory, self._stopped, RETRY)
            return
        except Exception:  # a mistake of ours: the batch would fail again
            _LOGGER.exception("%s: a batch of answers cannot be stored", self._store.directory)
            self._forget(batches, is_dropped=True)
            return
        with self._changed:
            was_stopped, self._stopped = self._stopped, ""
            self._stored += stored
        self._forget(batches)
        if was_stopped:
            _LOGGER.warning("%s: answers are stored again", self._store.directory)

    def _forget(self, batches: "list[_Batch]", *, is_dropped: bool = False) -> None:
        """Make room in the queue for as much as these batches took."""
        with self._changed:
            for each in batches:
                self._rows -= len(each.answers)
                self._bytes -= each.bytes
                if is_dropped:
                    self._count(each.window, Counts(dropped=len(each.answers)))

    def _redacted(self, batch: "_Batch") -> "_Batch | None":
        """The batch as it may be stored; None, and counted as dropped, if that fails."""
        if self._redact is None or batch.examples is None or batch.is_redacted:
            return batch
        try:
            examples = self._redact(batch.examples)
            if batch_length(map_structure(torch.as_tensor, examples)) != len(batch.answers):
                raise InputError("redact returned another number of examples: return one for each")  # noqa: TRY301 - logged below
        except Exception as error:  # noqa: BLE001 - of a user's function
            self._forget([batch], is_dropped=True)
            if not self._has_failed:  # its message may hold what is to be redacted
                self._has_failed = True
                _LOGGER.warning("redact failed (%s): such examples are not stored, but counted", type(error).__name__)
            return None
        return replace(batch, examples=examples, is_redacted=True)

    def _put_in_order(self) -> None:
        """Apply budget and retention now and then, also where nothing can be stored: that may make room on a full disk.

        What fails now is done the next time.
        """
        if monotonic() - self._swept < SWEEP:
            return
        self._swept = monotonic()
        try:
            self._store.sweep(budget=self._settings.budget, retain=self._settings.retain)
        except (OSError, UnavailableError):
            pass
        except Exception:
            _LOGGER.exception("%s cannot be put in order", self._store.directory)


@dataclass(frozen=True)
class _Batch:
    """What waits to be stored."""

    answers: Answers
    examples: Raw | None
    window: float
    bytes: int  # of the examples as they were offered
    is_redacted: bool = False

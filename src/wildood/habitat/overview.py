"""What the page shows, read from a habitat: rates, bounds, the latest answers, what to review, who may be promoted."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Final, Generic, NamedTuple, Required, TypedDict, TypeVar

import numpy as np

from wildood.data.schema import SchemaError, parse
from wildood.detect.detector import Detector
from wildood.evaluate.metrics import finite_scores
from wildood.evaluate.mixture import unknown_share
from wildood.experiments.evaluation import Decisions
from wildood.habitat.answers import Rows
from wildood.habitat.charts import Bar, Bound, Tick
from wildood.habitat.habitat import Habitat, Promotion
from wildood.habitat.judged import is_random
from wildood.habitat.status import Status

LATEST: Final = 2000  # answers of the champion: the scores "now", and the most unknown
SHOWN: Final = 12  # examples of a gallery
FEWEST: Final = 30  # answers that a bound is computed from
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0
Value = TypeVar("Value")


class Span(NamedTuple):
    """A stretch of time that ends now, as the page offers it."""

    key: str
    name: str
    seconds: float
    bin: float


SPANS: Final = (
    Span("hour", "the last hour", _HOUR, _MINUTE),
    Span("day", "the last 24 hours", _DAY, 30 * _MINUTE),
    Span("month", "the last 30 days", 30 * _DAY, _DAY / 2),
    Span("all", "all time", 0.0, 0.0),
)
UNITS: Final = (("minute", _MINUTE), ("hour", _HOUR), ("day", _DAY))
_WIDTHS = (
    _MINUTE,
    5 * _MINUTE,
    30 * _MINUTE,
    *(_HOUR * each for each in (1, 3, 6, 12)),
    *(_DAY * each for each in (1, 7, 28, 91)),
)
_BARS = 60  # of all time, at most


class Remembered(Generic[Value]):
    """A value that is computed again once it is old; what takes long is computed less often.

    >>> counted = Remembered(iter([1, 2]).__next__, least=1000)
    >>> counted.get(), counted.get(), counted.forget(), counted.get()
    (1, 1, None, 2)
    """

    def __init__(self, compute: Callable[[], Value], *, least: float, times: float = 20.0) -> None:
        self._compute, self._least, self._times = compute, least, times
        self._lock = Lock()
        self._until, self._took = -np.inf, 0.0
        self._value: Value | None = None

    def get(self) -> Value:
        """The value, computed by one thread at a time."""
        with self._lock:
            started = time.monotonic()
            if self._value is None or started >= self._until:
                self._value = self._compute()
                self._took = time.monotonic() - started
                self._until = time.monotonic() + max(self._least, self._times * self._took)
            return self._value

    def forget(self, most: float = np.inf) -> None:
        """Compute it again when it is asked for, unless that takes more than so many seconds."""
        if self._took <= most:
            self._until = -np.inf


class _Day(TypedDict, total=False):
    """What is read of a day that `status` recorded."""

    start: Required[float]
    rows: Required[int]
    bound: Required[float]


@dataclass(frozen=True)
class Traffic:
    """The answers of a span.

    Attributes:
        start: of the time axis, which ends now.
        unit: of time: the bars are rates per minute, per hour or per day, so that the largest is at least 1.
        answers: how many there were.
        unknown: how many of them said "unknown".
        estimated: whether the course within a window is estimated from a sample.
    """

    span: Span
    now: float
    start: float
    unit: str
    bars: tuple[Bar, ...]
    answers: int
    unknown: int
    dropped: int
    estimated: bool


@dataclass(frozen=True)
class Course:
    """What the figures over time show."""

    traffic: Traffic
    bounds: tuple[Bound, ...]

    @classmethod
    def of(cls, habitat: Habitat, status: Status, detector: Detector, key: str) -> "Course":
        """That of the span of this key, up to now."""
        now = latest_time(habitat)
        span = chosen_span(habitat, key, now)
        return cls(traffic(habitat, span, now), tuple(bounds(habitat, status, detector, span, now)))


@dataclass(frozen=True)
class Latest:
    """The latest answers of the champion, the oldest first.

    Attributes:
        rows: as the index has them.
        decided: the decisions on them.
        judged: by the id of an answer, the class that a person named; None for "unknown".
    """

    rows: Rows
    decided: Decisions
    judged: dict[int, int | None]

    def newest(self) -> list[int]:
        """Rows with an example, the newest first."""
        return [int(row) for row in np.flatnonzero(self.rows.has_example)[::-1][:SHOWN]]

    def most_unknown(self) -> list[int]:
        """Rows with an example and the highest scores that nobody has judged.

        None of them is of the random sample: whoever judges that part of a list must not have chosen it by its scores.
        """
        waiting = self.rows.has_example & ~is_random(self.rows.id) & ~np.isin(self.rows.id, list(self.judged))
        places = np.flatnonzero(waiting)
        order = np.argsort(-self.decided.margins[places], kind="stable")
        return [int(row) for row in places[order][:SHOWN]]


def chosen_span(habitat: Habitat, key: str | None, now: float) -> Span:
    """The span of this key; by default the shortest that holds all of the traffic."""
    with habitat.store.index.reading() as index:
        first = index.execute("SELECT min(start) FROM windows").fetchone()[0]
    age = 0.0 if first is None else max(now - first, 0.0)
    fits = next((span for span in SPANS if age - habitat.store.window <= span.seconds), SPANS[-1])
    span = next((each for each in SPANS if each.key == key), fits)
    if span.seconds:
        return span
    window = habitat.store.window
    width = next((each for each in _WIDTHS if age <= _BARS * each), 365 * _DAY)
    return span._replace(seconds=max(age, width, window), bin=width)


def latest_time(habitat: Habitat) -> float:
    """The present, but never before the latest answer."""
    with habitat.store.index.reading() as index:
        latest = index.execute("SELECT max(latest) FROM windows").fetchone()[0]
    return max(habitat.clock(), latest or 0.0)


def traffic(habitat: Habitat, span: Span, now: float) -> Traffic:
    """Counters of a span. Within a window, their course is that of the rows that were kept."""
    width, window = span.bin, habitat.store.window
    first = float(np.floor((now - span.seconds) / width) * width)
    counts = np.zeros((2, int((now - first) // width) + 1))  # unknown, known
    windows = habitat.store.windows()
    shown = np.flatnonzero(windows.start + window > first).tolist()
    course = _course(habitat, first, width) if width < window else {}
    for each in shown:
        begins, rejected = float(windows.start[each]), int(windows.unknown[each])
        evenly = _evenly(begins, min(begins + window, now), first, width)
        for which, count in enumerate((rejected, int(windows.seen[each]) - rejected)):
            for number, share in course.get((begins, which), evenly).items():
                if 0 <= number < counts.shape[1]:
                    counts[which, number] += share * count
    largest = counts.sum(0).max() / width  # per second
    unit, seconds = next((each for each in UNITS if largest * each[1] >= 1), UNITS[-1] if largest else UNITS[0])
    bars = []
    for place, (unknown, known) in enumerate(counts.T.tolist()):
        begins, scale = first + place * width, seconds / width
        if known + unknown > 0:
            says = f"{when(begins, now)}: {known:,.0f} known, {unknown:,.0f} unknown"
            bars.append(Bar(begins, begins + width, scale * known, scale * unknown, says))
    estimated = width < window and bool((windows.sampled < windows.seen)[shown].any())
    dropped = int(windows.dropped[shown].sum())
    return Traffic(span, now, first, unit, tuple(bars), round(counts.sum()), round(counts[0].sum()), dropped, estimated)


def _course(habitat: Habitat, first: float, width: float) -> dict[tuple[float, int], dict[int, float]]:
    """By window and decision: which share of the rows is in each bin; bins are numbered from `first` on."""
    query = (
        "SELECT window, known, CAST((time - ?) / ? AS INTEGER) AS bin, count(*) FROM answers "
        "WHERE window > ? AND time >= ? GROUP BY 1, 2, 3"
    )
    with habitat.store.index.reading() as index:
        found = index.execute(query, (first, width, first - habitat.store.window, first)).fetchall()
    rows: dict[tuple[float, int], dict[int, float]] = {}
    for window, known, number, count in found:
        rows.setdefault((window, known), {})[number] = count
    return {key: {number: count / sum(own.values()) for number, count in own.items()} for key, own in rows.items()}


def _evenly(begins: float, ends: float, first: float, width: float) -> dict[int, float]:
    """The bins of a window, all alike: its rows are gone, or it is no longer than a bin."""
    low = int((begins - first) // width)
    numbers = range(low, max(low + 1, int(np.ceil((ends - first) / width))))
    return dict.fromkeys(numbers, 1 / len(numbers))


def when(moment: float, now: float) -> str:
    """A moment in words: how long ago on the same day, else its date.

    >>> when(0.0, 90.0), when(0.0, 400 * 86400.0)
    ('2 minutes ago', '1 Jan 1970')
    """
    ago = now - moment
    if ago < 2 * _HOUR:
        minutes = max(1, round(ago / _MINUTE))
        return f"{minutes} minute{'' if minutes == 1 else 's'} ago"
    if ago < 2 * _DAY:
        return f"{round(ago / _HOUR)} hours ago"
    return date(moment, year=ago > 300 * _DAY)


def date(moment: float, *, year: bool = False) -> str:
    """A day by UTC."""
    day = datetime.fromtimestamp(moment, UTC)
    return f"{day.day} {day:%b}{f' {day:%Y}' if year else ''}"


def time_ticks(now: float, seconds: float) -> list[Tick]:
    """Places on a time axis that ends now: so many minutes or hours ago, or dates."""
    if seconds <= 2 * _DAY:
        unit, name = (_MINUTE, "min") if seconds <= 2 * _HOUR else (_HOUR, "h")
        apart = max(1, round(seconds / unit / 4))
        return [Tick(now - apart * each * unit, f"−{apart * each} {name}" if each else "now") for each in range(4, -1, -1)]
    days = seconds / _DAY
    step = next((each for each in (1, 2, 5, 7, 14, 28, 56, 91) if days / each <= 6), 91) * _DAY
    last = np.floor(now / _DAY) * _DAY
    places = [float(last - step * each) for each in range(int((last - now + seconds) // step) + 1)]
    return [Tick(place, date(place)) for place in reversed(places)]


def latest(habitat: Habitat, champion: str, detector: Detector) -> Latest:
    """The latest answers of the champion."""
    with habitat.store.index.reading() as index:
        newest = index.execute("SELECT max(id) FROM answers").fetchone()[0] or 0
    reach = 2 * LATEST
    rows = habitat.store.rows(after=newest - reach, detector=champion)
    while len(rows) < LATEST and reach < newest:
        reach *= 8
        rows = habitat.store.rows(after=newest - reach, detector=champion)
    rows = rows.at(slice(-LATEST, None))
    with habitat.store.index.reading() as index:
        found = index.execute(
            "SELECT answer, class FROM judgements WHERE answer >= ?", (int(rows.id[0]) if len(rows) else 0,)
        )
        judged = dict(map(tuple, found.fetchall()))
    return Latest(rows, Decisions.of(detector, rows.score.astype(np.float32), rows.class_), judged)


def bounds(habitat: Habitat, status: Status, detector: Detector, span: Span, now: float) -> list[Bound]:
    """The share of unknowns was at least this, by day; of spans of up to a day, by window.

    Each bound holds by itself at 95 % confidence.
    """
    start = now - span.seconds
    if span.seconds > _DAY:
        days = _days_of_former(habitat, status.champion) | {
            day.start: (day.rows, day.bound) for day in status.days if day.rows
        }
        return [
            Bound(max(day, start), min(day + _DAY, now), bound, _bound_text(date(day), bound, rows))
            for day, (rows, bound) in sorted(days.items())
            if rows >= FEWEST and day + _DAY > start
        ]
    holdout = detector.holdout_scores
    if status.untested or holdout is None:
        return []
    with habitat.store.index.reading() as index:
        query = "SELECT time, score FROM answers WHERE window >= ? AND time >= ? AND detector = ? ORDER BY id"
        found = index.execute(query, (float(habitat.store.window_of(start)), start, status.champion)).fetchall()
    times, scores = np.array([tuple(row) for row in found], np.float64).reshape(-1, 2).T
    width = 6 * _MINUTE if span.seconds <= _HOUR else _HOUR
    numbers = np.floor((times - start) / width)
    points = []
    for number in np.unique(numbers).tolist():
        own = finite_scores(scores[numbers == number])
        if len(own) >= FEWEST:
            bound = unknown_share(holdout, own[-LATEST:]).bound
            begins = start + number * width
            text = _bound_text(when(begins, now), bound, len(own))
            points.append(Bound(begins, min(begins + width, now), bound, text))
    return points


def _days_of_former(habitat: Habitat, champion: str) -> dict[float, tuple[int, float]]:
    """The days that `status` recorded of former champions: rows and bound by their start."""
    with habitat.store.index.reading() as index:
        query = "SELECT data FROM looks WHERE test LIKE 'unknowns %' AND test NOT LIKE ? ORDER BY number"
        texts = [row["data"] for row in index.execute(query, (f"unknowns {champion} %",))]
    days = {}
    for text in texts:
        try:
            day = parse(text.encode(), _Day)
        except SchemaError:  # of another version
            continue
        days[day["start"]] = day["rows"], day["bound"]
    return days


def _bound_text(moment: str, bound: float, rows: int) -> str:
    return f"{moment}: at least {100 * bound:.1f} % of {rows:,} answers"


def promotion_ticks(promotions: Sequence[Promotion], start: float, now: float) -> list[Tick]:
    """Promotions within a stretch of time, but for the first."""
    return [Tick(each.time, each.detector) for each in promotions if each.former is not None and start <= each.time <= now]


def comparison_numbers(compared: dict[str, Any] | None) -> tuple[float, float, float] | None:
    """The shares of traffic that champion and challenger accept, and the standard error of the difference."""
    if compared is None or not all(isinstance(compared.get(name), int | float) for name in ("start", "trained", "error")):
        return None
    return float(compared["start"]), float(compared["trained"]), float(compared["error"])

"""The traffic of a habitat: an index of answers, and raw examples in files that are written whole and never changed.

Several processes may use one store at once, and each may be killed at any moment. A file of examples is on the disk before
rows of the index name it. A file that nothing names is removed by `sweep`.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildood.data.files import digest, drafted, sync_directory
from wildood.data.mapped import MappedSource, examples_file, layout_of, open_examples
from wildood.data.sources import native
from wildood.data.structures import Raw, batch_length, concatenate, map_structure, tensors_of
from wildood.errors import InputError, as_utf8
from wildood.habitat.answers import Answers, Counts, Floats, Integers, Judged, Rows, Windows
from wildood.habitat.index import Index
from wildood.habitat.upkeep import check, sweep
from wildood.settings import check_integer

Result = TypeVar("Result")
INDEX, TRAFFIC = "index.sqlite", "traffic"
WINDOW = 3600.0  # seconds
NO_ANSWERS = Answers([], "", [], [], [], [])
_ATTEMPTS = 5  # at opening files, which another process may just have joined
_ROW_COLUMNS = (
    "id, time, request, detector, score, class, known, p_value, priority, shard, shadow, shadow_score, shadow_known"
)


@dataclass(frozen=True)
class ExampleFile:
    """A file of examples that is on the disk under the name of a draft.

    Attributes:
        positions: of its examples in what is being recorded.
    """

    path: Path
    draft: Path
    layout: str
    bytes: int
    digest: str
    positions: Integers


class Store:
    """The index and the examples below a directory.

    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> store = Store.create(Path(place.name))
    >>> answers = Answers(["a", "b"], "d0001", [0.5, 2.5], [0, 1], [True, False], [0.7, 0.01])
    >>> store.append(answers, torch.tensor([[1.0], [2.0]]))
    2
    >>> store.source(store.rows().id[::-1]).gather(torch.arange(2))[0].tolist()
    [[2.0], [1.0]]
    >>> place.cleanup()
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], float] = time.time,
        window: float = WINDOW,
        readonly: bool = False,
    ) -> None:
        self.directory = directory
        self.clock = clock
        self.window = window
        self.index = Index(directory / INDEX, readonly=readonly)
        self._draws = np.random.default_rng()

    @classmethod
    def create(cls, directory: Path, *, clock: Callable[[], float] = time.time, window: float = WINDOW) -> "Store":
        """An empty store."""
        (directory / TRAFFIC).mkdir(parents=True, exist_ok=True)
        Index.create(directory / INDEX)
        return cls(directory, clock=clock, window=window)

    @property
    def traffic(self) -> Path:
        """The directory of the files of examples."""
        return self.directory / TRAFFIC

    def window_of(self, times: npt.ArrayLike) -> Floats:
        """The start of the window that each time is in."""
        return np.floor(np.asarray(times, np.float64) / self.window) * self.window

    def append(self, answers: Answers, examples: Raw | None, **settings: Any) -> int:
        """Record one batch; see `extend`."""
        return self.extend([(answers, examples)], **settings)

    def extend(
        self,
        batches: Sequence[tuple[Answers, Raw | None]],
        *,
        sample: float = 1.0,
        per_window: int | None = None,
        counts: Mapping[float, Counts] | None = None,
    ) -> int:
        """Record batches in one transaction; gives how many of their rows were kept.

        Each answer draws a priority u ~ U(0, 1). A row is kept if u < sample; and of each window, the `per_window` rows with
        the smallest u. That is a uniform sample, also of what several servers record.

        Args:
            batches: answers with their raw examples; without examples, only the answers are kept.
            sample: the share of answers that is kept.
            per_window: the most rows that are kept in a window; None: all.
            counts: how many answers there were in each window, by its start, if there were more than these.
        """
        columns = _joined([answers.columns() for answers, _ in batches] or [NO_ANSWERS.columns()])
        columns["time"][np.isnan(columns["time"])] = self.clock()
        missing = np.isnan(columns["priority"])
        columns["priority"][missing] = self._draws.random(int(missing.sum()))
        counts = self._counts(columns) if counts is None else counts
        newest, below = self.newest()
        most = np.where(self.window_of(columns["time"]) <= newest, min(sample, below), sample)
        kept = columns["priority"] < most  # what would be thrown away at once is not written
        with self.drafts(_by_layout(batches, kept)) as files, self.index.writing() as index:
            columns = self._timed(index, columns, counts)
            return self._insert(index, {name: column[kept] for name, column in columns.items()}, files, per_window)

    def newest(self) -> tuple[float, float]:
        """The start of the newest window, and the priority below which it still takes answers."""
        with self.index.reading() as index:
            row = index.execute("SELECT start, below FROM windows ORDER BY start DESC LIMIT 1").fetchone()
        return (-np.inf, 1.0) if row is None else (float(row["start"]), float(row["below"]))

    def _counts(self, columns: Mapping[str, npt.NDArray[Any]]) -> dict[float, Counts]:
        windows = self.window_of(columns["time"])
        each = {start: windows == start for start in np.unique(windows).tolist()}
        return {start: Counts(int(own.sum()), int((columns["known"][own] == 0).sum())) for start, own in each.items()}

    def _timed(
        self, index: sqlite3.Connection, columns: dict[str, npt.NDArray[Any]], counts: Mapping[float, Counts]
    ) -> dict[str, npt.NDArray[Any]]:
        """The columns with times that never go back, and their windows, whose counters are updated."""
        latest = index.execute("SELECT max(latest) FROM windows").fetchone()[0]
        latest = -np.inf if latest is None else latest
        times = np.maximum.accumulate(np.maximum(columns["time"], latest))
        windows = self.window_of(times)
        last = {float(start): float(times[windows == start].max()) for start in np.unique(windows)}
        for start, each in [*counts.items(), *((start, Counts()) for start in last)]:
            start = max(start, float(self.window_of(latest)))  # noqa: PLW2901 - as the times
            index.execute(
                "INSERT INTO windows VALUES(?, ?, ?, 0, ?, 1.0, ?) ON CONFLICT(start) DO UPDATE SET "
                "seen = seen + excluded.seen, unknown = unknown + excluded.unknown, dropped = dropped + excluded.dropped, "
                "latest = max(latest, excluded.latest)",
                (start, *each, last.get(start, start)),
            )
        return columns | {"time": times, "window": windows}

    def _insert(
        self,
        index: sqlite3.Connection,
        columns: dict[str, npt.NDArray[Any]],
        files: Sequence[ExampleFile],
        per_window: int | None,
    ) -> int:
        """Insert rows, and leave in each window those with the smallest priorities; gives how many of these were left."""
        count = len(columns["time"])
        shards, rows = np.full(count, None, object), np.full(count, None, object)
        for file in files:
            shards[file.positions], rows[file.positions] = file.path.name, np.arange(len(file.positions))
        columns = columns | {"shard": shards, "row": rows}
        windows = columns["window"].tolist()
        query = "SELECT start, below FROM windows WHERE start >= ?"
        below = dict(map(tuple, index.execute(query, (min(windows, default=np.inf),))))
        kept = columns["priority"] < np.array([below[start] for start in windows], np.float64)
        columns = {name: column[kept] for name, column in columns.items()}
        named = set(columns["shard"].tolist())
        self.name(index, [file for file in files if file.path.name in named])
        places = ", ".join("?" * len(columns))
        last = index.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'answers'").fetchone()[0]
        index.executemany(
            f"INSERT INTO answers({', '.join(columns)}) VALUES({places})",
            zip(*(column.tolist() for column in columns.values()), strict=True),
        )
        for start, added in zip(*np.unique(columns["window"], return_counts=True), strict=True):
            evicted = 0 if per_window is None else self.evict(index, float(start), per_window)
            index.execute("UPDATE windows SET sampled = sampled + ? WHERE start = ?", (int(added) - evicted, float(start)))
        return int(index.execute("SELECT count(*) FROM answers WHERE id > ?", (last,)).fetchone()[0])

    def evict(self, index: sqlite3.Connection, start: float, most: int) -> int:
        """Keep the rows of a window with the smallest priorities; later ones must be smaller than all of them."""
        excess = "SELECT id FROM answers WHERE window = ? ORDER BY priority, id LIMIT -1 OFFSET ?"
        evicted = index.execute(f"DELETE FROM answers WHERE id IN ({excess})", (start, most)).rowcount  # noqa: S608 - above
        if evicted:
            largest = index.execute("SELECT max(priority) FROM answers WHERE window = ?", (start,)).fetchone()[0]
            index.execute("UPDATE windows SET below = ? WHERE start = ?", (0.0 if largest is None else largest, start))
        return evicted

    @contextmanager
    def drafts(self, batches: Sequence[tuple[Raw, Integers]]) -> Iterator[list[ExampleFile]]:
        """Write files of examples under the names of drafts, to be named in a transaction."""
        with ExitStack() as stack:
            files = []
            for examples, positions in batches:
                suffix, content = examples_file(examples)
                path = self.traffic / f"{self.clock():.0f}-{token_hex(6)}{suffix}"
                draft = stack.enter_context(drafted(path, content))
                files.append(ExampleFile(path, draft, layout_of(examples), len(content), digest(content), positions))
            yield files

    def name(self, index: sqlite3.Connection, files: Sequence[ExampleFile], *, judged: bool = False) -> None:
        """Give drafts their names, in a transaction: no other process takes them for files that nothing names."""
        for file in files:
            file.draft.replace(file.path)
            row = (file.path.name, file.layout, len(file.positions), file.bytes, file.digest, judged)
            index.execute("INSERT INTO shards VALUES(?, ?, ?, ?, ?, ?)", row)
        if files:
            sync_directory(self.traffic)

    def rows(
        self,
        *,
        after: int = 0,
        until: int | None = None,
        since: float | None = None,
        detector: str | None = None,
        with_examples: bool = False,
    ) -> Rows:
        """The rows that meet every condition: an id above `after` up to `until`, a time, a detector, an example."""
        conditions: dict[str, Any] = {"id > ?": after}
        if until is not None:
            conditions["id <= ?"] = until
        if since is not None:
            conditions["time >= ?"] = since
        if detector is not None:
            conditions["detector = ?"] = detector
        if with_examples:
            conditions["shard IS NOT ?"] = None
        query = f"SELECT {_ROW_COLUMNS} FROM answers WHERE {' AND '.join(conditions)} ORDER BY id"  # noqa: S608 - our own names
        with self.index.reading() as index:
            index.row_factory = None  # tuples are faster
            found = index.execute(query, tuple(conditions.values())).fetchall()
        names = _ROW_COLUMNS.split(", ")
        columns = dict(zip(names, zip(*found, strict=True), strict=True)) if found else dict.fromkeys(names, ())
        return Rows(
            id=np.array(columns["id"], np.int64),
            time=np.array(columns["time"], np.float64),
            request=np.array(columns["request"], np.str_),
            detector=np.array(columns["detector"], np.str_),
            score=np.array(columns["score"], np.float64),
            class_=np.array(columns["class"], np.int64),
            known=np.array(columns["known"], np.bool_),
            p_value=np.array(columns["p_value"], np.float64),
            priority=np.array(columns["priority"], np.float64),
            has_example=np.array([each is not None for each in columns["shard"]], np.bool_),
            shadow=np.array([each or "" for each in columns["shadow"]], np.str_),
            shadow_score=np.array(columns["shadow_score"], np.float64),
            shadow_known=np.array(columns["shadow_known"], np.bool_),
        )

    def source(self, ids: npt.ArrayLike) -> MappedSource:
        """The examples of these answers in this order, as `fit` reads them; they are read from the disk when needed."""
        return self.again(lambda: self.open(self.places(ids)))

    def places(self, ids: npt.ArrayLike) -> list[tuple[str, int]]:
        """The file of each answer's example, and its row there. Another process may join files at any time."""
        asked = np.asarray(ids, np.int64)
        if not asked.size:
            raise InputError("no answers are named: give the ids of some that have an example")
        query = "SELECT id, shard, row FROM answers WHERE id BETWEEN ? AND ? AND shard IS NOT NULL"
        with self.index.reading() as index:
            found = index.execute(query, (int(asked.min()), int(asked.max()))).fetchall()
        place = {number: (shard, row) for number, shard, row in found}
        gone = [number for number in asked.tolist() if number not in place]
        if gone:
            raise InputError(
                f"{len(gone):,} of {len(asked):,} answers have no example, such as answer {gone[0]}: it was removed, or "
                "recorded without: give ids of rows(with_examples=True)"
            )
        return [place[number] for number in asked.tolist()]

    def open(self, places: Sequence[tuple[str, int]], labels: Integers | None = None) -> MappedSource:
        """The examples at these rows of files."""
        names = sorted({name for name, _ in places})
        number = {name: each for each, name in enumerate(names)}
        which = np.array([number[name] for name, _ in places], np.int64)
        sources = tuple(open_examples(self.traffic / name) for name in names)
        return MappedSource(sources, which, np.array([row for _, row in places], np.int64), labels)

    def again(self, read: Callable[[], Result]) -> Result:
        """What a function reads, which is called again if another process joins the files meanwhile."""
        for _ in range(_ATTEMPTS):
            try:
                return read()
            except FileNotFoundError as error:
                missing = error.filename
        raise InputError(f"{missing} is missing: restore it from a copy of the habitat")

    def windows(self) -> Windows:
        """The counters of all windows, from the oldest."""
        query = "SELECT start, seen, unknown, sampled, dropped, below FROM windows ORDER BY start"
        with self.index.reading() as index:
            found = np.array(index.execute(query).fetchall(), np.float64).reshape(-1, 6)
        seen, unknown, sampled, dropped = found.T[1:5].astype(np.int64)
        return Windows(found.T[0], seen, unknown, sampled, dropped, found.T[5])

    def judge(self, answer: int, class_: int | None, who: str) -> None:
        """Record that a person calls an answer's example known, and of which class, or unknown (None).

        The example is copied, so that neither budget nor retention removes it. The last judgement counts.
        """
        answer = check_integer(answer, "answer", "the id of an answer", most=2**62)
        class_ = None if class_ is None else check_integer(class_, "class_", "the number of a class, or None", least=0)
        now, judged = self.clock(), "SELECT 1 FROM judgements WHERE answer = ?"
        with self.index.reading() as index:
            is_new = index.execute(judged, (answer,)).fetchone() is None
            row = index.execute("SELECT time FROM answers WHERE id = ?", (answer,)).fetchone()
        copies = [(self.source([answer]).gather(torch.arange(1))[0], np.arange(1))] if is_new else []
        with self.drafts(copies) as files, self.index.writing() as index:
            if is_new and index.execute(judged, (answer,)).fetchone() is None:
                self.name(index, files, judged=True)
                place = (answer, None if row is None else row["time"], files[0].path.name)
                index.execute("INSERT INTO judgements VALUES(?, ?, NULL, NULL, NULL, ?, 0)", place)
            values = (now, as_utf8(who), class_, answer)
            index.execute("UPDATE judgements SET time = ?, who = ?, class = ? WHERE answer = ?", values)

    def judged(self) -> Judged:
        """All judgements in the order of their answers, with the examples."""
        return self.again(self._judged)

    def _judged(self) -> Judged:
        with self.index.reading() as index:
            found = index.execute("SELECT * FROM judgements ORDER BY answer").fetchall()
        classes = np.array([-1 if row["class"] is None else row["class"] for row in found], np.int64)
        known = [(row["shard"], row["row"]) for row in found if row["class"] is not None]
        unknown = [(row["shard"], row["row"]) for row in found if row["class"] is None]
        return Judged(
            answer=np.array([row["answer"] for row in found], np.int64),
            answered=np.array([row["answered"] for row in found], np.float64),
            time=np.array([row["time"] for row in found], np.float64),
            who=np.array([row["who"] for row in found], np.str_),
            class_=classes,
            known=self.open(known, classes[classes >= 0]) if known else None,
            unknown=self.open(unknown) if unknown else None,
        )

    def sweep(self, *, budget: int | None = None, retain: float | None = None) -> None:
        """Remove what is older than `retain` seconds or exceeds `budget` bytes, the oldest windows first; tidy the files.

        Judged examples stay.
        """
        sweep(self, budget=budget, retain=retain)

    def check(self) -> list[str]:
        """What is wrong with the store, one line for each fault; files that nothing names are among them."""
        return check(self)


def _joined(columns: Sequence[dict[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}


def _by_layout(batches: Sequence[tuple[Answers, Raw | None]], kept: npt.NDArray[np.bool_]) -> list[tuple[Raw, Integers]]:
    """The kept examples, those of one layout together, with their positions among all that is kept."""
    groups: dict[str, tuple[list[Raw], list[Integers]]] = {}
    position, first = np.cumsum(kept) - 1, 0
    for answers, examples in batches:
        own = slice(first, first := first + len(answers))
        if examples is None or not kept[own].any():
            continue
        raw: Raw = map_structure(_tensor, examples)
        if any(part.is_floating_point() and not torch.isfinite(part).all() for part in tensors_of(raw)):
            raise InputError("an example holds NaN or infinity: refuse such examples")
        if batch_length(raw) != len(answers):
            raise InputError(f"there are {len(answers)} answers with {batch_length(raw)} examples: give one for each")
        chosen = torch.from_numpy(np.flatnonzero(kept[own]))
        parts, positions = groups.setdefault(layout_of(raw), ([], []))
        parts.append(map_structure(lambda part, chosen=chosen: part[chosen], raw))
        positions.append(position[own][kept[own]])
    return [(concatenate(parts), np.concatenate(positions)) for parts, positions in groups.values()]


def _tensor(part: Any) -> Tensor:
    return part.detach().cpu() if isinstance(part, Tensor) else torch.from_numpy(native(np.array(part)))

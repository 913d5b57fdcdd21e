"""Upkeep of a store: retention, the byte budget, joining small files, removing files that nothing names; its check."""

import sqlite3
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from wildood.data.files import DamagedFileError, digest, remove_leftovers
from wildood.data.mapped import SUFFIXES, layout_of, open_examples

if TYPE_CHECKING:
    from wildood.habitat.store import Store

SMALL = 1 << 22  # bytes: smaller files are joined
LARGE = 1 << 26  # bytes of a joined file, at most
FEW = 8  # small files of one layout that are left alone
ROW_BYTES = 256  # of a row in the index, about
TRIMMED = 0.95  # of the budget that is filled again: trimming a little more is done less often
_TABLES = {"answers": "id", "judgements": "answer"}  # whose rows name files


class _File(NamedTuple):
    """A file of examples, and how much of it is named."""

    name: str
    layout: str
    judged: int
    rows: int
    bytes: int
    alive: int
    first: int  # the smallest id of an answer in it

    @property
    def is_sparse(self) -> bool:
        return 2 * self.alive < self.rows


def sweep(store: "Store", *, budget: int | None, retain: float | None) -> None:
    """See `Store.sweep`."""
    remove_leftovers(store.traffic)
    if retain is not None:
        with store.index.writing() as index:
            oldest = float(store.window_of(store.clock() - retain))
            index.execute("DELETE FROM answers WHERE window < ?", (oldest,))
    _remove_unnamed(store)
    _join(store, _worth_joining(_files(store)))
    if budget is not None:
        _trim(store, budget)
    _remove_unnamed(store)


def _remove_unnamed(store: "Store") -> None:
    """Forget files without rows; then unlink files that the index does not know.

    In one transaction, a process that is killed before its end would leave names of files that are gone.
    """
    with store.index.writing() as index:
        for table, judged in (("answers", 0), ("judgements", 1)):
            query = f"DELETE FROM shards WHERE judged = ? AND NOT EXISTS (SELECT 1 FROM {table} WHERE shard = shards.name)"  # noqa: S608
            index.execute(query, (judged,))
    with store.index.writing() as index:  # meanwhile, nobody gives a file its name
        named = {name for (name,) in index.execute("SELECT name FROM shards")}
        for path in _paths(store.traffic):
            if path.name not in named:
                path.unlink(missing_ok=True)


def _paths(traffic: Path) -> list[Path]:
    return [path for path in traffic.iterdir() if path.suffix in SUFFIXES]


def _files(store: "Store") -> list[_File]:
    """The files of examples, in the order of their first rows."""
    parts = [
        f"SELECT name, layout, judged, rows, bytes, count(*) AS alive, min(each.{key}) AS first "  # noqa: S608 - our own names
        f"FROM shards JOIN {table} AS each ON each.shard = name GROUP BY name"
        for table, key in _TABLES.items()
    ]
    with store.index.reading() as index:
        found = index.execute(f"{' UNION ALL '.join(parts)} ORDER BY first").fetchall()
    return [_File(*row) for row in found]


def _worth_joining(files: Sequence[_File]) -> list[_File]:
    """Files that are mostly dead, and small ones where there are many of a kind."""
    chosen = [file for file in files if file.is_sparse]
    small = [file for file in files if file.bytes < SMALL and not file.is_sparse]
    for _, group in groupby(sorted(small, key=_kind), _kind):
        alike = list(group)
        chosen += alike if len(alike) > FEW else []
    return chosen


def _kind(file: _File) -> tuple[str, int]:
    return file.layout, file.judged


def _join(store: "Store", files: Sequence[_File]) -> None:
    """Write the named rows of files to new ones; nothing names the old ones then."""
    for _, alike in groupby(sorted(files, key=lambda file: (*_kind(file), file.first)), _kind):
        group: list[_File] = []
        for file in alike:
            if group and sum(each.bytes * each.alive // each.rows for each in (*group, file)) > LARGE:
                _rewrite(store, group)
                group = []
            group.append(file)
        _rewrite(store, group)


def _rewrite(store: "Store", files: Sequence[_File]) -> None:
    table = "judgements" if files[0].judged else "answers"
    key = _TABLES[table]
    if len(files) == 1 and files[0].alive == files[0].rows:
        return
    query = f"SELECT {key} AS id, shard, row FROM {table} WHERE shard IN ({', '.join('?' * len(files))}) ORDER BY id"  # noqa: S608
    with store.index.reading() as index:
        named = index.execute(query, [file.name for file in files]).fetchall()
    if not named:
        return
    try:
        examples = store.open([(shard, row) for _, shard, row in named]).gather(torch.arange(len(named)))[0]
    except (FileNotFoundError, DamagedFileError):  # another process has just joined it; `check` tells of damage
        return
    with store.drafts([(examples, np.arange(len(named)))]) as [joined], store.index.writing() as index:
        name = joined.path.name
        updates = [(name, number, row["id"], row["shard"], row["row"]) for number, row in enumerate(named)]
        moved = index.executemany(
            f"UPDATE {table} SET shard = ?, row = ? WHERE {key} = ? AND shard = ? AND row = ?",  # noqa: S608 - our own names
            updates,
        ).rowcount
        if moved:
            store.name(index, [joined], judged=bool(files[0].judged))
    _remove_unnamed(store)


def _trim(store: "Store", budget: int) -> None:
    """Remove the oldest windows, and of the last one the rows with the largest priorities, until the rest fits."""
    if _size(store) <= budget:
        return
    while (excess := _size(store) - TRIMMED * budget) > 0:
        with store.index.writing() as index:
            windows = index.execute(
                "SELECT window, count(*), sum(coalesce(1.0 * bytes / rows, 0)) + count(*) * ? FROM answers "
                "LEFT JOIN shards ON shard = name GROUP BY window ORDER BY window",
                (ROW_BYTES,),
            ).fetchall()
            if not windows:
                return
            freed = np.cumsum([size for _, _, size in windows])
            part = min(int(np.searchsorted(freed, excess)), len(windows) - 1)  # the first window of which some rows may stay
            index.execute("DELETE FROM answers WHERE window < ?", (windows[part][0],))
            start, rows, size = windows[part]
            stay = (freed[part] - excess) / size if part == len(windows) - 1 else 0.0
            store.evict(index, start, min(rows - 1, max(0, int(rows * stay))))
        _remove_unnamed(store)
        _join(store, [file for file in _files(store) if file.alive < file.rows])


def _size(store: "Store") -> float:
    """The bytes of what retention may remove."""
    with store.index.reading() as index:
        rows = index.execute("SELECT count(*) FROM answers").fetchone()[0]
        return float(index.execute("SELECT total(bytes) FROM shards WHERE NOT judged").fetchone()[0]) + ROW_BYTES * int(rows)


def check(store: "Store") -> list[str]:
    """See `Store.check`."""
    with store.index.reading() as index:
        faults = [f"{store.index.path.name}: {line}" for (line,) in index.execute("PRAGMA integrity_check") if line != "ok"]
        files = {row["name"]: row for row in index.execute("SELECT * FROM shards")}
        for table, key in _TABLES.items():
            query = f"SELECT {key} AS id, shard, row FROM {table} WHERE shard IS NOT NULL ORDER BY shard, row"  # noqa: S608
            last = None
            for row in index.execute(query):
                place = (row["shard"], row["row"])
                if row["shard"] not in files:
                    faults.append(f"answer {row['id']} of {table} is in {row['shard']}, which the index does not know")
                elif not 0 <= row["row"] < files[row["shard"]]["rows"]:
                    faults.append(f"answer {row['id']} of {table} is row {row['row']} of {row['shard']}, which has fewer")
                elif place == last:
                    faults.append(f"answer {row['id']} of {table} has the same example as another one")
                last = place
        wrong = {
            "an answer is of no window": "SELECT id FROM answers WHERE window NOT IN (SELECT start FROM windows)",
            "an answer has too large a priority": "SELECT id FROM answers JOIN windows ON window = start "
            "WHERE priority > below",
            "an answer is older than the one before it": "SELECT id FROM (SELECT id, time, "
            "lag(time) OVER (ORDER BY id) AS before FROM answers) WHERE time < before",
        }
        for what, query in wrong.items():
            faults += [f"{what}: {number}" for (number,) in index.execute(f"{query} LIMIT 3")]
    present = {path.name for path in _paths(store.traffic)}
    faults += [f"{name} is missing" for name in sorted(files.keys() - present)]
    faults += [f"{name} is named by nothing: sweep removes it" for name in sorted(present - files.keys())]
    return faults + [
        fault for name in sorted(files.keys() & present) for fault in _faults(store.traffic / name, files[name])
    ]


def _faults(path: Path, row: sqlite3.Row) -> list[str]:
    """What is wrong with a file of examples."""
    try:
        content = path.read_bytes()
        if len(content) != row["bytes"] or digest(content) != row["digest"]:
            return [f"{path.name} was torn or changed"]
        source = open_examples(path)
    except (FileNotFoundError, DamagedFileError) as error:
        return [str(error)]
    layout = layout_of(source.gather(torch.arange(1))[0])
    return (
        [] if (len(source), layout) == (row["rows"], row["layout"]) else [f"{path.name} does not hold what the index says"]
    )

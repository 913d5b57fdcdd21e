"""Comparisons of champion and challenger, as they are recorded in the index."""

import json
from sqlite3 import Connection
from typing import Any

from wildood.data.schema import SchemaError, parse


def comparisons(index: Connection, champion: str, challenger: str) -> list[dict[str, Any]]:
    """The comparisons of these two, the oldest first."""
    query = "SELECT data FROM looks WHERE test = ? ORDER BY number"
    found = []
    for row in index.execute(query, (_name(champion, challenger),)).fetchall():
        try:
            found.append(parse(row["data"].encode(), dict[str, Any]))
        except SchemaError:  # of another version
            continue
    return found


def latest_comparison(index: Connection, champion: str, challenger: str) -> dict[str, Any] | None:
    """The last comparison of these two that showed the challenger to be better, or else the last; None if there is none.

    A finding stands: the looks share one probability of error, however many follow.
    """
    found = comparisons(index, champion, challenger)
    return next((each for each in reversed(found) if each.get("separated")), found[-1] if found else None)


def record_comparison(index: Connection, time: float, champion: str, challenger: str, record: dict[str, Any]) -> None:
    """Add a comparison, in a transaction that is under way."""
    values = (time, _name(champion, challenger), json.dumps(record))
    index.execute("INSERT INTO looks(time, test, data) VALUES(?, ?, ?)", values)


def _name(champion: str, challenger: str) -> str:
    return f"compare {champion} {challenger}"

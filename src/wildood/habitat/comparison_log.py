"""Comparisons of champion and challenger as they are recorded in the index."""

import json
from typing import TYPE_CHECKING, Any

from wildood.data.schema import SchemaError, parse

if TYPE_CHECKING:
    from wildood.habitat.habitat import Habitat


def comparisons(habitat: "Habitat", champion: str, challenger: str) -> list[dict[str, Any]]:
    """The comparisons of these two, the oldest first."""
    with habitat.store.index.reading() as index:
        query = "SELECT data FROM looks WHERE test = ? ORDER BY number"
        texts = [row["data"] for row in index.execute(query, (_name(champion, challenger),))]
    found = []
    for text in texts:
        try:
            found.append(parse(text.encode(), dict[str, Any]))
        except SchemaError:
            continue
    return found


def latest_comparison(habitat: "Habitat", champion: str, challenger: str) -> dict[str, Any] | None:
    """The last comparison of these two; None if there is none.

    A challenger that was once shown to be better stays so, whatever a later look could not show.
    """
    found = comparisons(habitat, champion, challenger)
    return next((each for each in reversed(found) if each.get("separated")), found[-1] if found else None)


def record_comparison(habitat: "Habitat", champion: str, challenger: str, record: dict[str, Any]) -> None:
    """Add a comparison."""
    with habitat.store.index.writing() as index:
        values = (habitat.clock(), _name(champion, challenger), json.dumps(record))
        index.execute("INSERT INTO looks(time, test, data) VALUES(?, ?, ?)", values)


def _name(champion: str, challenger: str) -> str:
    return f"compare {champion} {challenger}"

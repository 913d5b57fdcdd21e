"""What makes a run this run, by names for people; all processes of a run must have been given the same."""

import json
from typing import Any

import torch

from wildood.errors import InputError
from wildood.train.processes import from_first, told_if_another_ends, total


def check_same(given: dict[str, Any]) -> None:
    """Refuse, in all processes alike, a run whose processes were given different things.

    >>> check_same({"seed": 0, "data": {"labelled": "5d41"}})
    """
    mine = {name: json.dumps(value) for name, value in flat(given).items()}
    with told_if_another_ends(saved=False):
        first: dict[str, str] = json.loads(from_first(json.dumps(mine).encode()) or b"{}")
        # Counted by the first one's names: what another has besides is in the last place.
        differs = [mine.get(name) != value for name, value in first.items()] + [not mine.keys() <= first.keys()]
        counts = total(torch.tensor(differs, dtype=torch.float64)).tolist()
    others = [shown for shown, count in zip([*map(in_words, first), "settings"], counts, strict=True) if count]
    if others:
        raise InputError(
            f"every process must be given the same data, model and settings, but {', '.join(others)} differ between the "
            "processes: give the whole data to each (batches are divided among them), and seed what makes the model"
        )


def in_words(key: str) -> str:
    """A part of a run's identity as a person would name it.

    >>> in_words("data.wild"), in_words("model"), in_words("schedule.lr")
    ('the wild data', 'the starting weights', 'schedule.lr')
    """
    if key == "model":
        return "the starting weights"
    return f"the {key.removeprefix('data.')} data" if key.startswith("data.") else key


def flat(record: Any, prefix: str = "") -> dict[str, Any]:
    """A nested record as one level of dotted names.

    >>> flat({"data": {"wild": "5d41"}, "seed": 0})
    {'data.wild': '5d41', 'seed': 0}
    """
    if not isinstance(record, dict):
        return {prefix: record}
    return {
        name: value
        for key, inner in record.items()
        for name, value in flat(inner, f"{prefix}.{key}" if prefix else key).items()
    }

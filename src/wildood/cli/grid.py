"""`wildood fit --grid`: a method with each combination of several values, and how the results rank."""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

from wildood.errors import InputError
from wildood.evaluate.ranking import Ranking
from wildood.methods.objective import Method


def grid_of(method: Method, words: Sequence[str]) -> list[Method]:
    """A method with every combination of the values that the words name.

    >>> from wildood.methods.outlier_exposure import OutlierExposure
    >>> [each.weight for each in grid_of(OutlierExposure(), ["weight=0.1,1"])]
    [0.1, 1.0]
    """
    kinds = {setting.name: type(getattr(method, setting.name)) for setting in fields(method)}  # type: ignore[arg-type]
    axes: dict[str, list[Any]] = {}
    for word in words:
        name, _, values = word.partition("=")
        name = name.replace("-", "_")
        if name == "alpha":
            raise InputError(f"--grid {word}: methods are compared at one false-alarm rate: set it with --alpha")
        if kinds.get(name) not in {float, int} or not values:
            known = ", ".join(key for key, kind in kinds.items() if kind in {float, int} and key != "alpha")
            raise InputError(f"--grid {word}: give settings with their values, as in weight=0.1,1; the method has {known}")
        try:
            axes[name] = [kinds[name](value) for value in values.split(",")]
        except ValueError as error:
            raise InputError(f"--grid {word}: give numbers with commas between them, as in weight=0.1,1") from error
    return [replace(method, **dict(zip(axes, point, strict=True))) for point in product(*axes.values())]  # type: ignore[type-var]


def ranking_lines(ranking: Ranking) -> str:
    """The ranking as lines of text."""
    rows = [
        f"{place.name}: accepts {100 * place.wild_accepted:.1f} % of wild, accuracy {100 * place.accuracy:.1f} %"
        + ("" if place.eligible else " (too low)")
        for place in ranking.places
    ]
    return "\n".join([*rows, str(ranking)])

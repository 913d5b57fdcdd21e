"""A method or score of the user's own in an experiment: named module:Class by the user, never because a file says so."""

import os
import sys
from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from importlib import import_module
from typing import Any

from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.methods.shipped import SHIPPED as METHODS
from wildood.scores.score import Score
from wildood.scores.shipped import NAMES as SCORES


def register(names: Sequence[str]) -> None:
    """Let experiments name these classes, which are found where the user is, as `python -m` would find them."""
    for name in names:
        module, _, attribute = name.partition(":")
        if not module or not attribute:
            raise InputError(f"--method {name}: give module:Class, as in mymethod:Mine")
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        try:
            cls: Any = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise InputError(f"--method {name}: {error}") from error
        finally:
            sys.path.pop(0)
        is_method = is_dataclass(cls) and hasattr(cls, "objective") and hasattr(cls, "uses_wild")
        if isinstance(cls, type) and issubclass(cls, Score):
            SCORES[name] = cls
        elif is_method:
            METHODS[name] = cls
        else:
            raise InputError(f"--method {name}: it is neither a Score nor a method such as Woods (see docs/method.md)")


def beside_woods(experiments: Sequence[Experiment], names: Sequence[str]) -> list[Experiment]:
    """The experiments, and one with each of these methods wherever WOODS is: with its own settings and schedule.

    >>> from wildood.experiments.grids import grid
    >>> found = beside_woods(grid("cpu"), ["energy-margin"])
    >>> len(found) - len(grid("cpu")), found[-1].method
    (10, 'energy-margin')
    """
    like_woods = {each.cell: each for each in experiments if each.method == "woods"}
    seeds = dict.fromkeys(each.seed for each in experiments)
    return [
        *experiments,
        *(
            replace(each, method=name, settings={}, schedule=None, seed=seed)
            for seed in seeds
            for name in names
            for each in like_woods.values()
        ),
    ]

"""Which of several settings a cell of a table shows: validation data chooses, for each seed; test numbers never do."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wildood.errors import InputError
from wildood.experiments.store import Result

ACCURACY_LOSS = 0.01  # what an honest choice may cost on the holdout, at most
_ROUNDING = 1e-12  # the loss is a difference of two shares


class Choice(NamedTuple):
    """The run of each seed, and what was chosen among, in words; empty if there was nothing to choose."""

    runs: Mapping[int, Result]
    settings: str


def chosen_runs(runs: Sequence[Result]) -> Choice:
    """For each seed, one of the runs of a cell: that with the least acceptance of validation data.

    An honest choice is among the settings that lose at most 0.01 of accuracy on the holdout, or among all if none does;
    as published, accuracy does not matter. Of equal ones, the one that loses the least accuracy.

    >>> from wildood.experiments.experiment import Experiment
    >>> def found(alpha, acceptance):
    ...     made = Experiment("digits", ("digits",), "digits", 0.1, "woods", {"alpha": alpha})
    ...     return Result(made, {}, 0.9, 0.05, 100, acceptance)
    >>> chosen_runs([found(0.05, 0.9), found(0.1, 0.8)]).settings
    'alpha 0.1'
    """
    options = [run.experiment.as_dict()["settings"] for run in runs]
    if difference(options[0], options) and any(run.acceptance is None for run in runs):
        first = runs[0].experiment
        raise InputError(
            f"{first.method} on {first.id} was run with several settings and has no validation data to choose one by: "
            "leave the runs of one setting"
        )
    by_seed: dict[int, list[Result]] = {}
    for run in runs:
        by_seed.setdefault(run.experiment.seed, []).append(run)
    chosen = {seed: _least(by_seed[seed]) for seed in sorted(by_seed)}
    told = Counter(difference(run.experiment.as_dict()["settings"], options) for run in chosen.values())
    if len(told) == 1:
        return Choice(chosen, next(iter(told)))
    return Choice(chosen, "; ".join(f"{text} ({count} of {len(chosen)} seeds)" for text, count in told.items()))


def difference(content: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """What tells a content from others, in words; empty if they are all the same.

    >>> difference({"steps": 100, "lr": 0.1}, [{"steps": 200, "lr": 0.1}])
    'steps 100'
    """
    contents = [content, *others]
    names = dict.fromkeys(name for each in contents for name in each)
    varying = [name for name in names if len({str(each.get(name)) for each in contents}) > 1]
    return ", ".join(f"{name} {content.get(name, 'none')}" for name in varying)


def _least(runs: Sequence[Result]) -> Result:
    honest = runs[0].experiment.protocol == "honest"
    kept = [run for run in runs if run.accuracy_lost <= ACCURACY_LOSS + _ROUNDING] if honest else runs

    def order(run: Result) -> tuple[float, float, str]:
        return (0.0 if run.acceptance is None else run.acceptance), run.accuracy_lost, run.experiment.name

    return min(kept or runs, key=order)

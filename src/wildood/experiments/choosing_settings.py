"""Which of several settings a cell of a table shows: validation data chooses, for each seed; test numbers never do."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wildood.experiments.results import Failure, Result

ACCURACY_LOSS = 0.01  # what an honest choice may cost on the holdout, at most
_ROUNDING = 1e-12  # the loss is a difference of two shares


class Choice(NamedTuple):
    """What validation data chose.

    Attributes:
        runs: the run of each seed.
        settings: what was chosen, in words; empty if there was nothing to choose.
        incomplete: which seeds lack settings that others have, in words; empty if none does.
    """

    runs: Mapping[int, Result]
    settings: str
    incomplete: str = ""


def can_choose(runs: Sequence[Result | Failure]) -> bool:
    """Whether validation data can choose among the settings of these runs, or there is only one setting.

    >>> from wildood.experiments.experiment import Experiment
    >>> odin = [Experiment("digits", ("digits",), method="odin", settings={"temperature": value}) for value in (1.0, 10.0)]
    >>> can_choose([Result(each, {}, 0.9, 0.05, 100) for each in odin])
    False
    """
    several = len({settings_key(run) for run in runs}) > 1
    return not (several and any(isinstance(run, Result) and run.acceptance is None for run in runs))


def settings_key(run: Result | Failure) -> str:
    """The settings of a run, to tell them from others.

    >>> from wildood.experiments.experiment import Experiment
    >>> settings_key(Failure(Experiment("digits", ("digits",), method="odin"), "", ""))
    '{"epsilon": "none", "temperature": 1000.0}'
    """
    return json.dumps(run.experiment.as_dict()["settings"], sort_keys=True)


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
    by_seed: dict[int, list[Result]] = {}
    for run in runs:
        by_seed.setdefault(run.experiment.seed, []).append(run)
    chosen = {seed: _least(by_seed[seed]) for seed in sorted(by_seed)}
    told = Counter(difference(run.experiment.as_dict()["settings"], options) for run in chosen.values())
    texts = [f"{text} ({count} of {len(chosen)} seeds)" for text, count in told.items()] if len(told) > 1 else list(told)
    return Choice(chosen, "; ".join(texts), _incomplete(by_seed))


def difference(content: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """What tells a content from others, in words; empty if they are all the same.

    >>> difference({"steps": 100, "lr": 0.1}, [{"steps": 200, "lr": 0.1}])
    'steps 100'
    """
    contents = [content, *others]
    names = dict.fromkeys(name for each in contents for name in each)
    varying = [name for name in names if len({str(each.get(name)) for each in contents}) > 1]
    return ", ".join(f"{name} {content.get(name, 'none')}" for name in varying)


def _incomplete(by_seed: Mapping[int, Sequence[Result]]) -> str:
    """A choice among fewer settings is another one: its number may be worse for that."""
    settings = {seed: {settings_key(run) for run in runs} for seed, runs in sorted(by_seed.items())}
    most = len(set().union(*settings.values()))
    return ", ".join(
        f"seed {seed} chose among {len(found)} of {most} settings" for seed, found in settings.items() if len(found) < most
    )


def _least(runs: Sequence[Result]) -> Result:
    honest = runs[0].experiment.protocol == "honest"
    kept = [run for run in runs if run.accuracy_lost <= ACCURACY_LOSS + _ROUNDING] if honest else runs

    def order(run: Result) -> tuple[float, float, str]:
        return (0.0 if run.acceptance is None else run.acceptance), run.accuracy_lost, run.experiment.name

    return min(kept or runs, key=order)

"""The experiments by name: the paper's four tables, small sets for a CPU, and digits; with methods of the user's own."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Literal, NamedTuple

from wildood.errors import InputError
from wildood.experiments.experiment import Experiment, is_toml_value
from wildood.experiments.split import DIGITS_PI, DIGITS_SPEC
from wildood.methods.schedule import Schedule
from wildood.methods.shipped import METHODS
from wildood.scores.score import Score
from wildood.scores.shipped import NAMES as SCORES

Protocol = Literal["honest", "as_published"]
PIS = (0.05, 0.1, 0.2, 0.5, 1.0)
PAPER_SETS = ("svhn", "lsun-r", "lsun-c", "textures", "places365")
CPU_SETS = ("svhn.npz", "rooms_resize.npz", "rooms_crop.npz", "textures.npz", "places.npz")
RANDOM_IMAGES, CPU_RANDOM_IMAGES = "300k", "random_images.npz"
POSTHOC = ("max-softmax", "odin", "energy", "mahalanobis")
MORE_POSTHOC = (*POSTHOC, "max-logit", "knn", "react", "vim")
TRAINED = ("oe", "energy-logistic", "woods", "woods-alt")
DEMO_METHODS = ("max-softmax", "odin", "mahalanobis", "energy", "oe", "energy-margin", *TRAINED[1:])

# Each method's settings to choose among, as the paper has them; WOODS's own defaults need no choice.
WEIGHTS = {"oe": (0.1, 0.5, 1.0), "energy-logistic": (0.1, 1.0, 5.0)}
MU2, GAMMA = (0.1, 1.0, 2.0), (1.1, 1.5)
NEEDED, CALLED = ("uses_wild", "uses_features", "alpha"), ("schedule", "objective")  # of a method
CONTRACT = "docs/method.md"


class Grid(NamedTuple):
    """A list of experiments with a name: what it is, how many seeds it has, and its experiments for one seed."""

    what: str
    seeds: int
    protocol: Protocol
    of_seed: Callable[[Protocol, int], Iterable[Experiment]]


def grid(name: str, seeds: int | None = None, protocol: Protocol | None = None) -> list[Experiment]:
    """The experiments of a grid, seed by seed.

    >>> len(grid("cifar100-stationary")), len(grid("cpu")), grid("digits", seeds=1)[0].method
    (520, 49, 'max-softmax')
    """
    if name not in GRIDS:
        raise InputError(f"no experiments are named {name!r}: give one of {', '.join(GRIDS)}")
    chosen = GRIDS[name]
    if protocol == "as_published" and chosen.protocol == "honest":
        raise InputError(f"{name} has no released protocol: leave out --protocol")
    numbers = range(chosen.seeds if seeds is None else seeds)
    return [experiment for seed in numbers for experiment in chosen.of_seed(protocol or chosen.protocol, seed)]


def only(experiments: Sequence[Experiment], words: Sequence[str]) -> list[Experiment]:
    """Those experiments that all words name, as in method=woods,oe ood=svhn pi=0.1 seed=0.

    >>> len(only(grid("digits", seeds=2), ["method=woods", "seed=1"]))
    5
    """
    for word in words:
        name, _, values = word.partition("=")
        if name not in KEYS or not values:
            raise InputError(f"--only {word}: give some of {', '.join(f'{key}=...' for key in KEYS)}")
        wanted = {_as_key(name, value) for value in values.split(",")}
        known = {text for each in experiments for text in KEYS[name](each)}
        unknown = sorted(wanted - known)
        if unknown:
            raise InputError(f"--only {word}: no {name} is {unknown[0]!r} here; there are {', '.join(sorted(known))}")
        experiments = [each for each in experiments if wanted & set(KEYS[name](each))]
    return list(experiments)


def _as_key(name: str, value: str) -> str:
    """As experiments say it: .1 and 0.10 are 0.1."""
    try:
        return f"{float(value):g}" if name == "pi" else value
    except ValueError:
        return value


KEYS: dict[str, Callable[[Experiment], list[str]]] = {
    "method": lambda each: [each.method],
    "ood": lambda each: [name.removesuffix(".npz") for name in dict.fromkeys([*each.test, *filter(None, [each.wild])])],
    "wild": lambda each: [str(each.wild).removesuffix(".npz")],
    "pi": lambda each: [f"{each.pi:g}"],
    "seed": lambda each: [str(each.seed)],
}


def _settings(method: str, protocol: Protocol) -> list[dict[str, Any]]:
    """Those to choose among."""
    if method in WEIGHTS:
        return [{"weight": weight} for weight in WEIGHTS[method]]
    if method in {"woods", "woods-alt"} and protocol == "as_published":
        return [{"mu2": mu2, "gamma": gamma} for mu2 in MU2 for gamma in GAMMA]
    return [{}]


def _stationary(id_set: str, protocol: Protocol, seed: int) -> Iterable[Experiment]:
    """Tables 1 and A1."""
    published = protocol == "as_published"
    common: dict[str, Any] = {"start": "all" if published else "labelled", "protocol": protocol, "seed": seed}
    for method in (*POSTHOC, "godin", "csi"):
        if published and method in {"odin", "mahalanobis"}:  # epsilon is chosen by OOD examples of each set
            for ood in PAPER_SETS:
                yield Experiment(id_set, (ood,), ood, 0.1, method, **common)
        else:
            yield Experiment(id_set, PAPER_SETS, method=method, **common)
    for method in TRAINED:
        for ood in PAPER_SETS:
            for settings in _settings(method, protocol):
                yield Experiment(id_set, (ood,), ood, 0.1, method, settings, **common)


def _effect_of_pi(id_set: str, protocol: Protocol, seed: int) -> Iterable[Experiment]:
    """Tables 2 and A2, with WOODS-alt, which the paper mentions without numbers."""
    start = "all" if protocol == "as_published" else "labelled"
    common: dict[str, Any] = {"start": start, "protocol": protocol, "seed": seed}
    tests = (*PAPER_SETS, RANDOM_IMAGES)
    for pi in PIS:
        for method in TRAINED:
            for settings in _settings(method, protocol):
                yield Experiment(id_set, tests, RANDOM_IMAGES, pi, method, settings, **common)


def _cpu(protocol: Protocol, seed: int) -> Iterable[Experiment]:
    """Both shapes on small sets, with a ResNet-20 that is trained already, 200 steps and one setting of each method."""
    schedule = Schedule(
        steps=200, batch=128, lr=0.01, decay="milestones", averaging=False, clip=0.0
    )  # of the table in docs/results.md
    common: dict[str, Any] = {
        "model": "ResNet20",
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "start": "weights/resnet20-cifar10.safetensors",
        "protocol": protocol,
        "seed": seed,
    }
    for method in MORE_POSTHOC:
        yield Experiment("cifar10.npz", CPU_SETS, method=method, **common)
    # From the same classifier, not from scratch: as many steps as the others.
    yield Experiment("cifar10.npz", CPU_SETS, method="godin", schedule=schedule, **common)
    for ood in CPU_SETS:
        for method in TRAINED:
            yield Experiment("cifar10.npz", (ood,), ood, 0.1, method, schedule=schedule, **common)
    for pi in PIS:
        for method in TRAINED:
            tests = (*CPU_SETS, CPU_RANDOM_IMAGES)
            yield Experiment("cifar10.npz", tests, CPU_RANDOM_IMAGES, pi, method, schedule=schedule, **common)


def _digits_start(seed: int) -> Experiment:
    """An experiment on digits without wild data; others differ from it in method and wild data only."""
    return Experiment(
        "digits",
        ("digits",),
        method="max-softmax",
        model="SmallCNN",
        model_settings={"width": 32, "hidden": 128},
        mean=DIGITS_SPEC.mean or (),
        std=DIGITS_SPEC.std or (),
        pretraining=Schedule(epochs=40, batch=64, lr=0.05, decay="milestones", averaging=False, factor=0.2, clip=0.0),
        seed=seed,
    )


def _digits(_protocol: Protocol, seed: int) -> Iterable[Experiment]:
    """Every score and every method, then the effect of pi."""
    start = _digits_start(seed)
    for method in MORE_POSTHOC:
        yield replace(start, method=method, settings={})
    yield replace(start, method="godin", settings={}, schedule=start.pretraining)
    for pi in (0.1, *(pi for pi in PIS if pi != 0.1)):
        for method in (*TRAINED, *(("energy-margin",) if pi == 0.1 else ())):
            yield replace(start, method=method, settings={}, wild="digits", pi=pi)


def demo_grid(seed: int) -> list[Experiment]:
    """The runs of `wildood demo` for one seed; all have the wild data, by which ODIN and Mahalanobis choose epsilon.

    >>> [experiment.method for experiment in demo_grid(0)][:5]
    ['max-softmax', 'odin', 'mahalanobis', 'energy', 'oe']
    """
    start = _digits_start(seed)
    return [replace(start, method=method, settings={}, wild="digits", pi=DIGITS_PI) for method in DEMO_METHODS]


_FIVE, _PI = "five OOD sets, each in the wild at pi = 0.1", "the effect of pi, 300K Random Images in the wild"
GRIDS: dict[str, Grid] = {
    "cifar10-stationary": Grid(f"Table A1: CIFAR-10, {_FIVE}", 5, "as_published", partial(_stationary, "cifar10")),
    "cifar100-stationary": Grid(f"Table 1: CIFAR-100, {_FIVE}", 5, "as_published", partial(_stationary, "cifar100")),
    "cifar10-pi": Grid(f"Table A2: CIFAR-10, {_PI}", 5, "as_published", partial(_effect_of_pi, "cifar10")),
    "cifar100-pi": Grid(f"Table 2: CIFAR-100, {_PI}", 5, "as_published", partial(_effect_of_pi, "cifar100")),
    "cpu": Grid("both shapes on small sets, ResNet-20, 200 steps", 1, "honest", _cpu),
    "digits": Grid("scikit-learn's digits, and the effect of pi on them", 5, "honest", _digits),
}


def add_own_methods(experiments: Sequence[Experiment], names: Sequence[str]) -> list[Experiment]:
    """The experiments, and one with each of these methods for each of WOODS, with the method's settings and WOODS's budget.

    The budget is steps or epochs, batch, and what an epoch is; the learning rate and the rest are the method's own. A
    method that trains without wild data keeps its whole schedule.

    >>> experiments = add_own_methods(grid("cpu"), ["energy-margin"])
    >>> len(experiments) - len(grid("cpu")), experiments[-1].schedule.steps, experiments[-1].schedule.lr
    (10, 200, 0.03)
    """
    of_woods = {each.cell: each for each in experiments if each.method == "woods"}
    seeds = dict.fromkeys(each.seed for each in experiments)
    return list(experiments) + [
        replace(each, method=name, settings={}, schedule=_with_budget(name, each.schedule), seed=seed)
        for seed in seeds
        for name in names
        for each in of_woods.values()
    ]


def budget_texts(experiments: Sequence[Experiment], names: Sequence[str]) -> list[str]:
    """A sentence for each of these methods that trains: for how long.

    >>> print(*budget_texts(add_own_methods(grid("cpu"), ["energy-margin"]), ["energy-margin"]))
    energy-margin: 200 steps of 128 + 128 examples, as woods has here (its own schedule: steps until it ends by itself, of
    256 + 256 examples)
    """
    lines = []
    for name in names:
        schedules = [each.schedule for each in experiments if each.method == name and each.schedule is not None]
        if not schedules:
            continue
        uses_wild = METHODS[name].uses_wild
        own, *lengths = (_length(each, wild=uses_wild) for each in (METHODS[name]().schedule(), *schedules))
        trained = " or ".join(dict.fromkeys(lengths))
        if not uses_wild:
            lines.append(f"{name}: {trained}, its own schedule: it trains without wild data")
            continue
        other = "" if set(lengths) == {own} else f" (its own schedule: {own})"
        lines.append(f"{name}: {trained}, as woods has here{other}")
    return lines


def _with_budget(name: str, woods: Schedule | None) -> Schedule | None:
    """The schedule of a method, as long as that of WOODS; None for its own."""
    if woods is None or name not in METHODS or not METHODS[name].uses_wild:
        return None
    own = METHODS[name]().schedule()
    same = {field: getattr(woods, field) for field in ("steps", "epochs", "minutes", "batch", "epoch")}
    return replace(own, **same)


def _length(schedule: Schedule, *, wild: bool) -> str:
    steps, batch = schedule.fixed().steps, schedule.batch
    length = f"{schedule.epochs:,} epochs" if steps is None else f"{steps:,} step{'' if steps == 1 else 's'}"
    length = "steps until it ends by itself," if schedule.ends_itself else length
    return f"{length} of {batch:,} + {batch:,} examples" if wild else f"{length} of {batch:,} examples"


def register(names: Sequence[str]) -> None:
    """Let experiments name these classes, which are imported from the working directory or the environment.

    For security, only names that the user types are imported, never those in a file. A class that does not keep the
    contract of a method or a score is an error, before anything runs.

    >>> register(["os:sep"])
    Traceback (most recent call last):
    wildood.errors.InputError: --method os:sep: it is of type str, no class: give a Score or a method (docs/method.md)
    """
    for name in names:
        try:
            cls = _imported(name)
            if isinstance(cls, type) and issubclass(cls, Score):
                _check_score(cls)
                SCORES[name] = cls
            else:
                _check_method(cls)
                METHODS[name] = cls
        except InputError as error:
            raise InputError(f"--method {name}: {error}") from error


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InputError("give module:Class, as in mymethod:Mine")
    if module.endswith(".py") or "/" in module or "\\" in module:
        stem = Path(module.replace("\\", "/")).stem
        raise InputError(f"give the module, not its file: --method {stem}:{attribute}, called in the directory of {stem}.py")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, SyntaxError, TypeError) as error:  # the last for ..module, which is of no package
        raise InputError(" ".join(str(error).split())) from error
    finally:
        sys.path.pop(0)


def _check_method(cls: Any) -> None:
    if not isinstance(cls, type):
        raise InputError(f"it is of type {type(cls).__name__}, no class: give a Score or a method ({CONTRACT})")
    missing = [name for name in (*NEEDED, *CALLED) if name not in {*dir(cls), *getattr(cls, "__dataclass_fields__", ())}]
    missing += [f"{name}()" for name in CALLED if name not in missing and not callable(getattr(cls, name, None))]
    if len(missing) == len((*NEEDED, *CALLED)):
        raise InputError(f"{cls.__name__} is neither a Score nor a method such as Woods ({CONTRACT})")
    if missing:
        raise InputError(f"{cls.__name__} lacks {', '.join(missing)}, which a method needs ({CONTRACT})")
    # That of a class above it would not know the fields of this one.
    if "__dataclass_fields__" not in vars(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise InputError(f"{cls.__name__} is no frozen dataclass: write @dataclass(frozen=True) above it ({CONTRACT})")
    method: Any = _instance(cls)
    if not isinstance(method.schedule(), Schedule):
        raise InputError(f"schedule() of {cls.__name__} gives no wildood.Schedule: give one ({CONTRACT})")
    _check_settings(cls, asdict(method))


def _check_score(cls: type[Score]) -> None:
    if cls.forward is Score.forward and cls.of is Score.of:
        raise InputError(f"{cls.__name__} lacks forward, which a score needs ({CONTRACT})")
    score = _instance(cls)
    if not hasattr(score, "settings"):
        raise InputError(f"{cls.__name__} has no settings: call super().__init__() with those it has ({CONTRACT})")
    kinds = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    taken = [name for name, each in signature(cls).parameters.items() if each.kind not in kinds]
    lost = [name for name in taken if name not in score.settings]
    if lost:
        raise InputError(
            f"{cls.__name__} keeps {', '.join(lost)} to itself, so that runs with other values would have the same name: "
            f"hand all settings to super().__init__() ({CONTRACT})"
        )
    _check_settings(cls, score.settings)


def _instance(cls: Callable[..., Any], **settings: Any) -> Any:
    try:
        return cls(**settings)
    except TypeError as error:
        reason = str(error).partition("__init__() ")[2] or str(error)
        what = f"its settings {settings}" if settings else "no arguments"
        advice = "hand all of them to super().__init__()" if settings else "give every setting a default"
        raise InputError(f"{cls.__name__} cannot be made with {what} ({reason}): {advice} ({CONTRACT})") from error


def _check_settings(cls: type, settings: Mapping[str, Any]) -> None:
    """Raise an error for settings that a file cannot hold: they name a run."""
    for name, value in settings.items():
        if value is not None and not is_toml_value(value):
            raise InputError(
                f"{cls.__name__} has the setting {name} = {value!r}, which is not plain data: give a number, text, None, or "
                f"a list of numbers or text ({CONTRACT})"
            )
    _instance(cls, **settings)

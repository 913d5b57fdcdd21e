"""The experiments by name: the paper's four tables, the same shape on small sets for a CPU, and digits for minutes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.split import DIGITS_PI, DIGITS_SPEC
from wildood.methods.energy_logistic import EnergyLogistic
from wildood.methods.schedule import Schedule
from wildood.methods.shipped import METHODS
from wildood.methods.woods import Woods
from wildood.methods.woods_alt import WoodsAlt

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
    found = GRIDS[name]
    if protocol == "as_published" and found.protocol == "honest":
        raise InputError(f"{name} has no released protocol: leave out --protocol")
    numbers = range(found.seeds if seeds is None else seeds)
    return [experiment for seed in numbers for experiment in found.of_seed(protocol or found.protocol, seed)]


def only(experiments: Sequence[Experiment], words: Sequence[str]) -> list[Experiment]:
    """Those experiments that all words name, as in method=woods,oe ood=svhn pi=0.1 seed=0.

    >>> len(only(grid("digits", seeds=2), ["method=woods", "seed=1"]))
    5
    """
    for word in words:
        name, _, values = word.partition("=")
        if name not in KEYS or not values:
            raise InputError(f"--only {word}: give some of {', '.join(f'{key}=...' for key in KEYS)}")
        wanted, known = (
            {_as_key(name, value) for value in values.split(",")},
            {text for each in experiments for text in KEYS[name](each)},
        )
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
    if method == "energy-logistic" and protocol == "as_published":
        return [asdict(EnergyLogistic.as_published(weight)) for weight in WEIGHTS[method]]
    if method in WEIGHTS:
        return [{"weight": weight} for weight in WEIGHTS[method]]
    if method in {"woods", "woods-alt"} and protocol == "as_published":
        cls = Woods if method == "woods" else WoodsAlt
        return [asdict(cls.as_published(gamma=gamma, mu2=mu2)) for mu2 in MU2 for gamma in GAMMA]
    return [{}]


def _stationary(id_set: str, protocol: Protocol, seed: int) -> Iterable[Experiment]:
    """Tables 1 and A1."""
    published = protocol == "as_published"
    common: dict[str, Any] = {"start": "all" if published else "labelled", "protocol": protocol, "seed": seed}
    schedule = Schedule.as_published("stationary") if published else None
    for method in (*POSTHOC, "godin", "csi"):
        if published and method in {"odin", "mahalanobis"}:  # epsilon is chosen by OOD examples of each set
            for ood in PAPER_SETS:
                yield Experiment(id_set, (ood,), ood, 0.1, method, **common)
        else:
            yield Experiment(id_set, PAPER_SETS, method=method, **common)
    for method in TRAINED:
        for ood in PAPER_SETS:
            for settings in _settings(method, protocol):
                yield Experiment(id_set, (ood,), ood, 0.1, method, settings, schedule, **common)


def _effect_of_pi(id_set: str, protocol: Protocol, seed: int) -> Iterable[Experiment]:
    """Tables 2 and A2, with WOODS-alt, which the paper mentions without numbers."""
    published = protocol == "as_published"
    common: dict[str, Any] = {"start": "all" if published else "labelled", "protocol": protocol, "seed": seed}
    schedule = Schedule.as_published("non-stationary") if published else None
    for pi in PIS:
        for method in TRAINED:
            for settings in _settings(method, protocol):
                tests = (*PAPER_SETS, RANDOM_IMAGES)
                yield Experiment(id_set, tests, RANDOM_IMAGES, pi, method, settings, schedule, **common)


def _cpu(protocol: Protocol, seed: int) -> Iterable[Experiment]:
    """Both shapes on small sets, with a ResNet-20 that is trained already, 200 steps and one setting of each method."""
    schedule = Schedule(steps=200, batch=128, lr=0.01, decay="milestones", clip=0.0)  # of the table in docs/results.md
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
        pretraining=Schedule(epochs=40, batch=64, lr=0.05, decay="milestones", factor=0.2, clip=0.0),
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

    >>> from wildood.experiments.grids import grid
    >>> found = add_own_methods(grid("cpu"), ["energy-margin"])
    >>> len(found) - len(grid("cpu")), found[-1].method, found[-1].schedule.steps, found[-1].schedule.lr
    (10, 'energy-margin', 200, 0.03)
    """
    of_woods = {each.cell: each for each in experiments if each.method == "woods"}
    seeds = dict.fromkeys(each.seed for each in experiments)
    return [
        *experiments,
        *(
            replace(each, method=name, settings={}, schedule=_with_budget(name, each.schedule), seed=seed)
            for seed in seeds
            for name in names
            for each in of_woods.values()
        ),
    ]


def budget_texts(experiments: Sequence[Experiment], names: Sequence[str]) -> list[str]:
    """A sentence for each of these methods that trains: for how long.

    >>> from wildood.experiments.grids import grid
    >>> budget_texts(add_own_methods(grid("cpu"), ["energy-margin"]), ["energy-margin"])
    ['energy-margin: 200 steps of 128 + 128 examples, as woods has here (its own schedule: 100 steps of 256 + 256 examples)']
    """
    lines = []
    for name in names:
        found = [each.schedule for each in experiments if each.method == name and each.schedule is not None]
        if not found:
            continue
        uses_wild = METHODS[name].uses_wild
        own, *lengths = (_length(each, wild=uses_wild) for each in (METHODS[name]().schedule(), *found))
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
    return replace(own, steps=woods.steps, epochs=woods.epochs, batch=woods.batch, epoch=woods.epoch, rounds=woods.rounds)


def _length(schedule: Schedule, *, wild: bool) -> str:
    steps, batch = schedule.steps, schedule.batch
    length = f"{schedule.epochs:,} epochs" if steps is None else f"{steps:,} step{'' if steps == 1 else 's'}"
    return f"{length} of {batch:,} + {batch:,} examples" if wild else f"{length} of {batch:,} examples"

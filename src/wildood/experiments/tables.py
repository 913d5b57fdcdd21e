"""Tables of results as data, in the form of the paper's: validation data chooses settings, cells are mean ± error."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, TypeVar

from wildood.evaluate.metrics import mean_and_error
from wildood.experiments.experiment import Experiment
from wildood.experiments.store import Failure, OodMetrics, Result, RunOutcome

METHOD_TITLES = {
    "max-softmax": "MSP",
    "temperature-scaling": "temperature scaling",
    "max-logit": "max-logit",
    "odin": "ODIN",
    "energy": "energy",
    "gen": "GEN",
    "kl-matching": "KL matching",
    "gradnorm": "GradNorm",
    "mahalanobis": "Mahalanobis",
    "relative-mahalanobis": "relative Mahalanobis",
    "knn": "KNN",
    "nnguide": "NNGuide",
    "she": "SHE",
    "fdbd": "fDBD",
    "nci": "NCI",
    "react": "ReAct",
    "scale": "SCALE",
    "ash": "ASH",
    "dice": "DICE",
    "vim": "ViM",
    "ensemble": "ensemble",
    "godin": "GODIN",
    "csi": "CSI",
    "oe": "OE",
    "energy-margin": "energy, margins",
    "energy-logistic": "energy, logistic",
    "woods": "WOODS",
    "woods-alt": "WOODS-alt",
    "separate": "SAL",
}
SET_TITLES = {
    "svhn": "SVHN",
    "lsun-r": "LSUN-R",
    "lsun-c": "LSUN-C",
    "textures": "Textures",
    "places365": "Places365",
    "300k": "300K Rand. Img.",
    "isun": "iSUN",
    "digits": "digits 7-9",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
}
STAND_INS = {  # small files, and the sets of the paper that they stand in for
    "cifar10.npz": "cifar10",
    "svhn.npz": "svhn",
    "textures.npz": "textures",
    "places.npz": "places365",
    "rooms_resize.npz": "lsun-r",
    "rooms_crop.npz": "lsun-c",
    "random_images.npz": "300k",
}
METRIC_TITLES = {"fpr95": "FPR95 ↓", "accepted": "accepted ↓", "auroc": "AUROC ↑", "accuracy": "accuracy ↑"}
AVERAGE = "average"  # over the OOD sets of a table, as the name of a column
ID_ONLY, WITH_WILD = "with P_in only", "with P_in and P_wild"
ACCURACY_LOSS = 0.01  # the most that an honest choice of settings may lose on the holdout
_ROUNDING = 1e-12  # the loss is a difference of two shares
_COMMON = ("id", "protocol", "start", "keep", "model", "model_settings", "pretraining", "mean", "std")
K = TypeVar("K")
T = TypeVar("T")
_RowKey = tuple[float, tuple[int, str], str, str]  # pi, method, schedule, settings

Metric = Literal["fpr95", "accepted", "auroc", "accuracy"]
ON_OOD: tuple[Metric, ...] = ("fpr95", "accepted", "auroc")  # the metrics of each OOD set
_BETTER: Mapping[Metric, Callable[[Iterable[float]], float]] = {"fpr95": min, "accepted": min, "auroc": max, "accuracy": max}


def paper_set(name: str) -> str:
    """The set of the paper that this one is, or stands in for; else the name itself."""
    return STAND_INS.get(name, name)


def set_title(name: str) -> str:
    """The title of an OOD set: of a file, its stem."""
    return SET_TITLES.get(name) or PurePosixPath(name).stem


def column_title(name: str) -> str:
    """The title of a column: an OOD set, AVERAGE, or nothing for accuracy, which has no set."""
    return name if name == AVERAGE else set_title(name)


def id_title(name: str) -> str:
    """The title of an ID set."""
    return "digits 0-6" if name == "digits" else set_title(name)


def method_title(name: str) -> str:
    """The title of a method; one of the user's own has none but its name."""
    return METHOD_TITLES.get(name, name)


def set_order(name: str) -> tuple[int, str]:
    """The sorting key of OOD sets: the order of the paper's columns, then others by name."""
    return [*SET_TITLES, paper_set(name)].index(paper_set(name)), name


def method_order(name: str) -> tuple[int, str]:
    """The sorting key of methods: the order of the paper's rows, then others by name."""
    return [*METHOD_TITLES, name].index(name), name


class Choice(NamedTuple):
    """The run of each seed with the settings that validation data chose.

    In words, empty where there is nothing to say: the settings, and which seeds lack settings that others have.
    """

    runs: Mapping[int, Result]
    settings: str
    incomplete: str = ""


def choose_settings(runs: Sequence[Result]) -> Choice:
    """For each seed, the run of a cell that accepts the least validation data; test numbers are not looked at.

    An honest choice is among the settings that lose at most 0.01 of accuracy on the holdout, or among all if none does;
    as published, accuracy does not matter. Ties go to the run that loses the least accuracy.

    >>> def result(alpha, acceptance):
    ...     experiment = Experiment("digits", ("digits",), "digits", 0.1, "woods", {"alpha": alpha})
    ...     return Result(experiment, {}, 0.9, 0.05, 100, acceptance)
    >>> choose_settings([result(0.05, 0.9), result(0.1, 0.8)]).settings
    'alpha 0.1'
    """
    options = [run.experiment.as_dict()["settings"] for run in runs]
    by_seed = dict(sorted(_grouped(runs, lambda run: run.experiment.seed).items()))
    chosen = {seed: _least_accepting(candidates) for seed, candidates in by_seed.items()}
    counts = Counter(_difference(run.experiment.as_dict()["settings"], options) for run in chosen.values())
    texts = list(counts)
    if len(counts) > 1:
        texts = [f"{text} ({count} of {len(chosen)} seeds)" for text, count in counts.items()]
    counts_by_seed = {seed: len(set(map(_settings_key, candidates))) for seed, candidates in by_seed.items()}
    most = len(set(map(_settings_key, runs)))
    incomplete = [f"seed {seed} chose among {n} of {most} settings" for seed, n in counts_by_seed.items() if n < most]
    return Choice(chosen, "; ".join(texts), ", ".join(incomplete))


def _grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _can_choose(runs: Sequence[RunOutcome]) -> bool:
    """Whether validation data can choose among the settings of these runs, or there is only one setting."""
    several = len({_settings_key(run) for run in runs}) > 1
    return not (several and any(isinstance(run, Result) and run.acceptance is None for run in runs))


def _settings_key(run: RunOutcome) -> str:
    return json.dumps(run.experiment.as_dict()["settings"], sort_keys=True)


def _difference(content: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """In words, the values by which a content differs from others, as in "steps 100"; empty if all are the same."""
    contents = [content, *others]
    names = dict.fromkeys(name for each in contents for name in each)
    varying = [name for name in names if len({str(each.get(name)) for each in contents}) > 1]
    return ", ".join(f"{name} {content.get(name, 'none')}" for name in varying)


def _least_accepting(runs: Sequence[Result]) -> Result:
    honest = runs[0].experiment.protocol == "honest"
    kept = [run for run in runs if run.accuracy_lost <= ACCURACY_LOSS + _ROUNDING] if honest else runs

    def order(run: Result) -> tuple[float, float, str]:
        return (0.0 if run.acceptance is None else run.acceptance), run.accuracy_lost, run.experiment.name

    return min(kept or runs, key=order)


@dataclass(frozen=True)
class Cell:
    """A number of a table, as shares from 0 to 1.

    Attributes:
        error: the standard error over the seeds; None for one seed.
        best: whether no row that it is compared with has a better one, to the two decimals of percent that are printed;
            never if no other row has any. With several pi a row is compared within its block, else with all rows.
    """

    mean: float
    error: float | None
    best: bool = False
    seeds: int = 1

    @classmethod
    def over(cls, seeds: Sequence[float]) -> "Cell":
        """The cell of one number for each seed."""
        mean, error = mean_and_error(seeds)
        return cls(mean, None if math.isnan(error) else error, seeds=len(seeds))

    @property
    def percent(self) -> str:
        """The mean as it is printed."""
        return f"{100 * self.mean:.2f}"


@dataclass(frozen=True)
class TableRow:
    """A method in one block of a table.

    Attributes:
        block: the heading of its rows: "with P_in only", "with P_in and P_wild", or "π = 0.1".
        pi: the share of OOD in its wild data; None where there was none.
        title: its title, with what differs where a method has several rows in a block.
        cells: for each OOD set (and AVERAGE, if there are several and all are there) a number for each metric: "fpr95" at
            the threshold of the ID test examples, "accepted" at the deployed one, calibrated on the holdout, "auroc".
        accuracy: on the ID test examples, over all runs of the row.
        seeds: how many seeds are in it (the smallest number over the cells).
        settings: the settings that were chosen among several, for each OOD set; empty where there was no choice.
        failed: how many runs of it failed.
        runs: the names of the runs whose numbers are in it.
        incomplete: which seeds had fewer settings to choose among than others, for each OOD set where some had.
    """

    block: str
    pi: float | None
    method: str
    title: str
    cells: Mapping[str, Mapping[Metric, Cell]]
    accuracy: Cell | None
    seeds: int
    settings: Mapping[str, str]
    failed: int
    runs: tuple[str, ...]
    incomplete: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: Sequence[RunOutcome], sets: Sequence[str], block: str, differs: str = "") -> "TableRow":
        """The row of the runs of one method with one pi; `differs` is what tells it from other rows of the method."""
        first = runs[0].experiment
        results = [run for run in runs if isinstance(run, Result)]
        candidates = {name: [run for run in results if name in run.tests] for name in sets}
        choices = {name: choose_settings(tested) for name, tested in candidates.items() if tested}
        seeds = sorted({seed for choice in choices.values() for seed in choice.runs})
        by_seed = [{name: each.runs[seed] for name, each in choices.items() if seed in each.runs} for seed in seeds]
        cells = {name: _cells([[run.tests[name]] for run in choice.runs.values()]) for name, choice in choices.items()}
        complete = [by_set for by_set in by_seed if len(by_set) == len(sets)]
        if complete and len(sets) > 1:
            cells[AVERAGE] = _cells([[run.tests[name] for name, run in by_set.items()] for by_set in complete])
        accuracies = [_mean([run.accuracy for run in by_set.values()]) for by_set in by_seed]
        title = method_title(first.method)
        return cls(
            block=block,
            pi=first.pi if first.uses_wild else None,
            method=first.method,
            title=f"{title} ({differs})" if differs else title,
            cells=cells,
            accuracy=Cell.over(accuracies) if accuracies else None,
            seeds=min((len(choice.runs) for choice in choices.values()), default=0),
            settings={name: choice.settings for name, choice in choices.items() if choice.settings},
            failed=len(runs) - len(results),
            runs=tuple(dict.fromkeys(run.experiment.name for by_set in by_seed for run in by_set.values())),
            incomplete={name: choice.incomplete for name, choice in choices.items() if choice.incomplete},
        )


def _cells(seeds: Sequence[Sequence[OodMetrics]]) -> dict[Metric, Cell]:
    """Each metric over seeds, each of them the mean over some OOD sets."""
    return {metric: Cell.over([_mean([getattr(each, metric) for each in sets]) for sets in seeds]) for metric in ON_OOD}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _mark_best(rows: Sequence[TableRow]) -> list[TableRow]:
    """The rows with their best numbers marked, by the digits that are printed; ties are all marked."""
    columns: dict[tuple[str, Metric], list[float]] = {}
    for row in rows:
        for name, metrics in row.cells.items():
            for metric, cell in metrics.items():
                columns.setdefault((name, metric), []).append(float(cell.percent))
        if row.accuracy is not None:
            columns.setdefault(("", "accuracy"), []).append(float(row.accuracy.percent))
    best = {key: _BETTER[key[1]](numbers) for key, numbers in columns.items() if len(numbers) > 1}

    def mark(name: str, metric: Metric, cell: Cell) -> Cell:
        return replace(cell, best=float(cell.percent) == best.get((name, metric)))

    def mark_row(row: TableRow) -> TableRow:
        cells = {name: {key: mark(name, key, cell) for key, cell in each.items()} for name, each in row.cells.items()}
        return replace(row, cells=cells, accuracy=row.accuracy and mark("", "accuracy", row.accuracy))

    return [mark_row(row) for row in rows]


@dataclass(frozen=True)
class ResultsTable:
    """A table of the paper's form.

    Attributes:
        stationary: whether each OOD set is tested on the runs that had it in the wild (Tables 1 and A1), or the wild OOD
            was another one (Tables 2 and A2).
        wild: the OOD set in the wild data, where it is the same for all; None if stationary.
        sets: the OOD sets, in the order of the columns.
        rows: in the order of the blocks.
        differs: what tells it from tables with the same ID set, wild data and protocol; empty if there are none.
        common: all that its runs have in common besides the wild data, by one name for each value.
        origins: a sentence for each difference in code or versions among its runs.
    """

    id: str
    stationary: bool
    wild: str | None
    protocol: str
    sets: tuple[str, ...]
    rows: tuple[TableRow, ...]
    model: str = ""
    start: str = ""
    differs: str = ""
    common: Mapping[str, Any] = field(default_factory=dict)
    origins: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[Metric, Metric]:
        """The metrics under each OOD set: as in the paper, acceptance and AUROC.

        The released protocol measures acceptance at the threshold of the validation examples where the OOD set was in
        the wild (Tables 1 and A1), and at that of the ID test examples where another one was (Tables 2 and A2).
        """
        return ("accepted" if self.stationary and self.protocol == "as_published" else "fpr95"), "auroc"

    def shown(self, row: TableRow, name: str) -> tuple[Cell | None, Cell | None]:
        """The two numbers of a row under an OOD set, or under AVERAGE; None where there is none."""
        first, second = map(row.cells.get(name, {}).get, self.metrics)
        return first, second


def result_tables(results: Sequence[Result], failures: Sequence[Failure] = ()) -> list[ResultsTable]:
    """The tables of some runs; for each ID set, those come first that were tested on what was in the wild."""
    runs: list[RunOutcome] = [*results, *failures]
    groups = _grouped(runs, lambda run: json.dumps(_conditions(run.experiment)))
    grouped = [(_table(alike), json.loads(conditions)) for conditions, alike in sorted(groups.items())]
    tables = []
    for table, conditions in grouped:
        alike = [other for each, other in grouped if _order(each) == _order(table)]
        values = {name: "none" if conditions.get(name) is None else conditions[name] for name in _distinguishing(alike)}
        tables.append(replace(table, differs=", ".join(f"{name} {value}" for name, value in values.items())))
    return sorted(tables, key=_order)


def _distinguishing(contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Few names, the model first, whose values distinguish all contents: a title that listed all would be long."""
    chosen: list[str] = []

    def distinct(names: Sequence[str]) -> int:
        return len({str([each.get(name) for name in names]) for each in contents})

    for name in sorted(dict.fromkeys(name for each in contents for name in each), key=lambda name: name != "model"):
        if distinct([*chosen, name]) > distinct(chosen):
            chosen.append(name)
    return chosen


def _conditions(experiment: Experiment) -> dict[str, Any]:
    """What decides which table a run is in."""
    wild = None if experiment.stationary else experiment.wild
    return {"stationary": experiment.stationary, "wild": wild} | _common(experiment)


def _common(experiment: Experiment) -> dict[str, Any]:
    content = experiment.as_dict()
    common: dict[str, Any] = {}
    for name in _COMMON:
        value = content.get(name)
        if isinstance(value, Mapping):
            common |= {f"{name} {key}": each for key, each in sorted(value.items())}
        else:
            common[name] = value
    return common


def _order(table: ResultsTable) -> tuple[str, bool, str, bool]:
    return table.id, not table.stationary, table.wild or "", table.protocol != "honest"


def _table(runs: Sequence[RunOutcome]) -> ResultsTable:
    first = runs[0].experiment
    # A set on which every run failed is a column, too: without it, an average would seem complete.
    sets = tuple(sorted({name for run in runs for name in run.experiment.test}, key=set_order))
    several = len({run.experiment.pi for run in runs if run.experiment.uses_wild}) > 1
    groups = _rows(runs)
    rows = []
    for (pi, method, *settings), of_row in sorted(groups.items()):
        block = ID_ONLY if pi == 0 else WITH_WILD if first.stationary and not several else f"π = {pi:g}"
        others = [_merged(other) for _, each, *other in groups if each == method]
        rows.append(TableRow.of(of_row, sets, block, _difference(_merged(settings), others)))
    blocks = [[row for row in rows if row.block == block] for block in dict.fromkeys(row.block for row in rows)]
    return ResultsTable(
        id=first.id,
        stationary=first.stationary,
        wild=None if first.stationary else first.wild,
        protocol=first.protocol,
        sets=sets,
        rows=tuple(row for compared in (blocks if several else [rows]) for row in _mark_best(compared)),
        model=first.model,
        start=first.start,
        common=_common(first),
        origins=origins([run for run in runs if isinstance(run, Result)]),
    )


def _rows(runs: Sequence[RunOutcome]) -> dict[_RowKey, list[RunOutcome]]:
    """The runs of each row: by pi, method and schedule, and by settings where validation data cannot choose among them."""
    by_method = _grouped(runs, lambda run: run.experiment.method)
    can_choose = {method: _can_choose(of_method) for method, of_method in by_method.items()}

    def key(run: RunOutcome) -> _RowKey:
        each = run.experiment
        schedule = json.dumps(each.as_dict().get("schedule", {}))
        settings = "{}" if can_choose[each.method] else _settings_key(run)
        return each.pi if each.uses_wild else 0.0, method_order(each.method), schedule, settings

    return _grouped(runs, key)


def _merged(texts: Sequence[str]) -> dict[str, Any]:
    """Schedule and settings of a row in one."""
    return {name: value for text in texts for name, value in json.loads(text).items()}


def origins(results: Sequence[Result]) -> tuple[str, ...]:
    """Differences in code and versions among results, a sentence for each; empty where nothing is recorded."""
    abouts = [result.about or {} for result in results]
    versions = [each if isinstance(each := about.get("versions"), Mapping) else {} for about in abouts]
    recorded = {"code": [about.get("code") for about in abouts]}
    for name in dict.fromkeys(name for each in versions for name in each if name != "threads"):
        recorded[f"versions of {name}"] = [each.get(name) for each in versions]
    sentences = []
    for what, values in recorded.items():
        counts = Counter("unknown" if value is None else str(value) for value in values)
        if len(counts) > 1:
            runs = ", ".join(f"{value} ({n} {'run' if n == 1 else 'runs'})" for value, n in sorted(counts.items()))
            sentences.append(f"The runs come from different {what}: {runs}")
    return tuple(sentences)


def demo_summary(results: Sequence[Result]) -> dict[str, dict[str, tuple[float, float]]]:
    """Mean and standard error over seeds of each metric on the one OOD set, by the title of each method."""
    summary = {}
    for title, of_method in _grouped(results, lambda result: demo_title(result.experiment.method)).items():
        rows = [demo_metrics(result) for result in of_method]
        summary[title] = {name: mean_and_error([row[name] for row in rows]) for name in rows[0]}
    return summary


def demo_title(method: str) -> str:
    """The title of a method in the demo, which names max-softmax in full."""
    return method if method == "max-softmax" else method_title(method)


def demo_metrics(result: Result) -> dict[str, float]:
    """The metrics of the demo's table: of a run with one OOD set."""
    (test,) = result.tests.values()
    caught = (test.examples - round(test.accepted * test.examples)) / test.examples
    return {
        "fpr95": test.fpr95,
        "auroc": test.auroc,
        "accuracy": result.accuracy,
        "false_alarms": result.false_alarms,
        "caught": caught,
    }

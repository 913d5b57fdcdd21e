"""`wildood reproduce`: the paper's experiments by name; finished runs are kept, interrupted ones resume."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from wildood.cli.main import FAILED
from wildood.cli.options import named, parse
from wildood.data.catalog import SETS
from wildood.data.files import open_plain
from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.grids import GRIDS, add_own_methods, budget_texts, grid, only, register
from wildood.experiments.plan import Plan, missing_data, plan
from wildood.experiments.pool import processors, run_all, run_on_ray, using_threads
from wildood.experiments.split import check_sets
from wildood.experiments.starts import check_starts, copy_weights, start_from
from wildood.experiments.store import Failure, RunOutcome, RunStore
from wildood.report.table import Column, Row, Table, print_table
from wildood.settings import check_integer, check_number
from wildood.train.progress import logger, progress_bar, verbose_logging

NAMES = "; ".join(f"{name}: {each.what}" for name, each in GRIDS.items()) + "; or a .toml file of an experiment"


@dataclass(frozen=True)
class ReproduceOptions:
    """Run the paper's experiments, or those for a laptop; called again, it goes on where it was.

    Attributes:
        only: some of them, as in --only method=woods,oe ood=svhn pi=0.1 seed=0.
        method: a method or score of your own, as module:Class, in the working directory: it is run wherever woods is, for
            as many steps with as large batches.
        start: weights of the starting classifier, as safetensors, instead of training one; they name the runs, so that
            results of different starts are never mixed.
        seeds: over how many seeds to repeat them (default: 5; 1 for cpu).
        runs: the directory that holds the runs; several processes may work in it.
        data_root: of named sets, and of the files of cpu.
        protocol: honest (no test example and no OOD label chooses anything) or as_published (what the released
            code does); default: as_published for the paper's tables, honest for the others.
        workers: how many runs at a time (default: one for each processor, or 1 with a GPU).
        ray: run them on a Ray cluster: its address, or local for one on this machine.
        cpus: of each run on Ray (default: 1).
        gpus: of each run on Ray, 0.5 for half of one (default: 0, which keeps them from the runs).
        dry_run: print the plan, and which data is missing, and stop.
        quiet: show no progress.
    """

    name: Annotated[tyro.conf.Positional[str], named("NAME", help=NAMES)]
    only: Annotated[tuple[str, ...], named("KEY=VALUE [KEY=VALUE ...]")] = ()
    method: Annotated[tuple[str, ...], named("MODULE:CLASS [MODULE:CLASS ...]")] = ()
    start: Annotated[Path | None, named("FILE")] = None
    seeds: Annotated[int | None, named("N")] = None
    runs: Annotated[Path, named("DIRECTORY", "(default: runs)")] = Path("runs")
    data_root: Annotated[Path | None, named("DIRECTORY")] = None
    protocol: Annotated[Literal["honest", "as_published"] | None, named("{honest,as_published}")] = None
    workers: Annotated[int | None, named("N")] = None
    ray: Annotated[str | None, named("ADDRESS")] = None
    cpus: Annotated[int | None, named("N")] = None
    gpus: Annotated[float | None, named("N")] = None
    dry_run: bool = False
    quiet: bool = False


def run(words: Sequence[str]) -> int:
    """Print the plan, then do what is not done; 4 if a run failed."""
    options = parse(ReproduceOptions, "reproduce", words)
    for name, most in (("seeds", 1000), ("workers", 1024), ("cpus", 1024)):
        value = getattr(options, name)
        if value is not None:
            check_integer(value, f"--{name}", f"at least 1, at most {most:,}", most=most)
    if options.gpus is not None:
        check_number(options.gpus, "--gpus", "a number from 0 on, such as 0.5", least=0)
    if options.runs.exists() and not options.runs.is_dir():
        raise InputError(f"--runs {options.runs} is a file: give a directory, which need not be there yet")
    _check_ray_options(options)
    register(options.method)
    experiments = only(add_own_methods(_experiments(options), options.method), options.only)
    if options.start is not None:
        experiments = start_from(experiments, options.start)
    store, workers = RunStore(options.runs), _workers(options)
    left = [each for each in experiments if not store.is_done(each)]
    with verbose_logging(verbose=not options.quiet):
        missing = missing_data(left, options.data_root) if options.dry_run else []
        if any(name.endswith(".npz") for name in missing):  # without which no plan can be made
            _print_missing(missing)
            return 0
        with using_threads(max(1, processors() // workers)):  # as a worker has
            planned = plan(experiments, store, options.data_root)
        _print(planned, options.name, workers)
        for line in budget_texts(experiments, options.method):
            sys.stdout.write(f"{line}\n")
        if options.dry_run:
            _print_missing(missing)
            return 0
        check_sets(left, options.data_root)
        check_starts(left, store.root, options.data_root, options.start)
        if options.start is not None and left:
            copy_weights(options.start, store.root)
        ended = _run(experiments, store, options, workers, planned)
    failed = [each for each in ended if isinstance(each, Failure)]
    for failure in failed:
        sys.stderr.write(f"wildood: failed: {_run_text(failure.experiment)}: {failure.error}\n")
    if failed:
        sys.stderr.write(f"wildood: {len(failed)} of {len(ended)} runs failed; called again, they are tried again\n")
    if ended:
        sys.stdout.write(f"wildood report {options.runs}: tables, figures and a page of them\n")
    return FAILED if failed else 0


def _run(
    experiments: Sequence[Experiment], store: RunStore, options: ReproduceOptions, workers: int, planned: Plan
) -> list[RunOutcome]:
    done = planned.done
    with progress_bar(planned.runs, done, "running", "runs") as bar:

        def on_end(ended: RunOutcome) -> None:
            nonlocal done
            done += 1
            bar.at(done)
            if isinstance(ended, Failure):
                outcome = f"failed: {ended.error}"
            else:
                fpr = ", ".join(f"{_stem(name)} {100 * metrics.fpr95:.1f}" for name, metrics in ended.tests.items())
                outcome = f"FPR95 % {fpr}  accuracy {100 * ended.accuracy:.1f} %  {duration(ended.seconds)}"
            logger.info("%s  %s", _run_text(ended.experiment), outcome)

        if options.ray is None:
            return run_all(experiments, store, options.data_root, workers, on_end, options.method)
        share = (options.cpus or 1, options.gpus or 0.0)
        return run_on_ray(experiments, store, options.data_root, options.ray, on_end, *share, own=options.method)


def _experiments(options: ReproduceOptions) -> list[Experiment]:
    """The experiments of a grid, of a TOML file, or of all such files in a directory."""
    path = Path(options.name)
    if options.name in GRIDS or not (path.suffix == ".toml" or path.is_dir()):
        return grid(options.name, options.seeds, options.protocol)
    if options.protocol is not None:
        raise InputError(f"--protocol is for experiments by name: {path} says its own")
    files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path} holds no .toml files: give an experiment's, or a directory of them")
    experiments = []
    for file in files:
        try:
            with open_plain(file) as content:
                experiments.append(Experiment.from_toml(content.read().decode()))
        except (OSError, UnicodeDecodeError, InputError) as error:
            raise InputError(f"{file}: {error.strerror if isinstance(error, OSError) else error}") from error
    if options.seeds is None:
        return experiments
    return [replace(each, seed=seed) for seed in range(options.seeds) for each in experiments]


def _run_text(experiment: Experiment) -> str:
    wild = "" if experiment.wild is None else f"  {_stem(experiment.wild)} at pi = {experiment.pi:g}"
    return f"seed {experiment.seed}  {experiment.method}{wild}"


def _stem(name: str) -> str:
    return name.removesuffix(".npz")


def _check_ray_options(options: ReproduceOptions) -> None:
    for name in ("cpus", "gpus"):
        if options.ray is None and getattr(options, name) is not None:
            raise InputError(f"--{name} is for runs on Ray: give --ray local or --ray ADDRESS, too")
    if options.ray is not None and options.workers is not None:
        raise InputError("--workers is for runs without Ray: with --ray, --cpus and --gpus of a run decide it")


def _workers(options: ReproduceOptions) -> int:
    if options.workers is not None:
        return options.workers
    if options.ray is not None:  # the size of a cluster is not known before it is connected
        return max(1, processors() // (options.cpus or 1)) if options.ray == "local" else 1
    return 1 if torch.cuda.is_available() else processors()


def _print(planned: Plan, name: str, workers: int) -> None:
    """The plan as a table."""
    what = f": {GRIDS[name].what}" if name in GRIDS else ""
    sys.stdout.write(f"{name}{what}\nprotocol {planned.rows[0].experiment.protocol}\n")
    heads = ("method", "wild OOD", "pi", "tests", "runs", "done", "steps", "time each")
    rows = []
    for row in planned.rows:
        first = row.experiment
        wild, pi = ("-", "-") if first.wild is None else (_stem(first.wild), f"{first.pi:g}")
        tests = _stem(first.test[0]) if len(first.test) == 1 else f"{len(first.test)} sets"
        done = f"{row.done}" + (f" ({row.failed} failed)" if row.failed else "")
        steps, seconds = f"{row.steps:,}" if row.steps else "-", duration(row.seconds) if row.seconds else "-"
        rows.append(Row.of(first.method, wild, pi, tests, str(row.runs), done, steps, seconds))
    print_table(Table([Column(head) for head in heads], rows))
    starts, left = len(planned.starts), planned.runs - planned.done
    summary = f"{_count(planned.runs, 'run')}, {planned.done} done"
    summary += f", {_count(starts, 'starting classifier')} to train first" if starts else ""
    if left:
        seconds = duration(planned.seconds_left(workers))
        summary += f"; about {seconds} left with {min(workers, left)} at a time, by measured steps"
    sys.stdout.write(f"{summary}\n")


def _print_missing(names: Sequence[str]) -> None:
    """Name the missing data, without which nothing is run."""
    if names:
        sets = [name for name in names if name in SETS]
        get = f"; wildood data get {' '.join(sets)} gets the sets, or says how" if sets else ""
        sys.stdout.write(f"not below the data root: {', '.join(names)}: without them, nothing is run{get}\n")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(48), duration(300), duration(7500), duration(400_000)
    ('48 s', '5 min', '2 h 5 min', '4.6 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{seconds / 86_400:.1f} days"

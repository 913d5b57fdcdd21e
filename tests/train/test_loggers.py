"""Loggers: each row of the history once, at its step, whatever interrupts the run; against small fakes of the packages."""

import csv
import sys
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

import wildood
from wildood.methods.objective import CrossEntropyObjective
from wildood.models.small import MLP
from wildood.train import checkpoint
from wildood.train.loggers import HistoryLogger

RNG = np.random.default_rng(0)
STEPS = [0, 4, 8, 12, 16]  # of the rows: four steps in an epoch


def known(count):
    y = RNG.integers(0, 2, count)
    return (RNG.normal(size=(count, 3)) + 3 * y[:, None]).astype("float32"), y


LABELLED, WILD, HOLDOUT = known(64), known(90)[0], known(80)


class FakeBoard(ModuleType):
    """`torch.utils.tensorboard`: an event file hides earlier events of its directory from `purge_step` on."""

    def __init__(self):
        super().__init__("torch.utils.tensorboard")
        self.events, self.open_writers = defaultdict(list), 0
        board = self

        class SummaryWriter:
            def __init__(self, log_dir, purge_step):
                board.open_writers += 1
                self.log_dir = log_dir
                board.events[log_dir] = [event for event in board.events[log_dir] if event[2] < purge_step]

            def add_scalar(self, tag, value, step):
                board.events[self.log_dir].append((tag, value, step))

            def flush(self):
                pass

            def close(self):
                board.open_writers -= 1

        self.SummaryWriter = SummaryWriter

    def column(self, name, directory=None):
        events = self.events[str(directory)] if directory else [event for each in self.events.values() for event in each]
        return [(step, value) for tag, value, step in events if tag == name]


class FakeMLflow(ModuleType):
    """`mlflow`: runs with metrics, of which one may be active."""

    def __init__(self):
        super().__init__("mlflow")
        self.experiments, self.runs, self.active = {}, {}, None

    def get_experiment_by_name(self, name):
        return self.experiments.get(name)

    def create_experiment(self, name):
        self.experiments[name] = SimpleNamespace(experiment_id=f"id of {name}")
        return f"id of {name}"

    def start_run(self, run_id=None, experiment_id=None, run_name=None):
        assert self.active is None, "Run is already active"
        if run_id is None:
            run_id = f"run {len(self.runs)}"
            info = SimpleNamespace(run_id=run_id, experiment_id=experiment_id, run_name=run_name, status="RUNNING")
            self.runs[run_id] = SimpleNamespace(info=info, metrics=[])
        self.active = self.runs[run_id]
        self.active.info.status = "RUNNING"
        return self.active

    def active_run(self):
        return self.active

    def end_run(self, status):
        self.active.info.status, self.active = status, None

    def log_metrics(self, metrics, step):
        self.active.metrics += [(name, value, step) for name, value in metrics.items()]

    def MlflowClient(self):  # noqa: N802 - MLflow's name
        def get_metric_history(run_id, key):
            return [SimpleNamespace(step=step) for name, _, step in self.runs[run_id].metrics if name == key]

        return SimpleNamespace(get_metric_history=get_metric_history)

    def column(self, name):
        return [(step, value) for run in self.runs.values() for tag, value, step in run.metrics if tag == name]


class FakeWandb(ModuleType):
    """`wandb`: runs with rows and a summary of the last values; a run that is resumed keeps both."""

    def __init__(self):
        super().__init__("wandb")
        self.runs, self.run = {}, None

    def init(self, *, resume=None, **settings):
        run_id = settings.pop("id", f"run {len(self.runs)}")
        assert run_id not in self.runs or resume == "allow"
        run = self.runs.setdefault(run_id, SimpleNamespace(id=run_id, settings=settings, rows=[], summary={}, axes={}))
        run.define_metric = lambda name, step_metric: run.axes.update({name: step_metric})
        run.log = lambda row: (run.rows.append(row), run.summary.update(row))
        run.finish = lambda exit_code=0: vars(run).update(exit_code=exit_code) or setattr(self, "run", None)
        self.run = run
        return run

    def column(self, name):
        prefix, _, _ = name.rpartition("/")
        step = f"{prefix}/step" if prefix else "step"
        return [(row[step], row[name]) for run in self.runs.values() for row in run.rows if name in row]


class CsvFile:
    def __init__(self, path):
        self.path = path

    def column(self, name):
        with self.path.open(encoding="utf-8", newline="") as file:
            return [(float(row["step"]), float(row[name])) for row in csv.DictReader(file) if row[name]]


class Stopped(Exception):  # noqa: N818 - what a kill leaves is the same
    pass


class StopAt(wildood.Callback):
    """Stop at a step; no checkpoint is written from another step on."""

    def __init__(self, step, saved_before=1000):
        self.step, self.saved_before = step, saved_before

    def on_step_begin(self, training):
        if training.steps >= self.saved_before:
            for each in training.callbacks:
                if isinstance(each, checkpoint.Checkpoint):
                    each.next_save = float("inf")

    def on_step_end(self, training):
        if training.steps == self.step:
            raise Stopped


@dataclass(frozen=True)
class Later:
    def schedule(self):
        return wildood.Schedule(epochs=4, batch=16)

    def objective(self, classifier, start):
        return CrossEntropyObjective(classifier)


@dataclass(frozen=True)
class TwoStages(Later):
    uses_features: ClassVar[bool] = False
    uses_wild: ClassVar[bool] = False
    alpha: float = 0.05

    def later_stages(self):
        return (Later(),)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that fits with callbacks in one run directory; it saves before each step."""
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(3, 2, hidden=(4,))

    def fitted(*callbacks, run_dir="run", **settings):
        settings = {"schedule": wildood.Schedule(epochs=4, batch=16), "wild": WILD} | settings
        where = None if run_dir is None else tmp_path / run_dir
        return wildood.fit(model, LABELLED, holdout=HOLDOUT, verbose=False, run_dir=where, callbacks=callbacks, **settings)

    return fitted


@pytest.fixture(params=["csv", "tensorboard", "mlflow", "wandb"])
def log(request, tmp_path, monkeypatch):
    """A function that makes a logger, as each process of a run does; and what reads a column of what was logged."""
    fakes = {"tensorboard": FakeBoard, "mlflow": FakeMLflow, "wandb": FakeWandb}
    makers = {
        "csv": lambda: wildood.CsvLogger(tmp_path / "log" / "run.csv"),
        "tensorboard": lambda: wildood.TensorBoardLogger(tmp_path / "log"),
        "mlflow": lambda: wildood.MLflowLogger("pets"),
        "wandb": lambda: wildood.WandbLogger("pets"),
    }
    reader = CsvFile(tmp_path / "log" / "run.csv") if request.param == "csv" else fakes[request.param]()
    if request.param != "csv":
        monkeypatch.setitem(sys.modules, reader.__name__, reader)
    return SimpleNamespace(make=makers[request.param], column=reader.column, kind=request.param)


def columns_of(history):
    """What must be logged: each number but the timings, of which a resumed run has others."""
    names = {name for row in history for name in row} - {"step", "stage", "images_per_second", "seconds_left"}
    return {name: [(row["step"], row[name]) for row in history if name in row] for name in names}


def test_every_number_of_the_history_is_logged_at_its_step(run, log):
    history = run(log.make()).history
    assert [row["step"] for row in history] == STEPS
    expected = columns_of(history)
    assert {"epoch", "wild_loss", "false_alarm", "accuracy", "w", "lr"} <= expected.keys()
    assert {name: log.column(name) for name in expected} == expected
    assert [step for step, _ in log.column("images_per_second")] == STEPS[1:]


@pytest.mark.parametrize(
    "stops",
    [
        [StopAt(10)],
        [StopAt(10), StopAt(15)],
        [StopAt(15, saved_before=10)],  # the row of step 12 was logged, but is in no checkpoint
        [StopAt(15, saved_before=5), StopAt(10, saved_before=7)],
    ],
)
def test_a_resumed_run_logs_each_row_once(run, log, stops):
    for stop in stops:
        with pytest.raises(Stopped):
            run(log.make(), stop)
    history = run(log.make()).history
    expected = columns_of(history)
    assert {name: log.column(name) for name in expected} == expected
    run(log.make())  # finished: nothing is new
    assert {name: log.column(name) for name in expected} == expected


def test_a_logger_that_is_added_when_a_run_is_resumed_logs_all_of_it(run, log):
    with pytest.raises(Stopped):
        run(StopAt(10))
    expected = columns_of(run(log.make()).history)
    assert {name: log.column(name) for name in expected} == expected


def test_stages_are_logged_apart_and_once(run, log):
    class StopInSecond(StopAt):
        def on_step_end(self, training):
            if training.history[0]["stage"] == 2:
                super().on_step_end(training)

    settings = {"method": TwoStages(), "wild": None}
    for stop in (StopInSecond(10, saved_before=0), StopInSecond(15, saved_before=10)):
        with pytest.raises(Stopped):
            run(log.make(), stop, **settings)
    history = run(log.make(), **settings).history
    assert [row["step"] for row in history] == [*STEPS, *STEPS]
    stages = [columns_of([row for row in history if row["stage"] == number]) for number in (1, 2)]
    if log.kind == "csv":
        assert log.column("loss") == stages[0]["loss"] + stages[1]["loss"]
        assert [value for _, value in log.column("stage")] == [1] * 5 + [2] * 5
        return
    if log.kind == "tensorboard":
        board = sys.modules["torch.utils.tensorboard"]
        found = [board.column("loss", directory) for directory in sorted(board.events)]
    else:
        found = [log.column(f"stage-{number}/loss") for number in (1, 2)]
    assert found == [stage["loss"] for stage in stages]


def test_one_logger_may_be_used_for_one_run_after_the_other(run, log):
    logger = log.make()
    run(logger, run_dir="first")
    history = run(logger, run_dir=None, seed=1).history
    assert log.column("w")[-5:] == [(row["step"], row["w"]) for row in history]
    assert len(log.column("w")) == (5 if log.kind in {"csv", "tensorboard"} else 10)  # one file, or two runs


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_logger_opened_is_closed(run, log, fails):
    logger = log.make()
    with suppress(Stopped):
        run(logger, *([StopAt(6)] if fails else []))
    assert not logger.is_open
    if log.kind == "tensorboard":
        assert sys.modules["torch.utils.tensorboard"].open_writers == 0
    if log.kind == "mlflow":
        mlflow = sys.modules["mlflow"]
        assert mlflow.active is None
        assert [each.info.status for each in mlflow.runs.values()] == ["FAILED" if fails else "FINISHED"]
    if log.kind == "wandb":
        wandb = sys.modules["wandb"]
        assert wandb.run is None
        assert [each.exit_code for each in wandb.runs.values()] == [int(fails)]


def test_a_run_of_the_callers_is_used_and_stays_open(run, monkeypatch):
    mlflow, wandb = FakeMLflow(), FakeWandb()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    mine, yours = mlflow.start_run(), wandb.init()
    for seed in (0, 1):  # two fits in one run: both are logged
        run(wildood.MLflowLogger(), wildood.WandbLogger(), run_dir=None, seed=seed)
    assert mlflow.active is mine
    assert wandb.run is yours
    assert [step for step, _ in mlflow.column("w")] == [step for step, _ in wandb.column("w")] == [*STEPS, *STEPS]


def test_mlflow_is_given_the_experiment_and_the_name(run, monkeypatch):
    mlflow = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    for name in ("first", "second"):
        run(wildood.MLflowLogger("pets", name), run_dir=None)
    infos = [each.info for each in mlflow.runs.values()]
    assert [(info.experiment_id, info.run_name) for info in infos] == [("id of pets", "first"), ("id of pets", "second")]


def test_wandb_is_given_its_settings_and_an_axis_of_steps(run, monkeypatch):
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    run(wildood.WandbLogger("pets", name="first", mode="offline"), run_dir=None)
    (made,) = wandb.runs.values()
    assert made.settings == {"project": "pets", "name": "first", "mode": "offline"}
    assert made.axes == {"*": "step"}


def test_the_csv_file_has_a_line_for_each_row_and_no_line_of_an_earlier_run(run, tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("of another run\n", encoding="utf-8")
    run(wildood.CsvLogger(path))
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    assert header.startswith("epoch,step,")
    assert [line.split(",")[1] for line in lines] == [str(step) for step in STEPS]


def test_columns_that_are_no_numbers_are_left_out(run, tmp_path):
    class Note(wildood.Callback):
        def on_epoch_end(self, training, row):
            row |= {"note": "text", "number": 0.5}

    run(Note(), wildood.CsvLogger(tmp_path / "run.csv"), run_dir=None)
    with (tmp_path / "run.csv").open(encoding="utf-8", newline="") as file:
        names = next(csv.reader(file))
    assert "number" in names
    assert "note" not in names


def test_only_the_first_process_logs(tmp_path, monkeypatch):
    monkeypatch.setattr("wildood.train.loggers.is_first", lambda: False)
    logger = wildood.CsvLogger(tmp_path / "run.csv")
    with logger.context(SimpleNamespace(history=[{"step": 0}], callbacks=[])):
        logger.on_epoch_end(None, {"step": 4})
    assert not (tmp_path / "run.csv").exists()


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("TensorBoardLogger", "torch.utils.tensorboard", "tensorboard"),
        ("MLflowLogger", "mlflow", "mlflow"),
        ("WandbLogger", "wandb", "wandb"),
    ],
)
def test_a_missing_package_is_named_in_one_line_when_the_logger_is_made(name, module, package, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(wildood.InputError, match=rf"^{name} needs the package {package} \(.*\): pip install {package}$"):
        getattr(wildood, name)("pets")


def test_a_logger_of_ones_own_says_only_how_a_row_is_written(run):
    rows = []

    class Mine(HistoryLogger):
        def write(self, row, step):
            rows.append((step, row["w"]))

    history = run(Mine()).history
    assert rows == [(row["step"], row["w"]) for row in history]

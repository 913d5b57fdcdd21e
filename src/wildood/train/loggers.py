"""Callbacks that write the history of a run elsewhere: a CSV file, TensorBoard, MLflow, Weights & Biases."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from io import StringIO
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wildood.data.files import write_text
from wildood.errors import InputError
from wildood.settings import check_path
from wildood.train.callbacks import AddColumns, Callback
from wildood.train.distributed import is_first
from wildood.train.history import Row

if TYPE_CHECKING:
    from wildood.train.loop import Training


class HistoryLogger(Callback):
    """Pass the numbers in each row of the history on, each row once; derive from it to write them somewhere else.

    A run that is resumed continues where its checkpoint was taken: `step`, that of the last row written, and what `state`
    returns are in the checkpoint. A method of several stages opens and closes once for each. Of several processes, the first
    one writes.

    >>> class Printer(HistoryLogger):
    ...     def write(self, row, step):
    ...         print(step, row)
    >>> from types import SimpleNamespace
    >>> training = SimpleNamespace(history=[{"step": 0, "w": -1.0}], callbacks=[])
    >>> with Printer().context(training):
    ...     pass
    0 {'step': 0, 'w': -1.0}
    """

    def __init__(self) -> None:
        self.step = -1  # of the last row that was written
        self.is_open = self.is_resumed = False
        self._saved: dict[str, Any] = {}

    def open(self, stage: int | None, saved: dict[str, Any]) -> None:
        """Before the first row; `saved` is what `state` returned when the checkpoint was taken, empty for a new run.

        `stage` counts from 1, and is None for a method of one stage. May set `step`: rows up to it are not written again.
        """

    def write(self, row: Row, step: int) -> None:
        """Write the numbers of a row."""
        raise NotImplementedError

    def close(self, *, failed: bool) -> None:
        """After the last row, or after an error."""

    def state(self) -> dict[str, Any]:
        """What `open` needs to continue, in a checkpoint."""
        return {}

    @contextmanager
    def context(self, training: "Training") -> Iterator[None]:
        """Open, write what the history already holds, and close at the end, also after an error."""
        saved, self._saved = self._saved, {}
        if not is_first():
            yield
            return
        stage = _stage_of(training)
        self.step, failed = saved.pop("step", -1), True
        self.is_resumed = bool(saved) or self.step >= 0 or (self.is_resumed and stage not in {None, 1})
        self.open(stage, saved)
        self.is_open = True
        try:
            for row in training.history:
                self._write(row)
            yield
            failed = False
        finally:
            self.is_open = False
            self.close(failed=failed)

    def on_train_begin(self, training: "Training") -> None:
        """Forget what another run has left: a new run has taken no step."""
        if not training.steps:
            self._saved = {}

    def on_epoch_end(self, training: "Training", row: Row) -> None:  # noqa: ARG002 - the row is all there is to write
        """Write the row; that of the start comes before `context`, which finds it in the history."""
        if self.is_open:
            self._write(row)

    def _write(self, row: Row) -> None:
        if row["step"] > self.step:
            self.step = int(row["step"])
            self.write({name: value for name, value in row.items() if isinstance(value, Real)}, self.step)

    def state_dict(self) -> dict[str, Any]:
        """The step of the last row, and the logger's own state."""
        return {"step": self.step, **self.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep it for `open`."""
        self._saved = dict(state)


class CsvLogger(HistoryLogger):
    """Write the history to a CSV file: a line for each row, a column for each number; the file holds the last run.

    >>> import tempfile
    >>> from types import SimpleNamespace
    >>> history = [{"step": 0, "accuracy": 0.5}, {"step": 25, "accuracy": 0.75, "loss": 0.5}]
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with CsvLogger(Path(place) / "run.csv").context(SimpleNamespace(history=history, callbacks=[])):
    ...         pass
    ...     print((Path(place) / "run.csv").read_text())
    step,accuracy,loss
    0,0.5,
    25,0.75,0.5
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = check_path(path, "path")
        self.rows: list[Row] = []
        self.columns: list[str] = []

    def open(self, stage: int | None, saved: dict[str, Any]) -> None:  # noqa: ARG002 - the history says all
        """Begin the file anew with the earlier stages: the history follows, and rows after the checkpoint come again."""
        self.step = -1
        self.rows = [row for row in self.rows if stage is not None and row.get("stage", stage) < stage]
        self.columns = list(dict.fromkeys(name for row in self.rows for name in row))
        write_text(self.path, _lines(self.rows, self.columns, header=True) if self.rows else "")

    def write(self, row: Row, step: int) -> None:  # noqa: ARG002 - it is in the row
        """Append a line; a new column is added to all lines."""
        self.rows.append(row)
        more = [name for name in row if name not in self.columns]
        self.columns += more
        if more:
            write_text(self.path, _lines(self.rows, self.columns, header=True))
        else:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_lines([row], self.columns))


class TensorBoardLogger(HistoryLogger):
    """Write the history for TensorBoard, one scalar for each number; the stages of a method have a directory each.

    A directory holds one run: what an earlier one has written there is hidden from the step on at which this one begins.

    >>> import wildood
    >>> try:
    ...     callbacks = [wildood.TensorBoardLogger("runs/a")]  # then fit(..., callbacks=callbacks)
    ... except wildood.InputError:  # tensorboard is not installed
    ...     callbacks = []
    """

    def __init__(self, log_dir: str | Path) -> None:
        super().__init__()
        _load("torch.utils.tensorboard", "tensorboard", self)
        self.log_dir = check_path(log_dir, "log_dir")
        self.writer: Any = None

    def open(self, stage: int | None, saved: dict[str, Any]) -> None:  # noqa: ARG002 - the step says all
        """Open an event file that hides later events of the same run, which are computed again."""
        directory = self.log_dir if stage is None else self.log_dir / f"stage-{stage}"
        board = _load("torch.utils.tensorboard", "tensorboard", self)
        self.writer = board.SummaryWriter(str(directory), purge_step=self.step + 1)

    def write(self, row: Row, step: int) -> None:
        """One scalar for each number."""
        for name, value in _metrics(row, None).items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, *, failed: bool) -> None:  # noqa: ARG002 - an event file does not say how it ended
        """Close the event file."""
        self.writer.close()
        self.writer = None


class MLflowLogger(HistoryLogger):
    """Log the history as metrics of an MLflow run: the active one, which stays open, or one of its own.

    Attributes:
        experiment: the name of the experiment for a run of its own; without it, the one that `mlflow` has set.
        run_name: the name of that run.

    >>> import wildood
    >>> try:
    ...     callbacks = [wildood.MLflowLogger("pets")]  # then fit(..., callbacks=callbacks)
    ... except wildood.InputError:  # mlflow is not installed
    ...     callbacks = []
    """

    def __init__(self, experiment: str | None = None, run_name: str | None = None) -> None:
        super().__init__()
        _load("mlflow", "mlflow", self)
        self.experiment, self.run_name = experiment, run_name
        self.mlflow: Any = None
        self.run_id: str | None = None
        self.stage: int | None = None
        self.is_own = True

    def open(self, stage: int | None, saved: dict[str, Any]) -> None:
        """Find the run, or begin one; of a resumed run, ask MLflow which row is the last."""
        mlflow = self.mlflow = _load("mlflow", "mlflow", self)
        before = saved.get("run_id", self.run_id if stage not in {None, 1} else None)
        self.is_own, self.stage, self.step = mlflow.active_run() is None, stage, -1
        run = self._start(before) if self.is_own else mlflow.active_run()
        self.run_id = run.info.run_id
        if self.is_resumed:
            logged = mlflow.MlflowClient().get_metric_history(self.run_id, f"{_prefix(stage)}epoch")
            self.step = max((metric.step for metric in logged), default=-1)

    def _start(self, run_id: str | None) -> Any:
        if run_id is not None:
            return self.mlflow.start_run(run_id=run_id)
        experiment = None
        if self.experiment is not None:
            known = self.mlflow.get_experiment_by_name(self.experiment)
            experiment = self.mlflow.create_experiment(self.experiment) if known is None else known.experiment_id
        return self.mlflow.start_run(experiment_id=experiment, run_name=self.run_name)

    def write(self, row: Row, step: int) -> None:
        """One metric for each number."""
        self.mlflow.log_metrics(_metrics(row, self.stage), step=step)

    def close(self, *, failed: bool) -> None:
        """End the run, if it is not the caller's."""
        if self.is_own:
            self.mlflow.end_run("FAILED" if failed else "FINISHED")
        self.mlflow = None

    def state(self) -> dict[str, Any]:
        """The run to continue."""
        return {"run_id": self.run_id}


class WandbLogger(HistoryLogger):
    """Log the history to a run of Weights & Biases: the active one, which stays open, or one of its own.

    Attributes:
        project: of a run of its own.
        settings: other arguments of `wandb.init`, such as `name` or `mode="offline"`.

    >>> import wildood
    >>> try:
    ...     callbacks = [wildood.WandbLogger("pets", name="first")]  # then fit(..., callbacks=callbacks)
    ... except wildood.InputError:  # wandb is not installed
    ...     callbacks = []
    """

    def __init__(self, project: str | None = None, **settings: Any) -> None:
        super().__init__()
        _load("wandb", "wandb", self)
        self.project, self.settings = project, settings
        self.run: Any = None
        self.run_id: str | None = None
        self.stage: int | None = None
        self.is_own = True

    def open(self, stage: int | None, saved: dict[str, Any]) -> None:
        """Find the run, or begin one; of a resumed run, its summary says which row is the last."""
        wandb = _load("wandb", "wandb", self)
        before = saved.get("run_id", self.run_id if stage not in {None, 1} else None)
        self.is_own, self.stage = wandb.run is None, stage
        resumed = {} if before is None else {"id": before, "resume": "allow"}
        self.run = wandb.init(project=self.project, **self.settings, **resumed) if self.is_own else wandb.run
        self.run_id = self.run.id
        step_metric = f"{_prefix(stage)}step"
        self.run.define_metric(f"{_prefix(stage)}*", step_metric=step_metric)  # W&B's own step cannot begin anew
        if self.run_id != before:
            self.step = -1
        if self.is_resumed:
            self.step = max(self.step, int(self.run.summary.get(step_metric, -1)))

    def write(self, row: Row, step: int) -> None:
        """All numbers at once, with their step."""
        self.run.log({f"{_prefix(self.stage)}step": step, **_metrics(row, self.stage)})

    def close(self, *, failed: bool) -> None:
        """End the run, if it is not the caller's."""
        if self.is_own:
            self.run.finish(exit_code=int(failed))
        self.run = None

    def state(self) -> dict[str, Any]:
        """The run to continue."""
        return {"run_id": self.run_id}


def _load(module: str, package: str, logger: HistoryLogger) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        name = type(logger).__name__
        raise InputError(f"{name} needs the package {package} ({error}): pip install {package}") from error


def _stage_of(training: "Training") -> int | None:
    """The stage of a method that has several."""
    columns = [each.columns for each in training.callbacks if isinstance(each, AddColumns)]
    return next((int(each["stage"]) for each in columns if "stage" in each), None)


def _prefix(stage: int | None) -> str:
    return "" if stage is None else f"stage-{stage}/"


def _metrics(row: Row, stage: int | None) -> Row:
    """The numbers but for what places the row, with the stage in their names, for steps begin anew in each.

    >>> _metrics({"stage": 2, "epoch": 1, "step": 5, "loss": 0.5}, 2)
    {'stage-2/epoch': 1, 'stage-2/loss': 0.5}
    """
    return {f"{_prefix(stage)}{name}": value for name, value in row.items() if name not in {"step", "stage"}}


def _lines(rows: list[Row], columns: list[str], *, header: bool = False) -> str:
    text = StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()

"""A run on disk: who it is, its checkpoint and its history; refuses to go on with another run's."""

import json
from pathlib import Path
from textwrap import shorten
from typing import Any, TypedDict

from wildood.data.files import DamagedFileError, digest, dump_state, load_state, remove_leftovers, write_atomically
from wildood.data.schema import SchemaError, check, parse
from wildood.errors import CheckpointError, TrainingError
from wildood.train.distributed import broadcast, flat, in_words, is_first
from wildood.train.history import Row, append_row, rewrite_rows

FORMAT = 8  # of checkpoints: the same settings of another one mean another run (8: how much wild data is set aside)


class _Checkpoint(TypedDict):
    run: str
    state: dict[str, Any]


class RunDirectory:
    """`run.json` (what the run is), `checkpoint.safetensors` (where it is), `history.jsonl` (what happened).

    A run of several stages has a directory for each, and only `run.json` itself. Of several processes, the first one reads
    and writes; what the others are asked to write is left out. A directory that is removed while the run trains is written
    again, whole.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     RunDirectory(Path(place) / "a", {"seed": 0}).save({"step": 5})
    ...     RunDirectory(Path(place) / "a", {"seed": 0}).checkpoint()
    {'step': 5}
    """

    def __init__(self, path: Path, identity: dict[str, Any], above: "RunDirectory | None" = None) -> None:
        self.path = path
        self.what = identity
        self.above = above
        self.record_path = path / "run.json"
        self.history_path = path / "history.jsonl"
        self.checkpoint_path = path / "checkpoint.safetensors"
        self.expected: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **identity}))
        self.identity = digest(json.dumps(self.expected, sort_keys=True).encode())
        self.rows: list[Row] = []
        self.writes = is_first()
        if self.writes:
            self._claim()

    def _claim(self) -> None:
        """Write who the run is, or see that the one that is there is the same."""
        remove_leftovers(self.path)
        if self.record_path.exists():
            self._same_run()
            return
        if self.checkpoint_path.exists():  # which says itself whose it is
            self._read(self.checkpoint_path.read_bytes())
        try:
            self._write_record()
        except OSError as error:
            raise CheckpointError(
                f"run_dir {self.path} cannot be written ({error.strerror}): give another directory"
            ) from error

    def _write_record(self) -> None:
        write_atomically(self.record_path, json.dumps(self.expected, indent=2).encode())

    def write_again(self) -> None:
        """Write what the run has written before, if somebody has removed it."""
        if self.above is not None:
            self.above.write_again()
        if not self.record_path.exists():
            self._write_record()
        if self.rows and not self.history_path.exists():
            rewrite_rows(self.history_path, self.rows)

    def _same_run(self) -> None:
        try:
            found = parse(self.record_path.read_bytes(), dict[str, Any])
        except SchemaError as error:
            raise CheckpointError(
                f"{self.record_path} is damaged ({error}): remove {self.path} or use another run_dir"
            ) from error
        there, here = flat(found), flat(self.expected)
        differing = [key for key in there | here if there.get(key) != here.get(key)]
        if differing:
            others = ", ".join(in_words(key) for key in differing[1:])
            raise CheckpointError(
                f"{self.path} belongs to another run: {_difference(differing[0], there, here)}"
                + (f" (different, too: {others})" if others else "")
                + ": give the same ones to go on with it, or another directory"
            )

    def stage(self, number: int) -> "RunDirectory":
        """The directory of a stage of this run, below its own."""
        return RunDirectory(self.path / f"stage-{number}", {**self.what, "stage": number}, above=self)

    def checkpoint(self) -> dict[str, Any] | None:
        """The state to go on from, if there is one; the same on all processes, which must all ask for it."""
        content = broadcast(self.checkpoint_path.read_bytes() if self.writes and self.checkpoint_path.exists() else None)
        return None if content is None else self._read(content)

    def _read(self, content: bytes) -> dict[str, Any]:
        """The state in a checkpoint of this run."""
        try:
            saved = load_state(content)
            check(saved, _Checkpoint)
        except (DamagedFileError, SchemaError) as error:
            raise CheckpointError(
                f"{self.checkpoint_path} is damaged ({error}): remove it to start the run again, or use another run_dir"
            ) from error
        if saved["run"] != self.identity:
            raise CheckpointError(
                f"{self.checkpoint_path} belongs to another run: remove it to start this one there, or use another run_dir"
            )
        state: dict[str, Any] = saved["state"]
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint."""
        if self.writes:
            self.write_again()
            write_atomically(self.checkpoint_path, dump_state({"run": self.identity, "state": state}))

    def add(self, row: Row) -> None:
        """Append a row of the history."""
        if self.writes:
            self.write_again()
            append_row(self.history_path, row)
            self.rows.append(row)

    def restart_history(self, rows: list[Row]) -> None:
        """Make the history file agree with the checkpoint."""
        if self.writes:
            rewrite_rows(self.history_path, rows)
            self.rows = list(rows)


def _difference(key: str, there: dict[str, Any], here: dict[str, Any]) -> str:
    """What differs: of weights and data, of which a run knows hashes, that they do; of a setting, its values.

    >>> _difference("model", {"model": "5d41"}, {"model": "402a"})
    'the starting weights differ'
    >>> _difference("seed", {"seed": 0}, {"seed": 1})
    "its seed is 0, this call's is 1"
    """
    if in_words(key) == key:
        return f"its {key} is {_shown(there.get(key))}, this call's is {_shown(here.get(key))}"
    return f"{in_words(key)} {'differ' if key == 'model' else 'differs'}"


def _shown(value: Any) -> str:
    return shorten(str(value), 100, placeholder=" ...")


def not_finite(what: str, run: RunDirectory | None) -> TrainingError:
    """The error of a run that went wrong, with the checkpoint to go back to."""
    saved = run is not None and run.checkpoint_path.exists()
    where = f"; the last good checkpoint is {run.checkpoint_path}" if run is not None and saved else ""
    return TrainingError(f"{what}{where}: try a smaller lr, as in schedule=Schedule(steps=..., lr=...)")

"""A run on disk: who it is, its checkpoint and its history; refuses to go on with another run's."""

import json
from pathlib import Path
from typing import Any

from wildood.data.files import DamagedFileError, digest, dump_state, load_state, write_atomically
from wildood.errors import CheckpointError, TrainingError
from wildood.train.history import Row, append_row, rewrite_rows
from wildood.train.identity import flat, in_words
from wildood.train.processes import from_first, is_first

FORMAT = 8  # of checkpoints: the same settings of another one mean another run (8: how much wild data is set aside)


class RunDirectory:
    """`run.json` (what the run is), `checkpoint.safetensors` (where it is), `history.jsonl` (what happened).

    A run of several stages has a directory for each, and only `run.json` itself. Of several processes, the first one reads
    and writes; what the others are asked to write is left out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     RunDirectory(Path(place) / "a", {"seed": 0}).save({"step": 5})
    ...     RunDirectory(Path(place) / "a", {"seed": 0}).checkpoint()
    {'step': 5}
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self.what = identity
        self.history_path = path / "history.jsonl"
        self.checkpoint_path = path / "checkpoint.safetensors"
        expected = json.loads(json.dumps({"format": FORMAT, **identity}))
        self.identity = digest(json.dumps(expected, sort_keys=True).encode())
        self.writes = is_first()
        if self.writes:
            self._claim(expected)

    def _claim(self, expected: dict[str, Any]) -> None:
        """Write who the run is, or see that the one that is there is the same."""
        path = self.path
        for draft in path.glob(".*.part"):  # what a kill left of a write
            draft.unlink()
        record = path / "run.json"
        if record.exists():
            self._same_run(record, expected)
        elif self.checkpoint_path.exists():
            raise CheckpointError(f"{path} holds a checkpoint but no run.json: it is not a whole run, use another run_dir")
        else:
            try:
                write_atomically(record, json.dumps(expected, indent=2).encode())
            except OSError as error:
                raise CheckpointError(
                    f"run_dir {path} cannot be written ({error.strerror}): give another directory"
                ) from error

    def _same_run(self, record: Path, expected: dict[str, Any]) -> None:
        try:
            found = json.loads(record.read_bytes())
        except ValueError as error:
            raise CheckpointError(f"{record} is damaged: remove {self.path} or use another run_dir") from error
        there, here = flat(found), flat(expected)
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
        return RunDirectory(self.path / f"stage-{number}", {**self.what, "stage": number})

    def checkpoint(self) -> dict[str, Any] | None:
        """The state to go on from, if there is one; the same on all processes, which must all ask for it."""
        content = from_first(self.checkpoint_path.read_bytes() if self.writes and self.checkpoint_path.exists() else None)
        if content is None:
            return None
        try:
            saved: dict[str, Any] = load_state(content)
        except DamagedFileError as error:
            raise CheckpointError(
                f"{self.checkpoint_path} is damaged ({error}): remove it to start the run again, or use another run_dir"
            ) from error
        if saved.get("run") != self.identity:
            raise CheckpointError(f"{self.checkpoint_path} belongs to another run: remove it, or use another run_dir")
        state: dict[str, Any] = saved["state"]
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint."""
        if self.writes:
            write_atomically(self.checkpoint_path, dump_state({"run": self.identity, "state": state}))

    def add(self, row: Row) -> None:
        """Append a row of the history."""
        if self.writes:
            append_row(self.history_path, row)

    def restart_history(self, rows: list[Row]) -> None:
        """Make the history file agree with the checkpoint."""
        if self.writes:
            rewrite_rows(self.history_path, rows)


def _difference(key: str, there: dict[str, Any], here: dict[str, Any]) -> str:
    """What differs: of weights and data, of which a run knows hashes, that they do; of a setting, its values.

    >>> _difference("model", {"model": "5d41"}, {"model": "402a"})
    'the starting weights differ'
    >>> _difference("seed", {"seed": 0}, {"seed": 1})
    "its seed is 0, this call's is 1"
    """
    if in_words(key) == key:
        return f"its {key} is {there.get(key)}, this call's is {here.get(key)}"
    return f"{in_words(key)} {'differ' if key == 'model' else 'differs'}"


def not_finite(what: str, run: RunDirectory | None) -> TrainingError:
    """The error of a run that went wrong, with the checkpoint to go back to."""
    saved = run is not None and run.checkpoint_path.exists()
    where = f"; the last good checkpoint is {run.checkpoint_path}" if run is not None and saved else ""
    return TrainingError(f"{what}{where}: try a smaller lr, as in schedule=Schedule(steps=..., lr=...)")

"""The history of a run: one row for each epoch, as data, as a line to read, and as a file."""

import json
from pathlib import Path

from wildood.data.files import write_atomically

Row = dict[str, float]


def append_row(path: Path, row: Row) -> None:
    """Add a row to a JSON-lines file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     append_row(Path(place) / "h.jsonl", {"epoch": 1}); append_row(Path(place) / "h.jsonl", {"epoch": 2})
    ...     read_rows(Path(place) / "h.jsonl")
    [{'epoch': 1}, {'epoch': 2}]
    """
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def rewrite_rows(path: Path, rows: list[Row]) -> None:
    """Make the file hold exactly these rows: what a killed run wrote after its last checkpoint is done again."""
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def row_line(row: Row, epochs: int | None = None) -> str:
    """One readable line for a row; of so many epochs, where the schedule counts in them.

    >>> print(row_line({"epoch": 1, "step": 78, "wild_loss": 0.81, "false_alarm": 0.02, "lambda_false_alarm": 1.1,
    ...     "beta_false_alarm": 1.0, "w": -0.2, "accuracy": 0.91, "acceptance": 0.87, "images_per_second": 450.0,
    ...     "seconds_left": 75.0}, epochs=3))
    epoch 1/3  step 78  wild 0.810  false_alarm +0.020 (λ 1.10, β 1)  w -0.20  accuracy 91.0 %  accepts 87.0 % of wild
        450 examples/s  1:15 left
    """
    stage = [f"stage {row['stage']:.0f}"] if "stage" in row else []
    epoch = [] if epochs is None else [f"epoch {row['epoch']:.0f}/{epochs}"]
    parts = [*stage, *epoch, f"step {row['step']:.0f}"]
    if "wild_loss" in row:
        parts.append(f"wild {row['wild_loss']:.3f}")
    if "loss" in row:
        parts.append(f"loss {row['loss']:.3f}")
    constrained = [key.removeprefix("lambda_") for key in row if key.startswith("lambda_")]
    parts += [
        f"{name} {row[name]:+.3f} (λ {row[f'lambda_{name}']:.2f}, β {row[f'beta_{name}']:.3g})"
        for name in constrained
        if name in row
    ]
    if "w" in row:
        parts.append(f"w {row['w']:.2f}")
    if "accuracy" in row:
        parts.append(f"accuracy {row['accuracy']:.1%}".replace("%", " %"))
    if "acceptance" in row:
        parts.append(f"accepts {row['acceptance']:.1%} of wild".replace("%", " %"))
    if "images_per_second" in row:
        parts.append(f"{row['images_per_second']:.0f} examples/s")
    if "seconds_left" in row:
        minutes, seconds = divmod(round(row["seconds_left"]), 60)
        parts.append(f"{minutes}:{seconds:02d} left")
    return "  ".join(parts)

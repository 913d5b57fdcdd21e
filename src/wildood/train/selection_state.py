"""The choice of an epoch in a checkpoint: masks as tensors, which checkpoints hold."""

from typing import Any

import torch
from torch import Tensor

from wildood.evaluate.selection import Mask, Selection


def selection_state(selection: Selection) -> dict[str, Any]:
    """Everything that a choice needs to go on.

    >>> again = Selection()
    >>> load_selection(again, selection_state(Selection(seen=3, kept=2)))
    >>> again.seen, again.kept
    (3, 2)
    """
    return {
        "seen": selection.seen,
        "kept": selection.kept,
        "start_correct": _tensor(selection.start_correct),
        "least_accepted": _tensor(selection.least_accepted),
    }


def load_selection(selection: Selection, state: dict[str, Any]) -> None:
    """Go on where `selection_state` was taken."""
    selection.seen, selection.kept = state["seen"], state["kept"]
    if state["start_correct"] is not None:
        selection.start_correct = state["start_correct"].numpy()
        selection.least_accepted = state["least_accepted"].numpy()


def _tensor(mask: Mask | None) -> Tensor | None:
    return None if mask is None else torch.from_numpy(mask)

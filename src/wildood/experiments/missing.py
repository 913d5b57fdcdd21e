"""Which of the data that experiments need is not below the data root."""

from collections.abc import Sequence
from pathlib import Path

from wildood.data.published_sets import SETS
from wildood.data.root import data_root
from wildood.experiments.division import ood_names, start_files
from wildood.experiments.experiment import Experiment


def missing_data(experiments: Sequence[Experiment], root: str | Path | None = None) -> list[str]:
    """The sets, by name or file, and the files of weights that are not there, each once.

    >>> missing_data([Experiment("cifar10", ("svhn", "mine.npz"), method="energy", start="a.safetensors")], "nowhere")
    ['cifar10', 'svhn', 'mine.npz', 'a.safetensors']
    """
    needed = dict.fromkeys(name for each in experiments for name in (each.id, *ood_names(each), *start_files([each])))
    return [name for name in needed if not _is_there(name, data_root(root))]


def _is_there(name: str, root: Path) -> bool:
    if name not in SETS:
        return (root / name).exists()
    named = SETS[name]
    return all(named.place(part, root) is not None for part in named.parts if not part.on_request)

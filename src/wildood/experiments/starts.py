"""The starting classifier of an experiment: trained once, kept beside the runs, and shared by all that start from it."""

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from wildood.data.files import dump_tensors, write_atomically
from wildood.data.given import labelled_source
from wildood.data.locks import locked
from wildood.data.root import data_root
from wildood.detect.pretraining import pretrain
from wildood.errors import InputError
from wildood.experiments.division import Division
from wildood.experiments.experiment import Experiment
from wildood.models.shipped import build_model
from wildood.train.loop import OnEpoch
from wildood.train.progress import logger

STARTS = "starts"  # the folder beside the runs


def starting_classifier(
    experiment: Experiment, parts: Division, runs: Path, root: str | Path | None = None, on_epoch: OnEpoch | None = None
) -> nn.Module:
    """The network with its weights: from a file, or trained here, by whichever process comes first."""
    model = untrained_model(experiment, parts.classes)
    if experiment.start not in {"labelled", "all"}:
        return _with_weights(model, data_root(root) / experiment.start)
    weights = _weights(experiment, runs)
    place = weights.parent
    place.mkdir(parents=True, exist_ok=True)
    _refuse_other_data(experiment, parts, place)
    with locked(place / "lock", waiting="another process trains the starting classifier: waiting for it"):
        if not weights.exists():
            logger.info("training the starting classifier (%s)", place)
            trained = pretrain(
                model,
                parts.labelled if experiment.start == "labelled" else parts.everything,
                schedule=experiment.pretraining,
                input=parts.spec,
                run_dir=place / "training",
                seed=_seed(experiment),
                verbose=False,
                on_epoch=on_epoch,
            )
            write_atomically(weights, dump_tensors(trained.state_dict()))
    return _with_weights(model, weights)


def start_name(experiment: Experiment) -> str:
    """A hash of all that decides the starting classifier.

    >>> one, two = (Experiment("cifar10", (ood,), ood, 0.1) for ood in ("svhn", "textures"))
    >>> one.name == two.name, start_name(one) == start_name(two)
    (False, True)
    """
    names = ("id", "model", "model_settings", "mean", "std", "start", "pretraining")
    content = {name: value for name, value in experiment.as_dict().items() if name in names}
    text = json.dumps({**content, "seed": _seed(experiment)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def start_is_busy(experiment: Experiment, runs: Path) -> bool:
    """Whether another process is training the starting classifier now."""
    weights = _weights(experiment, runs)
    if experiment.pretraining is None or weights.exists() or not weights.parent.exists():
        return False
    with locked(weights.parent / "lock") as mine:
        return not mine


def _refuse_other_data(experiment: Experiment, parts: Division, place: Path) -> None:
    """A starting classifier belongs to the images it was trained on, though files of the same name may hold others."""
    data = parts.labelled if experiment.start == "labelled" else parts.everything
    fingerprint, path = labelled_source(data, "labelled").fingerprint(), place / "data"
    if not path.exists():
        write_atomically(path, fingerprint.encode())
    elif path.read_text() != fingerprint:
        raise InputError(
            f"{place} was trained on other images under the name {experiment.id}: give each data root its own --runs"
        )


def trained_start(experiment: Experiment, runs: Path) -> bool:
    """Whether the starting classifier is there already."""
    return _weights(experiment, runs).exists()


def _weights(experiment: Experiment, runs: Path) -> Path:
    return runs / STARTS / start_name(experiment) / "weights.safetensors"


def untrained_model(experiment: Experiment, classes: int) -> nn.Module:
    """The network as it is before it has learned anything."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_seed(experiment))
        model = build_model({"name": experiment.model, "settings": {**experiment.model_settings, "classes": classes}})
    return model.to("cuda") if torch.cuda.is_available() else model


def _seed(experiment: Experiment) -> int:
    """Of the starting classifier: one that has seen all of the ID training set is one for all seeds, as in the paper."""
    return experiment.seed if experiment.start == "labelled" else 0


def _with_weights(model: nn.Module, path: Path) -> nn.Module:
    try:
        model.load_state_dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise InputError(f"the weights {path} cannot be read ({error}): give the directory that holds them") from error
    except RuntimeError as error:
        raise InputError(f"the weights {path} do not fit the model: {str(error).splitlines()[-1].strip()}") from error
    return model.eval()

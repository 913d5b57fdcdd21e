"""The starting classifier of an experiment: trained once, kept in the run directory, shared by all that start from it."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from wildood.data.files import data_root, digest, dump_tensors, is_held, locked, write_atomically
from wildood.data.validation import labelled_source
from wildood.detect.pretrain import pretrain
from wildood.errors import InputError
from wildood.experiments.experiment import FINGERPRINT, Experiment
from wildood.experiments.split import Split, class_count
from wildood.models.shipped import MODELS
from wildood.train.callbacks import OnEpoch
from wildood.train.progress import logger

STARTS, WEIGHTS = "starts", "weights.safetensors"  # the folder in the run directory, and the file in it
CONVERT = "safetensors.torch.save_file(model.state_dict(), FILE) writes such a file"


def starting_classifier(
    experiment: Experiment, split: Split, runs: Path, root: str | Path | None = None, on_epoch: OnEpoch | None = None
) -> nn.Module:
    """The network with its weights: from a file, or trained here by whichever process comes first."""
    model = untrained_model(experiment, split.classes)
    if experiment.pretraining is None:
        path = _weights_file(experiment, runs, root)
        _check_fingerprint(experiment, path, runs)
        return _with_weights(model, path)
    weights = _trained_weights(experiment, runs)
    place = weights.parent
    place.mkdir(parents=True, exist_ok=True)
    data = split.labelled if experiment.start == "labelled" else split.id_train
    _check_training_data(experiment, labelled_source(data, "labelled").fingerprint(), place)
    with locked(place / "lock", waiting="another process trains the starting classifier: waiting for it"):
        if not weights.exists():
            logger.info("training the starting classifier (%s)", place)
            trained = pretrain(
                model,
                data,
                schedule=experiment.pretraining,
                input=split.spec,
                run_dir=place / "training",
                seed=_seed(experiment),
                verbose=False,
                on_epoch=on_epoch,
            )
            write_atomically(weights, dump_tensors(trained.state_dict()))
    return _with_weights(model, weights)


def start_from(experiments: Sequence[Experiment], path: Path) -> list[Experiment]:
    """The same experiments from the weights of a file, which they name by its content."""
    start = _fingerprint(_content(path))
    _tensors(path)
    return [replace(each, start=start) for each in experiments]


def check_starts(
    experiments: Sequence[Experiment], runs: Path, root: str | Path | None = None, file: Path | None = None
) -> None:
    """Raise an error if weights do not fit their network, before anything is run; `file` is that of `start_from`."""
    networks = {
        f"{each.id} {each.model} {each.model_settings} {each.start}": each
        for each in experiments
        if each.pretraining is None
    }
    for each in networks.values():
        path = _weights_file(each, runs, root) if file is None else file
        _with_weights(untrained_model(each, class_count(each, root)), path)


def copy_weights(path: Path, runs: Path) -> None:
    """Copy a file of weights to the run directory, so that every node of a cluster has it, even if the file goes."""
    content = _content(path)
    copy = _copied_weights(_fingerprint(content), runs)
    if not copy.exists() or copy.read_bytes() != content:
        write_atomically(copy, content)


def start_name(experiment: Experiment) -> str:
    """A hash of all that decides the starting classifier."""
    names = ("id", "model", "model_settings", "mean", "std", "start", "pretraining")
    content = {name: value for name, value in experiment.as_dict().items() if name in names}
    text = json.dumps({**content, "seed": _seed(experiment)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def has_trained_start(experiment: Experiment, runs: Path) -> bool:
    """Whether the starting classifier has been trained."""
    return _trained_weights(experiment, runs).exists()


def start_is_in_training(experiment: Experiment, runs: Path) -> bool:
    """Whether another process is training the starting classifier now."""
    if experiment.pretraining is None or has_trained_start(experiment, runs):
        return False
    return is_held(_trained_weights(experiment, runs).parent / "lock")


def untrained_model(experiment: Experiment, classes: int) -> nn.Module:
    """The network before training, on the GPU if there is one."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_seed(experiment))
        model = MODELS[experiment.model](**{**experiment.model_settings, "classes": classes})
    return model.to("cuda") if torch.cuda.is_available() else model


def _seed(experiment: Experiment) -> int:
    """Of the starting classifier: one trained on the whole ID training set is the same for all seeds, as in the paper."""
    return experiment.seed if experiment.start == "labelled" else 0


def _check_training_data(experiment: Experiment, fingerprint: str, place: Path) -> None:
    """Raise an error if the starting classifier was trained on other images of the same name."""
    if _recorded(place / "data", fingerprint) != fingerprint:
        raise InputError(
            f"{place} was trained on other images under the name {experiment.id}: give each data root its own --runs"
        )


def _check_fingerprint(experiment: Experiment, path: Path, runs: Path) -> None:
    """Raise an error if a weight file has changed since other runs began with it."""
    now = _fingerprint(_content(path))
    if experiment.start.startswith(FINGERPRINT):
        if now != experiment.start:
            raise InputError(f"{path} has been changed (it is {now} now): give the file again, with --start")
        return
    before = _recorded(_trained_weights(experiment, runs).parent / "sha256", now)
    if now != before:
        raise InputError(
            f"{path} is not the file that other runs in {runs} start from ({now}, not {before}): give it with --start, or "
            "another --runs"
        )


def _recorded(path: Path, fingerprint: str) -> str:
    """The fingerprint in a file, which is written if it is not there."""
    if not path.exists():
        write_atomically(path, fingerprint.encode())
    return path.read_text()


def _trained_weights(experiment: Experiment, runs: Path) -> Path:
    return runs / STARTS / start_name(experiment) / WEIGHTS


def _copied_weights(start: str, runs: Path) -> Path:
    return runs / STARTS / start.replace(":", "-") / WEIGHTS


def _weights_file(experiment: Experiment, runs: Path, root: str | Path | None) -> Path:
    """The weights that are not trained here: copied to the run directory if named by content, else a data file."""
    if not experiment.start.startswith(FINGERPRINT):
        return data_root(root) / experiment.start
    path = _copied_weights(experiment.start, runs)
    if not path.exists():
        raise InputError(f"the weights {experiment.start} are not in {runs / STARTS}: give the file with --start")
    return path


def _fingerprint(content: bytes) -> str:
    return f"{FINGERPRINT}{digest(content)[:16]}"  # as sha256sum prints it, so that a person can compare


def _content(path: Path) -> bytes:
    if not path.is_file():  # reading a pipe would block
        raise InputError(f"the weights {path} cannot be read (there is no such file): give a file of safetensors")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"the weights {path} cannot be read ({error.strerror}): give a file of safetensors") from error


def _with_weights(model: nn.Module, path: Path) -> nn.Module:
    try:
        model.load_state_dict(_tensors(path))
    except RuntimeError as error:
        reason = shorten(str(error).splitlines()[-1].rstrip(". "), 300, placeholder=" ...")
        raise InputError(
            f"the weights {path} do not fit {type(model).__name__}: {reason}; give those of this network"
        ) from error
    return model.eval()


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"the weights {path} cannot be read as safetensors ({error}): {CONVERT}") from error

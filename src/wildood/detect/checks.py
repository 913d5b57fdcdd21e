"""The model and the arguments of `fit`, `posthoc` and `pretrain`, checked; and the record that identifies a run."""

import copy
import hashlib
import json
import platform
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import wildood
from wildood.data.inputs import InputSpec
from wildood.data.sources import Source, memory_of
from wildood.errors import InputError
from wildood.methods.schedule import IN_ROUNDS, Schedule
from wildood.models.classifier import Classifier, plain_name, tap_features, try_classifier, uncompiled
from wildood.settings import check_integer, check_path, quoted
from wildood.train.distributed import training_device


def copy_classifier(
    model: nn.Module,
    source: Source,
    spec: InputSpec | None,
    features: str | None,
    *,
    uses_features: bool,
    trained: bool = False,
) -> tuple[Classifier, int]:
    """A copy of the user's model that is tried on the data, and the number of its classes.

    A copy that several processes are to train is on the GPU that the launcher gave to this process.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: give a torch.nn.Module")
    if features is not None and not isinstance(features, str):
        raise InputError(f"features is {quoted(features)}: give a submodule's name, one of model.named_modules()")
    try:
        network = uncompiled(copy.deepcopy(model))
    except (RuntimeError, TypeError) as error:
        raise InputError(f"the model cannot be copied: {error}") from error
    device = training_device(network) if trained else None
    network = network if device is None else network.to(device)  # before it is tried, lest all processes use one GPU
    features = None if features is None else plain_name(features)
    few = source.gather(torch.arange(min(2, len(source))))[0]
    classes = try_classifier(network, few, spec)
    tap = tap_features(network, few, spec, features) if uses_features or features is not None else None
    if spec is not None:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Classifier(network, spec, tap if uses_features else None), classes


def check_spec(spec: Any) -> None:
    """Refuse an input that is no `InputSpec`."""
    if spec is not None and not isinstance(spec, InputSpec):
        raise InputError(f"input is a {type(spec).__name__}: give an InputSpec")


def check_schedule(schedule: Any, own: Schedule, *, looks: bool) -> Schedule:
    """The schedule: for None the method's own, for "auto" its own in rounds, which need wild data to score (`looks`)."""
    if schedule is None or (isinstance(schedule, str) and schedule == "auto"):
        schedule = own if schedule is None else replace(own, **IN_ROUNDS)
    if not isinstance(schedule, Schedule):
        raise InputError(f"schedule is {quoted(schedule)}: give 'auto' or a Schedule, such as Schedule(steps=100)")
    check_rounds(schedule, looks=looks)
    return schedule


def check_rounds(schedule: Schedule, *, looks: bool) -> None:
    """Refuse a schedule in rounds where no wild data is scored between them."""
    if schedule.rounds is not None and not looks:
        raise InputError(
            "a schedule in rounds stops early by wild data set aside, but there is none: give a method that uses wild data "
            "and keep='best' (--keep best), or a number of steps or epochs: Schedule(steps=100) (--steps 100)"
        )


def check_seed(seed: Any, name: str = "seed") -> int:
    """A seed: a whole number from 0 on."""
    return check_integer(seed, name, "a whole number from 0 on", least=0, most=1 << 128)


def check_run_dir(run_dir: Any) -> Path | None:
    """The directory of a run, if there is one."""
    return None if run_dir is None else check_path(run_dir, "run_dir")


def check_augmentation(schedule: Schedule, shape: tuple[int, ...]) -> None:
    """Refuse augmentation of examples that are no images."""
    if schedule.augment and len(shape) != 3:
        raise InputError(
            f"the schedule's augment is for images, but an example has shape {shape}: give "
            "Schedule.pretraining(augment=False) in Python, --augment False on the command line"
        )


def check_trainable(classifier: Classifier) -> None:
    """Refuse a model of which nothing can be trained."""
    if not all(parameter.is_leaf for parameter in classifier.parameters()):
        raise InputError("the model's copy cannot be trained (a traced model?): give the model it was made from")
    if not any(parameter.requires_grad for parameter in classifier.parameters()):
        raise InputError("no parameter of the model requires a gradient: nothing can be trained, unfreeze some of it")


def run_record(classifier: Classifier, schedule: Schedule, data: dict[str, str], **settings: Any) -> dict[str, Any]:
    """What identifies a run, as JSON would give it back."""
    spec, tap = classifier.spec, classifier.tap
    record = {
        **settings,
        "schedule": asdict(schedule),
        "input": None if spec is None else spec.to_dict(),
        "data": data,
        "model": model_fingerprint(classifier.model),
        "features": None if tap is None else asdict(tap),
    }
    restored: dict[str, Any] = json.loads(json.dumps(record))
    return restored


def model_fingerprint(model: nn.Module) -> str:
    """A hash of the starting weights."""
    content = hashlib.blake2b(type(model).__qualname__.encode(), digest_size=16)
    for name, value in model.state_dict().items():
        content.update(f"{name} {getattr(value, 'dtype', '')} {tuple(getattr(value, 'shape', ()))}".encode())
        content.update(memory_of(value) if isinstance(value, torch.Tensor) else repr(value).encode())
    return content.hexdigest()


def versions() -> dict[str, str]:
    """Of the libraries that made a detector."""
    return {
        "wildood": wildood.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
    }

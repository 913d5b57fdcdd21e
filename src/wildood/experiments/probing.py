"""How fast a network is on this machine, from a few steps with a few images; one that does not fit them is refused."""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from wildood.data.inputs import InputSpec
from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.passes import Rate
from wildood.experiments.starts import untrained_model

TRIED = 64  # images in a step that is measured
STEPS = 3  # that are measured; what disturbs one of them only makes it longer, so the fastest counts


def measured_rate(experiment: Experiment, shape: tuple[int, int, int]) -> Rate:
    """Images per second of an experiment's network, for images of this height, width and number of channels.

    >>> digits = Experiment("digits", ("digits",), method="energy", model="SmallCNN", mean=(0.5,), std=(0.5,))
    >>> measured_rate(digits, (8, 8, 1)).looked_at > 0
    True
    """
    model = _fitting_model(experiment, shape).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    device, (height, width, channels) = next(model.parameters()).device, shape
    images = torch.zeros(TRIED, channels, height, width, device=device).to(memory_format=torch.channels_last)
    labels = torch.zeros(TRIED, dtype=torch.long, device=device)

    def learn() -> None:
        F.cross_entropy(model.train()(images), labels).backward()  # type: ignore[no-untyped-call]

    def look() -> None:
        with torch.no_grad():
            model.eval()(images)

    return Rate(*(TRIED / _seconds(once, device) for once in (learn, look)))


def _fitting_model(experiment: Experiment, shape: tuple[int, int, int]) -> nn.Module:
    """The network, if it and the mean are for such images."""
    height, width, channels = shape
    images = f"the images of {experiment.id}, {height} x {width} with {channels} channel{'' if channels == 1 else 's'}"
    InputSpec(mean=experiment.mean, std=experiment.std)
    if len(experiment.mean) not in {1, channels}:
        said = f"an experiment's mean has {len(experiment.mean)} numbers, which do not fit {images}"
        raise InputError(f"{said}: give mean and std, one number for each channel or for all")
    settings = ", ".join(f"{name} = {value}" for name, value in experiment.model_settings.items())
    named = f"an experiment's model {experiment.model}" + (f" ({settings})" if settings else "")
    try:
        model = untrained_model(experiment, classes=10)
    except (TypeError, ValueError, RuntimeError) as error:
        told = str(error).partition("__init__() ")[2] or str(error)
        said = told.splitlines()[0]
        raise InputError(f"{named} cannot be built ({said}): change [model_settings]") from error
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, channels, height, width, device=device))
    except RuntimeError as error:
        raise InputError(f"{named} does not take {images}: give another model, or [model_settings]") from error
    return model


def _seconds(once: Callable[[], None], device: torch.device) -> float:
    """Of the fastest of some steps; the first, which is not like the others, is not measured."""
    once()
    taken = []
    for _ in range(STEPS):
        _finish(device)
        began = time.perf_counter()
        once()
        _finish(device)
        taken.append(time.perf_counter() - began)
    return min(taken)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

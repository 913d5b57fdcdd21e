"""Models named on the command line: one that ships with wildood, or a function of the user's own."""

import os
import sys
from importlib import import_module
from pathlib import Path
from textwrap import shorten

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from wildood.data.sampling import seeded
from wildood.errors import InputError
from wildood.models.shipped import MODELS
from wildood.settings import check_callable

NAMES = {name.lower(): cls for name, cls in MODELS.items()}


def read_model(text: str, seed: int = 0) -> nn.Module:
    """`resnet20`, `smallcnn:classes=7,width=32`, or `module:function`.

    >>> type(read_model("mlp:inputs=4,classes=3")).__name__
    'MLP'
    """
    name, _, rest = text.partition(":")
    with seeded(seed, "starting weights"):  # the same ones when a run that was cut off is called again
        return _shipped(name.lower(), rest) if name.lower() in NAMES else _own(name, rest)


def with_classes(text: str, classes: int) -> str:
    """The text of a shipped model, with a number of classes if it says none.

    >>> with_classes("resnet20", 3), with_classes("resnet20:classes=7", 3), with_classes("mymodel:build", 3)
    ('resnet20:classes=3', 'resnet20:classes=7', 'mymodel:build')
    """
    if text.partition(":")[0].lower() not in NAMES or "classes=" in text:
        return text
    return f"{text}{',' if ':' in text else ':'}classes={classes}"


def _shipped(name: str, settings: str) -> nn.Module:
    try:
        pairs = dict(pair.split("=", 1) for pair in settings.split(",")) if settings else {}
        return NAMES[name](**{key: float(value) if "." in value else int(value) for key, value in pairs.items()})
    except (TypeError, ValueError) as error:
        told = f"{name}:{settings}" if settings else name
        raise InputError(f"--model {told}: {error}; give settings as in smallcnn:classes=7,width=32") from error


def _own(module: str, function: str) -> nn.Module:
    if not module or not function:
        raise InputError(
            f"--model {module or f':{function}'}: give one of {', '.join(NAMES)}, or module:function for your own"
        )
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does: the user's module is where they are
    try:
        build = getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        hint = ": leave out .py" if module.endswith(".py") else ""
        raise InputError(f"--model {module}:{function}: no module named {error.name!r} here{hint}") from error
    except TypeError as error:
        raise InputError(
            f"--model {module}:{function}: give module:function without slashes, as in mymodel:build"
        ) from error
    except AttributeError as error:
        raise InputError(f"--model {module}:{function}: {module} has no {function!r}") from error
    if callable(build) and not isinstance(build, nn.Module):
        check_callable(build, f"--model {module}:{function}")
    model = build() if callable(build) and not isinstance(build, nn.Module) else build
    if not isinstance(model, nn.Module):
        raise InputError(f"--model {module}:{function} gave a {type(model).__name__}: it must build a torch.nn.Module")
    return model


def load_weights(model: nn.Module, weights: Path) -> None:
    """Put the weights of a safetensors file into a model."""
    try:
        model.load_state_dict(_read(weights))
    except RuntimeError as error:
        first = shorten(str(error).splitlines()[-1], 300, placeholder=" ...")
        raise InputError(f"--weights {weights} do not fit the model: {first}") from error


def fits(model: nn.Module, weights: Path) -> bool:
    """Whether a model has the names and shapes of the weights in a file."""
    found = {name: value.shape for name, value in _read(weights).items()}
    return found == {name: value.shape for name, value in model.state_dict().items()}


def _read(weights: Path) -> dict[str, Tensor]:
    if not weights.is_file():
        raise InputError(f"--weights {weights}: there is no such file")
    try:
        return load_file(weights)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"--weights {weights} cannot be read as safetensors ({error}): "
            "safetensors.torch.save_file(model.state_dict(), FILE) writes such a file"
        ) from error

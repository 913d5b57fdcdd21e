"""Penultimate features of any classifier, caught in passing by a hook."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from wildood.errors import InputError


@dataclass
class _Caught:
    """What the hook saw during one forward pass."""

    layer: str
    seen: list[Any] = field(default_factory=list)

    def features(self) -> Tensor:
        """One feature vector for each example; image-shaped features are averaged over their positions."""
        if not self.seen:
            raise InputError(f"the model's layer {self.layer!r} was not reached: name another one with features=")
        value = self.seen[-1]
        if isinstance(value, Tensor) and value.ndim == 4:
            value = value.mean((2, 3))
        if not isinstance(value, Tensor) or value.ndim != 2:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"the features at layer {self.layer!r} are {shape}, not (batch, features): name a submodule that gives one "
                "vector for each example with features="
            )
        return value.float()


@dataclass(frozen=True)
class FeatureTap:
    """A place in a model: the input of `layer` (a Linear, found), or its output (a submodule, named by the user).

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3))
    >>> with FeatureTap("2", side="input").catch(model) as caught:
    ...     _ = model(torch.zeros(4, 2))
    >>> caught.features().shape
    torch.Size([4, 5])
    """

    layer: str
    side: str

    @contextmanager
    def catch(self, model: nn.Module) -> Iterator[_Caught]:
        """Catch the features of the forward pass made inside the block."""
        caught = _Caught(self.layer)
        module = model.get_submodule(self.layer)
        if self.side == "input":
            handle = module.register_forward_pre_hook(
                lambda _module, inputs, named: caught.seen.append(inputs[0] if inputs else named["input"]), with_kwargs=True
            )
        else:
            handle = module.register_forward_hook(lambda _module, _inputs, output: caught.seen.append(output))
        try:
            yield caught
        finally:
            handle.remove()


def find_tap(model: nn.Module, batch: Tensor, name: str | None = None) -> FeatureTap:
    """The named submodule's output, or else the input of the last Linear that a forward pass of `batch` reaches.

    >>> import torch
    >>> find_tap(nn.Sequential(nn.Conv1d(1, 3, 2), nn.Flatten()), torch.zeros(4, 1, 2))
    Traceback (most recent call last):
    wildood.errors.InputError: the model has no nn.Linear that a forward pass reaches...
    """
    if name is not None:
        if name not in dict(model.named_modules()) or not name:
            some = ", ".join(repr(known) for known, _ in list(model.named_modules())[-3:] if known)
            raise InputError(f"the model has no submodule {name!r}: give one of the names in model.named_modules(): {some}")
        tap = FeatureTap(name, side="output")
    else:
        last = last_linear(model, batch)
        if last is None:
            raise InputError(
                "the model has no nn.Linear that a forward pass reaches: name the submodule whose output are the features "
                "with features= (--features); frozen (--frozen) needs an nn.Linear: leave it out"
            )
        tap = FeatureTap(last, side="input")
    with tap.catch(model) as caught:
        model(batch)
    caught.features()
    return tap


def last_linear(model: nn.Module, batch: Tensor) -> str | None:
    """The name of the last nn.Linear that a forward pass of `batch` reaches, if there is one.

    >>> import torch
    >>> last_linear(nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3)), torch.zeros(1, 2))
    '2'
    """
    reached: list[str] = []
    linears = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    handles = [
        module.register_forward_pre_hook(lambda _module, _inputs, name=name: reached.append(name))
        for name, module in linears
    ]
    try:
        model(batch)
    finally:
        for handle in handles:
            handle.remove()
    return reached[-1] if reached else None

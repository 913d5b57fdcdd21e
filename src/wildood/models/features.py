"""Penultimate features of any classifier, caught in passing by a hook."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from wildood.errors import InputError


@dataclass
class _Caught:
    """What a layer took or gave in one forward pass, the last time it was called."""

    layer: str
    module: nn.Module
    seen: tuple[()] | tuple[Any] = ()

    def features(self) -> Tensor:
        """One feature vector for each example; image-shaped features are averaged over their positions."""
        if not self.seen:
            raise InputError(f"the model's layer {self.layer!r} was not reached: name another one with features=")
        (value,) = self.seen
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
    >>> tap = FeatureTap("2", side="input")
    >>> with tap.attach(model), tap.catch(model) as caught:
    ...     _ = model(torch.zeros(4, 2))
    >>> caught.features().shape
    torch.Size([4, 5])
    """

    layer: str
    side: Literal["input", "output"]

    def attach(self, model: nn.Module) -> RemovableHandle:
        """Register the hook that `catch` needs, once for all calls of the model, until it is removed.

        It holds no state, so any number of threads may call the model. One for each call would be seen by all of them.
        """
        module = model.get_submodule(self.layer)
        if self.side == "input":
            return module.register_forward_pre_hook(_take_input, with_kwargs=True)
        return module.register_forward_hook(_take_output)

    @contextmanager
    def catch(self, model: nn.Module) -> Iterator[_Caught]:
        """Catch the features of the forward pass that this thread makes inside the block."""
        token = _CATCHING.set(_Caught(self.layer, model.get_submodule(self.layer)))
        try:
            yield _CATCHING.get()
        finally:
            _CATCHING.reset(token)


_CATCHING: ContextVar[_Caught] = ContextVar("the features that are caught")  # each thread has its own


def _take_input(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
    _take(module, inputs[0] if inputs else named.get("input"))


def _take_output(module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> None:
    _take(module, output)


def _take(module: nn.Module, value: Any) -> None:
    caught = _CATCHING.get(None)
    if caught is not None and caught.module is module:
        caught.seen = (value,)


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
    with tap.attach(model), tap.catch(model) as caught:
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

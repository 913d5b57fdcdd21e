"""Penultimate features of any classifier, read by a forward hook."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from wildood.data.structures import Raw, batch_length
from wildood.errors import InputError

Call = Callable[[nn.Module, Any], Any]  # how a model is called with a prepared batch
_LISTED = 8  # how many submodules an error message names, at most


@dataclass
class _Caught:
    """The input or output of a layer in one forward pass, the last time it was called."""

    layer: str
    module: nn.Module
    value: tuple[()] | tuple[Any] = ()

    def features(self) -> Tensor:
        """One feature vector for each example; image-shaped features are averaged over their positions."""
        if not self.value:
            raise InputError(f"the model's layer {self.layer!r} was not reached: name another one with features=")
        (value,) = self.value
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
    """A place in a model: the input of `layer` (the last Linear), or its output (a submodule that the user named).

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

        The hook has no state, so that any number of threads may call the model.
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
        caught.value = (value,)


def call_model(model: nn.Module, batch: Raw) -> Any:
    """The model's output for a prepared batch: model(**batch) for a dict, model(*batch) for a tuple or a list.

    >>> call_model(nn.Bilinear(2, 3, 4), {"input1": torch.zeros(5, 2), "input2": torch.zeros(5, 3)}).shape
    torch.Size([5, 4])
    """
    if isinstance(batch, Tensor):
        return model(batch)
    return model(**batch) if isinstance(batch, dict) else model(*batch)


def find_tap(model: nn.Module, batch: Raw, name: str | None = None, call: Call = call_model) -> FeatureTap:
    """The output of the named submodule, or else the input of the last Linear that a forward pass of `batch` reaches.

    >>> find_tap(nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3)), torch.zeros(1, 2))
    FeatureTap(layer='2', side='input')
    """
    if name is not None:
        if name not in {known for known, _ in model.named_modules() if known}:
            raise InputError(_no_submodule(name, _usable_as_features(model, batch, call)))
        tap = FeatureTap(name, side="output")
    else:
        last = last_linear(model, batch, call)
        if last is None:
            raise InputError(
                "the model has no nn.Linear that a forward pass reaches: name the submodule whose output are the features "
                "with features= (--features); frozen (--frozen) needs an nn.Linear: leave it out"
            )
        tap = FeatureTap(last, side="input")
    with tap.attach(model), tap.catch(model) as caught:
        call(model, batch)
    caught.features()
    return tap


def last_linear(model: nn.Module, batch: Raw, call: Call = call_model) -> str | None:
    """The name of the last nn.Linear that a forward pass of `batch` reaches, if there is one."""
    reached: list[str] = []
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                hooks.enter_context(module.register_forward_pre_hook(lambda *_, name=name: reached.append(name)))
        call(model, batch)
    return reached[-1] if reached else None


def _usable_as_features(model: nn.Module, batch: Raw, call: Call) -> list[str]:
    """The submodules that give one vector for each example (or an image, which is averaged), the first called first."""
    usable: dict[str, bool] = {}

    def note(name: str, output: Any) -> None:
        usable.pop(name, None)  # a submodule that is called again has its place, and its features, from its last call
        usable[name] = isinstance(output, Tensor) and output.ndim in {2, 4} and len(output) == batch_length(batch)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name and not isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
                hooks.enter_context(module.register_forward_hook(lambda *hooked, name=name: note(name, hooked[-1])))
        call(model, batch)
    return [name for name, fits in usable.items() if fits]


def _no_submodule(name: str, usable: list[str]) -> str:
    """That there is no such submodule, and which ones can be named: the last, where features are, if there are many."""
    if not usable:
        return f"the model has no submodule {name!r}, and none gives one vector for each example: give no features="
    near = get_close_matches(name, usable, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    last = ", ".join(map(repr, usable[-_LISTED:]))
    more = f", or one of {len(usable) - _LISTED} before them in model.named_modules()" if len(usable) > _LISTED else ""
    return f"the model has no submodule {name!r}{hint}: name one that gives one vector for each example: {last}{more}"

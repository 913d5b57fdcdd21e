"""A user's model behind its input spec, and the one batched forward pass that everything else uses."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wildood.data.inputs import InputSpec, to_model_input
from wildood.data.sources import Source, check_dense
from wildood.errors import InputError
from wildood.models.features import FeatureTap, find_tap
from wildood.models.heads import Head

WRAPPED = "_orig_mod"  # what torch.compile calls the module that it wraps


def uncompiled(model: nn.Module) -> nn.Module:
    """The model without the wrappers of torch.compile around it or around parts of it; give a copy, for it is changed.

    >>> import torch
    >>> part = torch.compile(nn.Linear(2, 3), backend="eager")
    >>> list(uncompiled(nn.Sequential(part, nn.ReLU())).state_dict()), uncompiled(part)
    (['0.weight', '0.bias'], Linear(in_features=2, out_features=3, bias=True))
    """
    for path, module in reversed(list(model.named_modules(remove_duplicate=False))):  # the innermost first
        if WRAPPED in dict(module.named_children()):
            inner: nn.Module = getattr(module, WRAPPED)
            if not path:
                return inner
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, inner)
    return model


def plain_name(name: str) -> str:
    """A parameter's or submodule's name in the model without wrappers.

    >>> plain_name("_orig_mod.body._orig_mod.0.weight")
    'body.0.weight'
    """
    return name.replace(f"{WRAPPED}.", "")


EVAL_BATCH = 256
_INTERRUPTED: Counter[nn.Module] = Counter()  # in training mode, but for as many blocks of `evaluating` in evaluation mode
_SWITCHING = Lock()
_LISTED = 8  # how many submodules an error message names, at most


class Outputs(NamedTuple):
    """The logits f(x), in fp32, and the features h(x) where a method asked for them.

    >>> Outputs(torch.zeros(2, 3)).features is None
    True
    """

    logits: Tensor
    features: Tensor | None = None

    def features_or_refuse(self) -> Tensor:
        """The features, for scores that read them."""
        if self.features is None:
            raise ValueError("this score needs features: give the classifier a tap")
        return self.features


class Classifier(nn.Module):
    """A user's model with its input spec in front: raw batch in, `Outputs` out.

    Attributes:
        model: what the user gave.
        spec: how raw examples become its input.
        tap: where its features are, for methods and scores that use them.
        head: makes logits of the features in the place of the model's last layer, for methods that train one.

    >>> classifier = Classifier(nn.Linear(2, 3), tap=None)
    >>> classifier(torch.zeros(4, 2)).logits.shape
    torch.Size([4, 3])
    """

    def __init__(self, model: nn.Module, spec: InputSpec | None = None, tap: FeatureTap | None = None) -> None:
        super().__init__()
        self.model = model
        self.spec = spec
        self.tap = tap
        self._hook = None if tap is None else tap.attach(model)
        self.head: Head | None = None

    def forward(self, raw: Tensor) -> Outputs:
        """Logits, and features if there is a tap, for a batch of raw examples."""
        return self.outputs(self.prepare(raw))

    def untap(self) -> None:
        """Read no features any more."""
        if self._hook is not None:
            self._hook.remove()
        self.tap = self._hook = None

    def prepare(self, raw: Tensor) -> Tensor:
        """Raw examples as the model takes them."""
        return to_model_input(raw.to(self.device), self.spec, self.dtype)

    def outputs(self, batch: Tensor) -> Outputs:
        """Logits, and features if there is a tap, for a batch that is prepared already."""
        if self.tap is None:
            return Outputs(logits_of(self.model(batch)))
        if self.head is None:
            with self.tap.catch(self.model) as caught:
                logits = logits_of(self.model(batch))
            return Outputs(logits, caught.features())
        return Outputs(*self.head.logits_and_features(self.features, batch))

    def features(self, batch: Tensor) -> Tensor:
        """The features alone, for a batch that is prepared already."""
        if self.tap is None:
            raise ValueError("this classifier has no features: give it a tap")
        with self.tap.catch(self.model) as caught:
            self.model(batch)
        return caught.features()

    @property
    def device(self) -> torch.device:
        """Where the model's first parameter or buffer is."""
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            return tensor.device
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in: the type of its first floating parameter."""
        return next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returned: a tensor, or an output with `.logits` as Hugging Face models return.

    >>> logits_of(torch.zeros(2, 3, dtype=torch.float64)).dtype
    torch.float32
    """
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise InputError(
            f"the model returned a {type(output).__name__}: it must return logits as a tensor, or an output with .logits"
        )
    return check_dense(logits, "the model's output").float()


def last_layer(classifier: Classifier, some: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias of the linear layer that makes logits of the features, for scores that change features.

    That it does is tried on some raw examples: the last Linear that a forward pass reaches may be something else.

    >>> classifier = Classifier(nn.Sequential(nn.Linear(2, 3)), tap=FeatureTap("0", side="input"))
    >>> weight, bias = last_layer(classifier, torch.ones(4, 2))
    >>> weight.shape, bias.shape
    (torch.Size([3, 2]), torch.Size([3]))
    """
    layer = None if classifier.tap is None else classifier.model.get_submodule(classifier.tap.layer)
    if classifier.tap is None or classifier.tap.side != "input" or not isinstance(layer, nn.Linear):
        raise InputError(
            "this needs the features that the classifier's last nn.Linear takes: give no features=, or leave frozen out"
        )
    weight = layer.weight.detach().float().clone()
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().float().clone()
    with evaluating(classifier):
        logits, features = classifier(some)
    made = None
    if features is not None and features.shape[1] == weight.shape[1]:
        made = nn.functional.linear(features, weight, bias)
    if made is None or made.shape != logits.shape or not torch.allclose(made, logits, rtol=1e-2, atol=1e-2):
        raise InputError(
            f"the last nn.Linear, {classifier.tap.layer!r}, does not make the model's logits: leave frozen out, or use "
            "another score; a temperature can be part of that layer (divide its weight and bias by it)"
        )
    return weight, bias


def try_classifier(model: nn.Module, raw: Tensor, spec: InputSpec | None) -> int:
    """Run the model once on a few examples, in evaluation mode; the number of its classes, or a clear refusal.

    >>> try_classifier(nn.Linear(2, 3), torch.zeros(4, 2), None)
    3
    """
    classifier = Classifier(model, spec)
    with evaluating(classifier):
        batch = to_model_input(raw.to(classifier.device), spec, classifier.dtype)
        try:
            output = model(batch)
        except Exception as error:
            raise InputError(
                f"the model fails on a batch of shape {tuple(batch.shape)} and dtype {batch.dtype}: {error}"
            ) from error
        logits = logits_of(output)
    if logits.ndim != 2 or len(logits) != len(raw) or logits.shape[1] < 2:
        raise InputError(
            f"the model's output for {len(raw)} examples has shape {tuple(logits.shape)}: it must be (batch, classes) "
            "with at least two classes"
        )
    if not logits.isfinite().all():
        raise InputError("the model's logits are not finite on the first labelled examples: check its weights and inputs")
    sums = logits.sum(1) if bool((logits >= 0).all()) else logits.exp().sum(1)
    if bool(((sums - 1).abs() < 1e-4).all()):
        raise InputError(
            "the model returns probabilities or their logarithms: return logits, without the softmax at its end"
        )
    return logits.shape[1]


def tap_features(model: nn.Module, raw: Tensor, spec: InputSpec | None, name: str | None = None) -> FeatureTap:
    """Where this model's features are: the named submodule's output, or the input of the last Linear that is reached.

    >>> tap_features(nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3)), torch.zeros(4, 2), None).layer
    '2'
    """
    classifier = Classifier(model, spec)
    with evaluating(classifier):
        batch = to_model_input(raw.to(classifier.device), spec, classifier.dtype)
        if name is not None and name not in {known for known, _ in model.named_modules() if known}:
            raise InputError(_no_submodule(name, _usable_as_features(model, batch)))
        return find_tap(model, batch, name)


def _usable_as_features(model: nn.Module, batch: Tensor) -> list[str]:
    """The submodules that give one vector for each example (or an image, which is averaged), the first called first."""
    usable: dict[str, bool] = {}

    def see(name: str, output: Any) -> None:
        usable.pop(name, None)  # a submodule that is called again has its place, and its features, from its last call
        usable[name] = isinstance(output, Tensor) and output.ndim in {2, 4} and len(output) == len(batch)

    handles = [
        module.register_forward_hook(lambda _module, _inputs, output, name=name: see(name, output))
        for name, module in model.named_modules()
        if name and not isinstance(module, torch.jit.ScriptModule)  # which takes no hooks
    ]
    try:
        model(batch)
    finally:
        for handle in handles:
            handle.remove()
    return [name for name, fits in usable.items() if fits]


def _no_submodule(name: str, usable: list[str]) -> str:
    """That there is no such submodule, and which ones can be named: the last, where features are, if there are many.

    >>> print(_no_submodule("boddy", ["stem", "body"]))
    the model has no submodule 'boddy' (did you mean 'body'?): name one that gives one vector for each example: 'stem',
    'body'
    """
    if not usable:
        return f"the model has no submodule {name!r}, and none gives one vector for each example: give no features="
    near = get_close_matches(name, usable, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    last = ", ".join(map(repr, usable[-_LISTED:]))
    more = f", or one of {len(usable) - _LISTED} before them in model.named_modules()" if len(usable) > _LISTED else ""
    return f"the model has no submodule {name!r}{hint}: name one that gives one vector for each example: {last}{more}"


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every submodule's mode is as it was afterwards.

    Where all of them are in evaluation mode already, nothing is written. Of several threads in such a block, the last one to
    leave it restores the modes.
    """
    with _SWITCHING:
        training = [part for part in module.modules() if part.training or part in _INTERRUPTED]
        if any(part.training for part in training):
            module.eval()
        _INTERRUPTED.update(training)
    try:
        with torch.no_grad():  # not inference_mode: what a model caches in here must be usable in training
            yield
    finally:
        with _SWITCHING:
            for part in training:
                _INTERRUPTED[part] -= 1
                if not _INTERRUPTED[part]:
                    del _INTERRUPTED[part]
                    part.training = True


def forward_all(
    classifier: Classifier, source: Source, batch_size: int = EVAL_BATCH
) -> Iterator[tuple[Outputs, Tensor | None]]:
    """The classifier's outputs for every example of a source, batch by batch, in order; call it inside `evaluating`.

    >>> import numpy as np
    >>> from wildood.data.sources import ArraySource
    >>> classifier = Classifier(nn.Linear(2, 3))
    >>> with evaluating(classifier):
    ...     [len(outputs.logits) for outputs, _ in forward_all(classifier, ArraySource(np.zeros((5, 2))), batch_size=2)]
    [2, 2, 1]
    """
    for raw, labels in raw_batches(source, batch_size):
        yield classifier(raw), None if labels is None else labels.to(classifier.device)


def raw_batches(source: Source, batch_size: int = EVAL_BATCH) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Every example of a source with its label, batch by batch, in order."""
    for start in range(0, len(source), batch_size):
        yield source.gather(torch.arange(start, min(start + batch_size, len(source))))


def each_output(classifier: Classifier, source: Source, take: Callable[[Outputs], Tensor]) -> Tensor:
    """What `take` makes of the outputs for every example of a source, on the CPU.

    >>> import numpy as np
    >>> from wildood.data.sources import ArraySource
    >>> each_output(Classifier(nn.Linear(2, 3)), ArraySource(np.zeros((5, 2))), lambda outputs: outputs.logits).shape
    torch.Size([5, 3])
    """
    with evaluating(classifier):
        return torch.cat([take(outputs).cpu() for outputs, _ in forward_all(classifier, source)])

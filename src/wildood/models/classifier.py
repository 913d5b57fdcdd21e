"""A user's model behind its input spec, and the one batched forward pass that everything else uses."""

import copy
import hashlib
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from wildood.data.inputs import Spec, to_model_input
from wildood.data.sources import Source, check_dense, memory_of
from wildood.data.structures import Raw, batch_length, shape_text, to_device
from wildood.errors import InputError
from wildood.models.features import Call, FeatureTap, call_model, find_tap
from wildood.models.heads import Head
from wildood.settings import quoted

EVAL_BATCH = 256
Precision = Literal["float32", "bf16"]
_LOGGER = logging.getLogger("wildood")
WRAPPED = "_orig_mod"  # what torch.compile calls the module that it wraps
_INTERRUPTED: Counter[nn.Module] = Counter()  # in training mode, but for as many blocks of `evaluating` in evaluation mode
_SWITCHING = Lock()


class Outputs(NamedTuple):
    """The logits f(x), in fp32, and the features h(x) where a method asked for them."""

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
        model: the user's model.
        spec: how raw examples become its input.
        tap: where its features are, for methods and scores that use them.
        call: how it is called with a batch: `call_model`, or the user's `forward`.
        head: makes logits of the features in the place of the model's last layer, for methods that train one.
        precision: of the model's forward pass in training mode; in evaluation mode, the model's own.

    >>> classifier = Classifier(nn.Linear(2, 3), tap=None)
    >>> classifier(torch.zeros(4, 2)).logits.shape
    torch.Size([4, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        spec: Spec | None = None,
        tap: FeatureTap | None = None,
        call: Call = call_model,
    ) -> None:
        super().__init__()
        self.model = model
        self.spec = spec
        self.tap = tap
        self.call = call
        self._hook = None if tap is None else tap.attach(model)
        self.head: Head | None = None
        self.precision: Precision = "float32"

    def forward(self, raw: Raw) -> Outputs:
        """Logits, and features if there is a tap, for a batch of raw examples."""
        return self.outputs(self.prepare(raw))

    def untap(self) -> None:
        """Stop reading features."""
        if self._hook is not None:
            self._hook.remove()
        self.tap = self._hook = None

    def prepare(self, raw: Raw) -> Raw:
        """Raw examples as the model takes them."""
        return to_model_input(to_device(raw, self.device), self.spec, self.dtype)

    def outputs(self, batch: Raw) -> Outputs:
        """Logits, and features if there is a tap, for a prepared batch."""
        if self.tap is None:
            return Outputs(logits_of(self._called(batch)))
        if self.head is None:
            with self.tap.catch(self.model) as caught:
                logits = logits_of(self._called(batch))
            return Outputs(logits, caught.features())
        return Outputs(*self.head.logits_and_features(self.features, batch))

    def features(self, batch: Raw) -> Tensor:
        """The features alone, for a prepared batch."""
        if self.tap is None:
            raise ValueError("this classifier has no features: give it a tap")
        with self.tap.catch(self.model) as caught:
            self._called(batch)
        return caught.features()

    def _called(self, batch: Raw) -> Any:
        """The model's output. Only the model runs in bf16: what is made of its output does not."""
        if self.precision == "bf16" and self.training:
            with torch.autocast(self.device.type, torch.bfloat16):
                return self.call(self.model, batch)
        return self.call(self.model, batch)

    def train_in(self, precision: Precision) -> None:
        """Set the precision; refuse one that this model or its device does not have.

        >>> Classifier(nn.Linear(2, 3).double()).train_in("bf16")
        Traceback (most recent call last):
        wildood.errors.InputError: precision is 'bf16', for models in float32, but this one is in float64: leave it out
        """
        if precision == "bf16":
            if self.dtype != torch.float32:
                own = str(self.dtype).removeprefix("torch.")
                raise InputError(f"precision is 'bf16', for models in float32, but this one is in {own}: leave it out")
            try:
                torch.autocast(self.device.type, torch.bfloat16)
            except RuntimeError as error:
                raise InputError(f"precision is 'bf16', which torch cannot use here: leave it out ({error})") from error
            if self.device.type == "cpu" and not cpu_has_bf16():
                _LOGGER.warning("this CPU has no instructions for bfloat16: precision='bf16' is slower than float32 here")
        self.precision = precision

    @property
    def device(self) -> torch.device:
        """Where the model's first parameter or buffer is."""
        first = next(itertools.chain(self.model.parameters(), self.model.buffers()), None)
        return torch.device("cpu") if first is None else first.device

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in: the type of its first floating parameter."""
        return next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)


def cpu_has_bf16() -> bool:
    """Whether the CPU has instructions for bfloat16; older torch does not tell, which counts as yes."""
    told: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return not told or any(has for name, has in told.items() if "bf16" in name)


def logits_of(output: Any) -> Tensor:
    """The logits in a model's output: a tensor, `.logits` as of Hugging Face models, ["logits"], or the first of a tuple.

    One logit z for each example is that of the second of two classes: the logits are (0, z).

    >>> logits_of({"logits": torch.tensor([[0.0], [3.0]])})
    tensor([[0., 0.],
            [0., 3.]])
    """
    logits = check_dense(_returned_logits(output), "the model's output").float()
    if logits.ndim == 1 or logits.shape[1:] == (1,):
        logits = nn.functional.pad(logits.reshape(-1, 1), (1, 0))
    return logits


def _returned_logits(output: Any) -> Tensor:
    """The tensor that the model means as its logits."""
    logits = output
    if not isinstance(output, Tensor):
        logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
        if isinstance(output, tuple | list) and logits is None and output:
            logits = output[0]
    if not isinstance(logits, Tensor):
        names = f" with {', '.join(map(repr, output))}" if isinstance(output, Mapping) else ""
        raise InputError(
            f"the model returned a {type(output).__name__}{names}: it must return logits, as a tensor, as .logits or "
            "['logits'], or as the first item of a tuple; or give forward=lambda model, x: ... that returns them"
        )
    return logits


def copy_classifier(
    model: nn.Module,
    source: Source,
    spec: Spec | None,
    features: str | None,
    *,
    uses_features: bool,
    choose_device: Callable[[nn.Module], torch.device | None] | None = None,
    call: Call = call_model,
    is_known: bool = False,
) -> tuple[Classifier, int]:
    """A copy of the user's model that is tried on the data, and the number of its classes.

    A line says where its logits are, if that is not obvious and the model is not `is_known` from an earlier copy.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: give a torch.nn.Module")
    if features is not None and not isinstance(features, str):
        raise InputError(f"features is {quoted(features)}: give a submodule's name, one of model.named_modules()")
    try:
        network = uncompiled(copy.deepcopy(unwrapped(model)))
    except (RuntimeError, TypeError) as error:
        raise InputError(f"the model cannot be copied: {error}") from error
    device = choose_device(network) if choose_device is not None else None
    network = network if device is None else network.to(device)  # before it is tried, lest all processes use one GPU
    few = source.gather(torch.arange(min(2, len(source))))[0]
    classes, tap = try_classifier(network, few, spec, call, is_known=is_known), None
    if uses_features or features is not None:
        tap = tap_features(network, few, spec, None if features is None else plain_name(features), call)
    if spec is not None:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Classifier(network, spec, tap if uses_features else None, call), classes


def chosen_device(device: str | torch.device) -> torch.device:
    """The device that a user names, or "auto": a GPU if there is one.

    >>> chosen_device("cpu")
    device(type='cpu')
    """
    has_gpu = torch.cuda.is_available()
    if device == "auto":
        return torch.device("cuda" if has_gpu else "cpu")
    such = "'cpu', 'cuda' or 'auto'" if has_gpu else "'cpu' or 'auto'"
    refusal = f"device is {quoted(device)}, which torch cannot use here: give {such}"
    try:
        found = torch.device(device)
        torch.zeros(1, device=found).tolist()  # a meta tensor has no values
    except (RuntimeError, TypeError, AssertionError) as error:
        raise InputError(refusal) from error
    return found


def check_spec(spec: Any) -> None:
    """Refuse an input that is no input spec."""
    if spec is not None and not isinstance(spec, Spec):
        raise InputError(f"input is a {type(spec).__name__}: give an InputSpec (images) or a TableSpec (tables)")


def try_classifier(model: nn.Module, raw: Raw, spec: Spec | None, call: Call = call_model, *, is_known: bool = False) -> int:
    """Run the model once on a few examples, in evaluation mode; the number of its classes, or a clear refusal."""
    classifier, count = Classifier(model, spec, call=call), batch_length(raw)
    with evaluating(classifier):
        batch = classifier.prepare(raw)
        try:
            output = call(model, batch)
        except Exception as error:
            raise InputError(
                f"the model fails on a batch of {shape_text(batch)}: {error}; {_advice(batch, call)}"
            ) from error
        logits = logits_of(output)
        if isinstance(output, tuple | list) and not hasattr(output, "logits") and (heads := _heads(model, batch, call)) > 1:
            raise InputError(
                f"the model returns the logits of {heads} heads: choose one, as forward=lambda model, x: model(x)[0] does, "
                "and fit a detector for each"
            )
        if bool(((logits >= 0) & (logits <= 1)).all()) and _ends_in_sigmoid(model, batch, call):
            raise InputError(
                "the model ends in a sigmoid: return what it is computed from, the logits; with several labels for each "
                "example (multi-label), fit a detector for one label at a time: forward=lambda model, x: ...[:, 0], y[:, 0]"
            )
    if isinstance(output, tuple | list) and not hasattr(output, "logits") and not is_known:
        _LOGGER.info("the model returns a %s of %d: its first item is taken as logits", type(output).__name__, len(output))
    if logits.ndim != 2 or len(logits) != count:
        raise InputError(
            f"the model's output for {count} examples has shape {tuple(logits.shape)}: it must be (batch, classes), or "
            "(batch, 1) for two classes; of several heads, return one (forward=lambda model, x: ...)"
        )
    if not logits.isfinite().all():
        raise InputError("the model's logits are not finite on the first labelled examples: check its weights and inputs")
    sums = logits.sum(1) if bool((logits >= 0).all()) else logits.exp().sum(1)
    if bool(((sums - 1).abs() < 1e-4).all()):
        raise InputError("the model returns probabilities or their logarithms: return logits, without a softmax at its end")
    return logits.shape[1]


def _advice(batch: Raw, call: Call) -> str:
    """What to give a model that fails on a batch."""
    if call is not call_model:
        return "give x as forward= takes it"
    how = "model(**x)" if isinstance(batch, Mapping) else "model(x)" if isinstance(batch, Tensor) else "model(*x)"
    floats = isinstance(batch, Tensor) and not batch.is_floating_point()
    return f"give x as {how} takes it, or forward=" + ("; if it takes floats, x.astype('float32')" if floats else "")


@contextmanager
def _linear_outputs(model: nn.Module) -> Iterator[list[Tensor]]:
    """What each nn.Linear that is called in the block returns, with a gradient even if its weights are frozen."""
    made: list[Tensor] = []

    def keep(_layer: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not output.requires_grad:
            output = output.requires_grad_().clone()  # the model may change it in place, which a leaf forbids
        made.append(output)
        return output

    hooks = [layer.register_forward_hook(keep) for layer in model.modules() if isinstance(layer, nn.Linear)]
    try:
        yield made
    finally:
        for hook in hooks:
            hook.remove()


def _heads(model: nn.Module, batch: Raw, call: Call) -> int:
    """How many items of the tuple that a model returns are what a linear layer makes, and nothing the logits are made of."""
    with torch.enable_grad(), _linear_outputs(model) as made:
        output = call(model, batch)
        logits, known = _returned_logits(output), {id(each) for each in made}
        heads = {id(item): item for item in output[1:] if id(item) in known and item is not logits}
        if id(logits) not in known or not heads or not logits.requires_grad:
            return 1
        reached = torch.autograd.grad(logits.sum(), list(heads.values()), allow_unused=True)
    return 1 + sum(gradient is None for gradient in reached)


def _ends_in_sigmoid(model: nn.Module, batch: Raw, call: Call) -> bool:
    """Whether the last thing that the model computes is a sigmoid, as far as its gradient says."""
    with torch.enable_grad():
        return type(_returned_logits(call(model, batch)).grad_fn).__name__ == "SigmoidBackward0"


def tap_features(
    model: nn.Module, raw: Raw, spec: Spec | None, name: str | None = None, call: Call = call_model
) -> FeatureTap:
    """Where this model's features are, by `find_tap` on a few raw examples, in evaluation mode."""
    classifier = Classifier(model, spec, call=call)
    with evaluating(classifier):
        return find_tap(model, classifier.prepare(raw), name, call)


def with_features(classifier: Classifier, source: Source, name: str | None = None) -> Classifier | None:
    """The classifier, or another one with the same model, with a tap for its features; None if it can have none.

    The features are the output of the named submodule, or the input of the last Linear. `untap` the other one after use.
    """
    if classifier.tap is not None:
        return classifier
    few, _ = source.gather(torch.arange(min(2, len(source))))
    try:
        tap = tap_features(classifier.model, few, classifier.spec, name, classifier.call)
    except InputError:
        return None
    return Classifier(classifier.model, classifier.spec, tap, classifier.call)


def last_layer(classifier: Classifier, some: Raw) -> tuple[Tensor, Tensor]:
    """Weight and bias of the linear layer that makes logits of the features, for scores that change features.

    It is tried on some raw examples, because the last Linear that a forward pass reaches may be something else.
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
    again = None
    if features is not None and features.shape[1] == weight.shape[1]:
        again = nn.functional.linear(features, weight, bias)
    if again is None or again.shape != logits.shape or not torch.allclose(again, logits, rtol=1e-2, atol=1e-2):
        raise InputError(
            f"the last nn.Linear, {classifier.tap.layer!r}, does not make the model's logits: leave frozen out, or use "
            "another score; a temperature can be part of that layer (divide its weight and bias by it)"
        )
    return weight, bias


def check_trainable(classifier: Classifier) -> None:
    """Refuse a model of which nothing can be trained."""
    if not all(parameter.is_leaf for parameter in classifier.parameters()):
        raise InputError("the model's copy cannot be trained (a traced model?): give the model it was made from")
    if not any(parameter.requires_grad for parameter in classifier.parameters()):
        raise InputError("no parameter of the model requires a gradient: nothing can be trained, unfreeze some of it")


def model_fingerprint(model: nn.Module) -> str:
    """A hash of the weights."""
    content = hashlib.blake2b(type(model).__qualname__.encode(), digest_size=16)
    for name, value in model.state_dict().items():
        content.update(f"{name} {getattr(value, 'dtype', '')} {tuple(getattr(value, 'shape', ()))}".encode())
        content.update(memory_of(value) if isinstance(value, Tensor) else repr(value).encode())
    return content.hexdigest()


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without DataParallel or DistributedDataParallel around it.

    >>> unwrapped(nn.DataParallel(nn.Linear(2, 3)))
    Linear(in_features=2, out_features=3, bias=True)
    """
    while isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        model = model.module
    return model


def uncompiled(model: nn.Module) -> nn.Module:
    """The model without the wrappers of torch.compile around it or around parts of it; give a copy, for it is changed.

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
    """A parameter's or submodule's name in the model without wrappers: "body._orig_mod.0" is "body.0"."""
    return name.replace(f"{WRAPPED}.", "")


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


def raw_batches(source: Source, batch_size: int = EVAL_BATCH) -> Iterator[tuple[Raw, Tensor | None]]:
    """Every example of a source with its label, batch by batch, in order."""
    for start in range(0, len(source), batch_size):
        yield source.gather(torch.arange(start, min(start + batch_size, len(source))))


def forward_all(
    classifier: Classifier, source: Source, batch_size: int = EVAL_BATCH
) -> Iterator[tuple[Outputs, Tensor | None]]:
    """The classifier's outputs for every example of a source, batch by batch, in order; call it inside `evaluating`."""
    for raw, labels in raw_batches(source, batch_size):
        yield classifier(raw), None if labels is None else labels.to(classifier.device)


def each_output(classifier: Classifier, source: Source, take: Callable[[Outputs], Tensor]) -> Tensor:
    """What `take` makes of the outputs for every example of a source, on the CPU."""
    with evaluating(classifier):
        return torch.cat([take(outputs).cpu() for outputs, _ in forward_all(classifier, source)])

"""A linear layer on a classifier's features, learned at one pace in each direction of them: in white coordinates.

Of a network's features a few directions are long, and what tells OOD from ID is often in short ones: a learning rate that
the long ones stand hardly moves those. With weight = start + V M, M = s (E φφᵀ + δ)^(-1/2) and φ the features, SGD on V
learns all directions at one pace, whatever the scale of the features. Its gradient is G M where the weight's is G, and its
step moves the weight by that times M again: the layer itself stays as it is. (The input side of K-FAC, Martens & Grosse.)

Of a layer that makes logits, one vector u is learned besides, which is added to the weights of all classes: u·φ moves the
energy and leaves every answer as it is. Where weight = start + (V + 1 uᵀ) M, 1 a vector of ones, a step of V and u moves the
weight along (I + 11ᵀ) G M M.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wildood.models.classifier import Classifier, evaluating, logits_of
from wildood.models.features import last_linear

EACH = 32.0  # the mean square of a white feature, for outputs from -1 to 1: what suits the default learning rate
FULL = 64  # directions of features that are learned at full pace; of more of them, each at less
LEAST = 1e-3  # of the greatest mean square, added to all of them at least, so that no direction is blown up
EXAMPLES = 50  # for each direction that is made white
WIDEST = 2048  # more features take long to make white


class Whitening(NamedTuple):
    """The weight of a linear layer, and the matrix M of its white coordinates, in float32.

    Attributes:
        weight: one row for each output.
        matrix: M.
        shared: whether a vector that all rows share is learned besides.
    """

    weight: Tensor
    matrix: Tensor
    shared: bool = False

    def __call__(self) -> None:
        """Multiply the gradient by M: once for that in white coordinates, once more for the step of the weight itself.

        And, if `shared`, by the root of I + 11ᵀ from the left: the mean of the rows counts √(1 + rows) times.

        >>> weight = nn.Parameter(torch.zeros(3, 1))
        >>> weight.grad = torch.tensor([[2.0], [1.0], [0.0]])
        >>> Whitening(weight, torch.eye(1), shared=True)()
        >>> weight.grad.T
        tensor([[3., 2., 1.]])
        """
        if self.weight.grad is None:
            return
        gradient = self.weight.grad.float() @ self.matrix
        if self.shared:
            gradient += (math.sqrt(1 + len(gradient)) - 1) * gradient.mean(0)
        self.weight.grad = gradient.to(self.weight.grad.dtype)


class Moments:
    """The sum of φφᵀ over the features φ that a linear layer has taken, one vector for each example.

    Attributes:
        layer: the linear layer.
        scale: the logits are so many times what it makes.
        count: how many vectors it has taken.
        total: the sum.
    """

    def __init__(self, layer: nn.Linear, scale: float = 1.0) -> None:
        self.layer, self.scale = layer, scale
        self.count = 0
        self.total = torch.zeros((layer.in_features,) * 2, dtype=torch.float64)

    def see(self, _layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A hook before the layer's forward pass."""
        features: Tensor = inputs[0] if inputs else named["input"]
        with torch.autocast(features.device.type, enabled=False):
            features = features.detach().float()
            self.total += (features.T @ features).cpu()
        self.count += len(features)

    def matrix(self, each: float = EACH) -> Tensor | None:
        """M; None where there was no vector, or one that is not finite."""
        if not self.count or not bool(self.total.isfinite().all()):
            return None
        return whitener(self.total / self.count, self.count, each).to(self.layer.weight.device, torch.float32)

    def whitening(self, each: float = EACH) -> Whitening | None:
        """Of the layer itself, which makes logits; None also where its weight is not trained.

        `each` is for the logits: where they are c times what the layer makes, so is the layer's gradient, and what a step of
        it does to them is c times that.
        """
        matrix, weight = self.matrix(each / self.scale**2), self.layer.weight
        return None if matrix is None or not weight.requires_grad else Whitening(weight, matrix, shared=True)


@contextmanager
def moments_of(classifier: Classifier, some: Tensor) -> Iterator[Moments | None]:
    """Those of the layer that makes the logits over the forward passes made inside the block; found with some examples.

    >>> classifier = Classifier(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4)))
    >>> with moments_of(classifier, torch.zeros(2, 2)) as moments:
    ...     _ = classifier(torch.ones(10, 2))
    >>> moments.count, moments.whitening().matrix.shape
    (10, torch.Size([3, 3]))
    """
    moments = _moments(classifier, some)
    if moments is None:
        yield None
        return
    handle = moments.layer.register_forward_pre_hook(moments.see, with_kwargs=True)
    try:
        yield moments
    finally:
        handle.remove()


def _moments(classifier: Classifier, some: Tensor) -> Moments | None:
    """Of the last linear layer, if it makes the logits in its only call, has a weight of its own, and few enough features.

    Logits may be a multiple of what it makes, as those of a classifier that was calibrated by a temperature are.
    """
    model = classifier.model
    with evaluating(classifier):
        batch = classifier.prepare(some)
        name = last_linear(model, batch)
        if name is None:
            return None
        layer, seen = model.get_submodule(name), list[Tensor]()
        # A copy: a model may divide what the layer made in its place.
        handle = layer.register_forward_hook(lambda _layer, _inputs, made: seen.append(made.clone()))
        try:
            logits = logits_of(model(batch))
        finally:
            handle.remove()
    made = seen[-1]
    if not isinstance(layer, nn.Linear) or layer.in_features > WIDEST or len(seen) > 1:
        return None
    uses = [each for _, each in model.named_parameters(remove_duplicate=False) if each is layer.weight]
    if made.shape != logits.shape or len(uses) != 1:
        return None
    exact = max(1e-5, torch.finfo(made.dtype).eps)
    made, logits = made.cpu().double(), logits.cpu().double()
    scale = float((made * logits).sum() / made.square().sum()) if bool(made.any()) else 1.0
    return Moments(layer, scale) if scale and torch.allclose(scale * made, logits, rtol=exact) else None


def whitener(second_moment: Tensor, count: int, each: float = EACH) -> Tensor:
    """M = s (E φφᵀ + δ)^(-1/2), from E φφᵀ over so many examples; about 0, since a layer multiplies features as they are.

    s² is `each`, the mean square of a white feature; less where there are more than `FULL` directions.

    δ leaves as many directions as the data can bear: Σ_i v_i / (v_i + δ), v_i the mean square of a direction, is at most one
    for each `EXAMPLES` of the examples. Learned at one pace, more of them would be learned by heart.

    >>> whitener(torch.diag(torch.tensor([4.0, 1.0])), count=1_000_000) ** 2 / EACH
    tensor([[0.2498, 0.0000],
            [0.0000, 0.9960]])
    """
    values, vectors = torch.linalg.eigh(second_moment)
    values = values.clamp(min=0)
    ridge = float(LEAST * values[-1]) or 1.0  # 1: no example has any feature
    while _directions(values, ridge) > max(1.0, count / EXAMPLES):
        ridge *= 1.1
    square = each * min(1.0, FULL / max(1.0, _directions(values, ridge)))
    matrix: Tensor = vectors * (square / (values + ridge)).sqrt() @ vectors.T
    return matrix


def _directions(values: Tensor, ridge: float) -> float:
    return float((values / (values + ridge)).sum())

"""A classifier's last linear layer, learned at one pace in each direction of its features.

Of a network's features a few directions are long, and what tells unknown from known is often in short ones: a learning rate
that the long ones stand hardly moves those. So the gradient G of the layer's weight becomes s² G (E φφᵀ + δ)⁻¹, φ its
features: the step that plain SGD takes where the features are white (the input side of K-FAC, Martens & Grosse 2015). One
learning rate then suits all directions, whatever the scale of the features.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wildood.models.features import last_linear
from wildood.models.outputs import Classifier, evaluating

EACH, ALL = 32.0, 2048.0  # at most, the mean squares of each white feature and of all: what suits the default learning rate
LEAST = 1e-3  # of the greatest mean square, added to all of them at least, so that no direction is blown up
EXAMPLES = 50  # for each direction that is made white
WIDEST = 2048  # more features take long to make white


class Whitening(NamedTuple):
    """The weight of a linear layer, and the matrix by which its gradient is multiplied."""

    weight: Tensor
    matrix: Tensor

    def __call__(self) -> None:
        """After a backward pass: the gradient in white coordinates."""
        if self.weight.grad is not None:
            self.weight.grad = self.weight.grad @ self.matrix


class Moments:
    """The sum of φφᵀ over what a linear layer has taken; None stands for no layer."""

    def __init__(self, layer: nn.Linear | None) -> None:
        self.layer = layer
        self.count = 0
        self.total = torch.zeros(()) if layer is None else torch.zeros((layer.in_features,) * 2, dtype=torch.float64)

    def see(self, _layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A hook before the layer's forward pass."""
        features = (inputs[0] if inputs else named["input"]).detach().flatten(0, -2).float()
        self.count += len(features)
        self.total += (features.T @ features).cpu()

    def whitening(self) -> Whitening | None:
        """None where there is nothing to whiten."""
        if self.layer is None or not self.count or not bool(self.total.isfinite().all()):
            return None
        return Whitening(self.layer.weight, whitener(self.total / self.count, self.count).to(self.layer.weight))


@contextmanager
def moments_of(classifier: Classifier, some: Tensor) -> Iterator[Moments]:
    """Those of the last linear layer, over the forward passes made inside the block; the layer is found with some examples.

    >>> classifier = Classifier(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4)))
    >>> with moments_of(classifier, torch.zeros(1, 2)) as moments:
    ...     _ = classifier(torch.ones(10, 2))
    >>> moments.count, moments.whitening().matrix.shape
    (10, torch.Size([3, 3]))
    """
    moments = Moments(_layer(classifier, some))
    if moments.layer is None:
        yield moments
        return
    handle = moments.layer.register_forward_pre_hook(moments.see, with_kwargs=True)
    try:
        yield moments
    finally:
        handle.remove()


def _layer(classifier: Classifier, some: Tensor) -> nn.Linear | None:
    """The last linear layer, if it has a weight of its own that is trained, and not too many features."""
    with evaluating(classifier):
        name = last_linear(classifier.model, classifier.prepare(some))
    layer = None if name is None else classifier.model.get_submodule(name)
    if not isinstance(layer, nn.Linear) or layer.in_features > WIDEST:
        return None
    uses = [each for _, each in classifier.model.named_parameters(remove_duplicate=False) if each is layer.weight]
    return layer if len(uses) == 1 and layer.weight.requires_grad else None


def whitener(second_moment: Tensor, count: int) -> Tensor:
    """s² (E φφᵀ + δ)⁻¹, from E φφᵀ over so many φ; about 0, since a layer multiplies features as they are.

    δ leaves as many directions as the data can bear: Σ_i v_i / (v_i + δ), v_i the mean square of a direction, is at most one
    for each `EXAMPLES` of the examples. Learned at one pace, more of them would be learned by heart.

    >>> whitener(torch.diag(torch.tensor([4.0, 1.0])), count=1_000_000) / EACH
    tensor([[0.2498, 0.0000],
            [0.0000, 0.9960]])
    """
    values, vectors = torch.linalg.eigh(second_moment)
    values = values.clamp(min=0)
    ridge = float(LEAST * values[-1]) or 1.0  # 1: no example has any feature
    while _directions(values, ridge) > max(1.0, count / EXAMPLES):
        ridge *= 1.1
    scale = min(EACH, ALL / max(1.0, _directions(values, ridge)))
    matrix: Tensor = vectors * (scale / (values + ridge)) @ vectors.T
    return matrix


def _directions(values: Tensor, ridge: float) -> float:
    return float((values / (values + ridge)).sum())

"""Second moments of the features that a classifier's last layer takes, and the matrix that whitens them.

A few directions of a network's features are long, and what tells OOD from ID is often in short ones: a learning rate that
the long ones stand hardly moves those. M = s (E φφᵀ + δ)^(-1/2), φ the features, maps them to whitened features in which all
directions are equally long. The preconditioner (`train/transforms.py`) trains a layer in these coordinates.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from wildood.data.structures import Raw
from wildood.models.classifier import Classifier, evaluating, logits_of
from wildood.models.features import last_linear

MEAN_SQUARE = 32.0  # of a whitened feature, for outputs from -1 to 1: suits the default learning rate
FULL = 64  # directions of features that are learned at the full learning rate; of more of them, each at less
LEAST_RIDGE = 1e-3  # of the largest mean square, so that no direction is blown up
EXAMPLES = 50  # for each direction that is whitened
WIDEST = 2048  # features: more take long to whiten


class Moments:
    """The sum `total` of φφᵀ over `count` feature vectors φ, the inputs of a linear layer; logits = scale * its output."""

    def __init__(self, layer: nn.Linear, scale: float = 1.0) -> None:
        self.layer, self.scale = layer, scale
        self.count = 0
        self.total = torch.zeros((layer.in_features,) * 2, dtype=torch.float64)

    def add(self, _layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Count the features of a forward pass: a hook before the layer."""
        features: Tensor = inputs[0] if inputs else named["input"]
        with torch.autocast(features.device.type, enabled=False):
            features = features.detach().float()
            self.total += (features.T @ features).cpu()
        self.count += len(features)

    def matrix(self, mean_square: float = MEAN_SQUARE, wild: int = 0) -> Tensor | None:
        """M, in float32, for training on so many wild examples; None if there was no vector, or one that is not finite."""
        if not self.count or not bool(self.total.isfinite().all()):
            return None
        fewer = min(self.count, wild or self.count)  # fewer wild examples than labelled ones are learned by heart first
        matrix = whitening_matrix(self.total / self.count, fewer, mean_square)
        return matrix.to(self.layer.weight.device, torch.float32)


@contextmanager
def moments_of(classifier: Classifier, some: Raw) -> Iterator[Moments | None]:
    """The moments at the layer that makes the logits, over the forward passes inside the block.

    `some` raw examples are used to find the layer. The block gets None if no linear layer makes the logits, or one of
    more than `WIDEST` features.
    """
    found = logit_layer(classifier, some)
    layer = None if found is None else classifier.model.get_submodule(found[0])
    if found is None or not isinstance(layer, nn.Linear) or layer.in_features > WIDEST:
        yield None
        return
    moments = Moments(layer, found[1])
    with moments.layer.register_forward_pre_hook(moments.add, with_kwargs=True):
        yield moments


def logit_layer(classifier: Classifier, some: Raw) -> tuple[str, float] | None:
    """The name of the last linear layer, if it makes the logits in its only call and has a weight of its own; and a scale.

    The logits may be a multiple, the scale, of Wφ + b, as in a classifier that was calibrated by a temperature.
    """
    model = classifier.model
    made: list[Tensor] = []
    with evaluating(classifier):
        batch = classifier.prepare(some)
        name = last_linear(model, batch, classifier.call)
        if name is None:
            return None
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)  # noqa: S101 - for mypy

        if not layer.weight.is_floating_point():  # quantized
            return None

        def keep(_layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            features: Tensor = inputs[0] if inputs else named["input"]
            made.append(nn.functional.linear(features, layer.weight, layer.bias))  # a subclass may return something else

        with layer.register_forward_pre_hook(keep, with_kwargs=True):
            logits = logits_of(classifier.call(model, batch))
    product = made[-1]
    uses = [each for _, each in model.named_parameters(remove_duplicate=False) if each is layer.weight]
    if len(made) > 1 or product.shape != logits.shape or len(uses) != 1:
        return None
    tolerance = max(1e-5, torch.finfo(product.dtype).eps)
    product, logits = product.cpu().double(), logits.cpu().double()
    scale = float((product * logits).sum() / product.square().sum()) if bool(product.any()) else 1.0
    return (name, scale) if scale and torch.allclose(scale * product, logits, rtol=tolerance) else None


def whitening_matrix(second_moment: Tensor, count: int, mean_square: float = MEAN_SQUARE) -> Tensor:
    """M = s (E φφᵀ + δ)^(-1/2), from E φφᵀ over `count` examples; about 0, since a layer multiplies features as they are.

    s² is `mean_square`, that of a whitened feature; less if there are more than `FULL` directions.

    δ leaves as many directions as the data can bear: Σ_i v_i / (v_i + δ), v_i the mean square of a direction, is at most one
    for every `EXAMPLES` examples. At one learning rate, more of them would be learned by heart.

    >>> whitening_matrix(torch.diag(torch.tensor([4.0, 1.0])), count=1_000_000) ** 2 / MEAN_SQUARE
    tensor([[0.2498, 0.0000],
            [0.0000, 0.9960]])
    """
    values, vectors = torch.linalg.eigh(second_moment)
    values = values.clamp(min=0)
    ridge = float(LEAST_RIDGE * values[-1]) or 1.0  # 1: all features are 0
    while _directions(values, ridge) > max(1.0, count / EXAMPLES):
        ridge *= 1.1
    square = mean_square * min(1.0, FULL / max(1.0, _directions(values, ridge)))
    matrix: Tensor = vectors * (square / (values + ridge)).sqrt() @ vectors.T
    return matrix


def _directions(values: Tensor, ridge: float) -> float:
    return float((values / (values + ridge)).sum())

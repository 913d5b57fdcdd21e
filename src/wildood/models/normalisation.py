"""Layers with batch statistics, while a batch of labelled and wild examples is trained on.

The deployed network normalises by running statistics of ID data. Batch statistics of a mixture are others: with heavy-tailed
unknowns they destroyed a network within 27 steps. So BatchNorm takes its statistics from the labelled examples of a batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

TORCH_FORWARDS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)


@contextmanager
def normalised_by_labelled(model: nn.Module, labelled: int, total: int) -> Iterator[None]:
    """In this block, layers normalise a batch of `total` examples by the statistics of the first `labelled` ones.

    Running statistics learn from the labelled examples, too. Gradients of all examples pass through the statistics: without
    those of the wild examples, biases in front of the layer run away. Layers that stay in evaluation mode are left alone. A
    layer with running statistics that is not torch's own BatchNorm keeps them as they are.

    >>> norm, batch = nn.BatchNorm1d(1, affine=False), torch.tensor([[-1.0], [1.0], [100.0]])
    >>> with normalised_by_labelled(norm, labelled=2, total=3):
    ...     norm(batch).T.round()
    tensor([[ -1.,   1., 100.]])
    """
    own, others = [], []
    for layer in model.modules():
        if layer.training and isinstance(layer, _BatchNorm) and type(layer).forward in TORCH_FORWARDS:
            own.append(layer)
        elif layer.training and hasattr(layer, "running_mean"):
            others.append(layer)
    for layer in own:
        layer.forward = partial(_forward, layer, labelled, total)  # type: ignore[method-assign]
    for layer in others:
        layer.training = False
    try:
        yield
    finally:
        for layer in own:
            del layer.forward
        for layer in others:
            layer.training = True


def _forward(layer: _BatchNorm, labelled: int, total: int, x: Tensor) -> Tensor:
    """BatchNorm with the statistics of the labelled examples, if there is a row for each example.

    Otherwise, as for tokens, rows may be in any order: it normalises by running statistics, or by all rows if it has none.
    """
    if len(x) != total or not labelled:
        if layer.running_mean is None:
            return type(layer).forward(layer, x)
        return F.batch_norm(x, layer.running_mean, layer.running_var, layer.weight, layer.bias, eps=layer.eps)
    known = x[:labelled]
    with torch.no_grad():
        type(layer).forward(layer, known)  # for the running statistics
    variance, mean = torch.var_mean(known.float(), [0, *range(2, x.ndim)], correction=0)
    scale = (variance + layer.eps).rsqrt()
    shift = -mean * scale
    if layer.affine:
        scale, shift = scale * layer.weight, shift * layer.weight + layer.bias
    shape = [1, -1, *([1] * (x.ndim - 2))]
    return torch.addcmul(shift.view(shape).to(x.dtype), x, scale.view(shape).to(x.dtype))

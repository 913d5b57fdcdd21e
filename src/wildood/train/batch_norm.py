"""BatchNorm of several processes: by the whole batch where torch can do that, by each process's share elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from wildood.methods.objective import Objective
from wildood.train.processes import this_process
from wildood.train.progress import logger


@contextmanager
def normalising_together(objective: Objective) -> Iterator[None]:
    """Let BatchNorm normalise by the whole batch, which torch has for GPUs only; elsewhere, say what it does."""
    if this_process().world == 1:
        yield
        return
    on_gpu = objective.classifier.device.type == "cuda"
    if any(not (on_gpu and _is_torchs(layer)) for layer in _normalising(objective)):
        logger.info("BatchNorm normalises by each process's share of a batch: one process would give another result")
    if not on_gpu:
        yield
        return
    with synchronised(objective):
        yield


@contextmanager
def synchronised(objective: Objective) -> Iterator[None]:
    """SyncBatchNorm, with the same tensors, in the place of each layer that normalises by the batch; then these again.

    Layers that stay in evaluation mode are left alone, and so are those that do more than torch's BatchNorm.
    """
    layers = [layer for layer in _normalising(objective) if _is_torchs(layer)]
    others = {layer: nn.SyncBatchNorm.convert_sync_batchnorm(layer) for layer in layers}  # type: ignore[no-untyped-call]
    places = [
        (module, name, child)
        for module in objective.modules()
        for name, child in module._modules.items()  # noqa: SLF001 - children() names one that stands twice only once
        if child in others
    ]
    for layer, other in others.items():  # features may be caught there, and a user may have hooks of their own
        vars(other).update({name: value for name, value in vars(layer).items() if "_hooks" in name})
    for module, name, layer in places:
        setattr(module, name, others[layer])
    try:
        yield
    finally:
        for module, name, layer in places:
            setattr(module, name, layer.train(others[layer].training))


def _normalising(objective: Objective) -> list[_BatchNorm]:
    """The layers that normalise by the batch; not those that stay in evaluation mode, or know the other processes."""
    found = (part for part in objective.train().modules() if isinstance(part, _BatchNorm) and part.training)
    return [part for part in found if not isinstance(part, nn.SyncBatchNorm)]


def _is_torchs(layer: _BatchNorm) -> bool:
    return type(layer).forward is _BatchNorm.forward

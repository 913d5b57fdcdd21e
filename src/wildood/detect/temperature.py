"""A temperature for a classifier whose logits are far too small or far too large, so that its probabilities say nothing."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wildood.data.sources import Source
from wildood.data.validation import all_labels
from wildood.detect.split import subsample
from wildood.models.classifier import Classifier, each_output, uncompiled, unwrapped
from wildood.models.moments import logit_layer
from wildood.scores.temperature_scaling import LARGEST, least_cross_entropy
from wildood.train.distributed import broadcast
from wildood.train.progress import logger

SAMPLE = 5000  # unseen ID examples, at most, that the temperature is found by
ALIKE = 3  # the ratio of the sizes of logits, at most, of examples that are scaled alike


def degenerate_temperature(logits: Tensor, labels: Tensor) -> float | None:
    """The temperature with the least cross-entropy (Guo et al., 2017) of a classifier that cannot do without; else None.

    Energies, distillation and the constraint on cross-entropy read the probabilities. These say nothing where

    - the cross-entropy is above log K, that of equal probabilities, although most examples are classified correctly: the
      logits are too large;
    - it is above half of log K, and a temperature below 1 would more than halve it: the logits are too small.

    A classifier that is wrong on most examples has none, and so has one whose best probabilities are all equal.

    >>> labels = torch.arange(100) % 4
    >>> logits = F.one_hot(torch.where(torch.arange(100) < 90, labels, 0), 4) * 5.0
    >>> [degenerate_temperature(logits * scale, labels) is None for scale in (0.001, 1, 1000)]
    [False, True, False]
    """
    logits = logits.double()
    if not len(logits) or not bool(logits.isfinite().all()) or int(labels.min()) < 0 or int(labels.max()) >= logits.shape[1]:
        return None  # which is said elsewhere
    if float((logits.argmax(1) == labels).double().mean()) < 0.5:
        return None

    most, now = math.log(logits.shape[1]), float(F.cross_entropy(logits, labels))
    if now <= most / 2:
        return None
    temperature, least = least_cross_entropy(logits, labels)
    too_small = temperature < 1 and least < now / 2
    inside = abs(math.log(temperature)) < math.log(LARGEST) - 0.1  # else equal probabilities are the best
    return temperature if inside and (now > most or too_small) else None


def divide_logits(
    model: nn.Module, classifier: Classifier, data: tuple[Source, Source], copied: Callable[[nn.Module], Classifier]
) -> tuple[nn.Module, Classifier, dict[str, str]]:
    """The user's model and a copy of it, with the last layer divided by the temperature that it needs, if it needs one.

    The classes that it predicts are the same. The user's own model is not changed: a copy takes its place.

    Args:
        model: the user's.
        classifier: a copy of it.
        data: labelled data, and unseen ID examples with classes, which decide unless their logits are of another size.
        copied: makes a classifier of a model.

    Returns:
        The model, the classifier, and for the record of the detector what to warn of.
    """
    labelled, unseen = (subsample(source, SAMPLE, seed=0) for source in data)
    logits, others = (each_output(classifier, source, lambda outputs: outputs.logits) for source in (unseen, labelled))
    found = degenerate_temperature(logits, all_labels(unseen))
    larger, smaller = sorted((_size(logits), _size(others)), reverse=True)
    if not larger <= ALIKE * smaller:  # these examples are scaled otherwise
        found = None
    # All processes decide as the first one does: another machine may round otherwise.
    temperature = float(broadcast(repr(found or 0.0).encode()) or b"0")
    if not temperature:
        return model, classifier, {}
    size = "small: all classes have nearly the same probability" if temperature < 1 else "large: its errors are certainties"
    layer = logit_layer(classifier, unseen.gather(torch.arange(min(2, len(unseen))))[0])
    if layer is None:
        remedy = f"divide them by {temperature:.2g}, the temperature with the least cross-entropy on unseen known data"
    else:
        remedy = f"the detector divides them by {temperature:.2g} (the same classes, other probabilities)"
        model = uncompiled(copy.deepcopy(unwrapped(model)))
        last: Any = model.get_submodule(layer[0])
        with torch.no_grad():
            for parameter in (last.weight, last.bias):
                if parameter is not None:
                    parameter.div_(temperature)
        precision, classifier = classifier.precision, copied(model)
        classifier.train_in(precision)
    text = f"the model's logits are too {size}; {remedy}"
    logger.warning("%s", text)
    return model, classifier, {"temperature": text}


def _size(logits: Tensor) -> float:
    """How far the logits of an example differ, on average."""
    return float(logits.double().std(1).mean())

"""Distillation from the starting classifier on wild data, so that fine-tuning keeps its predictions (our addition)."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from wildood.data.structures import Raw
from wildood.models.classifier import Classifier


class Distillation:
    """weight · mean KL(p₀ ‖ p): p is the softmax of the logits, p₀ that of the starting classifier.

    The energy stays free: adding a number to all logits of an example leaves p as it is. The starting classifier is a copy
    in evaluation mode, which is neither trained nor saved. The logits are those of training mode, so dropout costs a little
    from the first step on.

    >>> classifier = Classifier(torch.nn.Linear(2, 3))
    >>> distillation, raw = Distillation(classifier, weight=1.0), torch.ones(4, 2)
    >>> distillation(raw, classifier(raw).logits - 5).abs().item() < 1e-6
    True
    """

    def __init__(self, classifier: Classifier, weight: float) -> None:
        self.teacher = copy.deepcopy(classifier).eval().requires_grad_(requires_grad=False)
        self.teacher.training = True  # of the classifier, not of its layers: it computes in the precision of training
        self.weight = weight

    def __call__(self, raw: Raw, logits: Tensor) -> Tensor:
        """The divergence for these raw examples and the logits that they have now."""
        with torch.no_grad():
            before = self.teacher(raw).logits.log_softmax(1)
        divergence = F.kl_div(logits.log_softmax(1), before, reduction="batchmean", log_target=True)
        return self.weight * divergence

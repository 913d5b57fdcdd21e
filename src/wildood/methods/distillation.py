"""The starting classifier's answers on wild data: labels of a kind, for data that has none."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from wildood.models.classifier import Classifier


class Answers:
    """The mean of KL(p₀ ‖ p), p the softmax of the logits and p₀ what it was at the start.

    A price for answers that change: a nat costs as much as a wild example that `Woods` is certain to be ID. The energy is
    free: what is added to all logits of an example leaves p as it is. The starting classifier is a copy of its own in
    evaluation mode, which is neither trained nor saved; the logits are those of training, so that BatchNorm and dropout have
    a small price from the first step on.

    >>> classifier = Classifier(torch.nn.Linear(2, 3))
    >>> answers, raw = Answers(classifier), torch.ones(4, 2)
    >>> answers(raw, classifier(raw).logits - 5).abs().item() < 1e-6
    True
    """

    def __init__(self, classifier: Classifier) -> None:
        self.first = copy.deepcopy(classifier).eval().requires_grad_(requires_grad=False)

    def __call__(self, raw: Tensor, logits: Tensor) -> Tensor:
        """Of these examples, and the logits that they have now."""
        with torch.no_grad():
            before = self.first(raw).logits.log_softmax(1)
        return F.kl_div(logits.log_softmax(1), before, reduction="batchmean", log_target=True)

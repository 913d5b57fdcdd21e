"""SHE (Zhang et al., 2023): the inner product with the stored pattern of the predicted class."""

import torch
from torch import Tensor

from wildood.data.sources import Source
from wildood.data.validation import all_labels
from wildood.errors import InputError
from wildood.models.classifier import Classifier, Outputs, each_output
from wildood.scores.labelled import class_means, labelled_features
from wildood.scores.score import Needs, Score


class She(Score):
    """s(x) = -<φ(x), S_y>, where y is the predicted class and S_y the mean feature of its correctly classified examples.

    The pattern of a class without any is the mean over all correctly classified examples.

    >>> She().needs.labels
    True
    """

    paper = (
        "Zhang et al., OOD Detection based on In-Distribution Data Patterns Memorization with Modern Hopfield Energy, 2023"
    )
    needs = Needs(labelled=True, labels=True, features=True)
    patterns: Tensor  # S, one row per class

    def __init__(self) -> None:
        super().__init__()
        self.declare("patterns")

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Compute the patterns."""
        features = labelled_features(classifier, labelled, "She")
        logits = each_output(classifier, labelled, lambda outputs: outputs.logits)
        labels = all_labels(labelled)
        right = logits.argmax(1) == labels
        if not bool(right.any()):
            raise InputError("She: the classifier is wrong on every labelled example: check the labels")
        means, counts = class_means(features[right], labels[right], logits.shape[1])
        patterns = torch.where(counts[:, None] > 0, means, features[right].double().mean(0))
        self.patterns = patterns.float().to(classifier.device)

    def forward(self, outputs: Outputs) -> Tensor:
        """Minus the inner product."""
        return -(outputs.features_or_refuse() * self.patterns[outputs.logits.argmax(1)]).sum(1)

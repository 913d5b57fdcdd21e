"""What several scores compute from labelled data: its features, their mean, the mean of each class, the last layer."""

import logging

import torch
from torch import Tensor

from wildood.data.sources import Source
from wildood.errors import InputError
from wildood.models.classifier import Classifier, Outputs, each_output, last_layer

LEAST_NORM = 1e-12  # of a vector that is divided by its norm
_LOGGER = logging.getLogger("wildood")


def layer_of(classifier: Classifier, labelled: Source) -> tuple[Tensor, Tensor]:
    """Weight W and bias b of the classifier's last layer, tried on one labelled example."""
    return last_layer(classifier, labelled.gather(torch.arange(1))[0])


def labelled_features(classifier: Classifier, labelled: Source, score: str) -> Tensor:
    """The features of every labelled example, on the CPU; `score` is who says that some are not finite."""
    features = each_output(classifier, labelled, Outputs.features_or_refuse)
    bad = int((~features.isfinite().all(1)).sum())
    if bad:
        raise InputError(
            f"{score}: {bad} of {len(features)} labelled examples have features that are not finite: drop those with very "
            "large values"
        )
    return features


def refuse_negative(features: Tensor, score: str) -> None:
    """Refuse features that no ReLU made.

    >>> refuse_negative(torch.tensor([[1.0, -1.0]]), "Scale")
    Traceback (most recent call last):
    wildood.errors.InputError: Scale needs features that are not negative, as after a ReLU, but 50 % of these are: give...
    """
    share = float((features < 0).double().mean())
    if share:
        raise InputError(
            f"{score} needs features that are not negative, as after a ReLU, but {100 * share:.2g} % of these are: give "
            "another score"
        )


def warn_of_negative(features: Tensor, score: str) -> None:
    """Warn of features that no ReLU made, for a score whose formula holds for them but whose paper has none."""
    share = float((features < 0).double().mean())
    if share:
        _LOGGER.warning(
            "%s was proposed for features that are not negative, as after a ReLU, but %.2g %% of these are: compare it with "
            "other scores",
            score,
            100 * share,
        )


def mean_feature(features: Tensor, score: str) -> Tensor:
    """μ, the mean of all features; refused where they are all the same, since nothing can be far from it then.

    >>> mean_feature(torch.tensor([[1.0, 2.0], [3.0, 2.0]]), "Nci")
    tensor([2., 2.])
    """
    if bool((features == features[0]).all()):
        raise InputError(f"{score}: the labelled features do not vary: give more examples")
    return features.double().mean(0).float()


def class_means(vectors: Tensor, classes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The mean of the vectors of each class, in double precision, and how many it has; 0 for a class without any.

    >>> class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2]), 3)[0].flatten().tolist()
    [2.0, 0.0, 5.0]
    """
    counts = torch.bincount(classes, minlength=count).double()
    sums = torch.zeros(count, vectors.shape[1], dtype=torch.double).index_add_(0, classes, vectors.double())
    return sums / counts.clamp(min=1)[:, None], counts

"""Methods side by side: the same starting classifier, data and metrics for each of them, over several seeds."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from wildood.data.inputs import InputSpec
from wildood.detect.detector import Detector
from wildood.detect.fit import fit
from wildood.detect.posthoc import posthoc
from wildood.evaluate.metrics import accuracy, auroc, fpr_at_tpr, mean_and_error
from wildood.experiments.digits import SPEC, starting_classifier
from wildood.experiments.parts import Parts
from wildood.methods.energy_logistic import EnergyLogistic
from wildood.methods.energy_margin import EnergyMargin
from wildood.methods.objective import Method
from wildood.methods.outlier_exposure import OutlierExposure
from wildood.methods.woods import Woods
from wildood.methods.woods_alt import WoodsAlt
from wildood.scores.energy import EnergyScore
from wildood.scores.mahalanobis import Mahalanobis
from wildood.scores.max_softmax import MaxSoftmax
from wildood.scores.odin import Odin
from wildood.scores.score import Score

METHODS: dict[str, Score | Method] = {
    "max-softmax": MaxSoftmax(),
    "ODIN": Odin(),
    "Mahalanobis": Mahalanobis(),
    "energy": EnergyScore(),
    "OE": OutlierExposure(),
    "energy, margins": EnergyMargin(),
    "energy, logistic": EnergyLogistic(),
    "WOODS": Woods(),
    "WOODS-alt": WoodsAlt(),
}


@dataclass(frozen=True)
class Metrics:
    """What a detector does on data that nobody has trained on: shares from 0 to 1.

    Attributes:
        fpr95: the share of OOD accepted when 95 % of ID is accepted (ID is the positive class).
        auroc: the probability that an OOD example scores higher than an ID example.
        accuracy: of the classifier on ID, rejected or not.
        false_alarms: the share of ID rejected at the deployed threshold.
        caught: the share of OOD rejected at the deployed threshold.
    """

    fpr95: float
    auroc: float
    accuracy: float
    false_alarms: float
    caught: float

    @classmethod
    def of(cls, detector: Detector, test_id: tuple[Any, Any], test_ood: Any) -> "Metrics":
        """Measure a detector on ID examples with their classes, and on OOD examples."""
        id_scores, classes = detector.score_and_classify(test_id[0])
        ood_scores, ood_classes = detector.score_and_classify(test_ood)
        return cls(
            fpr95=fpr_at_tpr(id_scores, ood_scores),
            auroc=auroc(id_scores, ood_scores),
            accuracy=accuracy(classes, test_id[1]),
            false_alarms=float(np.mean(~detector.accepts(id_scores, classes))),
            caught=float(np.mean(~detector.accepts(ood_scores, ood_classes))),
        )


class Outcome(NamedTuple):
    """One method on one seed."""

    method: str
    seed: int
    metrics: Metrics
    detector: Detector


def detector_of(
    model: nn.Module,
    method: Score | Method,
    parts: Parts,
    spec: InputSpec,
    seed: int,
) -> Detector:
    """What a method makes of a starting classifier and the parts of a seed, be it a score or a training recipe.

    The last epoch is deployed: a row is its method, whatever data set aside says of it.
    """
    given: dict[str, Any] = {"labelled": parts.labelled, "wild": parts.wild, "holdout": parts.holdout}
    if isinstance(method, Score):
        return posthoc(model, method, **given, input=spec, seed=seed)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the table says how well each one does
    try:
        return fit(model, method=method, **given, input=spec, seed=seed, keep="last", verbose=False)
    finally:
        logging.disable(before)


def outcomes(seeds: Iterable[int], data: Callable[[int], Parts]) -> Iterator[Outcome]:
    """Every method on every seed, one after the other; a seed decides split, starting classifier and training."""
    for seed in seeds:
        parts = data(seed)
        model = starting_classifier(parts.labelled, seed)
        for name, method in METHODS.items():
            detector = detector_of(model, method, parts, SPEC, seed)
            yield Outcome(name, seed, Metrics.of(detector, parts.test_id, parts.test_ood), detector)


def summary(results: Sequence[tuple[str, Metrics]]) -> dict[str, dict[str, tuple[float, float]]]:
    """Mean and standard error over seeds of each metric, for each method.

    >>> first, second = Metrics(0.1, 0.9, 1.0, 0.04, 0.8), Metrics(0.3, 0.9, 1.0, 0.06, 0.6)
    >>> mean, error = summary([("energy", first), ("energy", second)])["energy"]["fpr95"]
    >>> round(mean, 6), round(error, 6)
    (0.2, 0.1)
    """
    return {
        method: {
            metric.name: mean_and_error([getattr(found, metric.name) for name, found in results if name == method])
            for metric in fields(Metrics)
        }
        for method in dict.fromkeys(name for name, _ in results)
    }

"""Whether known examples of today look to the classifier like labelled ones, and what follows for training."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from scipy.stats import ks_2samp
from torch import Tensor

from wildood.data.sources import Source
from wildood.data.validation import has_labels
from wildood.detect.split import FitSplit, subsample
from wildood.evaluate.metrics import Floats
from wildood.methods.objective import Start
from wildood.models.classifier import Classifier, Outputs, each_output, evaluating, forward_all, with_features
from wildood.scores.energy import energy
from wildood.train.distributed import broadcast
from wildood.train.progress import logger

LEVEL = 0.01  # of the tests
DIRECTIONS = 5  # of the features, that are compared
SAMPLE = 5000  # examples of each kind, at most, that are compared: with more, differences that do no harm are found


@dataclass(frozen=True)
class Drift:
    """Whether known data has changed: a test of the features that the start gives labelled examples and known ones of today.

    The features are compared along the `DIRECTIONS` in which those of labelled data vary most, by a Kolmogorov-Smirnov test
    in each, and the smallest p-value is multiplied by their number (Bonferroni). Where known data has changed, labelled data
    misleads the constraint on false alarms: it is met there while known traffic is pushed out.

    Logits would not do: a classifier gives larger ones to labelled data that it has memorised. Its features hardly differ
    there, as far as was measured (docs/method.md).

    Attributes:
        p_value: of the hypothesis that they do not differ.
        examples: the number of those of today.
        like_labelled: whether known traffic is like labelled data all the same (`traffic_is_like_labelled`).

    >>> Drift(p_value=0.001, examples=500).found
    True
    """

    p_value: float
    examples: int
    like_labelled: bool = False

    @property
    def found(self) -> bool:
        """Whether they differ, and known traffic is like those of today."""
        return self.p_value < LEVEL and not self.like_labelled

    def fresh_share(self, data: FitSplit) -> float:
        """The share of fresh examples among the ID examples of a batch.

        It is a half where they differ. Where they do not, all ID examples count alike: fresh ones that are few would be
        memorised if each counted for more. Without classes, fresh ones are at most a half: cross-entropy needs the others.
        """
        if data.fresh is None or self.found:
            return 0.5
        share = len(data.fresh) / (len(data.fresh) + len(data.labelled))
        return share if has_labels(data.fresh) else min(0.5, share)

    def record(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {**asdict(self), "found": self.found}


def measure_drift(classifier: Classifier, start: Start, data: FitSplit, features: str | None = None) -> Drift:
    """Test the fresh examples, or without them the holdout's that choose; a difference is logged, with what to give."""
    today = data.selection if data.fresh is None else data.fresh
    few, now = (subsample(source, SAMPLE, start.seed) for source in (data.labelled, today))
    p_value = _difference(classifier, few, now, features) if len(now) else 1.0
    drift = Drift(_of_first_process(p_value), len(today))
    if not drift.found:
        return drift
    if data.fresh is None and data.wild_aside is not None and "ood" not in data.fingerprints:
        labelled = -start.logsumexp.double().numpy()
        energies = (_energies(classifier, source) for source in (today, data.wild_aside))
        drift = Drift(drift.p_value, len(today), traffic_is_like_labelled(labelled, *energies))
    if drift.found:
        if data.fresh is not None:
            remedy = "Half of the ID examples in training are fresh ones"
        elif data.may_train:
            remedy = "A third of the holdout takes part in training: known examples of today as fresh= (--fresh) would help"
        else:
            remedy = "The holdout is too small to train on a part of it: give known examples of today as fresh= (--fresh)"
        logger.warning(
            "known data has changed: labelled and %s have different features (p = %.1g). %s",
            "the holdout" if data.fresh is None else "fresh",
            drift.p_value,
            remedy,
        )
    return drift


def _difference(classifier: Classifier, labelled: Source, today: Source, features: str | None) -> float:
    """The p-value of the hypothesis that the features of both are distributed alike; of the logits without features."""
    tapped = with_features(classifier, labelled, features)
    first, second = (each_output(tapped or classifier, source, _features_or_logits) for source in (labelled, today))
    if tapped is not None and tapped is not classifier:
        tapped.untap()
    first, second = (each[each.isfinite().all(1)].double() for each in (first, second))
    if min(len(first), len(second)) < 2:
        return 1.0
    directions = torch.linalg.eigh(first.T.cov().reshape(first.shape[1], -1)).eigenvectors[:, -DIRECTIONS:]
    pairs = zip((first @ directions).T.numpy(), (second @ directions).T.numpy(), strict=True)
    values = [float(ks_2samp(one, other, method="asymp").pvalue) for one, other in pairs]
    return min(1.0, len(values) * min(values))


def _features_or_logits(outputs: Outputs) -> Tensor:
    return outputs.logits if outputs.features is None else outputs.features.float()


def traffic_is_like_labelled(labelled: Floats, holdout: Floats, wild: Floats) -> bool:
    """Whether known traffic is like labelled data and not like the holdout, by the energies that the start gives them.

    It is if the start is surer of wild data than of the holdout, and if labelled data explains most of that: the one-sided
    Kolmogorov-Smirnov statistic against labelled data is less than half of that against the holdout. The classifier was then
    trained on known traffic, or the holdout is harder than known traffic. Where labelled data does not explain it, the
    reason may be unknowns that the classifier is too sure of.

    >>> import numpy as np
    >>> sure, less = np.linspace(-20, -10, 500), np.linspace(-15, -5, 500)
    >>> traffic_is_like_labelled(labelled=sure, holdout=less, wild=sure)
    True
    >>> traffic_is_like_labelled(labelled=sure, holdout=less, wild=np.append(less, np.full(100, -90.0)))
    False
    """
    if not len(holdout) or not len(wild):
        return False
    of_holdout, of_labelled = (ks_2samp(each, wild, alternative="less", method="asymp") for each in (holdout, labelled))
    like = of_holdout.pvalue < LEVEL and of_labelled.statistic < of_holdout.statistic / 2
    return bool(_of_first_process(float(like)))


def _of_first_process(value: float) -> float:
    """The first process's value, on all of them: another machine may round otherwise."""
    return float(broadcast(repr(value).encode()) or b"")


def _energies(classifier: Classifier, source: Source) -> Floats:
    """The energies of a source, without those that are not finite, which is said elsewhere."""
    with evaluating(classifier):
        found = torch.cat([energy(outputs.logits).cpu() for outputs, _ in forward_all(classifier, source)])
    return found[found.isfinite()].double().numpy()

"""Whether known examples of today look to the classifier like labelled ones, and what follows for training."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from scipy.stats import ks_2samp

from wildood.data.sources import Source
from wildood.data.validation import has_labels
from wildood.detect.split import FitSplit
from wildood.evaluate.metrics import Floats
from wildood.methods.objective import Start
from wildood.models.classifier import Classifier, evaluating, forward_all
from wildood.scores.energy import energy
from wildood.train.distributed import broadcast
from wildood.train.progress import logger

LEVEL = 0.05  # of each test


@dataclass(frozen=True)
class Drift:
    """The Kolmogorov-Smirnov test on the energies that the start gives labelled examples and known ones of today.

    They differ where known data has changed since, or where the classifier has memorised its labelled data. The constraint
    on false alarms is then measured on the wrong examples: it is met on labelled data while known traffic is pushed out.

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


def measure_drift(classifier: Classifier, start: Start, data: FitSplit) -> Drift:
    """Test the fresh examples, or without them the holdout's that choose; a difference is logged, with what to give."""
    today = data.selection if data.fresh is None else data.fresh
    labelled, known = -start.logsumexp.double().numpy(), _energies(classifier, today)
    p_value = float(ks_2samp(labelled, known, method="asymp").pvalue) if len(known) else 1.0
    drift = Drift(_of_first_process(p_value), len(today))
    if not drift.found:
        return drift
    if data.fresh is None and data.wild_aside is not None and "ood" not in data.fingerprints:
        wild = _energies(classifier, data.wild_aside)
        drift = Drift(drift.p_value, len(today), traffic_is_like_labelled(labelled, known, wild))
    if drift.found:
        if data.fresh is not None:
            remedy = "Half of the ID examples in training are fresh ones"
        elif data.may_train:
            remedy = "A third of the holdout takes part in training: known examples of today as fresh= (--fresh) would help"
        else:
            remedy = "The holdout is too small to train on a part of it: give known examples of today as fresh= (--fresh)"
        logger.warning(
            "the classifier scores labelled and %s differently (p = %.1g): known data has changed, or the classifier has "
            "memorised labelled. %s",
            "the holdout" if data.fresh is None else "fresh",
            drift.p_value,
            remedy,
        )
    return drift


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

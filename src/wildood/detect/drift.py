"""Whether the classifier scores known examples of today as it scores labelled ones, and what follows for training."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from scipy.stats import ks_2samp

from wildood.detect.split import FitSplit
from wildood.methods.objective import Start
from wildood.models.classifier import Classifier, evaluating, forward_all
from wildood.train.distributed import broadcast
from wildood.train.progress import logger

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Drift:
    """The test of Kolmogorov and Smirnov on the energies that the start gives labelled examples and known ones of today.

    They differ where known data has changed since, or where the classifier has memorised its labelled data. The constraint
    on false alarms is then measured on the wrong examples: it is met on labelled data while known traffic is pushed out.

    >>> Drift(p_value=0.001, examples=500).found
    True
    """

    p_value: float
    examples: int  # of today

    @property
    def found(self) -> bool:
        """Whether they differ."""
        return self.p_value < 1 - CONFIDENCE

    def fresh_share(self, data: FitSplit) -> float:
        """The share of fresh examples among the ID examples of a batch.

        It is a half where they differ. Where they do not, all ID examples count alike: fresh ones that are few would be
        memorised if each counted for more.
        """
        fresh = 0 if data.fresh is None else len(data.fresh)
        return 0.5 if self.found else fresh / (fresh + len(data.labelled))

    def record(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {**asdict(self), "found": self.found}


def measure_drift(classifier: Classifier, start: Start, data: FitSplit) -> Drift:
    """Test the fresh examples, or without them the holdout's that choose; a difference is logged, with what to give."""
    today = data.selection if data.fresh is None else data.fresh
    with evaluating(classifier):
        sums = torch.cat([outputs.logits.logsumexp(1).cpu() for outputs, _ in forward_all(classifier, today)])
    sums = sums[sums.isfinite()]  # an example that is not finite is said elsewhere
    p_value = float(ks_2samp(start.logsumexp.numpy(), sums.numpy(), method="asymp").pvalue) if len(sums) else 1.0
    p_value = float(broadcast(repr(p_value).encode()) or b"")  # another machine may round otherwise
    drift = Drift(p_value, len(today))
    if drift.found:
        given = data.fresh is not None
        logger.info(
            "the classifier scores labelled and %s differently (p = %.1g): known data has changed, or it has memorised "
            "labelled. %s: more known examples of today, as fresh= (--fresh), would help",
            "fresh" if given else "the holdout",
            p_value,
            "Half of the ID examples in training are fresh ones"
            if given
            else "A third of the holdout takes part in training",
        )
    return drift

"""Whether the classifier scores known examples of today as it scores labelled ones, and what follows for training."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from scipy.stats import ks_2samp

from wildood.data.sources import Source
from wildood.detect.split import FitSplit
from wildood.evaluate.metrics import Floats
from wildood.methods.objective import Start
from wildood.models.classifier import Classifier, evaluating, forward_all
from wildood.scores.energy import energy
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
    """Test the fresh examples, or without them the holdout's that choose; a difference is logged, with what to give.

    The holdout's are not like known traffic if the classifier is surer of wild data than of them: nothing is found then.
    """
    given = data.fresh is not None
    today = data.selection if data.fresh is None else data.fresh
    energies = _energies(classifier, today)
    p_value = _first_process(ks_2samp(-start.logsumexp.numpy(), energies, method="asymp").pvalue if len(energies) else 1.0)
    if (
        not given
        and data.wild_aside is not None
        and is_surer(surer_p_value(energies, _energies(classifier, data.wild_aside)))
    ):
        return Drift(1.0, len(today))
    drift = Drift(p_value, len(today))
    if drift.found:
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


def surer_p_value(holdout: Floats, wild: Floats) -> float:
    """The p-value of the hypothesis that the start is no surer of wild data than of the holdout, by their energies.

    Unknowns cannot be the reason if it is surer: the known examples of both are not alike.
    """
    return _first_process(float(ks_2samp(holdout, wild, alternative="less", method="asymp").pvalue))


def is_surer(p_value: float) -> bool:
    """Whether that hypothesis is rejected."""
    return p_value < 1 - CONFIDENCE


def _energies(classifier: Classifier, source: Source) -> Floats:
    """The energies of a source, without those that are not finite, which is said elsewhere."""
    with evaluating(classifier):
        found = torch.cat([energy(outputs.logits).cpu() for outputs, _ in forward_all(classifier, source)])
    return found[found.isfinite()].double().numpy()


def _first_process(value: float) -> float:
    """The value of the first process, on all of them: another machine may round otherwise."""
    return float(broadcast(repr(float(value)).encode()) or b"")

"""What data set aside shows about a finished fit: whether training helped, and whether the detector rejects anything."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from wildood.data.sources import Source
from wildood.detect.baseline import Baseline
from wildood.detect.detector import Detector
from wildood.detect.split import FitSplit, subsample
from wildood.evaluate.metrics import Floats
from wildood.evaluate.mixture import share_p_value
from wildood.evaluate.selection import Comparison, compare_acceptance
from wildood.models.classifier import Classifier
from wildood.scores.score import Score, score_all

CONFIDENCE = 0.95  # of the test that some example is unknown
START_SCORES = {
    "Ensemble": "ensemble score",
    "EnergyScore": "energy score",
    "MaxSoftmax": "max-softmax score",
    "Knn": "KNN score",
    "Mahalanobis": "Mahalanobis score",
}
SAMPLE = 1000  # labelled, fresh and trained wild examples that show how many of them the threshold rejects
UNLIKE_FRESH = 0.25  # of fresh examples rejected: more show that the holdout is not like them
UNLIKE_BOTH = 0.25  # of labelled and of wild examples rejected: more of both show that the holdout is like neither
UNLIKE_WILD = 0.5  # of wild examples rejected: more show that, or that most are unknown


@dataclass(frozen=True)
class Assessment:
    """The assessment of a fit, with what a user should be warned of.

    >>> assessment = Assessment(Comparison(0.9, 0.91, 0.01, 500, 25), True, "wild", 500, 0.09, 1e-3)
    >>> assessment.helped, assessment.warnings[0][:36]
    (False, 'training was not shown to help: of 5')
    """

    benefit: Comparison | None  # the trained detector against the start; None where no epoch qualified
    start_kept: bool  # the start is deployed, because training was not shown to help
    examples: str  # "wild", or "OOD" where known OOD examples choose
    aside: int  # how many of these were set aside
    rejected: float  # the share of these that the detector rejects
    nothing_unknown: float  # the p-value of the hypothesis that none of these is unknown
    trained_on: int = 0  # wild examples of the training that were scored; 0 where the start is deployed
    rejected_of_trained: float = 0.0  # the share of these that the detector rejects
    rejected_of_labelled: float = 0.0  # the share of some labelled examples that the detector rejects
    rejected_of_fresh: float = 0.0  # the share of some fresh examples that the detector rejects
    start_score: str = "EnergyScore"  # of the start
    like_labelled: bool = False  # known traffic is like labelled data and not like the holdout

    @property
    def helped(self) -> bool:
        """Whether training was shown to help."""
        return self.benefit is not None and training_helped(self.benefit)

    @property
    def warnings(self) -> list[str]:
        """What to know before the detector is deployed, one sentence each."""
        if self.rejected_of_labelled > 0.5:
            share = f"{100 * self.rejected_of_labelled:.0f} %"
            return [f"the threshold rejects {share} of labelled: is the holdout scaled or preprocessed otherwise?"]
        every = (
            self._holdout_unlike_both(),
            self._holdout_unlike_traffic(),
            self._no_benefit(),
            self._nothing_unknown(),
            self._memorised(),
            self._like_labelled(),
        )
        return [text for text in every if text]

    def record(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {**asdict(self), "helped": self.helped, "warnings": self.warnings}

    def _holdout_unlike_both(self) -> str:
        """Where the threshold rejects much of labelled, which it should reject least, and of wild data."""
        if self.examples != "wild" or min(self.rejected_of_labelled, self.rejected) <= UNLIKE_BOTH:
            return ""
        shares = f"{100 * self.rejected_of_labelled:.0f} % of labelled and {100 * self.rejected:.0f} % of the wild examples"
        return f"the threshold rejects {shares} set aside: is the holdout easier than both, or scaled otherwise?"

    def _holdout_unlike_traffic(self) -> str:
        """Where the threshold, which the holdout set, rejects most of today's data."""
        remedy = "known data has changed since the holdout, or is scaled otherwise: give a holdout of today's known data"
        if self.rejected_of_fresh > UNLIKE_FRESH:
            return f"the threshold rejects {100 * self.rejected_of_fresh:.0f} % of fresh: {remedy}"
        if self.rejected > UNLIKE_WILD and self.examples == "wild":
            share = f"{100 * self.rejected:.0f} % of the {self.aside} wild examples set aside"
            return f"the threshold rejects {share}: unless most of these are unknown, {remedy}"
        return ""

    def _no_benefit(self) -> str:
        if self.helped:
            return ""
        if self.benefit is not None and self._found_nothing:
            return (
                f"training found nothing unknown in the {self.aside} {self.examples} examples set aside (p = "
                f"{self.benefit.nothing_unknown:.2g}): the start is deployed with its {self._start_name}; give wild data "
                "with some unknowns, or more of it"
            )
        if self.benefit is None:
            return (
                f"no epoch accepted less {self.examples} data than the start without losing more than half a point of "
                f"accuracy: the start is deployed with its {self._start_name}; try to train longer, as with "
                "schedule=Schedule(steps=1000) (--steps 1000), or more wild data"
            )
        trained, start = 100 * self.benefit.trained, 100 * self.benefit.start
        if not self.start_kept:
            deployed = "the trained detector is deployed because keep asks for it"
        else:
            deployed = f"the start is deployed with its {self._start_name}"
            if trained < start:
                deployed += "; more wild data or a larger holdout may decide it, or keep='last' (--keep last)"
        return (
            f"training was not shown to help: of {self.aside} {self.examples} examples set aside, the trained detector "
            f"accepts {trained:.1f} % and the {self._start_name} of the start {start:.1f} % (less is better; mean over "
            f"false-alarm rates up to alpha; standard error of the difference {100 * self.benefit.error:.1f}); {deployed}"
        )

    @property
    def _found_nothing(self) -> bool:
        """Whether the start is deployed only because no wild example was shown to be unknown."""
        return self.start_kept and self.benefit is not None and self.benefit.helped

    @property
    def _start_name(self) -> str:
        return START_SCORES[self.start_score]

    def _nothing_unknown(self) -> str:
        if self.nothing_unknown <= 1 - CONFIDENCE or self.helped or self._found_nothing:
            return ""
        return (
            f"nothing unknown was shown in the {self.aside} {self.examples} examples set aside (p = "
            f"{self.nothing_unknown:.2g}): they hold hardly any, the detector misses them, or they are too few to tell; "
            "give wild data with some unknowns, or more of it"
        )

    def _like_labelled(self) -> str:
        if not self.like_labelled:
            return ""
        return (
            "the classifier is as sure of the wild data as of labelled, and surer than of the holdout: it was trained on "
            "wild examples, or known ones are harder in the holdout than in traffic. Wild acceptance then hardly tells "
            "which detector is better: give wild data that the classifier has not seen, or a holdout like today's known data"
        )

    def _memorised(self) -> str:
        """Where the detector rejects more of the data it was trained on, by more than three standard errors."""
        if not self.trained_on:
            return ""
        pooled = float(np.average([self.rejected, self.rejected_of_trained], weights=[self.aside, self.trained_on]))
        error = math.sqrt(pooled * (1 - pooled) * (1 / self.aside + 1 / self.trained_on))
        if self.rejected_of_trained - self.rejected <= 3 * error:
            return ""
        return (
            f"the detector rejects {100 * self.rejected_of_trained:.1f} % of the wild data that it was trained on and "
            f"{100 * self.rejected:.1f} % of that set aside: it has memorised some of it; expect the latter on new data, or "
            "train shorter, with a smaller lr, or on more wild data"
        )


def training_helped(benefit: Comparison) -> bool:
    """Whether training was shown to help: it accepts less wild data, and some of that is shown to be unknown.

    Without unknowns there is nothing to catch. A look that accepts less then does so by chance, and the luckiest of many
    looks was chosen.
    """
    return benefit.helped and benefit.nothing_unknown <= 1 - CONFIDENCE


def aside_scores(classifier: Classifier, score: Score, data: FitSplit) -> tuple[Floats, Floats]:
    """The scores of what is set aside: the holdout examples that choose, and the wild ones."""
    assert data.wild_aside is not None  # noqa: S101 - the caller has checked
    known, wild = (score_all(classifier, source, score)[0] for source in (data.selection, data.wild_aside))
    return known.astype(np.float64), wild.astype(np.float64)


def training_benefit(start: Baseline, trained: tuple[Classifier, Score], data: FitSplit, alpha: float) -> Comparison:
    """How much of the data set aside a trained detector accepts, compared with the start."""
    return benefit_over(start, aside_scores(*trained, data), alpha)


def benefit_over(start: Baseline, scores: tuple[Floats, Floats], alpha: float) -> Comparison:
    """The same, from the trained detector's scores of what is set aside."""
    known, wild = scores
    return replace(compare_acceptance(start.aside, (known, wild), alpha), nothing_unknown=share_p_value(known, wild))


def assess(
    detector: Detector,
    data: FitSplit,
    benefit: Comparison | None,
    start_score: str,
    like_labelled: bool,
    seed: int,
    *,
    start_kept: bool,
) -> Assessment:
    """Assess a calibrated detector on data set aside, and on some of the data that it was trained on."""
    assert detector.holdout_scores is not None  # noqa: S101 - calibrated
    assert data.wild_aside is not None  # noqa: S101 - the caller has checked

    def rejected(source: Source | None) -> float:
        return 0.0 if source is None else float(np.mean(~detector.accepts(*detector.score_and_classify(source))))

    aside, by_ood, trained_on = data.wild_aside, "ood" in data.fingerprints, None
    if data.wild is not None and not start_kept and not by_ood:
        trained_on = subsample(data.wild.whole(seed), max(SAMPLE, len(aside)), seed)
    scores, classes = detector.score_and_classify(aside)
    return Assessment(
        benefit,
        start_kept,
        "OOD" if by_ood else "wild",
        aside=len(aside),
        rejected=float(np.mean(~detector.accepts(scores, classes))),
        nothing_unknown=share_p_value(detector.holdout_scores, scores),
        trained_on=0 if trained_on is None else len(trained_on),
        rejected_of_trained=rejected(trained_on),
        rejected_of_labelled=rejected(subsample(data.labelled, SAMPLE, seed)),
        rejected_of_fresh=rejected(None if data.fresh is None else subsample(data.fresh, SAMPLE, seed)),
        start_score=start_score,
        like_labelled=like_labelled,
    )


def accuracy_lost(detector: Detector, examples: int) -> dict[str, str]:
    """For the record: whether the detector is less accurate on data set aside than the start, by more than chance."""
    start, kept = detector.history[0], detector.history[detector.record["kept_epoch"]]
    if "accuracy" not in start or "accuracy" not in kept:
        return {}
    accuracy = detector.record.get("retrained", kept)["accuracy"]
    lost, error = start["accuracy"] - accuracy, math.sqrt(start["accuracy"] * (1 - start["accuracy"]) / examples)
    if lost <= 0.01 + 2 * error:
        return {}
    return {
        "accuracy_lost": f"the classifier is right on {100 * accuracy:.1f} % of {examples} examples set aside, the "
        f"start on {100 * start['accuracy']:.1f} %"
    }

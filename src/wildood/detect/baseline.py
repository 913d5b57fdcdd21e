"""The starting classifier's best post-hoc score: what training must beat, and what is deployed where it does not."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from wildood.data.sources import ArraySource, Source
from wildood.data.structures import Raw, one_tensor
from wildood.data.validation import all_labels
from wildood.data.wild import MOST_ASIDE
from wildood.detect.drift import traffic_is_like_labelled
from wildood.detect.split import FitSplit, subsample
from wildood.errors import InputError
from wildood.evaluate.metrics import Floats
from wildood.evaluate.selection import compare_acceptance
from wildood.models.classifier import Classifier, Outputs, copy_classifier, evaluating, forward_all
from wildood.scores.energy import EnergyScore
from wildood.scores.ensemble import Ensemble
from wildood.scores.knn import Knn
from wildood.scores.mahalanobis import Mahalanobis
from wildood.scores.max_softmax import MaxSoftmax
from wildood.scores.score import Score, score_all
from wildood.train.distributed import broadcast

CONFIDENCE = 0.95  # that a score beats the energy
FIT_SAMPLE = 10_000  # labelled examples, at most, that a score is fitted on: more would make KNN slow and large


class Baseline(NamedTuple):
    """The start with one of its post-hoc scores, and its scores of the data set aside: ID, then wild."""

    classifier: Classifier
    score: Score
    aside: tuple[Floats, Floats]
    like_labelled: bool = False  # known traffic is like labelled data and not like the holdout


def best_start(
    model: nn.Module,
    trained: Classifier,
    data: FitSplit,
    alpha: float,
    seed: int,
    *,
    features: str | None = None,
    only_energy: bool = False,
) -> Baseline:
    """The start of a trained classifier, with its `Ensemble` score, or one that is shown to beat that by wild acceptance.

    A score is shown to beat it as training is: by wild acceptance at equal false-alarm rates, but at 95 % confidence for all
    candidates together, and by fresh and wild examples of the training, too, because the start has not seen them. The
    candidates need one forward pass: energy, max-softmax, KNN and Mahalanobis. A model without features has its energy in
    the place of the ensemble, and so has everything with `only_energy`.

    There are no candidates where known traffic is like labelled data and not like the holdout: that changes each score in
    its own way, so that wild acceptance does not tell which is better.
    """
    assert data.wild_aside is not None  # noqa: S101 - the caller has checked
    same: dict[str, Any] = {"choose_device": lambda _: trained.device, "call": trained.call, "is_known": True}
    default: Score = Ensemble()
    candidates: list[Score] = [EnergyScore(), MaxSoftmax(), Knn(), Mahalanobis(epsilon=0.0)]
    try:
        start, _ = copy_classifier(model, data.labelled, trained.spec, features, uses_features=not only_energy, **same)
    except InputError:  # a model without features
        start, _ = copy_classifier(model, data.labelled, trained.spec, None, uses_features=False, **same)
        candidates = [MaxSoftmax()]
    known = subsample(data.labelled, FIT_SAMPLE, seed)
    labelled = StoredOutputs(start, known if start.tap is not None else subsample(known, 1, seed))
    fitted_on = labelled, ArraySource(np.arange(len(labelled.logits))[:, None], all_labels(known)[: len(labelled.logits)])
    aside = [StoredOutputs(start, data.selection)], [StoredOutputs(start, data.wild_aside)]
    if start.tap is None or not _is_fitted(default, *fitted_on, aside[0][0]):
        default = EnergyScore()
        candidates = [] if only_energy else [each for each in candidates if not isinstance(each, EnergyScore)]
    like_labelled = False
    if candidates and "ood" not in data.fingerprints:
        of_labelled = score_all(*fitted_on, EnergyScore())[0].astype(np.float64)
        like_labelled = traffic_is_like_labelled(of_labelled, *_scores_of(EnergyScore(), aside))
    candidates = [] if like_labelled else candidates
    every = _with_training_data(aside, start, data, seed) if candidates else aside
    best, of_default, least = default, _scores_of(default, every), np.inf
    for score in candidates:
        if not _is_fitted(score, *fitted_on, aside[0][0]):
            continue
        comparison = compare_acceptance(of_default, _scores_of(score, every), alpha)
        if comparison.is_shown(CONFIDENCE, len(candidates)) and comparison.trained < least:
            best, least = score, comparison.trained
    # All processes decide as the first one does: another machine may round otherwise.
    name = (broadcast(type(best).__name__.encode()) or b"").decode()
    best = next(score for score in (default, *candidates) if type(score).__name__ == name)
    of_aside = _scores_of(best, aside)
    if not best.needs.features:
        start.untap()
    return Baseline(start, best.to(start.device), of_aside, like_labelled)


def fitted_ensemble(tapped: Classifier, data: FitSplit, seed: int) -> Ensemble | None:
    """The `Ensemble` score of a trained classifier with features; None where it cannot be fitted."""
    known, score = subsample(data.labelled, FIT_SAMPLE, seed), Ensemble()
    examples = ArraySource(np.arange(len(known))[:, None], all_labels(known))
    if not _is_fitted(score, StoredOutputs(tapped, known), examples, StoredOutputs(tapped, data.selection)):
        return None
    return score.to(tapped.device)


def _is_fitted(score: Score, labelled: "StoredOutputs", examples: Source, unseen: "StoredOutputs") -> bool:
    """Fit a score on labelled data, and an ensemble's units on unseen ID examples, if that is possible."""
    failed: InputError | None = None
    try:
        fit = score.fit_members if isinstance(score, Ensemble) else score.fit
        fit(labelled, examples)
    except InputError as error:  # fewer examples than neighbours, or features that do not vary
        failed = error
    if broadcast(b"fitted" if failed is None else b"failed") == b"failed":  # all processes decide as the first one does
        return False
    if failed is not None:
        raise failed
    if isinstance(score, Ensemble):
        score.standardise(unseen, unseen.rows())
    return True


class StoredOutputs(Classifier):
    """The outputs of a classifier for every example of a source; its raw examples are their numbers.

    >>> stored = StoredOutputs(Classifier(nn.Linear(2, 3)), ArraySource(np.zeros((5, 2), np.float32)))
    >>> stored(torch.tensor([[4], [0]])).logits.shape
    torch.Size([2, 3])
    """

    def __init__(self, classifier: Classifier, source: Source) -> None:
        super().__init__(nn.Identity())
        with evaluating(classifier):
            batches = [outputs for outputs, _ in forward_all(classifier, source)]
        self.logits = torch.cat([outputs.logits.cpu() for outputs in batches])
        features = [outputs.features.cpu() for outputs in batches if outputs.features is not None]
        self.stored_features = torch.cat(features) if features else None

    def rows(self) -> ArraySource:
        """The numbers of the examples."""
        return ArraySource(np.arange(len(self.logits))[:, None])

    def forward(self, raw: Raw) -> Outputs:
        """The outputs for these numbers."""
        rows = one_tensor(raw, "a number")[:, 0].cpu()
        return Outputs(self.logits[rows], None if self.stored_features is None else self.stored_features[rows])


Samples = tuple[list[StoredOutputs], list[StoredOutputs]]  # ID examples, and wild ones


def _scores_of(score: Score, samples: Samples) -> tuple[Floats, Floats]:
    known, wild = ([score_all(each, each.rows(), score)[0].astype(np.float64) for each in several] for several in samples)
    return np.concatenate(known), np.concatenate(wild)


def _with_training_data(aside: Samples, start: Classifier, data: FitSplit, seed: int) -> Samples:
    """What is set aside, and the fresh and wild examples of the training: the start has not seen these."""
    wild = None if data.wild is None or "ood" in data.fingerprints else data.wild.whole(seed)
    fresh, traffic = (
        [] if source is None else [StoredOutputs(start, subsample(source, MOST_ASIDE, seed))]
        for source in (data.fresh, wild)
    )
    return aside[0] + fresh, aside[1] + traffic

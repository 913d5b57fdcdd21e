"""`posthoc`: a score on an unchanged classifier in, a calibrated detector out."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from wildood.data.inputs import Spec
from wildood.data.sources import Source
from wildood.data.validation import all_labels, check_labels, labelled_source, read_once, rows_of, unlabelled_source
from wildood.data.wild import as_wild
from wildood.detect.detector import NOT_COMPARED, Detector, Example, Promise, examples_of, versions
from wildood.detect.split import (
    check_holdout_size,
    check_overlap,
    check_seed,
    fingerprints_of,
    halve_holdout,
    split_labelled,
    subsample,
)
from wildood.errors import InputError
from wildood.evaluate.metrics import fpr_at_tpr
from wildood.evaluate.thresholds import check_alpha, check_confidence, check_finite, conformal_threshold, examples_needed
from wildood.models.classifier import (
    Classifier,
    check_spec,
    chosen_device,
    copy_classifier,
    each_output,
    model_fingerprint,
)
from wildood.models.features import Call, call_model
from wildood.scores.perturbation import PerturbedScore
from wildood.scores.score import Score, score_all
from wildood.settings import check_callable, check_flag, optional
from wildood.train.progress import logger

ACCURACY_SAMPLE = 1000  # labelled examples, at most, that tell whether the model is trained
CHOSEN_BY = 2000  # wild examples, at most, that choose a setting: each is scored once for every candidate


def posthoc(
    model: nn.Module,
    score: Score,
    *,
    labelled: Any = None,
    holdout: Any = None,
    wild: Any = None,
    ood: Any = None,
    alpha: float = 0.05,
    confidence: float | None = None,
    by_class: bool = False,
    input: Spec | None = None,  # noqa: A002 - the user's word for it
    features: str | None = None,
    forward: Call | None = None,
    device: str | torch.device | None = None,
    allow_duplicates: bool = False,
    seed: int = 0,
) -> Detector:
    """A detector from an unchanged classifier and a post-hoc score.

    A setting of the score that is None (an epsilon, a k) is chosen on one half of the holdout, by wild acceptance if wild
    data is given, else on ID data alone. A score that needs unseen data is fitted on that half. The other half then sets
    the threshold.

    Args:
        model: any module that maps a batch to logits; copied, never changed.
        score: such as `EnergyScore()` or `Mahalanobis()`.
        labelled: the training data of the model, `(x, y)`, or `x` for scores without classes. Most scores that read
            features are fitted on it.
            Without a holdout, 10 % of it sets the threshold, and the false-alarm rate is not guaranteed.
        holdout: ID examples that the model was not trained on, `(x, y)` or `x`. They set the threshold.
        wild: unlabelled traffic to choose settings by.
        ood: known OOD examples to choose settings by; used for nothing else.
        alpha: the false-alarm rate of the threshold.
        confidence: guarantee that rate with this probability over the draw of the holdout, instead of on average.
        by_class: a threshold for each predicted class, so that no class has all the false alarms.
        input: how uint8 images (`InputSpec`) or tables (`TableSpec`) become model input; without it, floats are used as
            they are.
        features: the submodule whose output are the features, for scores that use them; by default the input of the last
            Linear.
        forward: how the model is called, for models that take something else: forward(model, x) returns the logits.
        device: where the detector computes, such as "cuda"; by default where the model is.
        allow_duplicates: equal examples in the holdout and in `labelled` are no leak, because inputs repeat by nature.
        seed: decides which half of the holdout chooses.

    >>> import numpy as np, torch, wildood
    >>> x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    >>> wildood.posthoc(torch.nn.Linear(4, 3), wildood.MaxSoftmax(), holdout=x, alpha=0.1).promise.examples
    50
    """
    if not isinstance(score, Score):
        raise InputError(f"score is a {type(score).__name__}: give a score such as EnergyScore()")
    check_spec(input)
    allow_duplicates = check_flag(allow_duplicates, "allow_duplicates")
    alpha, seed, by_class = check_alpha(alpha), check_seed(seed), check_flag(by_class, "by_class")
    confidence = optional(check_confidence)(confidence)
    labelled, holdout = rows_of(labelled, input, "labelled"), rows_of(holdout, input, "holdout")
    wild, ood = rows_of(wild, input, "wild", labels=False), rows_of(ood, input, "ood", labels=False)
    labelled, holdout = read_once(labelled, "labelled"), read_once(holdout, "holdout")
    known = _labelled(score, labelled, sets_threshold=holdout is None)
    traffic = None if wild is None else as_wild(wild)
    outliers = None if ood is None else unlabelled_source(ood, "ood")
    unseen = None if holdout is None else _unseen(score, holdout)
    used: dict[str, Sequence[Source]] = {
        "labelled": [] if known is None else [known],
        "wild": [] if traffic is None else traffic.pools,
        "ood": [] if outliers is None else [outliers],
    }
    caveats = [NOT_COMPARED] if known is None else []
    if unseen is not None:
        calibration = unseen
        caveats += filter(None, [check_overlap(unseen, used, allow_duplicates=allow_duplicates)])
    elif known is not None:
        known, calibration = split_labelled(known, examples_needed(alpha, confidence), 1, seed, halves=True)
    else:
        raise InputError("a threshold needs ID examples: give holdout=(x, y) that the model was not trained on")
    selection, fitted_on, fitted_name = calibration, known if score.needs.labelled else None, "labelled"
    if score.needs.unseen:
        instead = "a score that is not fitted on unseen data"
        calibration, selection = halve_holdout(calibration, alpha, confidence, seed, instead=instead)
        fitted_on, fitted_name = selection, "labelled" if unseen is None else "holdout"
    wild_sample = None if traffic is None else subsample(traffic.whole(seed), CHOSEN_BY, seed)
    example = Example.of(calibration)
    for name, source in ((fitted_name, fitted_on), ("wild", wild_sample), ("ood", outliers)):
        if source is not None:
            example.check(source, name)
    classifier, classes = copy_classifier(
        model,
        calibration,
        input,
        features,
        uses_features=score.needs.features,
        choose_device=None if device is None else lambda _: chosen_device(device),
        call=call_model if forward is None else check_callable(forward, "forward", model, {}),
    )
    _warn_if_untrained(classifier, example, {"labelled": labelled, "holdout": holdout}, seed)
    uniform = _uniform_text(classifier, calibration, classes, seed)
    candidates = _fit_score(score, classifier, fitted_on, fitted_name, classes).candidates()
    if len(candidates) > 1 and not score.needs.unseen:
        instead = "a fixed setting of the score"
        calibration, selection = halve_holdout(calibration, alpha, confidence, seed, instead=instead)
    check_holdout_size(len(calibration), alpha, confidence)
    best, choice = choose_score(candidates, classifier, selection, alpha, wild_sample, outliers)
    record: dict[str, Any] = {
        "data": fingerprints_of(used, labels=False),
        "score": type(score).__name__,
        "settings": best.settings,
        "chosen": choice,
        "model": model_fingerprint(classifier.model),
        "versions": versions(),
    }
    if uniform:
        logger.warning("%s", uniform)
        record["uniform"] = uniform
    if (len(candidates) > 1 or score.needs.unseen) and unseen is not None:
        record["chosen_by"] = unseen.fingerprint(labels=False)
    detector = Detector(classifier.eval(), best, example, record=record)
    promise = Promise(alpha, len(calibration), unseen is not None, confidence, by_class, "; ".join(caveats))
    return detector.calibrate_on(calibration, promise)


def choose_score(
    candidates: Sequence[Score],
    classifier: Classifier,
    selection: Source,
    alpha: float,
    wild: Source | None = None,
    ood: Source | None = None,
) -> tuple[Score, dict[str, Any]]:
    """The candidate with the lowest criterion, the first of equal ones, and how it was chosen, as JSON-ready data.

    The criterion depends on the data to choose by:

    - `ood`: the share of it accepted when 1 - alpha of ID is. It needs OOD labels.
    - `wild`: the share of it accepted at the candidate's own ID threshold (the paper's Appendix C).
    - neither: the mean score of ID examples, as in Generalized ODIN. It can only compare sizes of a step on the input.
    """
    if len(candidates) == 1:
        return candidates[0], {}
    settings = candidates[0].settings
    varying = [name for name in settings if len({str(each.settings[name]) for each in candidates}) > 1]
    if wild is None and ood is None and (varying != ["epsilon"] or not isinstance(candidates[0], PerturbedScore)):
        raise InputError(
            f"{type(candidates[0]).__name__}: {varying[0]} cannot be chosen on ID data alone: give it, or wild= to choose by"
        )

    def criterion(candidate: Score) -> float:
        known, _ = score_all(classifier, selection, candidate)
        check_finite(known)
        if ood is not None:
            return fpr_at_tpr(known, score_all(classifier, ood, candidate)[0], 1 - alpha)
        if wild is not None:
            return float(np.mean(score_all(classifier, wild, candidate)[0] <= conformal_threshold(known, alpha)))
        return float(np.mean(known))

    values = [criterion(candidate) for candidate in candidates]
    tried = [
        {**{name: candidate.settings[name] for name in varying}, "criterion": value}
        for candidate, value in zip(candidates, values, strict=True)
    ]
    by = "OOD labels" if ood is not None else "wild acceptance" if wild is not None else "mean score of ID"
    return candidates[int(np.argmin(values))], {"by": by, "tried": tried}


def low_accuracy(accuracy: float, name: str) -> str:
    """That a model which is wrong on most examples is no classifier to start from."""
    if accuracy >= 0.5:
        return ""
    return (
        f"the model is right on only {100 * accuracy:.0f} % of {name}: start from a trained one (pretrain makes one; "
        "--weights on the command line), and check the labels and the scaling of the inputs"
    )


def _labelled(score: Score, labelled: Any, *, sets_threshold: bool) -> Source | None:
    """The labelled data, with its classes if the score is fitted on them: also where it stands in for a holdout."""
    if labelled is None and score.needs.labelled:
        raise InputError(
            f"{type(score).__name__} is fitted on labelled data: give labelled=(x, y) that the model was trained on"
        )
    if labelled is None:
        return None
    if score.needs.labels and (score.needs.labelled or sets_threshold):
        return labelled_source(labelled, "labelled")
    return unlabelled_source(examples_of(labelled), "labelled")


def _unseen(score: Score, holdout: Any) -> Source:
    """The holdout, with its classes if the score is fitted on them."""
    if score.needs.unseen and score.needs.labels:
        return labelled_source(holdout, "holdout")
    return unlabelled_source(examples_of(holdout), "holdout")


def _fit_score(score: Score, classifier: Classifier, data: Source | None, name: str, classes: int) -> Score:
    """A copy of the score, fitted on the data if it needs any."""
    fitted = copy.deepcopy(score).to(classifier.device).eval()
    if data is not None:
        if score.needs.labels:
            check_labels(all_labels(data), name, classes)
        fitted.fit(classifier, data)
    return fitted


def _warn_if_untrained(classifier: Classifier, example: Example, data: dict[str, Any], seed: int) -> None:
    """Warn of a low accuracy on some of the first data that has classes; x alone has none."""
    for name, each in data.items():
        try:
            known = example.check(labelled_source(each, name), name)
            known.gather(torch.arange(1))  # a dataset's labels are checked as they are read
        except InputError:
            continue
        some = subsample(known, ACCURACY_SAMPLE, seed)
        predicted = each_output(classifier, some, lambda outputs: outputs.logits.argmax(1))
        if text := low_accuracy(float((predicted == all_labels(some)).double().mean()), name):
            logger.warning("%s", text)
        return


def _uniform_text(classifier: Classifier, known: Source, classes: int, seed: int) -> str:
    """A warning where the model gives all classes nearly the same probability; empty if it does not."""
    some = subsample(known, ACCURACY_SAMPLE, seed)
    largest = float(each_output(classifier, some, lambda outputs: outputs.logits.softmax(1).amax(1)).mean())
    if not largest < 1.05 / classes:
        return ""
    return (
        f"the largest of {classes} probabilities is {100 * largest:.2f} % on average: the logits are too small to tell "
        "known from unknown; multiply them by a constant, or start from a trained model"
    )

"""`posthoc`: a score on an unchanged classifier in, a calibrated detector out."""

import copy
from typing import Any

import torch
from torch import nn

from wildood.data.fingerprint import unlabelled_fingerprint
from wildood.data.inputs import InputSpec
from wildood.data.sampling import generator, split
from wildood.data.sources import Part, Source
from wildood.data.validation import all_labels, check_labels, labelled_source, unlabelled_source
from wildood.data.wild import as_wild
from wildood.detect.checks import check_seed, check_spec, copy_classifier, model_fingerprint, versions
from wildood.detect.choose_score import choose
from wildood.detect.detector import Detector, Example, examples_of
from wildood.detect.promise import NOT_COMPARED, Promise
from wildood.detect.split import at_most, check_overlap, enough, set_aside_labelled
from wildood.errors import InputError
from wildood.evaluate.thresholds import check_alpha, check_confidence, examples_needed
from wildood.models.classifier import Classifier, each_output, evaluating, forward_all
from wildood.scores.score import Score
from wildood.settings import check_flag, optional
from wildood.train.progress import logger

LOOKED_AT = 1000  # how many labelled examples say whether the model is trained, at most
CHOSEN_BY = 2000  # how many wild examples choose a setting, at most: each is scored once for every candidate


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
    input: InputSpec | None = None,  # noqa: A002 - the user's word for it
    features: str | None = None,
    allow_duplicates: bool = False,
    seed: int = 0,
) -> Detector:
    """A detector from an unchanged classifier and a post-hoc score.

    A setting of the score that is None (an epsilon, a k) is chosen on one half of the holdout, and the other half sets the
    threshold: by wild acceptance if wild data is given, else on ID data alone.

    Args:
        model: any module that maps a batch to logits; copied.
        score: such as `EnergyScore()` or `Mahalanobis()`.
        labelled: what the model was trained on, `(x, y)` or, for scores without classes, `x`: what scores are fitted on.
            Without a holdout, a tenth of it sets the threshold, with no promise.
        holdout: ID examples the model has not trained on, `(x, y)` or `x`: the threshold and its promise rest on them.
        wild: unlabelled traffic, to choose settings by.
        ood: examples that are known to be OOD, to choose settings by; they are used for nothing else.
        alpha: the false-alarm rate of the threshold.
        confidence: promise that rate with this probability over the draw of the holdout, instead of on average.
        by_class: a threshold for each predicted class, so that no class bears all false alarms.
        input: how uint8 images become model input; floats go in as they are without it.
        features: the submodule whose output are the features, for scores that use them; found if not given.
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
    fitted_on = _fitting_source(score, labelled)
    if holdout is not None:
        calibration = unlabelled_source(examples_of(holdout), "holdout")
        caveat = _compare_holdout(calibration, labelled, wild, ood, allow_duplicates=allow_duplicates)
    elif labelled is not None:
        known = unlabelled_source(examples_of(labelled), "labelled") if fitted_on is None else fitted_on
        fitted, calibration = set_aside_labelled(known, examples_needed(alpha, confidence), 1, seed, halves=True)
        fitted_on, caveat = None if fitted_on is None else fitted, ""
    else:
        raise InputError("a threshold needs ID examples: give holdout=(x, y) that the model was not trained on")
    example = Example.of(calibration)
    traffic = None if wild is None else at_most(as_wild(wild).whole(seed), CHOSEN_BY, seed)
    outliers = None if ood is None else unlabelled_source(ood, "ood")
    for other, source in (("labelled", fitted_on), ("wild", traffic), ("ood", outliers)):
        if source is not None:
            example.check(source, other)
    classifier, classes = copy_classifier(model, calibration, input, features, uses_features=score.needs.features)
    _warn_if_untrained(classifier, example, {"labelled": labelled, "holdout": holdout}, seed)
    uniform = _uniform(classifier, calibration, seed)
    learned = copy.deepcopy(score).to(classifier.device).eval()
    if fitted_on is not None:
        if score.needs.labels:
            check_labels(all_labels(fitted_on), "labelled", classes)
        learned.fit(classifier, fitted_on)
    candidates, selection = learned.candidates(), calibration
    if len(candidates) > 1:
        second, first = split(len(calibration), 0.5, generator(seed, "holdout"))
        selection, calibration = Part(calibration, first), Part(calibration, second)
    for part in (selection, calibration):
        enough(part, alpha, confidence, halves=len(candidates) > 1, instead="a fixed setting of the score")
    chosen = choose(candidates, classifier, selection, alpha, traffic, outliers)
    used = {
        "labelled": [] if labelled is None else [unlabelled_source(examples_of(labelled), "labelled")],
        "wild": [] if wild is None else as_wild(wild).pools,
        "ood": [] if outliers is None else [outliers],
    }
    record: dict[str, Any] = {
        "data": {name: "+".join(map(unlabelled_fingerprint, sources)) for name, sources in used.items() if sources},
        "score": type(score).__name__,
        "settings": chosen.score.settings,
        "chosen": chosen.record,
        "model": model_fingerprint(classifier.model),
        "versions": versions(),
    }
    if uniform:
        logger.warning("%s", uniform)
        record["uniform"] = uniform
    if len(candidates) > 1 and holdout is not None:
        record["chosen_by"] = unlabelled_fingerprint(unlabelled_source(examples_of(holdout), "holdout"))
    detector = Detector(classifier.eval(), chosen.score, example, record=record)
    promise = Promise(alpha, len(calibration), holdout is not None, confidence, by_class, caveat)
    return detector.calibrate_on(calibration, promise)


def warn_of_accuracy(accuracy: float, name: str) -> None:
    """Tell a user whose model is wrong on most examples that it knows too little to start from.

    >>> warn_of_accuracy(0.9, "labelled")
    """
    if accuracy < 0.5:
        logger.warning(
            "the model is right on %.0f %% of %s only: start from a trained one (pretrain makes one; --weights on the "
            "command line), and check the labels and the scaling of the inputs",
            100 * accuracy,
            name,
        )


def _warn_if_untrained(classifier: Classifier, example: Example, given: dict[str, Any], seed: int) -> None:
    """Look at some of the first data that has classes; a score that reads none may be given x alone."""
    for name, data in given.items():
        try:
            known = example.check(labelled_source(data, name), name)
            known.gather(torch.arange(1))  # a dataset's labels are checked as they are read
        except InputError:
            continue
        some, right = at_most(known, LOOKED_AT, seed), 0
        with evaluating(classifier):
            for outputs, labels in forward_all(classifier, some):
                assert labels is not None  # noqa: S101 - labelled
                right += int((outputs.logits.argmax(1) == labels).sum())
        warn_of_accuracy(right / len(some), name)
        return


def _compare_holdout(holdout: Source, labelled: Any, wild: Any, ood: Any, *, allow_duplicates: bool) -> str:
    """What the promise must say of the holdout; one that is part of what was given besides is refused."""
    used: list[tuple[str, Source]] = []
    if labelled is not None:
        used.append(("labelled", unlabelled_source(examples_of(labelled), "labelled")))
    used += [("wild", pool) for pool in (() if wild is None else as_wild(wild).pools)]
    used += [] if ood is None else [("ood", unlabelled_source(ood, "ood"))]
    caveat = check_overlap(holdout, used, allow_duplicates=allow_duplicates)
    return "; ".join(filter(None, [NOT_COMPARED if labelled is None else "", caveat]))


def _uniform(classifier: Classifier, known: Source, seed: int) -> str:
    """That the model says nearly the same probability of all classes, as a sentence; empty if it does not."""
    some = at_most(known, LOOKED_AT, seed)
    largest = each_output(classifier, some, lambda outputs: outputs.logits.softmax(1).amax(1)).mean()
    classes = each_output(classifier, at_most(some, 1, seed), lambda outputs: outputs.logits).shape[1]
    if not float(largest) < 1.05 / classes:
        return ""
    return (
        f"the largest of {classes} probabilities is {100 * float(largest):.2f} % on average: the logits are too small to "
        "tell known from unknown; multiply them by a constant, or start from a trained model"
    )


def _fitting_source(score: Score, labelled: Any) -> Source | None:
    """The labelled data as the score needs it: with classes, without, or not at all."""
    if not score.needs.labelled:
        return None
    if labelled is None:
        raise InputError(
            f"{type(score).__name__} is fitted on labelled data: give labelled=(x, y) that the model was trained on"
        )
    return (
        labelled_source(labelled, "labelled") if score.needs.labels else unlabelled_source(examples_of(labelled), "labelled")
    )

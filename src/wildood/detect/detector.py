"""Detector: a classifier that knows what it does not know."""

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildood.data.fingerprint import NOT_FRESH, SEEN_HOLDOUT, role_of, role_text
from wildood.data.sources import Source
from wildood.data.validation import unlabelled_source
from wildood.detect.promise import NOT_COMPARED, Promise
from wildood.errors import InputError
from wildood.evaluate.mixture import UnknownShare, unknown_share
from wildood.evaluate.thresholds import (
    check_alpha,
    check_confidence,
    check_finite,
    conformal_threshold,
    p_values,
    thresholds_by_class,
    tied_scores,
)
from wildood.models.classifier import Classifier, each_output
from wildood.scores.score import Score, score_all
from wildood.settings import check_flag, check_path
from wildood.train.history import Row

UNKNOWN: Final = -1
_LOGGER = logging.getLogger("wildood")


@dataclass(frozen=True)
class Example:
    """What one raw example is like: a detector refuses others, lest they be scaled or read differently.

    >>> Example.of(unlabelled_source(np.zeros((5, 8, 8, 1), dtype=np.uint8), "x"))
    Example(shape=(8, 8, 1), kind='uint8')
    """

    shape: tuple[int, ...]
    kind: str

    @classmethod
    def of(cls, source: Source) -> "Example":
        """What the first example of a source is like."""
        first = source.gather(torch.arange(1))[0]
        kind = "float" if first.is_floating_point() else "uint8" if first.dtype == torch.uint8 else "integer"
        return cls(tuple(first.shape[1:]), kind)

    def blank(self, count: int) -> Tensor:
        """So many examples like this one, all zero."""
        dtype = {"uint8": torch.uint8, "float": torch.float32}.get(self.kind, torch.long)
        return torch.zeros((count, *self.shape), dtype=dtype)

    def check(self, source: Source, name: str, *, resized: bool = False) -> Source:
        """Refuse a source whose examples are not like this one; images that an input spec resizes may have another size."""
        found = Example.of(source)
        if len(found.shape) != len(self.shape) or (found.shape != self.shape and not resized):
            hint = " (add the batch axis to a single example: x[None])" if found.shape == self.shape[1:] else ""
            hint = " (another layout?)" if sorted(found.shape) == sorted(self.shape) else hint
            raise InputError(f"{name}: an example has shape {found.shape}, expected {self.shape}{hint}")
        if found.kind != self.kind:
            raise InputError(f"{name} holds {found.kind} values, expected {self.kind}: give the same type everywhere")
        return source


class Detector:
    """Model + input spec + score + threshold. Rejects where score > threshold.

    Made by `wildood.fit`, `wildood.posthoc` or `wildood.load`. Any number of threads may call one detector: only `calibrate`
    writes to it, and replaces threshold, promise and holdout scores in one moment.

    Attributes:
        classifier: the model with its input spec.
        scorer: the score, higher = more OOD.
        example: what one raw example is like.
        threshold: reject above it.
        class_thresholds: reject above that of the predicted class instead, if the detector was calibrated by class.
        promise: what the threshold promises.
        holdout_scores: what the threshold was computed from, with
        holdout_classes: what the classifier says of the same examples.
        history: one row for each epoch of the training that made it.
        record: how it was made: method, schedule, seed, versions.

    >>> import wildood
    >>> rng = np.random.default_rng(0)
    >>> holdout = rng.normal(size=(100, 2)).astype("float32"), rng.integers(0, 3, 100)
    >>> detector = wildood.posthoc(torch.nn.Linear(2, 3), wildood.EnergyScore(), holdout=holdout)
    >>> detector.predict(holdout[0][:4]).shape
    (4,)
    >>> bool(np.mean(detector.predict(holdout[0]) == wildood.UNKNOWN) <= 0.05)
    True
    """

    def __init__(
        self,
        classifier: Classifier,
        scorer: Score,
        example: "Example",
        *,
        threshold: float = float("nan"),
        class_thresholds: npt.NDArray[np.float64] | None = None,
        promise: Promise | None = None,
        holdout_scores: npt.NDArray[np.float32] | None = None,
        holdout_classes: npt.NDArray[np.int64] | None = None,
        history: list[Row] | None = None,
        record: dict[str, Any] | None = None,
    ) -> None:
        self.classifier = classifier
        self.scorer = scorer.to(classifier.device)
        self.example = example
        self.threshold = threshold
        self.class_thresholds = class_thresholds
        self.promise = promise
        self.holdout_scores = holdout_scores
        self.holdout_classes = holdout_classes
        self.history = history or []
        self.record = record or {}

    def score(self, x: Any) -> npt.NDArray[np.float32]:
        """One number for each example, higher = more OOD; +inf where the score or the largest logit is not finite."""
        return self._scores(self._source(x))

    def predict(self, x: Any) -> npt.NDArray[np.int64]:
        """The class of each example, or UNKNOWN (-1) where it is rejected.

        An example that is too large for the model to compute a finite score and logits of is UNKNOWN, too.
        """
        scores, classes = self.score_and_classify(x)
        return np.where(self.accepts(scores, classes), classes, UNKNOWN)

    def accepts(self, scores: npt.NDArray[np.float32], classes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which examples with these scores and these predicted classes are accepted; none whose score is not finite."""
        now = copy.copy(self)  # both thresholds of one moment: another thread may calibrate
        if np.isnan(now.threshold):
            raise InputError("this detector has no threshold: call detector.calibrate(holdout, alpha) first")
        arrays = isinstance(scores, np.ndarray) and isinstance(classes, np.ndarray) and scores.shape == classes.shape
        if not arrays or scores.dtype.kind not in "fiu" or classes.dtype.kind not in "iu":
            raise InputError("scores and classes are not two arrays of one length: give what score_and_classify(x) returns")
        threshold = now.threshold if now.class_thresholds is None else now.class_thresholds[classes]
        return np.isfinite(scores) & (scores <= threshold)

    def p_value(self, x: Any) -> npt.NDArray[np.float64]:
        """The conformal p-value of each example against the holdout's scores: small = looks unknown.

        It is marginal: of fresh ID examples of all classes together, at most a share p has a p-value of p or less, on
        average over holdouts, if the promise's assumption holds. `predict` rejects where p <= alpha if the detector has one
        threshold, promised on average. With a confidence it rejects only some of these, for that threshold is higher; by
        class it rejects others, for each class has its own threshold and the p-value knows no classes.
        """
        return p_values(self.score(x), self._holdout()[0])

    def unknown_share(self, wild: Any, confidence: float = 0.95) -> UnknownShare:
        """How much of this traffic is OOD, without a label: its scores compared with those of the holdout.

        The traffic must be fresh and the holdout unseen (`wildood.unknown_share` says why). Refused are traffic that the
        detector was made from, recognised as a whole (a slice of it is not), and a holdout that may have been trained on.

        Args:
            wild: examples as they come in service, unlabelled.
            confidence: of the lower bound.

        >>> import wildood
        >>> x, model = np.random.default_rng(0).normal(size=(400, 1)).astype("float32"), torch.nn.Linear(1, 2)
        >>> _ = torch.nn.init.ones_(model.weight)  # energy falls with x
        >>> detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=x[:200])
        >>> print(detector.unknown_share(np.concatenate([x[200:], x[:50] - 9])))
        at least 14.6 % of the wild data is OOD at 95 % confidence (estimate 22.2 %, p = 1.5e-14; 200 ID and 250 wild scores)
        >>> detector.unknown_share(x[:200])
        Traceback (most recent call last):
        wildood.errors.InputError: these examples set the detector's threshold, and what a detector was made from is no
        sample of what it meets: give later traffic
        """
        source = self._source(wild)
        used = role_of(self.record, source)
        if used:
            raise InputError(NOT_FRESH.format(role_text(used)))
        known = self._holdout()[0]
        if self.promise is None or not self.promise.unseen:
            raise InputError(f"{SEEN_HOLDOUT}: call detector.calibrate(holdout) with unseen examples first")
        return unknown_share(known, self._scores(source), confidence)

    def classify(self, x: Any) -> npt.NDArray[np.int64]:
        """The class of each example, even where it would be rejected."""
        return each_output(self.classifier, self._source(x), lambda outputs: outputs.logits.argmax(1)).numpy()

    def class_name(self, number: int) -> str | int:
        """The name of a class, or its number: a model may have more classes than there are names."""
        names = self.record.get("classes", ())
        return str(names[number]) if number < len(names) else int(number)

    def score_and_classify(self, x: Any) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """What `score` and `classify` say, from one pass over the examples."""
        return self._score_and_classify(self._source(x))

    def _score_and_classify(self, source: Source) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        both = score_all(
            self.classifier,
            source,
            self.scorer,
            # float64 holds every float32 and every class exactly
            lambda found: torch.stack([found.scores.cpu().double(), found.outputs.logits.argmax(1).cpu().double()], dim=1),
        )
        return both[:, 0].float().numpy(), both[:, 1].long().numpy()

    def predict_proba(self, x: Any) -> npt.NDArray[np.float32]:
        """The classifier's softmax probabilities, (examples, classes), even where an example would be rejected."""
        return each_output(self.classifier, self._source(x), lambda outputs: outputs.logits.softmax(1)).numpy()

    def calibrate(
        self,
        holdout: Any = None,
        alpha: float | None = None,
        *,
        confidence: float | Literal["average"] | None = None,
        by_class: bool | None = None,
        unseen: bool = True,
    ) -> "Detector":
        """Set the threshold anew for a false-alarm rate of at most alpha; returns the detector itself.

        What is not given stays as it was promised before, so that newer examples keep the promise that was made.

        Args:
            holdout: ID examples `(x, y)`, or `x` alone: labels are not used. None for the ones the threshold rests on now.
            alpha: the false-alarm rate; as before unless given, 0.05 the first time.
            confidence: promise the rate with this probability over the draw of the holdout; "average" for a promise on
                average over holdouts. As before unless given, on average the first time.
            by_class: a threshold for each class that the classifier may predict, so that no class bears all false alarms;
                as before unless given, one for all the first time.
            unseen: whether these examples were in no training, the starting classifier's included, and have chosen nothing.
                The promise rests on it; the holdout of a `fit` that kept its best epoch has chosen that epoch. What the
                detector was made from is refused where it is recognised: as a whole, with labels or without.
        """
        before = self.promise or Promise(0.05, 0, unseen=False)
        alpha = check_alpha(before.alpha if alpha is None else alpha)
        surely = before.confidence
        if confidence is not None:
            average = isinstance(confidence, str) and confidence == "average"
            surely = None if average else check_confidence(confidence)
        by_class = before.by_class if by_class is None else check_flag(by_class, "by_class")
        unseen = check_flag(unseen, "unseen")
        if holdout is None:
            scores, classes = self._holdout()
            promise = Promise(alpha, len(scores), before.unseen, surely, by_class, before.caveat)
            return self._calibrate(scores, classes, promise)
        source = self._source(examples_of(holdout))
        if unseen:
            self._refuse_used(source)
        caveat = NOT_COMPARED if unseen else ""
        return self.calibrate_on(source, Promise(alpha, len(source), unseen, surely, by_class, caveat))

    def _refuse_used(self, source: Source) -> None:
        """Refuse examples that the detector was made from: they can set a threshold, but promise nothing."""
        used = role_of(self.record, source)
        if used == "holdout" and "chosen_by" in self.record:
            raise InputError(
                "half of this holdout chose the epoch or a setting, so it promises nothing as a whole: calibrate(alpha=...) "
                "uses the other half; or give other examples"
            )
        if used not in {"", "holdout", "threshold"}:
            raise InputError(
                f"these examples {role_text(used)}, so they promise nothing about fresh ones: give ID examples that nothing "
                "has seen, or unseen=False for a threshold without a promise"
            )

    def calibrate_on(self, source: Source, promise: Promise) -> "Detector":
        """`calibrate` for a source that is checked already, with what is promised of it."""
        scores, classes = self._score_and_classify(source)
        data = {**self.record.get("data", {}), "threshold": source.fingerprint()}
        return self._calibrate(scores, classes, promise, data=data)

    def _calibrate(
        self, scores: npt.NDArray[np.float32], classes: npt.NDArray[np.int64], promise: Promise, **recorded: Any
    ) -> "Detector":
        check_finite(scores)
        alpha, confidence = promise.alpha, promise.confidence
        threshold, each = conformal_threshold(scores, alpha, confidence), None
        if promise.by_class:
            each = thresholds_by_class(scores, classes, self._class_count(), alpha, confidence)
        kept = {name: value for name, value in self.record.items() if name not in {"not_by_class", "ties"}}
        if ties := _ties(scores, classes, promise):
            _LOGGER.warning("%s", ties)
            recorded["ties"] = ties
        vars(self).update(  # in one moment: no other thread sees a part of it
            threshold=threshold,
            class_thresholds=each,
            promise=promise,
            record=kept | recorded,
            holdout_scores=scores,
            holdout_classes=classes,
        )
        return self

    def _holdout(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        if self.holdout_scores is None or self.holdout_classes is None:
            raise InputError("this detector has no holdout scores: call detector.calibrate(holdout, alpha) first")
        return self.holdout_scores, self.holdout_classes

    def _class_count(self) -> int:
        blank = unlabelled_source(self.example.blank(1), "x")
        return each_output(self.classifier, blank, lambda outputs: outputs.logits).shape[1]

    def _scores(self, source: Source) -> npt.NDArray[np.float32]:
        return score_all(self.classifier, source, self.scorer, lambda found: found.scores).numpy()

    def save(self, directory: str | Path) -> Path:
        """Write the detector to a directory: safetensors and JSON, no pickle. Read it back with `wildood.load`.

        Several threads and processes may write to one directory: it always holds one whole detector.
        """
        from wildood.detect.storage import save_detector  # noqa: PLC0415 - storage builds detectors, and so imports this

        return save_detector(self, check_path(directory, "the directory"))

    @property
    def warnings(self) -> list[str]:
        """What to know before this detector is deployed, one sentence each; empty if there is nothing."""
        return warnings_of(self.record)

    @property
    def threshold_text(self) -> str:
        """The threshold, to be read; where each predicted class has its own, their number and range."""
        return threshold_text(self.threshold, self.class_thresholds)

    @property
    def promise_text(self) -> str:
        """What is promised, to be read, and that it is not for each class where that was asked for in vain."""
        if self.promise is None:
            return "not calibrated"
        return str(self.promise) + (" (over all classes: by class was NOT done)" if "not_by_class" in self.record else "")

    def __repr__(self) -> str:
        model, score = type(self.classifier.model).__name__, type(self.scorer).__name__
        return f"Detector({model}, {score}, threshold: {self.threshold_text}; {self.promise_text})"

    def _source(self, x: Any) -> Source:
        """The user's examples, checked to be like those the detector was made with."""
        resized = self.classifier.spec is not None and self.classifier.spec.size is not None
        return self.example.check(unlabelled_source(x, "x"), "x", resized=resized)


def threshold_text(threshold: float, class_thresholds: npt.ArrayLike | None = None) -> str:
    """A threshold, or the number and the range of those of the predicted classes.

    >>> threshold_text(-4.25), threshold_text(-4.25, [-5.0, -4.5, -3.0])
    ('-4.25', 'one for each of 3 predicted classes, from -5 to -3')
    """
    if class_thresholds is None:
        return f"{threshold:.6g}"
    each = np.asarray(class_thresholds)
    return f"one for each of {len(each)} predicted classes, from {each.min():.6g} to {each.max():.6g}"


def _ties(scores: npt.NDArray[np.float32], classes: npt.NDArray[np.int64], promise: Promise) -> str:
    """Why a threshold rejects nothing that it could reject: the one for all, or that of a predicted class."""
    if not promise.by_class:
        return tied_scores(scores, promise.alpha, promise.confidence)
    for number in np.unique(classes):
        if text := tied_scores(scores[classes == number], promise.alpha):
            return f"predicted class {number}: {text}"
    return ""


def warnings_of(record: Mapping[str, Any]) -> list[str]:
    """What a detector's record says against it: what data set aside showed, and scores that tie.

    >>> warnings_of({"ties": "90 of the 100 holdout examples have the same score", "assessment": {"warnings": []}})
    ['90 of the 100 holdout examples have the same score']
    """
    more = [record[name] for name in ("accuracy_lost", "uniform", "ties") if name in record]
    return [*record.get("assessment", {}).get("warnings", []), *more]


def examples_of(holdout: Any) -> Any:
    """The x of `(x, y)`, or what was given if it is x alone.

    >>> examples_of(("x", "y")), examples_of("x")
    ('x', 'x')
    """
    return holdout[0] if isinstance(holdout, tuple | list) and len(holdout) == 2 else holdout

"""Detector: a classifier that knows what it does not know."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from wildood.data.sources import Source, unlabelled_source
from wildood.errors import InputError
from wildood.evaluate.thresholds import conformal_threshold
from wildood.models.outputs import Classifier
from wildood.scores.score import Score
from wildood.train.history import Row
from wildood.train.monitor import all_scores, each_output

UNKNOWN: Final = -1


@dataclass(frozen=True)
class Promise:
    """What the threshold promises, and on what the promise rests.

    Attributes:
        alpha: the false-alarm rate.
        examples: how many ID examples the threshold was computed on.
        unseen: whether neither the starting classifier nor the fit has trained on them, as far as the caller says.

    >>> print(Promise(alpha=0.05, examples=500, unseen=True))
    false-alarm rate <= 5 % on ID data like the 500 holdout examples (on average over holdouts)
    """

    alpha: float
    examples: int
    unseen: bool

    def __str__(self) -> str:
        rate = f"{100 * self.alpha:g} %"
        if self.unseen:
            return (
                f"false-alarm rate <= {rate} on ID data like the {self.examples} holdout examples (on average over holdouts)"
            )
        return (
            f"no promise: the threshold aims at a false-alarm rate of {rate} on {self.examples} labelled examples that were "
            "set aside, but if the starting classifier was trained on them, fresh data is rejected more often: give "
            "holdout= to get a promise"
        )


class Detector:
    """Model + input spec + score + threshold. Rejects where score > threshold.

    Made by `wildood.fit`, `wildood.posthoc` or `wildood.load`.

    Attributes:
        classifier: the model with its input spec.
        scorer: the score, higher = more OOD.
        example_shape: the shape of one raw example.
        threshold: reject above it.
        promise: what the threshold promises.
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
        example_shape: tuple[int, ...],
        *,
        threshold: float = float("nan"),
        promise: Promise | None = None,
        history: list[Row] | None = None,
        record: dict[str, Any] | None = None,
    ) -> None:
        self.classifier = classifier
        self.scorer = scorer.to(classifier.device)
        self.example_shape = tuple(example_shape)
        self.threshold = threshold
        self.promise = promise
        self.history = history or []
        self.record = record or {}

    def score(self, x: Any) -> npt.NDArray[np.float32]:
        """One number for each example, higher = more OOD."""
        return all_scores(self.classifier, self.scorer, self._source(x)).numpy()

    def predict(self, x: Any) -> npt.NDArray[np.int64]:
        """The class of each example, or UNKNOWN (-1) where it is rejected."""
        if np.isnan(self.threshold):
            raise InputError("this detector has no threshold: call detector.calibrate(holdout, alpha) first")
        decided = each_output(
            self.classifier,
            self._source(x),
            lambda outputs: outputs.logits.argmax(1).masked_fill(~(self.scorer(outputs) <= self.threshold), UNKNOWN),
        )
        return torch.cat(list(decided)).numpy()

    def classify(self, x: Any) -> npt.NDArray[np.int64]:
        """The class of each example, even where it would be rejected."""
        classes = each_output(self.classifier, self._source(x), lambda outputs: outputs.logits.argmax(1))
        return torch.cat(list(classes)).numpy()

    def predict_proba(self, x: Any) -> npt.NDArray[np.float32]:
        """The classifier's softmax probabilities, (examples, classes), even where an example would be rejected."""
        probabilities = each_output(self.classifier, self._source(x), lambda outputs: outputs.logits.softmax(1))
        return torch.cat(list(probabilities)).numpy()

    def calibrate(self, holdout: Any, alpha: float, *, unseen: bool = True) -> "Detector":
        """Set the threshold anew for a false-alarm rate of at most alpha; returns the detector itself.

        Args:
            holdout: ID examples `(x, y)`, or `x` alone: labels are not used.
            alpha: the false-alarm rate.
            unseen: whether these examples were in no training, the starting classifier's included. The promise rests on it.
        """
        return self.calibrate_on(self._source(examples_of(holdout)), alpha, unseen=unseen)

    def calibrate_on(self, source: Source, alpha: float, *, unseen: bool) -> "Detector":
        """`calibrate` for a source that is checked already."""
        self.threshold = conformal_threshold(all_scores(self.classifier, self.scorer, source).numpy(), alpha)
        self.promise = Promise(alpha, len(source), unseen)
        return self

    def save(self, directory: str | Path) -> Path:
        """Write the detector to a directory: safetensors and JSON, no pickle. Read it back with `wildood.load`."""
        from wildood.detect.storage import save_detector  # noqa: PLC0415 - storage builds detectors, and so imports this

        return save_detector(self, Path(directory))

    def __repr__(self) -> str:
        model = type(self.classifier.model).__name__
        promise = "not calibrated" if self.promise is None else str(self.promise)
        return f"Detector({model}, {type(self.scorer).__name__}, threshold={self.threshold:.4g}; {promise})"

    def _source(self, x: Any) -> Source:
        """The user's examples, checked to be like those the detector was made with."""
        source = unlabelled_source(x, "x")
        return check_examples(source, "x", self.example_shape, resized=self._resizes())

    def _resizes(self) -> bool:
        return self.classifier.spec is not None and self.classifier.spec.size is not None


def examples_of(holdout: Any) -> Any:
    """The x of `(x, y)`, or what was given if it is x alone.

    >>> examples_of(("x", "y")), examples_of("x")
    ('x', 'x')
    """
    return holdout[0] if isinstance(holdout, tuple | list) and len(holdout) == 2 else holdout


def check_examples(source: Source, name: str, shape: tuple[int, ...], *, resized: bool) -> Source:
    """Refuse a source whose examples have another shape; images that an input spec resizes may have another size."""
    first = source.gather(torch.arange(1))[0]
    found = tuple(first.shape[1:])
    if len(found) != len(shape) or (found != shape and not resized):
        one = " (add the batch axis to a single example: x[None])" if tuple(found) == shape[1:] else ""
        raise InputError(f"{name}: an example has shape {found}, expected {shape}{one}")
    return source

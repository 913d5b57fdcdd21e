"""What a detector says of examples, how far each is from being decided otherwise, and whether a set is new to it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from wildood.data.fingerprint import role_of
from wildood.data.images import Images
from wildood.data.validation import check_labels, labelled_source, unlabelled_source
from wildood.detect.detector import Detector
from wildood.errors import InputError

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Decisions:
    """What a detector says of examples.

    Attributes:
        scores: higher = more OOD.
        classes: what the classifier says, even of rejected examples.
        rejected: which of them are rejected.
        margins: the score less the threshold that it meets, that of its class if each has one; above 0 it is rejected.
    """

    scores: Floats
    classes: npt.NDArray[np.int64]
    rejected: Mask
    margins: Floats

    @classmethod
    def of(cls, detector: Detector, scores: npt.NDArray[Any], classes: npt.NDArray[np.int64]) -> "Decisions":
        """What follows from scores and predicted classes, at the detector's threshold.

        >>> import wildood
        >>> detector = wildood.posthoc(torch.nn.Linear(1, 2), wildood.EnergyScore(), holdout=np.zeros((19, 1), dtype="f"))
        >>> detector.threshold = 2.0
        >>> found = Decisions.of(detector, np.array([1.5, 2.0, 4.0]), np.array([0, 1, 0]))
        >>> found.rejected, found.margins
        (array([False, False,  True]), array([-0.5,  0. ,  2. ]))
        """
        return Decisions(*_decided(detector, scores, classes))

    @property
    def accepted(self) -> Mask:
        """Which of them are not rejected."""
        return ~self.rejected

    @property
    def mistakes_if_ood(self) -> npt.NDArray[np.intp]:
        """The accepted examples, the most confident first."""
        return _where(self.accepted, self.scores)

    @property
    def mistakes_if_id(self) -> npt.NDArray[np.intp]:
        """The rejected examples, the most confident first."""
        return _where(self.rejected, -self.scores)


@dataclass(frozen=True, eq=False)
class SetDecisions(Decisions):
    """What a detector says of a whole set of examples.

    Attributes:
        name: of the set.
        images: the examples, with labels where there are any.
        role_of: what the whole set was to the detector before (`wildood.data.fingerprint`); empty if it was nothing.
    """

    name: str
    images: Images
    role_of: str = ""

    @classmethod
    def asked(cls, detector: Detector, name: str, images: Images) -> "SetDecisions":
        """Ask the detector; what it cannot take is refused with the name of the set.

        >>> import wildood
        >>> x = np.random.default_rng(0).normal(size=(30, 2)).astype("float32")
        >>> detector = wildood.posthoc(torch.nn.Linear(2, 3), wildood.EnergyScore(), holdout=x, alpha=0.1)
        >>> found = SetDecisions.asked(detector, "test", Images(x))
        >>> int(found.accepted.sum()), found.role_of
        (28, 'threshold')
        """
        try:
            if images.labels is None:
                unlabelled_source(images.examples, name)
            else:
                labelled_source(images, name)
                outputs = detector.predict_proba(images.examples[:1]).shape[1]
                check_labels(torch.as_tensor(np.asarray(images.labels)), name, outputs)
            decided = _decided(detector, *detector.score_and_classify(images))
        except InputError as error:
            said = str(error).removeprefix("x: ")
            raise InputError(said if said.startswith(name) else f"{name}: {said}") from error
        return cls(*decided, name, images, role_of(detector.record, images))


def _decided(
    detector: Detector, scores: npt.NDArray[Any], classes: npt.NDArray[np.int64]
) -> tuple[Floats, npt.NDArray[np.int64], Mask, Floats]:
    each = detector.class_thresholds
    threshold = np.asarray(detector.threshold if each is None else each[classes], dtype=np.float64)
    with np.errstate(invalid="ignore"):  # the difference of two infinities
        margins = np.where(np.isfinite(scores), scores.astype(np.float64) - threshold, np.inf)
    return scores.astype(np.float64), classes, ~detector.accepts(scores, classes), margins


def _where(mask: Mask, order: Floats) -> npt.NDArray[np.intp]:
    """The numbers of the examples where the mask is true, in this order; equal ones in their own."""
    numbers = np.flatnonzero(mask)
    return numbers[np.argsort(order[numbers], kind="stable")]

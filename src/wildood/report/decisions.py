"""What a detector decides on examples, and how far each is from being decided otherwise."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wildood.detect.detector import Detector


class Decisions(NamedTuple):
    """What a detector decides on examples.

    Attributes:
        scores: higher = more OOD.
        classes: the class that each would get.
        rejected: whether it is rejected.
        margins: the score less the threshold that it meets, that of its class if each has one; above 0 it is rejected.
    """

    scores: npt.NDArray[np.float64]
    classes: npt.NDArray[np.int64]
    rejected: npt.NDArray[np.bool_]
    margins: npt.NDArray[np.float64]

    @classmethod
    def of(cls, detector: Detector, scores: npt.NDArray[Any], classes: npt.NDArray[np.int64]) -> "Decisions":
        """What follows from scores and predicted classes, at the detector's threshold.

        >>> import torch, wildood
        >>> detector = wildood.posthoc(torch.nn.Linear(1, 2), wildood.EnergyScore(), holdout=np.zeros((19, 1), dtype="f"))
        >>> detector.threshold = 2.0
        >>> Decisions.of(detector, np.array([1.5, 2.0, 4.0]), np.array([0, 1, 0]))[2:]
        (array([False, False, True]), array([-0.5, 0. , 2. ]))
        """
        each = detector.class_thresholds
        threshold = np.asarray(detector.threshold if each is None else each[classes], dtype=np.float64)
        with np.errstate(invalid="ignore"):  # an infinite score at an infinite threshold lies on it
            margins = np.where(scores == threshold, 0.0, scores.astype(np.float64) - threshold)
        return cls(scores.astype(np.float64), classes, ~detector.accepts(scores, classes), margins)

"""What a report of a fit is made from."""

from typing import Any, NamedTuple

import numpy.typing as npt


class Given(NamedTuple):
    """What the fit was given: wild examples, and ID examples with their classes (the holdout, or labelled ones)."""

    wild: npt.NDArray[Any]
    known: npt.NDArray[Any]
    classes: npt.NDArray[Any]
    is_holdout: bool

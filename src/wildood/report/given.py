"""What a report of a fit is made from."""

from typing import Any, NamedTuple

import numpy.typing as npt

LOOKED_AT = 2000  # how many examples of each kind a page scores, at most


class Given(NamedTuple):
    """Wild examples that training did not see, and ID examples with their classes (the holdout, or labelled ones)."""

    wild: npt.NDArray[Any]
    known: npt.NDArray[Any]
    classes: npt.NDArray[Any]
    is_holdout: bool

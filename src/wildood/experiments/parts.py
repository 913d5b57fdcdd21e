"""What a run is given, and what it is measured on."""

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from wildood.data.wild import WildMixture

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
PartName = Literal["test", "validation"]  # validation: for development, test examples are not touched


class Parts(NamedTuple):
    """No example is in two of them."""

    labelled: tuple[Images, Labels]
    wild: WildMixture
    holdout: tuple[Images, Labels]
    test_id: tuple[Images, Labels]
    test_ood: Images

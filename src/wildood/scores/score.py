"""What every score is: a module that turns a classifier's outputs into one number for each example."""

from typing import Any, ClassVar

from torch import Tensor, nn

from wildood.models.outputs import Outputs


class Score(nn.Module):
    """Higher = more OOD. What is fitted or trained is a buffer or a parameter, so that all scores are saved one way.

    Attributes:
        uses_features: whether `forward` reads `outputs.features`.
        settings: the constructor's arguments, as JSON-ready data.

    >>> Score().settings
    {}
    """

    uses_features: ClassVar[bool] = False

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, outputs: Outputs) -> Tensor:
        """One number for each example."""
        raise NotImplementedError

"""The score of WOODS-alt and of SAL: the logit of an OOD head."""

from torch import Tensor, nn

from wildood.models.classifier import Outputs
from wildood.models.heads import OodHead
from wildood.scores.energy import energy
from wildood.scores.score import Needs, Score


class HeadScore(Score):
    """s(x) = g(φ(x)) + slope E(x) + bias, where g is the OOD head, φ(x) the features and E(x) the energy.

    A head that starts from the energy (a slope above 0) starts at g = 0. As published, there is no energy: the slope is 0.
    That of SAL has no hidden layer (`hidden=0`).

    >>> import torch
    >>> HeadScore(features=8)(Outputs(torch.zeros(2, 3), torch.zeros(2, 8))).shape
    torch.Size([2])
    >>> HeadScore(features=8, slope=1.0)(Outputs(torch.zeros(1, 1), torch.ones(1, 8))).item()
    0.0
    """

    paper = "Katz-Samuels et al., Training OOD Detectors in their Natural Habitats, 2022"
    needs = Needs(features=True)

    def __init__(self, features: int, hidden: int = 300, slope: float = 0.0, bias: float = 0.0) -> None:
        super().__init__(features=features, hidden=hidden, slope=slope, bias=bias)
        self.slope, self.bias = slope, bias
        self.head = OodHead(features, hidden)
        if slope:
            for parameter in self.head.layers[-1].parameters():
                nn.init.zeros_(parameter)

    def forward(self, outputs: Outputs) -> Tensor:
        """The logit of the OOD head, beside the energy."""
        logit: Tensor = self.head(outputs.features_or_refuse())
        return logit + self.slope * energy(outputs.logits) + self.bias if self.slope else logit

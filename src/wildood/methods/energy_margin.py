"""Energy fine-tuning with margins (Liu et al., 2020), with wild data in the place of outliers."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from wildood.errors import InputError
from wildood.evaluate.thresholds import check_alpha
from wildood.methods.objective import Batch, Objective, Start, Terms
from wildood.methods.schedule import Schedule
from wildood.models.classifier import Classifier
from wildood.scores.energy import EnergyScore, energy
from wildood.settings import check_fields, check_number, check_positive, optional


def squared_hinges(energy_in: Tensor, energy_out: Tensor, margin_in: float, margin_out: float) -> Tensor:
    """Mean relu(E_in - m_in)^2 + mean relu(m_out - E_out)^2.

    >>> import torch
    >>> squared_hinges(torch.tensor([-3.0, -1.0]), torch.tensor([0.0]), margin_in=-2.0, margin_out=1.0).item()
    1.5
    """
    return F.relu(energy_in - margin_in).square().mean() + F.relu(margin_out - energy_out).square().mean()


@dataclass(frozen=True)
class EnergyMargin:
    """Cross-entropy, and squared hinges that keep labelled energies below one margin and wild energies above another.

    The published margins (-23 and -5 for CIFAR-10, -27 and -5 for CIFAR-100, on a WRN-40-2) suit the energies of that
    network; margins far from the classifier's own energies ruin its accuracy. Without margins, they are taken from the
    starting classifier's labelled energies: their mean, and the level that 5 % of them exceed.

    Attributes:
        weight: of the hinges.
        margin_in: m_in, below which labelled energies are left alone.
        margin_out: m_out, above which wild energies are.
        alpha: the false-alarm rate of the deployed threshold.

    >>> EnergyMargin(margin_in=-5.0, margin_out=-23.0)
    Traceback (most recent call last):
    wildood.errors.InputError: EnergyMargin: margin_in is -5.0, above margin_out -23.0: exchange them
    """

    uses_features: ClassVar[bool] = False
    uses_wild: ClassVar[bool] = True

    weight: float = 0.1
    margin_in: float | None = None
    margin_out: float | None = None
    alpha: float = 0.05

    def __post_init__(self) -> None:
        check_fields(
            self,
            "EnergyMargin: ",
            weight=check_positive,
            alpha=check_alpha,
            margin_in=optional(check_number),
            margin_out=optional(check_number),
        )
        if (self.margin_in is None) != (self.margin_out is None):
            raise InputError("EnergyMargin: give both margins, or neither")
        if self.margin_in is not None and self.margin_out is not None and self.margin_in > self.margin_out:
            raise InputError(
                f"EnergyMargin: margin_in is {self.margin_in}, above margin_out {self.margin_out}: exchange them"
            )

    def schedule(self) -> Schedule:
        """That of `Woods()`, so that they can be compared."""
        return Schedule()

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """The loss on this classifier."""
        return EnergyMarginObjective(self, classifier, *self.margins_from(start))

    def margins_from(self, start: Start) -> tuple[float, float]:
        """The margins: as given, or from the starting classifier's energies."""
        if self.margin_in is not None and self.margin_out is not None:
            return self.margin_in, self.margin_out
        energies = -start.logsumexp.double()
        mean = float(energies.mean())
        return mean, max(mean, float(energies.quantile(0.95)))


class EnergyMarginObjective(Objective):
    """CE(labelled) + weight * (mean relu(E - m_in)^2 over labelled + mean relu(m_out - E)^2 over wild)."""

    def __init__(self, method: EnergyMargin, classifier: Classifier, margin_in: float, margin_out: float) -> None:
        super().__init__(classifier, EnergyScore())
        self.weight, self.margin_in, self.margin_out = method.weight, margin_in, margin_out

    def watch(self) -> dict[str, float]:
        """The margins, which may come from the starting classifier."""
        return {"margin_in": self.margin_in, "margin_out": self.margin_out}

    def forward(self, batch: Batch) -> Terms:
        """The loss of a batch; no constraints."""
        labelled, wild = self.outputs(batch)
        hinges = squared_hinges(energy(labelled.logits), energy(wild.logits), self.margin_in, self.margin_out)
        return Terms(F.cross_entropy(labelled.logits, batch.labels) + self.weight * hinges, {})

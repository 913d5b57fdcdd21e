"""The augmented Lagrangian for inequality constraints: L(θ, λ) = loss(θ) + Σ_i psi(c_i(θ), λ_i, β_i)."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wildood.methods.objective import Duals, Terms


def psi(c: Tensor, multiplier: Tensor, penalty: float) -> Tensor:
    """ψ_β(c, λ) = [relu(λ + βc)² - λ²] / 2β, which is λc + βc²/2 where βc + λ >= 0, and -λ²/2β elsewhere.

    The two branches of the paper in one expression; the multiplier that acts on the gradient of c is relu(λ + βc).

    >>> psi(torch.tensor(0.5), torch.tensor(1.0), penalty=2.0).item()
    0.75
    """
    return (F.relu(multiplier + penalty * c) ** 2 - multiplier**2) / (2 * penalty)


class AugmentedLagrangian:
    """One multiplier and one penalty for each named constraint.

    >>> lagrangian = AugmentedLagrangian(Duals(multipliers={"c": 0.0}, penalties={"c": 1.0}, rate=0.1, growth=1.5))
    >>> lagrangian.ascend({"c": 0.5}); lagrangian.grow({"c": 0.5})
    >>> round(lagrangian.multipliers["c"].item(), 4), lagrangian.penalties["c"]
    (0.05, 1.5)
    """

    def __init__(self, settings: Duals, device: torch.device | str = "cpu") -> None:
        self.settings = settings
        self.multipliers = {
            name: torch.tensor(start, device=device, dtype=torch.float32) for name, start in settings.multipliers.items()
        }
        if settings.shared_multiplier:  # the released code's `lam2 = lam.cuda()` makes both names one tensor
            self.multipliers = dict.fromkeys(self.multipliers, next(iter(self.multipliers.values())))
        self.penalties = dict(settings.penalties)

    def __call__(self, terms: Terms) -> Tensor:
        """The augmented Lagrangian of a batch."""
        self.check_names(terms.constraints)
        total = terms.loss
        for name, c in terms.constraints.items():
            total = total + psi(c, self.multipliers[name], self.penalties[name])
        return total

    def check_names(self, constraints: Mapping[str, Any]) -> None:
        """Refuse constraints without a multiplier, and multipliers without a constraint: a bug of an objective."""
        if constraints.keys() != self.multipliers.keys():
            raise ValueError(
                f"the objective has the constraints {sorted(constraints)}, but its duals name {sorted(self.multipliers)}: "
                "return the same names from forward() and constraints() as Duals(multipliers=...) has"
            )

    def ascend(self, constraints: Mapping[str, Tensor | float]) -> None:
        """Line 7 of Algorithm 1: dual ascent, for each constraint.

        "gradient": λ <- λ + μ₂ ∂ψ/∂λ, which is c where βc + λ >= 0 and -λ/β elsewhere. "projected": λ <- max(0, λ + μ₂ c).
        """
        rate = self.settings.rate
        for name, c in constraints.items():
            multiplier, penalty = self.multipliers[name], self.penalties[name]
            if self.settings.ascent == "gradient":
                active = bool(penalty * c + multiplier >= 0)
                multiplier += rate * c if active else -rate * multiplier / penalty
            else:
                multiplier.add_(rate * c).clamp_(min=0)

    def grow(self, constraints: Mapping[str, Tensor | float]) -> None:
        """Lines 8 to 13 of Algorithm 1: β <- γβ for each constraint c (a mean minus its level) above tol, up to the cap."""
        for name, c in constraints.items():
            if c > self.settings.tol:
                grown = self.penalties[name] * self.settings.growth
                cap = self.settings.penalty_cap
                self.penalties[name] = grown if cap is None else max(self.penalties[name], min(grown, cap))

    def is_settled(self, constraints: Mapping[str, Tensor | float], steps: int) -> bool:
        """Whether no multiplier falls by half in so many steps more, because its constraint c is slack.

        At a solution, a constraint is met exactly or its multiplier is 0. Where a multiplier is still falling, it weighs its
        constraint more than it should: the model may call everything ID, and learn only when it has fallen.

        >>> lagrangian = AugmentedLagrangian(Duals(multipliers={"c": 0.8}, penalties={"c": 1.0}, rate=0.1))
        >>> [lagrangian.is_settled({"c": c}, steps=100) for c in (-0.05, -0.01, 0.2)]
        [False, True, True]
        """
        return all(
            2 * self.settings.rate * -float(c) * steps <= float(self.multipliers[name]) or not self.multipliers[name]
            for name, c in constraints.items()
        )

    def watch(self) -> dict[str, float]:
        """The multipliers and penalties, for the history."""
        multipliers = {f"lambda_{name}": multiplier.item() for name, multiplier in self.multipliers.items()}
        return multipliers | {f"beta_{name}": penalty for name, penalty in self.penalties.items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        multipliers = {name: multiplier.clone() for name, multiplier in self.multipliers.items()}
        return {"multipliers": multipliers, "penalties": dict(self.penalties)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        for name, value in state["multipliers"].items():
            self.multipliers[name].copy_(value)
        self.penalties = dict(state["penalties"])


class MeanConstraints:
    """Sample means of constraints over batches of any sizes.

    >>> mean = MeanConstraints()
    >>> mean.add({"c": torch.tensor(1.0)}, 3); mean.add({"c": torch.tensor(0.0)}, 1)
    >>> mean.means()
    {'c': tensor(0.7500)}
    """

    def __init__(self) -> None:
        self.count = 0
        self.sums: dict[str, Tensor] = {}

    def add(self, constraints: dict[str, Tensor], count: int) -> None:
        """The constraints of a batch of so many examples."""
        self.count += count
        for name, value in constraints.items():
            summed = value.detach() if count == 1 else value.detach() * count
            self.sums[name] = self.sums.get(name, 0.0) + summed

    def means(self) -> dict[str, Tensor]:
        """The mean of each constraint over all examples added."""
        return {name: total / self.count for name, total in self.sums.items()}

"""Variants for the benchmarks: Algorithm 1, those of the ablation of `Woods()`, and a baseline with pieces of ours."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import wildood
from wildood.data.sampling import generator
from wildood.methods.distillation import Answers
from wildood.methods.objective import Duals, Objective, Start
from wildood.methods.woods import SigmoidLevel, WoodsObjective
from wildood.models.classifier import Classifier


@dataclass(frozen=True)
class Algorithm1(wildood.Woods):
    """The paper's Algorithm 1 from the released start and with its weight decay; w is made negative, and kept so.

    What differs from the paper besides: weight decay acts on rho, of which w = -softplus(rho), not on w; there is a bias b;
    λ is projected to λ >= 0 (the same as the paper's step while β = μ₂), and β has a cap, which short runs do not reach.
    """

    gamma: float = 1.5
    mu2: float = 1.0

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """The drawn w, made negative."""
        w, b = (torch.rand(2, generator=generator(start.seed, "w, b")) * 2 - 1).tolist()
        objective = WoodsObjective(self, classifier, SigmoidLevel(-abs(w), b), start)
        objective.whitening, objective.answers, objective.decay_all = None, None, True
        return objective

    def duals(self, *, priced: bool = True) -> Duals:
        """From 0, as in the released code."""
        duals = super().duals(priced=priced)
        return replace(duals, multipliers=dict.fromkeys(duals.multipliers, 0.0))


@dataclass(frozen=True)
class Paced(wildood.Woods):
    """For the ablation: the last layer at another pace than its own."""

    times: float = 1.0

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """In white coordinates of another scale."""
        objective = super().objective(classifier, start)
        assert objective.whitening is not None  # noqa: S101 - a ResNet-20 has one
        objective.whitening = objective.whitening._replace(matrix=math.sqrt(self.times) * objective.whitening.matrix)
        return objective


class Times(Answers):
    """Answers whose change costs so many times as much."""

    def __init__(self, classifier: Classifier, times: float) -> None:
        super().__init__(classifier)
        self.times = times

    def __call__(self, raw: Tensor, logits: Tensor) -> Tensor:
        """That many times the divergence."""
        return self.times * super().__call__(raw, logits)


@dataclass(frozen=True)
class NotShared(Paced):
    """For the ablation: in white coordinates without a vector that all classes share; at another pace and price, too."""

    price: float = 1.0

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """Only the rows of the last layer."""
        objective = super().objective(classifier, start)
        assert objective.whitening is not None  # noqa: S101 - a ResNet-20 has one
        objective.whitening = objective.whitening._replace(shared=False)
        objective.answers = Times(classifier, self.price)
        return objective


@dataclass(frozen=True)
class Priced(wildood.Woods):
    """For the ablation: another price of a nat of changed answers, and another start of the second multiplier."""

    price: float = 0.0
    weight: float = 0.0

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """With that price, or none."""
        objective = super().objective(classifier, start)
        objective.answers = Times(classifier, self.price) if self.price else None
        return objective

    def duals(self, *, priced: bool = True) -> Duals:
        """The second multiplier from that weight."""
        duals = super().duals(priced=priced)
        return replace(duals, multipliers={**duals.multipliers, "classification": self.weight})


@dataclass(frozen=True)
class NotWhite(Priced):
    """The last layer's gradient as it is, without a shared vector."""

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """Without white coordinates."""
        return super().objective(classifier, start._replace(moments=None))


@dataclass(frozen=True)
class StartedMet(wildood.Woods):
    """For the ablation: w = -2/std(S), and the b at which the constraint on false alarms is met from the start."""

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """By bisection: mean σ(wS + b) rises with b."""
        slope = -2 / float(start.logsumexp.double().std())
        z = slope * start.logsumexp.double()
        low, high = (math.log(self.alpha / (1 - self.alpha)) - float(end) for end in (z.max(), z.min()))
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if float(torch.sigmoid(z + middle).mean()) > self.alpha else (middle, high)
        return WoodsObjective(self, classifier, SigmoidLevel(slope, low), start)


@dataclass(frozen=True)
class PreconditionedLogistic(wildood.EnergyLogistic):
    """The logistic energy with the preconditioner and the shared direction of `Woods()`: no paper's method."""

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """The same loss, with another step of the last layer."""
        objective = super().objective(classifier, start)
        objective.whitening = start.whitening()
        return objective

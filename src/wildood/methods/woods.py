"""WOODS, the method of "Training OOD Detectors in their Natural Habitats" (Katz-Samuels et al., ICML 2022).

minimise    1/m Σ_i L_ood(g(x~_i), in)                      the share of wild data called ID
subject to  1/n Σ_j L_ood(g(x_j), out)      <= alpha        false alarms on labelled data
            1/n Σ_j L_cls(f(x_j), y_j)      <= tau          the classifier stays as good as it was

What is minimised has a price for changed answers on wild data besides (`Answers`), where a vector that all classes share can
be learned (`Whitening`); as published, it has none.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wildood.data.sampling import generator
from wildood.evaluate.thresholds import check_alpha
from wildood.methods.distillation import Answers
from wildood.methods.objective import Batch, Duals, Objective, Start, Terms
from wildood.methods.schedule import Schedule
from wildood.models.classifier import Classifier, Outputs
from wildood.scores.energy import EnergyScore, energy
from wildood.settings import check_fields, check_flag, check_number, check_positive, optional


@dataclass(frozen=True)
class Woods:
    """Energy as the OOD classifier, with the sigmoid loss of eq. (energy_robust).

    Attributes:
        alpha: level of the constraint on false alarms (the soft rate E σ(z) of labelled data); the deployed threshold's
            false-alarm rate, too, unless `fit(alpha=...)` says otherwise.
        tau: level of the constraint on cross-entropy; None for twice the starting classifier's on the labelled data.
        tol: the violation at which a penalty grows.
        gamma: by how much it grows, at most once for each row of the history.
        mu2: the step of dual ascent. 0.1 suits duals that move every step, 1 (the paper's) those that move once per epoch.
        published: what the released code does; use `Woods.as_published()`.

    >>> Woods().alpha, Woods().schedule().duals
    (0.05, 'step')
    >>> Woods(alpha=1.5)
    Traceback (most recent call last):
    wildood.errors.InputError: Woods: alpha is 1.5: give a false-alarm rate strictly between 0 and 1, such as 0.05
    """

    uses_features: ClassVar[bool] = False
    uses_wild: ClassVar[bool] = True

    alpha: float = 0.05
    tau: float | None = None
    tol: float = 0.05
    gamma: float = 1.1
    mu2: float = 0.1
    published: bool = False

    def __post_init__(self) -> None:
        check_fields(
            self,
            f"{type(self).__name__}: ",
            alpha=check_alpha,
            tau=optional(partial(check_number, expected="a positive number", above=0, finite=False)),
            tol=partial(check_number, expected="a number from 0 on", least=0, finite=False),
            gamma=partial(check_number, expected="at least 1: a penalty must not shrink", least=1, finite=False),
            mu2=check_positive,
            published=check_flag,
        )

    @classmethod
    def as_published(cls, gamma: float = 1.5, mu2: float = 1.0) -> Self:
        """The released code: one multiplier for both constraints, started at 0; w and b drawn, and decayed.

        >>> Woods.as_published().duals().multipliers
        {'false_alarm': 0.0, 'classification': 0.0}
        """
        return cls(gamma=gamma, mu2=mu2, published=True)

    def schedule(self) -> Schedule:
        """100 steps; or the released 100 epochs."""
        return Schedule.as_published() if self.published else Schedule()

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """The constrained problem on this classifier, with w and b started from its energies."""
        level = SigmoidLevel(*drawn_level(start.seed), signed=True) if self.published else SigmoidLevel.from_start(start)
        return WoodsObjective(self, classifier, level, start)

    def tau_from(self, start: Start) -> float:
        """tau: as given, or twice the starting classifier's loss."""
        return 2 * start.cross_entropy if self.tau is None else self.tau

    def duals(self, *, priced: bool = True) -> Duals:
        """The settings of the augmented Lagrangian; a subclass may start it elsewhere.

        At a multiplier of 1 the wild objective and the false-alarm constraint weigh ID and OOD alike, whatever pi is; from 0
        the first epochs push ID data out (docs/method.md). Where changed answers have no price (not `priced`), a multiplier
        of 1 on cross-entropy keeps them from the start.
        """
        return Duals(
            multipliers={
                "false_alarm": 0.0 if self.published else 1.0,
                "classification": 0.0 if self.published or priced else 1.0,
            },
            penalties={"false_alarm": 1.0, "classification": 1.0},
            rate=self.mu2,
            growth=self.gamma,
            tol=self.tol,
            penalty_cap=None if self.published else 1000.0,
            as_published=self.published,
        )


def drawn_level(seed: int) -> tuple[float, float]:
    """The released start of w and b: nn.Linear(1, 1) draws both from U(-1, 1), so that the sign of w is a matter of luck.

    >>> all(-1 <= value < 1 for value in drawn_level(seed=0))
    True
    """
    w, b = (torch.rand(2, generator=generator(seed, "w, b")) * 2 - 1).tolist()
    return w, b


class SigmoidLevel(nn.Module):
    """z(x) = w S(x) + b with S = logsumexp f = -E: the logit of "this is OOD", with learnable slope and bias.

    OOD has the smaller S, so w must be negative: w = -softplus(rho). (`signed` leaves w free, as the released code does.)

    >>> level = SigmoidLevel(w=-0.5, b=1.0)
    >>> round(level.w.item(), 6), round(level(torch.tensor([[0.0, 0.0]])).item(), 4)
    (-0.5, 0.6534)
    """

    def __init__(self, w: float, b: float, *, signed: bool = False) -> None:
        super().__init__()
        self.signed = signed
        # softplus(rho) = -w  <=>  rho = log(exp(-w) - 1), in the form that does not overflow
        self.rho = nn.Parameter(torch.tensor(w if signed else -w + math.log(-math.expm1(w))))
        self.bias = nn.Parameter(torch.tensor(b))

    @classmethod
    def from_start(cls, start: Start) -> Self:
        """Start at w = -1/std(S), b = -w q05(S): the bend of the sigmoid at the 5 % quantile of the starting classifier's S.

        A confident network has a large S; at w = -1, b = 0 every sigmoid would be saturated and nothing would be learned.
        """
        sums = start.logsumexp.double()
        bend = float(sums.kthvalue(max(1, math.ceil(0.05 * len(sums)))).values)
        return cls(w=-1 / start.spread, b=bend / start.spread)

    @property
    def w(self) -> Tensor:
        """The slope."""
        return self.rho if self.signed else -F.softplus(self.rho)

    def forward(self, logits: Tensor) -> Tensor:
        """The logit z for each example."""
        return -self.w * energy(logits) + self.bias


class WoodsObjective(Objective):
    """L_ood(g, in) = σ(-z) on wild data; σ(z) <= alpha and cross-entropy <= tau on labelled data."""

    def __init__(self, method: Woods, classifier: Classifier, level: SigmoidLevel, start: Start) -> None:
        whitening = None if method.published else start.whitening()
        priced = whitening is not None  # without a vector that moves the energy and no answer, it would keep OOD in, too
        super().__init__(classifier, EnergyScore(), method.duals(priced=priced), whitening)
        self.answers = Answers(classifier) if priced else None
        self.level = level.to(classifier.device)
        self.alpha = method.alpha
        self.tau = method.tau_from(start)
        self.decay_all = method.published

    def forward(self, batch: Batch) -> Terms:
        """Mean σ(-z) of the wild examples and the price of their answers, and the constraints on the labelled ones."""
        labelled, wild = self.outputs(batch)
        loss = torch.sigmoid(-self.level(wild.logits)).mean()
        return Terms(loss + self.price(batch, wild), self.constraints(labelled, batch.labels))

    def constraints(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        """Mean σ(z) - alpha, and cross-entropy - tau."""
        return {
            "false_alarm": torch.sigmoid(self.level(outputs.logits)).mean() - self.alpha,
            "classification": F.cross_entropy(outputs.logits, labels) - self.tau,
        }

    def without_decay(self) -> list[nn.Parameter]:
        """Both w and b: decay would pull the slope to a flat sigmoid."""
        return [] if self.decay_all else list(self.level.parameters())

    def watch(self) -> dict[str, float]:
        """The slope and the bias."""
        return {"w": self.level.w.item(), "b": self.level.bias.item()}

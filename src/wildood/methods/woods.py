"""WOODS, the method of "Training OOD Detectors in their Natural Habitats" (Katz-Samuels et al., ICML 2022).

minimise    1/m Σ_i L_ood(g(x~_i), in)                      the share of wild data called ID
subject to  1/n Σ_j L_ood(g(x_j), out)      <= alpha        false alarms on labelled data
            1/n Σ_j L_cls(f(x_j), y_j)      <= tau          the classifier stays as good as it was

`Woods.algorithm1()` is the paper's Algorithm 1, `Woods.as_published()` the released code, `Woods()` what we recommend. They
differ in the fields of `Woods` and in nothing else. `train/lagrangian.py` and `train/loop.py` hold the rest of Algorithm 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final, Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wildood.data.sampling import generator
from wildood.evaluate.thresholds import check_alpha
from wildood.methods.distillation import Distillation
from wildood.methods.objective import Batch, Duals, Objective, Precondition, Start, Terms
from wildood.methods.schedule import Schedule
from wildood.models.classifier import Classifier, Outputs
from wildood.scores.energy import EnergyScore, energy
from wildood.settings import check_choice, check_fields, check_flag, check_number, check_positive, optional

LogitStart = Literal["quantile", "constraint", "random", "random_signed"]
Preconditioning = Literal["rows", "shared"]
DualAscent = Literal["projected", "gradient"]
FalseAlarmLoss = Literal["logistic", "sigmoid", "hinge"]

DERIVED = ("precondition", "distillation", "lambda2")  # fields whose values may come from the model
# What the paper's Algorithm 1 and the released code have in common.
ALGORITHM_1: Final[dict[str, Any]] = {
    "lambda1": 0.0,
    "lambda2": 0.0,
    "distillation": 0.0,
    "precondition": None,
    "false_alarm_loss": "sigmoid",
    "dual_ascent": "gradient",
    "penalty_cap": None,
    "published_schedule": True,
}


@dataclass(frozen=True)
class Woods:
    """Energy as the OOD classifier, with the sigmoid loss of eq. (energy_robust).

    The first five fields are the paper's. The others are where `Woods()` differs from it.

    Attributes:
        alpha: level of the constraint on false alarms of labelled data; the deployed threshold's false-alarm rate, too,
            unless `fit(alpha=...)` says otherwise.
        tau: level of the constraint on cross-entropy; None for twice the starting classifier's on the labelled data.
        tol: the violation at which a penalty grows.
        gamma: by how much it grows, at most once for each row of the history.
        mu2: the step of dual ascent. 0.1 suits duals that move every step, 1 (the paper's) those that move once per epoch.
        lambda1: where the multiplier of the false-alarm constraint starts. At 1 the objective weighs ID and OOD alike,
            whatever pi is; from 0 it first pushes ID data out (docs/method.md).
        lambda2: where the multiplier of the cross-entropy constraint starts; None for 0 with distillation, else 1.
        logit_start: where w and b start. "quantile": w = -1/std(S), b = -w q05(S). "constraint": w = -2/std(S), and the b at
            which the false-alarm constraint is met. "random": both from U(-1, 1), w made negative. "random_signed": with
            either sign of w, as in the released code.
        margin: how far beyond the bend that the false-alarm constraint has in S the bend of wild data is, in units of
            std(S): the wild loss is σ(-(w (S + margin std(S)) + b)). 0 is WOODS, more is SCONE (Bai et al., 2023): known
            examples that have changed are pushed less, and fewer unknown ones are caught (docs/method.md).
        false_alarm_loss: what the constraint on false alarms averages: the paper's soft rate σ(z) ("sigmoid"), or
            log(1 + exp(z)) ("logistic"), which gives up no ID example: its gradient does not vanish where z is large.
            max(1 + z, 0) is the "hinge".
        distillation: weight of KL(p₀ ‖ p) on wild data, p₀ the starting classifier's softmax; None for 1 with the shared
            direction, else 0, because without it distillation keeps OOD data in.
        precondition: train the last layer in whitened coordinates ("rows"), or there with a direction that all classes
            share, which moves the energy and no prediction ("shared"); None trains it as it is.
        precondition_scale: multiplies the learning rate of the preconditioned layer.
        judged_weight: weight of the term of `fit(judged=...)`: the mean of log(1 + exp(-z)) over judged unknowns and
            log(1 + exp(z)) over judged known examples.
        decay_logit: apply weight decay to w and b, too.
        dual_ascent: "projected" is λ <- max(0, λ + mu2 c); "gradient" is λ <- λ + mu2 ∂ψ/∂λ, line 7 of Algorithm 1.
        shared_multiplier: one multiplier for both constraints, from `lambda1`, as in the released code.
        penalty_cap: the largest penalty; None for no cap.
        published_schedule: train by `Schedule.as_published()` by default (100 epochs, duals once per epoch, no clip),
            instead of by `Schedule()`.

    >>> Woods().alpha, Woods().schedule().duals
    (0.05, 'step')
    >>> Woods(alpha=1.5)
    Traceback (most recent call last):
    wildood.errors.InputError: Woods: alpha is 1.5: give a false-alarm rate strictly between 0 and 1, such as 0.05
    """

    uses_features: ClassVar[bool] = False
    uses_wild: ClassVar[bool] = True
    uses_judged: ClassVar[bool] = True

    alpha: float = 0.05
    tau: float | None = None
    tol: float = 0.05
    gamma: float = 1.1
    mu2: float = 0.1
    lambda1: float = 1.0
    lambda2: float | None = None
    logit_start: LogitStart = "quantile"
    margin: float = 0.0
    false_alarm_loss: FalseAlarmLoss = "logistic"
    distillation: float | None = None
    precondition: Preconditioning | None = "shared"
    precondition_scale: float = 1.0
    judged_weight: float = 1.0
    decay_logit: bool = False
    dual_ascent: DualAscent = "projected"
    shared_multiplier: bool = False
    penalty_cap: float | None = 1000.0
    published_schedule: bool = False

    def __post_init__(self) -> None:
        not_negative = partial(check_number, expected="a number from 0 on", least=0)
        check_fields(
            self,
            f"{type(self).__name__}: ",
            alpha=check_alpha,
            tau=optional(partial(check_number, expected="a positive number", above=0, finite=False)),
            tol=partial(not_negative, finite=False),
            gamma=partial(check_number, expected="at least 1: a penalty must not shrink", least=1, finite=False),
            mu2=check_positive,
            lambda1=not_negative,
            lambda2=optional(not_negative),
            logit_start=partial(check_choice, choices=get_args(LogitStart)),
            margin=not_negative,
            false_alarm_loss=partial(check_choice, choices=get_args(FalseAlarmLoss)),
            distillation=optional(not_negative),
            precondition=optional(partial(check_choice, choices=get_args(Preconditioning))),
            precondition_scale=check_positive,
            judged_weight=not_negative,
            decay_logit=check_flag,
            dual_ascent=partial(check_choice, choices=get_args(DualAscent)),
            shared_multiplier=check_flag,
            penalty_cap=optional(check_positive),
            published_schedule=check_flag,
        )

    @classmethod
    def algorithm1(cls, gamma: float = 1.5, mu2: float = 1.0) -> Self:
        """The paper's Algorithm 1, with w kept negative: the formula as printed, with w > 0, would pull wild data in.

        The paper does not say where w and λ start: here as in the released code. Its formula has no bias b.

        >>> Woods.algorithm1().distillation, Woods.algorithm1().dual_ascent
        (0.0, 'gradient')
        """
        return cls(**ALGORITHM_1, gamma=gamma, mu2=mu2, logit_start="random", decay_logit=True)

    @classmethod
    def as_published(cls, gamma: float = 1.5, mu2: float = 1.0) -> Self:
        """The released code: Algorithm 1 with one multiplier for both constraints, and a w whose sign is a matter of luck.

        >>> Woods.as_published().duals().multipliers
        {'false_alarm': 0.0, 'classification': 0.0}
        """
        drawn: dict[str, Any] = {"logit_start": "random_signed", "decay_logit": True}
        return cls(**ALGORITHM_1, **drawn, gamma=gamma, mu2=mu2, shared_multiplier=True)

    def schedule(self) -> Schedule:
        """One that ends by itself; or the published 100 epochs."""
        return Schedule.as_published() if self.published_schedule else Schedule()

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """The constrained problem on this classifier."""
        layer = None
        if self.precondition is not None:
            layer = start.precondition(shared=self.precondition == "shared", scale=self.precondition_scale)
        objective = WoodsObjective(self.derived_for(layer), classifier, start, layer)
        if layer is None and self.precondition is not None:
            objective.warnings.append(no_preconditioner(self.precondition))
        return objective

    def derived_for(self, layer: Precondition | None) -> Self:
        """The same method with the values that are derived from the model, and without a preconditioner it cannot have."""
        precondition = None if layer is None else self.precondition
        distillation = self.distillation
        if distillation is None:
            distillation = 1.0 if precondition == "shared" else 0.0
        lambda2 = (0.0 if distillation else 1.0) if self.lambda2 is None else self.lambda2
        lambda2 = self.lambda1 if self.shared_multiplier else lambda2  # they are one multiplier
        return replace(self, precondition=precondition, distillation=distillation, lambda2=lambda2)

    def tau_from(self, start: Start) -> float:
        """The level of the cross-entropy constraint: `tau`, or twice the starting classifier's loss."""
        return 2 * start.cross_entropy if self.tau is None else self.tau

    def duals(self) -> Duals:
        """The settings of the augmented Lagrangian."""
        return Duals(
            multipliers={"false_alarm": self.lambda1, "classification": self.lambda2 or 0.0},
            penalties={"false_alarm": 1.0, "classification": 1.0},
            rate=self.mu2,
            growth=self.gamma,
            tol=self.tol,
            penalty_cap=self.penalty_cap,
            ascent=self.dual_ascent,
            shared_multiplier=self.shared_multiplier,
        )


def no_preconditioner(precondition: Preconditioning) -> str:
    """What a user should know whose model has no layer to precondition."""
    return (
        f"precondition={precondition!r} needs a trained nn.Linear that makes the logits: the last layer is trained without "
        "a preconditioner, and the detector may catch less (docs/method.md)"
    )


class EnergyLogit(nn.Module):
    """z(x) = w S(x) + b with S = logsumexp f = -E: the logit of "this is OOD", with learnable slope and bias.

    OOD has the smaller S, so w must be negative: w = -softplus(rho). (`signed` leaves w free, as the released code does.)

    >>> logit = EnergyLogit(w=-0.5, b=1.0)
    >>> round(logit.w.item(), 6), round(logit(torch.tensor([[0.0, 0.0]])).item(), 4)
    (-0.5, 0.6534)
    """

    def __init__(self, w: float, b: float, *, signed: bool = False) -> None:
        super().__init__()
        self.signed = signed
        # softplus(rho) = -w  <=>  rho = log(exp(-w) - 1), in the form that does not overflow
        self.rho = nn.Parameter(torch.tensor(w if signed else -w + math.log(-math.expm1(w))))
        self.bias = nn.Parameter(torch.tensor(b))

    @classmethod
    def from_start(
        cls, how: LogitStart, start: Start, alpha: float, loss: Callable[[Tensor], Tensor] = torch.sigmoid
    ) -> Self:
        """Where w and b start, as `Woods.logit_start` describes it.

        A confident network has a large S; at w = -1, b = 0 every sigmoid would be saturated and nothing would be learned.
        """
        if how in {"random", "random_signed"}:  # what nn.Linear(1, 1) draws
            w, b = (torch.rand(2, generator=generator(start.seed, "w, b")) * 2 - 1).tolist()
            return cls(w, b, signed=True) if how == "random_signed" else cls(-abs(w), b)
        sums = start.logsumexp.double()
        if how == "constraint":
            return cls(-2 / start.spread, _bias_that_meets(alpha, -2 / start.spread * sums, loss))
        return cls(w=-1 / start.spread, b=start.quantile / start.spread)

    @property
    def w(self) -> Tensor:
        """The slope."""
        return self.rho if self.signed else -F.softplus(self.rho)

    def forward(self, logits: Tensor) -> Tensor:
        """The logit z for each example."""
        return -self.w * energy(logits) + self.bias


def _bias_that_meets(alpha: float, z: Tensor, loss: Callable[[Tensor], Tensor]) -> float:
    """The b at which the mean loss of z + b is alpha, by bisection: at the ends, no and every z is well above 0."""
    low, high = -50 - float(z.max()), 50 - float(z.min())
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if float(loss(z + middle).mean()) > alpha else (middle, high)
    return low


FALSE_ALARM_LOSSES: dict[FalseAlarmLoss, Callable[[Tensor], Tensor]] = {
    "logistic": F.softplus,
    "sigmoid": torch.sigmoid,
    "hinge": lambda z: F.relu(1 + z),
}


class WoodsObjective(Objective):
    """L_ood(g, in) = σ(-z) on wild data; the loss of false alarms <= alpha and cross-entropy <= tau on labelled data."""

    def __init__(self, method: Woods, classifier: Classifier, start: Start, layer: Precondition | None) -> None:
        super().__init__(classifier, EnergyScore(), method.duals(), layer)
        self.alpha, self.tau, self.decay_logit = method.alpha, method.tau_from(start), method.decay_logit
        self.margin, self.judged_weight = method.margin * start.spread, method.judged_weight
        self.false_alarm_loss = FALSE_ALARM_LOSSES[method.false_alarm_loss]
        logit = EnergyLogit.from_start(method.logit_start, start, method.alpha, self.false_alarm_loss)
        self.logit = logit.to(classifier.device)
        self.distillation = Distillation(classifier, method.distillation) if method.distillation else None
        self.derived = {"tau": self.tau, **{name: getattr(method, name) for name in DERIVED}}

    def forward(self, batch: Batch) -> Terms:
        """Mean σ(-z - w margin) of the wild examples (plus distillation on them), and the constraints on labelled ones."""
        labelled, wild = self.outputs(batch)
        loss = torch.sigmoid(-(self.logit(wild.logits) + self.logit.w * self.margin)).mean()
        if self.distillation is not None and batch.wild is not None:
            loss = loss + self.distillation(batch.wild, wild.logits)
        if batch.judged is not None and batch.is_ood is not None:
            z = self.logit(self.judged_outputs(batch.judged).logits)
            loss = loss + self.judged_weight * F.binary_cross_entropy_with_logits(z, batch.is_ood)
        return Terms(loss, self.constraints(labelled, batch.labels))

    def constraints(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        """The mean false-alarm loss of z - alpha, and cross-entropy - tau."""
        return {
            "false_alarm": self.false_alarm_loss(self.logit(outputs.logits)).mean() - self.alpha,
            "classification": F.cross_entropy(outputs.logits, labels) - self.tau,
        }

    def without_decay(self) -> list[nn.Parameter]:
        """Both w and b: decay would pull the slope to a flat sigmoid."""
        return [] if self.decay_logit else list(self.logit.parameters())

    def watch(self) -> dict[str, float]:
        """The slope and the bias."""
        return {"w": self.logit.w.item(), "b": self.logit.bias.item()}

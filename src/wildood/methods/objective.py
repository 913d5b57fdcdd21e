"""The contract between methods and the training loop: a batch in, a loss and named constraints out."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from wildood.methods.distillation import Answers
from wildood.methods.schedule import Schedule
from wildood.models.classifier import Classifier, Outputs
from wildood.models.whitening import Moments, Whitening
from wildood.scores.score import Score

logger = logging.getLogger("wildood")


class Batch(NamedTuple):
    """B labelled examples with their classes, and B wild ones for methods that use them; raw, as their sources give them."""

    labelled: Tensor
    labels: Tensor
    wild: Tensor | None = None


class Terms(NamedTuple):
    """What an objective says of a batch: a loss to minimise, and constraints c that must be <= 0."""

    loss: Tensor
    constraints: dict[str, Tensor]


class Start(NamedTuple):
    """What the starting classifier says of the labelled data that is trained on, in evaluation mode.

    Attributes:
        cross_entropy: its mean classification loss.
        accuracy: the share it classifies correctly.
        logsumexp: S(x) for each labelled example.
        classes: how many classes it has.
        features: how many features it has, for methods that use them; else 0.
        seed: the run's.
        shape: of one example, as the model takes it.
        reach: the least and the greatest value of the examples before they are normalised; uint8 is divided by 255.
        moments: of what its last linear layer takes, for white coordinates; None if it has none that makes the logits,
            or a tied or wide one.
    """

    cross_entropy: float
    accuracy: float
    logsumexp: Tensor
    classes: int
    features: int
    seed: int
    shape: tuple[int, ...] = ()
    reach: tuple[float, float] = (0.0, 1.0)
    moments: Moments | None = None

    def whitening(self) -> Whitening | None:
        """How its last layer is trained in white coordinates, with a vector that all classes share; None if it cannot be.

        For losses of wS + b with w from -1/std(S): where logits are c times as large, so is what is to be learned, and the
        gradient is a c-th of what it was. So the mean square of a white feature is the variance of S, which suits the
        default learning rate.
        """
        whitening = None if self.moments is None else self.moments.whitening(self.spread**2)
        if whitening is None:
            logger.info("the last layer is trained as it is, without white coordinates: it may catch less (docs/method.md)")
        return whitening

    @property
    def spread(self) -> float:
        """The standard deviation of S; not 0, where all logits are the same."""
        return max(float(self.logsumexp.double().std()), 1e-3)


@dataclass(frozen=True)
class Duals:
    """How the augmented Lagrangian treats an objective's constraints.

    Attributes:
        multipliers: the starting lambda of each named constraint.
        penalties: the starting beta of each.
        rate: mu_2, the step of dual ascent.
        growth: gamma, by which a penalty grows after an epoch whose constraint exceeds `tol`.
        tol: the violation that is tolerated.
        penalty_cap: the largest penalty; None for no cap.
        as_published: one multiplier shared by all constraints, never projected, as in the released code.
    """

    multipliers: dict[str, float] = field(default_factory=dict)
    penalties: dict[str, float] = field(default_factory=dict)
    rate: float = 1.0
    growth: float = 1.5
    tol: float = 0.05
    penalty_cap: float | None = None
    as_published: bool = False


class Objective(nn.Module):
    """A method at work on one model: owns the classifier and whatever is learned besides it.

    Attributes:
        classifier: the user's model (a copy), with its input spec.
        score: what the finished detector will score with.
        duals: how its constraints are to be met; without constraints, the default says nothing.
        optimiser: what minimises it.
        classifies: whether the classifier's accuracy says anything of an epoch; not while its logits are not trained.
        per_example: whether loss and constraints are means over the examples of a batch, each example for itself: only then
            can several processes share a batch.
        whitening: of a layer that is trained in white coordinates, if one is.
        answers: the starting classifier's, if changed answers on wild data have a price.
    """

    optimiser: ClassVar[Literal["sgd", "lars"]] = "sgd"
    classifies: ClassVar[bool] = True
    per_example: ClassVar[bool] = True

    def __init__(
        self, classifier: Classifier, score: Score, duals: Duals | None = None, whitening: Whitening | None = None
    ) -> None:
        super().__init__()
        self.classifier = classifier
        self.score = score
        self.duals = duals or Duals()
        self.whitening = whitening
        self.answers: Answers | None = None

    def forward(self, batch: Batch) -> Terms:
        """Loss and constraints of a batch, from one concatenated forward pass."""
        raise NotImplementedError

    def constraints(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:  # noqa: ARG002 - for methods that have any
        """The constraints on these ID examples: means minus their levels."""
        return {}

    def without_decay(self) -> list[nn.Parameter]:
        """Parameters that weight decay must leave alone."""
        return []

    def watch(self) -> dict[str, float]:
        """Learned numbers worth a column in the history."""
        return {}

    def outputs(self, batch: Batch) -> tuple[Outputs, Outputs]:
        """The outputs for the labelled and for the wild examples, from one forward pass: BatchNorm sees the mix."""
        count = len(batch.labelled)
        raw = batch.labelled if batch.wild is None else torch.cat([batch.labelled, batch.wild])
        logits, features = self.classifier(raw)
        if features is None:
            return Outputs(logits[:count]), Outputs(logits[count:])
        return Outputs(logits[:count], features[:count]), Outputs(logits[count:], features[count:])

    def price(self, batch: Batch, wild: Outputs) -> Tensor:
        """Of changed answers on the wild examples; 0 where they have none."""
        if self.answers is None or batch.wild is None:
            return wild.logits.new_zeros(())
        return self.answers(batch.wild, wild.logits)


class Stage(Protocol):
    """One training: what is minimised, and how long and how fast."""

    def schedule(self) -> Schedule:
        """The schedule that suits it."""
        ...

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """It at work on a classifier."""
        ...


class Method(Stage, Protocol):
    """A training recipe's settings, as a frozen dataclass; most have one stage, themselves."""

    uses_features: ClassVar[bool]
    uses_wild: ClassVar[bool]

    @property
    def alpha(self) -> float:
        """The level of the constraint on false alarms, and the deployed false-alarm rate unless `fit` is told otherwise."""
        ...


def stages_of(method: Method) -> list[Stage]:
    """What is trained one after the other on the same classifier: the method, then its `later_stages`, if it has any.

    The objective of the last stage has the score of the finished detector; a `schedule` that is given is the first one's.
    """
    later: Callable[[], Sequence[Stage]] = getattr(method, "later_stages", tuple)
    return [method, *later()]

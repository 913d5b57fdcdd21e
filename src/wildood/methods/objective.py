"""The contract between methods and the training loop: a batch in, a loss and named constraints out."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wildood.data.sources import Source
from wildood.data.structures import Raw, concatenate, have_equal_shapes
from wildood.methods.schedule import Normalisation, Schedule
from wildood.models.classifier import Classifier, Outputs
from wildood.models.moments import Moments
from wildood.models.normalisation import running_statistics
from wildood.scores.energy import EnergyScore
from wildood.scores.score import Score

NO_LABEL = -100  # the class of a fresh example, which cross-entropy ignores


class Batch(NamedTuple):
    """B labelled examples with their classes, and B wild ones for methods that use them; raw, as their sources give them.

    Some labelled examples may be fresh ones: ID examples as they come now, with `NO_LABEL` where they have no class. Of
    judged examples, `is_ood` has a person's answers: 1 for unknown, 0 for known.
    """

    labelled: Raw
    labels: Tensor
    wild: Raw | None = None
    judged: Raw | None = None
    is_ood: Tensor | None = None


class Terms(NamedTuple):
    """What an objective says of a batch: a loss to minimise, and constraints c that must be <= 0."""

    loss: Tensor
    constraints: dict[str, Tensor]


class Precondition(NamedTuple):
    """A linear layer that is trained in whitened coordinates: weight = start + V M, where SGD moves V.

    Attributes:
        weight: the layer's, one row for each output.
        matrix: M, in float32.
        shared: whether a direction u that all rows share is learned as well: weight = start + (V + 1 uᵀ) M.
        scale: c, if the logits are c times what the layer makes: its bias is b = start + v / c, where SGD moves v.
        bias: b, if there is one.
    """

    weight: Tensor
    matrix: Tensor
    shared: bool = False
    scale: float = 1.0
    bias: Tensor | None = None


class Start(NamedTuple):
    """What the starting classifier says of the labelled data that is trained on, in evaluation mode.

    Attributes:
        cross_entropy: its mean classification loss.
        accuracy: the share it classifies correctly.
        logsumexp: S(x) for each labelled example.
        classes: the number of its classes.
        features: the number of its features, for methods that use them; else 0.
        seed: the run's.
        labelled: the labelled data.
        wild: the number of wild examples that are trained on; 0 for methods that use none.
        moments: of the features that its last layer takes; None if no plain linear layer makes the logits.
    """

    cross_entropy: float
    accuracy: float
    logsumexp: Tensor
    classes: int
    features: int
    seed: int
    labelled: Source
    wild: int = 0
    moments: Moments | None = None

    @property
    def spread(self) -> float:
        """The standard deviation of S; not 0, even if all logits are equal."""
        return max(float(self.logsumexp.double().std()), 1e-3)

    @property
    def quantile(self) -> float:
        """The 5 % quantile of S."""
        return float(self.logsumexp.double().kthvalue(max(1, math.ceil(0.05 * len(self.logsumexp)))).values)

    def precondition(self, *, shared: bool, scale: float = 1.0) -> Precondition | None:
        """The last layer in whitened coordinates, for losses of z = wS + b; None if the model has no such layer.

        If the logits are c times as large, so is what is to be learned, and with w = -1/std(S) the gradient is a c-th of
        what it was. So the mean square of a whitened feature is the variance of S (times `scale`). If the logits are c times
        what the layer makes, its weight and its bias move as those of a layer that makes the logits, divided by c.
        """
        if self.moments is None:
            return None
        weight, bias = self.moments.layer.weight, self.moments.layer.bias
        matrix = self.moments.matrix(self.spread**2 / self.moments.scale**2, self.wild)
        if matrix is None or not weight.requires_grad:
            return None
        return Precondition(weight, math.sqrt(scale) * matrix, shared, self.moments.scale, bias)


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
        ascent: "projected" is lambda <- max(0, lambda + mu_2 c); "gradient" steps along d psi / d lambda, as in the paper.
        shared_multiplier: one multiplier for all constraints, as in the released code.
    """

    multipliers: dict[str, float] = field(default_factory=dict)
    penalties: dict[str, float] = field(default_factory=dict)
    rate: float = 1.0
    growth: float = 1.5
    tol: float = 0.05
    penalty_cap: float | None = None
    ascent: Literal["projected", "gradient"] = "projected"
    shared_multiplier: bool = False


class Objective(nn.Module):
    """A method at work on one model: owns the classifier and whatever is learned besides it.

    Attributes:
        classifier: the user's model (a copy), with its input spec.
        score: what the finished detector will score with.
        duals: how its constraints are to be met; without constraints, the default says nothing.
        precondition: the layer that is trained in whitened coordinates, if any.
        normalisation: what BatchNorm normalises by, as `Schedule.normalisation` has it.
        derived: settings of the method that were derived from the model, for the detector's record.
        warnings: settings that this model cannot have, one sentence each.
    """

    def __init__(
        self, classifier: Classifier, score: Score, duals: Duals | None = None, precondition: Precondition | None = None
    ) -> None:
        super().__init__()
        self.classifier = classifier
        self.score = score
        self.duals = duals or Duals()
        self.precondition = precondition
        self.normalisation: Normalisation = "running"
        self.derived: dict[str, Any] = {}
        self.warnings: list[str] = []

    def forward(self, batch: Batch) -> Terms:
        """Loss and constraints of a batch, from one concatenated forward pass."""
        raise NotImplementedError

    def constraints(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:  # noqa: ARG002 - for methods that have any
        """The constraints on these ID examples: means minus their levels."""
        return {}

    def optimiser(self, schedule: Schedule) -> torch.optim.Optimizer:
        """SGD with Nesterov momentum (if any), and weight decay but for `without_decay()`."""
        nesterov = schedule.momentum > 0  # torch knows none without momentum
        return torch.optim.SGD(
            self.parameter_groups(),
            lr=schedule.lr,
            momentum=schedule.momentum,
            weight_decay=schedule.weight_decay,
            nesterov=nesterov,
        )

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The trained parameters: those with weight decay, then those without."""
        excepted = {id(parameter) for parameter in self.without_decay()}
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [parameter for parameter in trained if id(parameter) not in excepted]},
            {"params": [parameter for parameter in trained if id(parameter) in excepted], "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def without_decay(self) -> list[nn.Parameter]:
        """Parameters that weight decay must leave alone."""
        return []

    def watch(self) -> dict[str, float]:
        """Learned numbers worth a column in the history."""
        return {}

    def outputs(self, batch: Batch) -> tuple[Outputs, Outputs]:
        """The outputs for the labelled and for the wild examples, from one forward pass.

        Texts may be padded to different lengths: then there are two passes, and "batch" normalises each by itself. Without
        wild examples, BatchNorm normalises by the batch, as in any training.
        """
        count = len(batch.labels)
        if batch.wild is None:
            return self.classifier(batch.labelled), Outputs(batch.labels.new_empty(0, 0, dtype=torch.float32))
        with nullcontext() if self.normalisation == "batch" else running_statistics(self.classifier):
            if not have_equal_shapes([batch.labelled, batch.wild]):
                return self.classifier(batch.labelled), self.classifier(batch.wild)
            logits, features = self.classifier(concatenate([batch.labelled, batch.wild]))
        if features is None:
            return Outputs(logits[:count]), Outputs(logits[count:])
        return Outputs(logits[:count], features[:count]), Outputs(logits[count:], features[count:])

    def judged_outputs(self, judged: Raw) -> Outputs:
        """The outputs for judged examples, which BatchNorm normalises by its statistics of ID data."""
        with running_statistics(self.classifier):
            outputs: Outputs = self.classifier(judged)
        return outputs


class CrossEntropyObjective(Objective):
    """Mean cross-entropy of the labelled examples, without constraints and without wild data: what `pretrain` minimises.

    >>> objective = CrossEntropyObjective(Classifier(torch.nn.Linear(2, 4)))
    >>> objective(Batch(torch.zeros(3, 2), torch.tensor([0, 1, 2]))).constraints
    {}
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__(classifier, EnergyScore())

    def forward(self, batch: Batch) -> Terms:
        """The mean loss of the batch."""
        labelled, _ = self.outputs(batch)
        return Terms(F.cross_entropy(labelled.logits, batch.labels), {})


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
        """The level of the constraint on false alarms; the deployed false-alarm rate, too, without `fit(alpha=...)`."""
        ...


def stages_of(method: Method) -> list[Stage]:
    """What is trained one after the other on the same classifier: the method, then its `later_stages()`, if it has any.

    The last stage's objective has the score of the finished detector; `fit(schedule=...)` is the first one's.
    """
    later: Callable[[], Sequence[Stage]] = getattr(method, "later_stages", tuple)
    return [method, *later()]

"""CSI (Tack et al., 2020), with labels: contrastive learning of turned images, then heads on what was learned.

Stage 1: each image twice, each in four rotations, each of these eight with colours and a crop of its own; the class of an
image of class y that is turned r times is y + K r, and the supervised contrastive loss of a projection is minimised.
Stage 2: the network stays as it is; layers for the class, the rotation, and both together are trained on its features.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from wildood.data.augmentation import random_flip, random_view, rotations
from wildood.data.inputs import InputSpec
from wildood.data.sampling import seeded
from wildood.data.sources import Source
from wildood.data.structures import one_tensor
from wildood.errors import InputError
from wildood.evaluate.thresholds import check_alpha
from wildood.methods.objective import Batch, Objective, Stage, Start, Terms
from wildood.methods.schedule import Schedule
from wildood.models.classifier import Classifier, raw_batches
from wildood.models.heads import JointHead
from wildood.scores.max_softmax import MaxSoftmax
from wildood.settings import check_count, check_fields, check_integer, check_positive


def supervised_contrastive(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """The mean over anchors i of  -1/|P(i)| Σ_{p ∈ P(i)} log( exp(z_i·z_p / T) / Σ_{a ≠ i} exp(z_i·z_a / T) ).

    P(i) are the other examples with the label of i; z are the features, normalised here. Anchors that have no other example
    of their label are left out.

    >>> same = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> round(supervised_contrastive(same, torch.tensor([0, 0, 1, 1]), temperature=1.0).item(), 4)  # -log(e / (e + 2))
    0.5514
    """
    unit = F.normalize(features, dim=1)
    similarity = unit @ unit.T / temperature
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    log_share = similarity - similarity.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    positive = (labels[:, None] == labels[None, :]) & ~itself
    count = positive.sum(1)
    per_anchor = -(log_share * positive).sum(1)[count > 0] / count[count > 0]
    return per_anchor.mean()


TURNS = JointHead.turns
TRUST, EPSILON = 0.001, 1e-8  # of LARS
ROUNDING = 1e-3  # by which images may leave 0 to 1


@dataclass(frozen=True)
class Csi:
    """Contrastive learning in which turned images are other classes; scored by max-softmax over the four rotations.

    For square images with an input spec; wild data is not used. `schedule` is that of the first stage, for a network from
    scratch; it starts from the weights of your model, whatever they are.

    Attributes:
        temperature: of CSI's contrastive loss.
        projection: how many numbers CSI's contrastive loss compares images by.
        head_epochs: how many epochs CSI's heads are trained, in its second stage.
        head_lr: the learning rate of CSI's heads at the start of that stage.
        alpha: the false-alarm rate of the deployed threshold.

    >>> Csi().schedule().epochs, [stage.schedule().epochs for stage in Csi().later_stages()]
    (700, [100])
    """

    uses_features: ClassVar[bool] = True
    uses_wild: ClassVar[bool] = False

    temperature: float = 0.07
    projection: int = 128
    head_epochs: int = 100
    head_lr: float = 0.1
    alpha: float = 0.05

    def __post_init__(self) -> None:
        check_fields(
            self,
            "Csi: ",
            temperature=check_positive,
            projection=partial(check_integer, expected="a positive whole number up to 10^6", most=10**6),
            head_epochs=check_count,
            head_lr=check_positive,
            alpha=check_alpha,
        )

    def schedule(self) -> Schedule:
        """The published one: 700 epochs of 128 examples, so 1,024 images, in a step; lr 1 after 10 epochs of warm-up."""
        same: dict[str, Any] = {"batch": 128, "decay": "cosine", "averaging": False, "clip": 0.0, "weight_decay": 1e-6}
        return Schedule(epochs=700, lr=1.0, warmup=10 / 700, **same)

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """The contrastive loss on this classifier's features, with a new projection."""
        if not isinstance(classifier.spec, InputSpec):
            raise InputError("Csi turns and crops images: give input=InputSpec(mean=..., std=...) (--mean and --std), too")
        _check_images(classifier, start.labelled)
        return ContrastiveObjective(self, classifier, classifier.spec, start)

    def later_stages(self) -> tuple[Stage]:
        """The heads."""
        return (CsiHeads(self.head_epochs, self.head_lr),)


@dataclass(frozen=True)
class CsiHeads:
    """The second stage: cross-entropy of a `JointHead` on the features of a network that stays as it is.

    >>> CsiHeads(epochs=100, lr=0.1).schedule().milestones
    (0.6, 0.75, 0.9)
    """

    epochs: int
    lr: float

    def schedule(self) -> Schedule:
        """The published one: plain SGD, a tenth of the learning rate after 60, 75 and 90 % of the epochs."""
        return Schedule(
            epochs=self.epochs,
            batch=32,
            lr=self.lr,
            decay="milestones",
            milestones=(0.6, 0.75, 0.9),
            factor=0.1,
            averaging=False,
            clip=0.0,
            momentum=0.0,
            weight_decay=1e-6,
        )

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """The loss of new heads on this classifier."""
        assert isinstance(classifier.spec, InputSpec)  # noqa: S101 - the first stage refuses a classifier without one
        with seeded(start.seed, "head"):
            head = JointHead(start.features, start.classes).to(classifier.device)
        classifier.head = head
        return JointObjective(classifier, classifier.spec, head)


def _check_images(classifier: Classifier, labelled: Source) -> None:
    """Refuse what cannot be turned, or has another range than images have."""
    height, width = one_tensor(classifier.prepare(labelled.gather(torch.arange(1))[0]), "Csi").shape[2:]
    if height != width:
        raise InputError(f"Csi turns images, but they are {height} x {width}: give an input spec with size={height}")
    least, greatest = math.inf, -math.inf
    for batch, _ in raw_batches(labelled):
        raw = one_tensor(batch, "Csi")
        unit = 255 if raw.dtype == torch.uint8 else 1
        least, greatest = min(least, float(raw.min()) / unit), max(greatest, float(raw.max()) / unit)
    if least < -ROUNDING or greatest > 1 + ROUNDING:
        raise InputError(f"Csi: images reach from {least:g} to {greatest:g}: give uint8, or floats from 0 to 1")


class ContrastiveObjective(Objective):
    """The supervised contrastive loss of eight images for each example, by an MLP on the features."""

    def __init__(self, method: Csi, classifier: Classifier, spec: InputSpec, start: Start) -> None:
        super().__init__(classifier, MaxSoftmax())
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise InputError(
                f"Csi compares the examples of a batch with each other, so that {dist.get_world_size()} processes cannot "
                "share one: start it without torchrun, in one process"
            )
        self.spec, self.temperature, self.classes = spec, method.temperature, start.classes
        with seeded(start.seed, "projection"):
            layers = nn.Linear(start.features, start.features), nn.ReLU(), nn.Linear(start.features, method.projection)
        self.projection = nn.Sequential(*layers).to(classifier.device)

    def forward(self, batch: Batch) -> Terms:
        """The loss of a batch; no constraints."""
        twice = one_tensor(batch.labelled, "Csi").repeat(2, 1, 1, 1)
        images = shifted(self.spec, twice).to(self.classifier.dtype)
        projected = self.projection(self.classifier.features(images))
        labels = joint_labels(batch.labels.repeat(2), self.classes)
        return Terms(supervised_contrastive(projected, labels, self.temperature), {})

    def optimiser(self, schedule: Schedule) -> torch.optim.Optimizer:
        """LARS with momentum, for the large batches of contrastive learning."""
        return Lars(self.parameter_groups(), schedule.lr, schedule.momentum, schedule.weight_decay)


class JointObjective(Objective):
    """CE(class of the unturned) + CE(rotation) + CE(class and rotation): three layers that share nothing but their input."""

    def __init__(self, classifier: Classifier, spec: InputSpec, head: JointHead) -> None:
        super().__init__(classifier, MaxSoftmax())
        self.spec, self.head = spec, head

    def forward(self, batch: Batch) -> Terms:
        """The loss of a batch; no constraints."""
        labels, count = batch.labels, len(batch.labels)
        with torch.no_grad():  # no gradient reaches the network, so that no optimiser touches it
            images = shifted(self.spec, one_tensor(batch.labelled, "Csi"))
            features = self.classifier.features(images.to(self.classifier.dtype))
        turned, both = joint_labels(torch.zeros_like(labels), 1), joint_labels(labels, self.head.settings["classes"])
        loss = F.cross_entropy(self.head.linear(features[:count]), labels)
        loss = loss + F.cross_entropy(self.head.rotation(features), turned)
        return Terms(loss + F.cross_entropy(self.head.joint(features), both), {})

    def train(self, mode: bool = True) -> Self:
        """The heads learn; the network is evaluated, so that its BatchNorm statistics stay, too."""
        super().train(mode)
        self.classifier.model.eval()
        return self


def shifted(spec: InputSpec, raw: Tensor) -> Tensor:
    """Raw examples, flipped or not, in all four rotations, each with colours and a crop of its own, as model input.

    It draws from torch's own generator, which is the run's while it trains, and part of its checkpoints.

    >>> shifted(InputSpec(mean=(0.5,), std=(0.5,)), torch.zeros(5, 8, 8, 1, dtype=torch.uint8)).shape
    torch.Size([20, 1, 8, 8])
    """
    images, rng = spec.scaled(raw).clamp(0, 1), torch.default_generator  # resizing white gives 1.0000004
    return spec.normalised(random_view(rotations(random_flip(images, rng)), rng, flip=False))


def joint_labels(labels: Tensor, classes: int) -> Tensor:
    """The labels y + K r of images in all four rotations, in the order of `rotations`.

    >>> joint_labels(torch.tensor([2, 0]), classes=3)
    tensor([ 2,  0,  5,  3,  8,  6, 11,  9])
    """
    return torch.cat([labels + classes * turn for turn in range(TURNS)])


class Lars(torch.optim.SGD):
    """SGD with momentum, not Nesterov's, on gradients that `adapted` has scaled; weight decay is part of the scaling.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> weight.grad = torch.tensor([0.0, 2.0])
    >>> Lars([{"params": [weight]}], lr=1.0, momentum=0.9, weight_decay=0.0).step()
    >>> weight.data  # a step of 0.001 times 5, the length of the weight
    tensor([3.0000, 3.9950])
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(groups, lr=lr, momentum=momentum, weight_decay=weight_decay)
        for group in self.param_groups:  # SGD itself must not decay once more
            group["decay"], group["weight_decay"] = group["weight_decay"], 0.0
        self.register_step_pre_hook(_adapt)


def adapted(weight: Tensor, gradient: Tensor, decay: float) -> Tensor:
    """(g + decay w) · 0.001 |w| / (|g| + decay |w| + 1e-8); where w or g is zero, g + decay w.

    >>> adapted(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0]), decay=0.0)
    tensor([0.0000, 0.0050])
    """
    length, slope = weight.norm(), gradient.norm()
    rate = TRUST * length / (slope + decay * length + EPSILON)
    return (gradient + decay * weight) * torch.where((length > 0) & (slope > 0), rate, 1.0)


@torch.no_grad()
def _adapt(optimiser: torch.optim.Optimizer, _args: Any, _named: Any) -> None:
    for group in optimiser.param_groups:
        for weight in group["params"]:
            if weight.grad is not None:
                weight.grad = adapted(weight, weight.grad, group["decay"])

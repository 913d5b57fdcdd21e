"""Steps in white coordinates: which methods take them, on which layer, and what a step then is."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import wildood
from wildood.data.validation import labelled_source
from wildood.data.wild import WildPool, as_wild
from wildood.methods.distillation import Distillation
from wildood.models.classifier import Classifier, tap_features
from wildood.models.moments import MEAN_SQUARE
from wildood.models.small import MLP
from wildood.scores.energy import EnergyScore
from wildood.train.loop import Training
from wildood.train.monitor import measure_start
from wildood.train.transforms import Preconditioner, gradient_transforms

RNG = np.random.default_rng(0)
LABELLED = labelled_source((RNG.normal(size=(64, 2)).astype(np.float32), RNG.integers(0, 3, 64)), "labelled")
WILD: WildPool = as_wild(RNG.normal(size=(64, 2)).astype(np.float32))
LAST = "classifier.model.head.weight"
PLAIN = wildood.Schedule(steps=1, batch=16, momentum=0.0, weight_decay=0.0, clip=0.0, milestones=())


def network() -> Classifier:
    torch.manual_seed(0)
    return Classifier(MLP(2, 3))


@pytest.mark.parametrize(
    ("method", "white"),
    [
        (wildood.Woods(), True),
        (wildood.EnergyLogistic(), False),
        (wildood.EnergyLogistic.as_published(), False),
        (wildood.OutlierExposure(), False),
        (wildood.EnergyMargin(), False),
        (wildood.WoodsAlt(), True),
        (wildood.Woods.as_published(), False),
        (wildood.WoodsAlt.as_published(), False),
    ],
)
def test_methods_that_are_trained_in_white_coordinates(method, white):
    model = network().model
    classifier = Classifier(model, tap=tap_features(model, torch.zeros(1, 2), None))
    objective = method.objective(classifier, measure_start(classifier, LABELLED, 0))
    assert (objective.precondition is not None) == white
    assert not white or objective.precondition.shared == isinstance(objective.score, EnergyScore)  # else the head's


def steps(schedule: wildood.Schedule, *, white: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """By how much each parameter moves in a step, over the learning rate; and the matrix of white coordinates."""
    classifier = network()
    start = measure_start(classifier, LABELLED, 0)
    method = wildood.Woods() if white else wildood.Woods(precondition=None, distillation=1.0)
    objective = method.objective(classifier, start)
    before = {name: value.detach().clone() for name, value in objective.named_parameters()}
    Training(objective, LABELLED, WILD, schedule, seed=0).train()
    moved = {name: (value.detach() - before[name]) / schedule.lr for name, value in objective.named_parameters()}
    return moved, matrix_of(start)


def matrix_of(start) -> torch.Tensor:
    return start.precondition(shared=True).matrix


def rows_back(moved: torch.Tensor, times: float) -> torch.Tensor:
    """Rows whose mean counted so many times."""
    return moved + (1 / times - 1) * moved.mean(0)


def test_pace_of_the_last_layer_is_that_of_its_logits():
    """Where they are 3 times as large, what is to be learned is, too."""
    classifier = network()
    before = measure_start(classifier, LABELLED, 0)
    small = matrix_of(before)
    with torch.no_grad():
        for parameter in classifier.model.head.parameters():
            parameter.mul_(3)
    start = measure_start(classifier, LABELLED, 0)
    larger = float(start.logsumexp.std() / before.logsumexp.std())
    assert larger > 2
    torch.testing.assert_close(matrix_of(start), larger * small)


def test_logits_that_are_all_the_same_have_a_pace():
    classifier = network()
    torch.nn.init.zeros_(classifier.model.head.weight)
    start = measure_start(classifier, LABELLED, 0)
    assert float(start.logsumexp.std()) == 0
    assert torch.linalg.eigvalsh(matrix_of(start)).min() > 0


class Multiplied(MLP):
    """The same logits, by a last layer that makes a part of them."""

    def __init__(self, factor):
        super().__init__(2, 3)
        self.factor = factor

    def forward(self, x):
        return self.factor * super().forward(x)


def logits_after_training(factor: float) -> torch.Tensor:
    torch.manual_seed(0)
    model = Multiplied(factor)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.div_(factor)
    classifier = Classifier(model)
    objective = wildood.Woods().objective(classifier, measure_start(classifier, LABELLED, 0))
    Training(objective, LABELLED, WILD, replace(PLAIN, steps=20, clip=1.0, lr=0.03), seed=0).train()
    return classifier(torch.as_tensor(LABELLED.examples)).logits


@pytest.mark.parametrize("factor", [-1.0, 1e-3, 1e3])
def test_training_does_not_depend_on_a_factor_behind_the_last_layer(factor):
    before = network()(torch.as_tensor(LABELLED.examples)).logits
    after = logits_after_training(1.0)
    assert (after - before).abs().mean() > 0.05
    torch.testing.assert_close(logits_after_training(factor), after, rtol=1e-3, atol=1e-3)


def test_step_of_the_last_layer_is_in_white_coordinates_and_all_others_are_as_they_were():
    far = replace(PLAIN, lr=100.0)  # one step, so far that little of it is lost to rounding
    (found, matrix), (plain, _) = steps(far, white=True), steps(far, white=False)
    moved = found.pop(LAST)
    assert not torch.allclose(moved, plain[LAST], rtol=1.0)
    back = torch.linalg.solve((matrix @ matrix).double(), moved.double(), left=False).float()
    torch.testing.assert_close(rows_back(back, 1 + len(back)), plain.pop(LAST), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(found, plain)


def test_clip_counts_the_length_in_white_coordinates():
    found, matrix = steps(replace(PLAIN, clip=0.01), white=True)
    back = torch.linalg.solve(matrix.double(), found[LAST].double(), left=False).float()
    found[LAST] = rows_back(back, (1 + len(back)) ** 0.5)
    assert sum(float(each.square().sum()) for each in found.values()) ** 0.5 == pytest.approx(0.01, rel=1e-3)


def test_clip_counts_the_rows_and_the_vector_that_they_share():
    classifier = network()
    objective = wildood.Woods().objective(classifier, measure_start(classifier, LABELLED, 0))
    weight, matrix = objective.precondition.weight, objective.precondition.matrix
    gradient = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) + 1.0
    weight.grad = gradient.clone()
    rows, shared = gradient @ matrix, (gradient @ matrix).sum(0)
    length = float(rows.square().sum() + shared.square().sum()) ** 0.5
    for transform in gradient_transforms(objective, replace(PLAIN, clip=length / 2)):
        transform()
    torch.testing.assert_close(weight.grad, (rows + shared) @ matrix / 2, rtol=1e-3, atol=1e-5)


def test_answers_teach_nothing_to_the_vector_that_the_rows_share():
    classifier = network()
    whiten = Preconditioner(measure_start(classifier, LABELLED, 0).precondition(shared=True))
    x, y = torch.as_tensor(LABELLED.examples), torch.as_tensor(LABELLED.labels)
    logits = classifier(x).logits
    (F.cross_entropy(logits, y) + Distillation(network(), weight=1.0)(x, 2 * logits)).backward()
    before = whiten.layer.weight.grad.clone()
    whiten()
    torch.testing.assert_close(whiten.layer.weight.grad, before @ whiten.layer.matrix)


def test_head_of_woods_alt_is_trained_in_white_coordinates_of_its_features():
    model = network().model
    classifier = Classifier(model, tap=tap_features(model, torch.zeros(1, 2), None))
    start = measure_start(classifier, LABELLED, 0)
    objective = wildood.WoodsAlt().objective(classifier, start)
    assert objective.precondition.weight is objective.score.head.layers[0].weight
    assert torch.equal(objective.precondition.matrix, start.moments.matrix(0.1 * MEAN_SQUARE))
    assert not objective.precondition.shared


def test_head_on_features_that_are_not_the_last_layers_is_trained_as_it_is():
    model = network().model
    classifier = Classifier(model, tap=tap_features(model, torch.zeros(1, 2), None, name="body.0"))
    assert wildood.WoodsAlt().objective(classifier, measure_start(classifier, LABELLED, 0)).precondition is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("method", [wildood.Woods(), wildood.WoodsAlt(), wildood.EnergyLogistic()])
def test_models_of_other_types_are_trained(method, dtype):
    model = network().model.to(dtype)
    x, y = np.asarray(LABELLED.examples), np.asarray(LABELLED.labels)
    detector = wildood.fit(model, (x, y), x, schedule=replace(PLAIN, steps=2), method=method, alpha=0.2, verbose=False)
    assert {parameter.dtype for parameter in detector.classifier.model.parameters()} == {dtype}
    assert np.isfinite(detector.score(x)).all()


def test_head_is_trained_in_white_coordinates_where_the_last_layer_is_not_trained():
    model = network().model
    classifier = Classifier(model, tap=tap_features(model, torch.zeros(1, 2), None))
    classifier.model.head.requires_grad_(requires_grad=False)
    start = measure_start(classifier, LABELLED, 0)
    assert start.precondition(shared=True) is None
    assert wildood.WoodsAlt().objective(classifier, start).precondition is not None


def test_a_model_without_a_layer_to_precondition_is_warned_of_and_recorded(caplog):
    model, x, y = torch.nn.Sequential(network().model, torch.nn.Tanh()), LABELLED.examples, LABELLED.labels
    detector = wildood.fit(model, (x, y), x, schedule=replace(PLAIN, steps=2), alpha=0.2, verbose=False)
    assert [line for line in caplog.messages if line.startswith("precondition='shared' needs a trained nn.Linear")]
    derived = detector.record["derived"]
    assert (derived["precondition"], derived["distillation"], derived["lambda2"]) == (None, 0.0, 1.0)

import pytest
import torch
from torch import nn

from wildood import Woods, WoodsAlt
from wildood.data.validation import labelled_source
from wildood.methods.distillation import Distillation
from wildood.methods.objective import Batch, Objective
from wildood.models.classifier import Classifier
from wildood.models.features import FeatureTap
from wildood.train.monitor import measure_start

RNG = torch.Generator().manual_seed(0)
BATCH = Batch(torch.randn(8, 5, generator=RNG), torch.arange(8) % 3, torch.randn(8, 5, generator=RNG))


def classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier(nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3)), tap=FeatureTap("2", side="input"))


def at_work(method: Woods, *, has_layer: bool = True) -> Objective:
    model = classifier()
    start = measure_start(model, labelled_source((BATCH.labelled, BATCH.labels), "labelled"), 0)
    return method.objective(model, start if has_layer else start._replace(moments=None))


def test_loss_is_the_divergence_from_the_starting_classifier():
    first = classifier().eval()
    distillation = Distillation(first, weight=1.0)
    logits = torch.randn(8, 3, generator=torch.Generator().manual_seed(2))
    before, now = first(BATCH.wild).logits.double().softmax(1), logits.double().softmax(1)
    expected = (before * (before / now).log()).sum(1).mean()
    assert distillation(BATCH.wild, logits).item() == pytest.approx(expected.item(), rel=1e-5)


def test_distillation_leaves_the_energy_free():
    first = classifier().eval()
    logits = first(BATCH.wild).logits.detach() - torch.arange(8)[:, None]
    assert Distillation(first, weight=1.0)(BATCH.wild, logits).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("method", [Woods(), WoodsAlt()], ids=["Woods", "WoodsAlt"])
def test_teacher_stays_what_it_was_while_the_classifier_is_trained(method):
    objective = at_work(method).train()
    before = objective.distillation.teacher(BATCH.wild).logits
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.add_(1.0)
    torch.testing.assert_close(
        objective.distillation.teacher(BATCH.wild).logits, before, rtol=0, atol=0
    )  # nor is there dropout


@pytest.mark.parametrize("method", [Woods(), WoodsAlt()], ids=["Woods", "WoodsAlt"])
def test_distillation_is_part_of_the_loss(method):
    objective = at_work(method).eval()
    with torch.no_grad():
        objective.classifier.model[2].weight.mul_(-3.0)
    _, wild = objective.outputs(BATCH)
    with_it = objective(BATCH).loss
    divergence = objective.distillation(BATCH.wild, wild.logits)
    objective.distillation = None
    assert divergence > 0.1
    torch.testing.assert_close(with_it, objective(BATCH).loss + divergence)


@pytest.mark.parametrize("method", [Woods(), WoodsAlt()], ids=["Woods", "WoodsAlt"])
def test_teacher_is_neither_trained_nor_saved(method):
    objective = at_work(method)
    held = {id(parameter) for parameter in objective.distillation.teacher.parameters()}
    assert held
    assert held.isdisjoint(map(id, objective.parameters()))
    assert not any(parameter.requires_grad for parameter in objective.distillation.teacher.parameters())
    assert not any("distillation" in name for name in objective.state_dict())


@pytest.mark.parametrize("method", [Woods.as_published(), WoodsAlt.as_published()], ids=["Woods", "WoodsAlt"])
def test_as_published_there_is_no_distillation(method):
    assert at_work(method).distillation is None


@pytest.mark.parametrize(
    ("method", "has_layer", "derived"),
    [
        (Woods(), True, ("shared", 1.0, 0.0)),
        (Woods(), False, (None, 0.0, 1.0)),
        (Woods(distillation=0.4), False, (None, 0.4, 0.0)),
        (Woods(lambda2=0.3), False, (None, 0.0, 0.3)),
        (Woods(precondition="rows"), True, ("rows", 0.0, 1.0)),
        (Woods(precondition="rows", distillation=1.0), True, ("rows", 1.0, 0.0)),
        (Woods(distillation=0.0), True, ("shared", 0.0, 1.0)),
        (WoodsAlt(), True, ("rows", 1.0, 0.0)),
        (WoodsAlt(), False, (None, 1.0, 0.0)),
        (Woods.algorithm1(), True, (None, 0.0, 0.0)),
    ],
    ids=str,
)
def test_each_piece_is_decided_on_its_own_and_the_record_names_it(method, has_layer, derived):
    objective = at_work(method, has_layer=has_layer)
    names = ("precondition", "distillation", "lambda2")
    assert tuple(objective.derived[name] for name in names) == derived
    weight = 0.0 if objective.distillation is None else objective.distillation.weight
    kind = None if objective.precondition is None else "shared" if objective.precondition.shared else "rows"
    assert (kind, weight, objective.duals.multipliers["classification"]) == derived
    assert bool(objective.warnings) == (kind != method.precondition)

from dataclasses import replace

import pytest
import torch
from torch import nn

from wildood import Woods, WoodsAlt
from wildood.data.validation import labelled_source
from wildood.methods.distillation import Answers
from wildood.methods.objective import Batch, Objective
from wildood.models.classifier import Classifier
from wildood.models.features import FeatureTap
from wildood.train.monitor import measure_start

RNG = torch.Generator().manual_seed(0)
BATCH = Batch(torch.randn(8, 5, generator=RNG), torch.arange(8) % 3, torch.randn(8, 5, generator=RNG))


def classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier(nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3)), tap=FeatureTap("2", side="input"))


def at_work(method: Woods, *, white: bool = True) -> Objective:
    model = classifier()
    start = measure_start(model, labelled_source((BATCH.labelled, BATCH.labels), "labelled"), 0)
    return method.objective(model, start if white else start._replace(moments=None))


def test_price_is_the_divergence_from_the_first_answers():
    first = classifier().eval()
    answers = Answers(first)
    logits = torch.randn(8, 3, generator=torch.Generator().manual_seed(2))
    before, now = first(BATCH.wild).logits.double().softmax(1), logits.double().softmax(1)
    expected = (before * (before / now).log()).sum(1).mean()
    assert answers(BATCH.wild, logits).item() == pytest.approx(expected.item(), rel=1e-5)


def test_price_leaves_the_energy_free():
    first = classifier().eval()
    logits = first(BATCH.wild).logits.detach() - torch.arange(8)[:, None]
    assert Answers(first)(BATCH.wild, logits).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("method", [Woods(), WoodsAlt()], ids=["Woods", "WoodsAlt"])
def test_first_answers_stay_what_they_were_while_the_classifier_is_trained(method):
    objective = at_work(method).train()
    before = objective.answers.first(BATCH.wild).logits
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.add_(1.0)
    torch.testing.assert_close(objective.answers.first(BATCH.wild).logits, before, rtol=0, atol=0)  # nor is there dropout


@pytest.mark.parametrize("method", [Woods(), WoodsAlt()], ids=["Woods", "WoodsAlt"])
def test_changed_answers_are_part_of_the_loss(method):
    objective = at_work(method).eval()
    with torch.no_grad():
        objective.classifier.model[2].weight.mul_(-3.0)
    _, wild = objective.outputs(BATCH)
    priced = objective(BATCH).loss
    price = objective.answers(BATCH.wild, wild.logits)
    objective.answers = None
    assert price > 0.1
    torch.testing.assert_close(priced, objective(BATCH).loss + price)


@pytest.mark.parametrize("method", [Woods(), WoodsAlt()], ids=["Woods", "WoodsAlt"])
def test_first_answers_are_neither_trained_nor_saved(method):
    objective = at_work(method)
    held = {id(parameter) for parameter in objective.answers.first.parameters()}
    assert held
    assert held.isdisjoint(map(id, objective.parameters()))
    assert not any(parameter.requires_grad for parameter in objective.answers.first.parameters())
    assert not any("answers" in name for name in objective.state_dict())


@pytest.mark.parametrize("method", [Woods.as_published(), WoodsAlt.as_published()], ids=["Woods", "WoodsAlt"])
def test_as_published_answers_have_no_price(method):
    assert at_work(method).answers is None


def test_answers_have_a_price_only_where_the_energy_can_be_moved_without_them():
    priced, other = at_work(Woods()), at_work(Woods(), white=False)
    assert (priced.answers is not None, priced.duals.multipliers["classification"]) == (True, 0)
    assert (other.answers is not None, other.duals.multipliers["classification"]) == (False, 1)
    assert other.duals == replace(priced.duals, multipliers={"false_alarm": 1.0, "classification": 1.0})
    assert at_work(WoodsAlt(), white=False).answers is not None  # its head is apart from the answers

"""What is done to a gradient between a method's loss and its step: nothing, as published, and for every baseline."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from wildood import (
    Csi,
    EnergyLogistic,
    EnergyMargin,
    Godin,
    InputSpec,
    OutlierExposure,
    Schedule,
    WildMixture,
    Woods,
    WoodsAlt,
)
from wildood.data.sources import ArraySource
from wildood.experiments.grids import grid
from wildood.methods.objective import stages_of
from wildood.models.classifier import Classifier, tap_features
from wildood.train.loop import Training
from wildood.train.monitor import measure_start

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (48, 8, 8, 3), dtype=np.uint8)
LABELLED = ArraySource(IMAGES, RNG.integers(0, 3, 48))
WILD = WildMixture(id=IMAGES[::-1].copy(), ood=RNG.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8), pi=0.3)
SPEC = InputSpec(mean=(0.5,), std=(0.25,))

# One setting of each method of the paper's four tables, as `wildood reproduce` runs them, each with its schedule.
TABLES = [each for name in ("cifar10-stationary", "cifar10-pi") for each in grid(name, seeds=1) if each.trains]
PUBLISHED = {each.method: (each.recipe(), each.schedule) for each in TABLES}
BASELINES = [OutlierExposure(), EnergyMargin(), EnergyMargin(margin_in=-23.0, margin_out=-5.0), EnergyLogistic()]
OURS = [Woods(), WoodsAlt()]


def classifier() -> Classifier:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    return Classifier(model, SPEC, tap_features(model, torch.as_tensor(IMAGES[:2]), SPEC))


def changed_gradients(method, schedule: Schedule) -> set[str]:
    """The parameters whose gradient is not that of the loss when the optimiser gets it, over three steps of each stage."""
    model, changed = classifier(), set()
    start = measure_start(model, LABELLED, 0)
    for stage in stages_of(method):
        objective = stage.objective(model, start)
        timing = replace(schedule if stage is method else stage.schedule(), epochs=None, steps=3, batch=16)
        training = Training(objective, LABELLED, WILD if method.uses_wild else None, timing, seed=0)
        of_loss, step = {}, training.optimiser.step

        def note(parameter, of_loss=of_loss):
            of_loss[parameter] = parameter.grad.clone()

        def compare(objective=objective, of_loss=of_loss, step=step):
            trained = {name: each for name, each in objective.named_parameters() if each.grad is not None}
            assert trained
            changed.update(name for name, each in trained.items() if not torch.equal(each.grad, of_loss[each]))
            step()

        for parameter in objective.parameters():
            parameter.register_post_accumulate_grad_hook(note)
        training.optimiser.step = compare
        training.train()
    return changed


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_published_every_method_steps_along_the_gradient_of_its_loss(name):
    assert changed_gradients(*PUBLISHED[name]) == set()


@pytest.mark.parametrize("method", BASELINES, ids=str)
def test_a_baseline_steps_along_the_gradient_of_its_loss(method):
    """The clip is the schedule's, and the same for all rows of a table: it is left out here."""
    assert changed_gradients(method, replace(method.schedule(), clip=0.0)) == set()


@pytest.mark.parametrize("method", [*BASELINES, Godin(epsilon=0.0), Csi()], ids=str)
def test_a_baseline_minimises_its_own_loss_alone(method):
    model = classifier()
    for stage in stages_of(method):
        objective = stage.objective(model, measure_start(model, LABELLED, 0))
        assert getattr(objective, "distillation", None) is None
        assert objective.precondition is None


@pytest.mark.parametrize("method", OURS, ids=str)
def test_what_is_ours_is_seen_by_this_test(method):
    assert len(changed_gradients(method, replace(method.schedule(), clip=0.0))) == 1


def test_tables_as_published_hold_every_method_that_trains_there():
    assert PUBLISHED.keys() == {"godin", "csi", "oe", "energy-logistic", "woods", "woods-alt"}
    wild = {name: schedule for name, (method, schedule) in PUBLISHED.items() if method.uses_wild}
    assert set(map(repr, wild.values())) == {repr(Schedule.as_published("non-stationary"))}  # that of the second table
    for method, schedule in PUBLISHED.values():
        assert schedule.clip == 0
        assert getattr(method, "published_schedule", True)

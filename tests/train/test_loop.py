import copy
import logging
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from wildood import Schedule, TrainingError, Woods
from wildood.data.sampling import ShuffledCycle, generator
from wildood.data.sources import ArraySource
from wildood.data.wild import WildMixture, WildPool
from wildood.methods.cross_entropy import CrossEntropyObjective
from wildood.methods.objective import Start
from wildood.models.classifier import Classifier
from wildood.train.checkpoint import RunDirectory
from wildood.train.loop import Training
from wildood.train.monitor import measure_start

RNG = np.random.default_rng(0)
LABELLED = ArraySource(RNG.normal(size=(40, 4)).astype("float32"), RNG.integers(0, 3, 40))
WILD = WildPool(ArraySource(RNG.normal(size=(30, 4)).astype("float32") * 2))


def network(seed: int = 0) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(4, 3)


def training(method: Woods, schedule: Schedule, model: nn.Module | None = None, **changes) -> Training:
    classifier = Classifier(model or network())
    objective = method.objective(classifier, measure_start(classifier, LABELLED, seed=7))
    return Training(objective, LABELLED, WILD, schedule, seed=7, keep="last", **changes)


class StartedElsewhere(Woods):
    def duals(self, *, priced=True):
        multipliers, penalties = {"false_alarm": 0.6, "classification": 0.2}, {"false_alarm": 1.5, "classification": 0.5}
        return replace(super().duals(priced=priced), multipliers=multipliers, penalties=penalties)


def test_two_steps_are_what_algorithm_1_says_by_hand():
    method = StartedElsewhere(alpha=0.1, tau=0.5, mu2=0.3, gamma=2.0, tol=0.01)
    falling = {"decay": "milestones", "milestones": (0.5,), "factor": 0.25}
    schedule = Schedule(steps=2, batch=8, lr=0.1, weight_decay=0.01, clip=0.0, **falling)
    run = training(method, schedule)
    weight, bias = (p.detach().clone() for p in run.objective.classifier.parameters())
    slope, shift = run.objective.level.rho.item(), run.objective.level.bias.item()
    matrix = run.objective.whitening.matrix
    white = [matrix @ matrix, *(torch.eye(3), torch.eye(1), torch.eye(1))]
    shared = [torch.eye(3) + 1, *(torch.eye(1),) * 3]  # V and a vector for all rows: (I + 11ᵀ) G
    run.train()

    order = ShuffledCycle(40, generator(7, "labelled"))
    wild_order = ShuffledCycle(30, generator(7, "wild-0"))
    parameters = [weight, bias, torch.tensor(slope), torch.tensor(shift)]
    decay = [0.01, 0.01, 0.0, 0.0]
    momentum = [torch.zeros_like(p) for p in parameters]
    lambda1, lambda2 = 0.6, 0.2
    for lr in (0.1, 0.025):
        x, y = LABELLED.gather(order.take(8))
        wild = WILD.source.gather(wild_order.take(8))[0]
        leaves = [p.clone().requires_grad_() for p in parameters]
        f, f_wild = x @ leaves[0].T + leaves[1], wild @ leaves[0].T + leaves[1]
        w = -torch.log1p(torch.exp(leaves[2]))
        z, z_wild = w * f.logsumexp(1) + leaves[3], w * f_wild.logsumexp(1) + leaves[3]
        c1 = (1 / (1 + torch.exp(-z))).mean() - 0.1
        c2 = (f.logsumexp(1) - f[torch.arange(8), y]).mean() - 0.5
        was = (wild @ weight.T + bias).softmax(1)  # the answers before the first step
        value = (1 / (1 + torch.exp(z_wild))).mean() + (was * (was / f_wild.softmax(1)).log()).sum(1).mean()
        for c, multiplier, penalty in ((c1, lambda1, 1.5), (c2, lambda2, 0.5)):
            active = penalty * c + multiplier >= 0
            value = value + (multiplier * c + penalty / 2 * c**2 if active else -(multiplier**2) / (2 * penalty))
        for i, gradient in enumerate(torch.autograd.grad(value, leaves)):
            g = shared[i] @ gradient.reshape(-1, len(white[i])) @ white[i]  # the last layer's, in white coordinates
            g = g.reshape(gradient.shape) + decay[i] * parameters[i]
            momentum[i] = 0.9 * momentum[i] + g
            parameters[i] = parameters[i] - lr * (g + 0.9 * momentum[i])
        lambda1, lambda2 = max(0, lambda1 + 0.3 * c1.item()), max(0, lambda2 + 0.3 * c2.item())

    found = [*run.objective.classifier.parameters(), run.objective.level.rho, run.objective.level.bias]
    for ours, expected in zip(found, parameters, strict=True):
        assert torch.allclose(ours, expected, atol=1e-6)
    assert run.lagrangian.multipliers["false_alarm"].item() == pytest.approx(lambda1, abs=1e-6)
    assert run.lagrangian.multipliers["classification"].item() == pytest.approx(lambda2, abs=1e-6)


def test_duals_move_once_per_epoch_on_a_full_pass_in_evaluation_mode():
    model = nn.Sequential(nn.Dropout(0.5), network())
    run = training(Woods(mu2=0.5, gamma=3.0, tol=0.01), Schedule(epochs=1, batch=8, duals="epoch"), model)
    run.train()
    row = run.history[-1]
    model.eval()
    with torch.no_grad():
        z = run.objective.level(model(torch.as_tensor(LABELLED.examples)))
        c1 = torch.sigmoid(z).mean().item() - 0.05
    assert row["step"] == 5
    assert row["false_alarm"] == pytest.approx(c1, abs=1e-6)
    assert row["lambda_false_alarm"] == pytest.approx(max(0, 1 + 0.5 * c1), abs=1e-6)
    assert row["beta_false_alarm"] == (3.0 if c1 > 0.01 else 1.0)


def test_penalties_grow_at_most_once_per_epoch_when_duals_move_every_step():
    run = training(Woods(tau=1e-3, gamma=2.0), Schedule(epochs=3, batch=8, lr=1e-6))
    run.train()
    assert [row["beta_classification"] for row in run.history] == [1.0, 2.0, 4.0, 8.0]


def test_same_seed_same_bits_and_another_seed_others():
    def bits(seed: int) -> torch.Tensor:
        classifier = Classifier(nn.Sequential(nn.Dropout(0.3), network()))
        objective = Woods().objective(classifier, measure_start(classifier, LABELLED, seed))
        Training(objective, LABELLED, WILD, Schedule(steps=7, batch=8), seed, keep="last").train()
        return torch.cat([p.detach().flatten() for p in objective.parameters()])

    assert torch.equal(bits(1), bits(1))
    assert not torch.equal(bits(1), bits(2))


def test_the_users_generator_is_as_it_was():
    before = torch.get_rng_state()
    training(Woods(), Schedule(steps=3, batch=8), nn.Sequential(nn.Dropout(0.3), network())).train()
    assert torch.equal(torch.get_rng_state(), before)


def test_methods_without_constraints_and_without_wild_data_use_the_same_loop():
    model = network()
    objective = CrossEntropyObjective(Classifier(model))
    before = F.cross_entropy(model(torch.as_tensor(LABELLED.examples)), torch.as_tensor(LABELLED.labels)).item()
    history = Training(objective, LABELLED, None, Schedule(epochs=20, batch=8, lr=0.1), seed=0, keep="last").train()
    after = F.cross_entropy(model(torch.as_tensor(LABELLED.examples)), torch.as_tensor(LABELLED.labels)).item()
    assert after < before
    assert history[-1]["loss"] < history[1]["loss"]
    assert not any(key.startswith(("lambda", "beta")) for key in history[-1])


def test_history_holds_the_constraint_the_multipliers_and_w_of_every_epoch():
    history = training(Woods(), Schedule(steps=12, batch=8)).train()
    assert [row["step"] for row in history] == [0, 5, 10, 12]
    wanted = {"wild_loss", "false_alarm", "classification", "lambda_false_alarm", "beta_classification", "w", "b", "lr"}
    assert all(wanted <= set(row) for row in history[1:])


def test_a_loss_that_is_not_finite_stops_with_its_step():
    run = training(Woods(), Schedule(steps=50, batch=8, lr=1e30))
    with pytest.raises(TrainingError, match=r"became (nan|inf|infinite or NaN) at step \d+ .*smaller lr"):
        run.train()


def test_epoch_of_the_published_schedule_is_the_shortest_pool():
    schedule = replace(Schedule.as_published("stationary"), batch=8)
    wild = WildMixture(id=np.zeros((33, 4)), ood=np.ones((17, 4)), pi=0.5)
    objective = Woods.as_published().objective(Classifier(network()), Start(0.1, 0.9, torch.randn(40), 3, 0, 0))
    run = Training(objective, LABELLED, wild, schedule, seed=0)
    assert (run.per_epoch, run.total) == (2, 200)
    rates = [schedule.lr_at(step, 2, 200) for step in (0, 99, 100, 149, 150, 179, 180, 199)]
    assert rates == [1e-3, 1e-3, 5e-4, 5e-4, 2.5e-4, 2.5e-4, 1.25e-4, 1.25e-4]


def test_on_epoch_gets_every_row_and_cannot_change_the_history():
    rows = []
    run = training(Woods(), Schedule(steps=5, batch=8), on_epoch=lambda row: (rows.append(copy.copy(row)), row.clear()))
    run.train()
    assert rows == run.history


def test_one_readable_line_for_each_epoch_through_logging(caplog):
    with caplog.at_level(logging.INFO, logger="wildood"):
        training(Woods(), Schedule(epochs=2, batch=8)).train()
    lines = [record.message for record in caplog.records]
    assert len(lines) == 2
    for part in ("epoch 2/2", "wild 0.", "false_alarm", "classification", "λ", "β", "w -", "images/s", "0:00 left"):
        assert part in lines[1]


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    directory = RunDirectory(tmp_path, {"seed": 7})
    run = training(Woods(), Schedule(steps=50, batch=8), run=directory, checkpoint_seconds=0.0)
    run.on_step = lambda step, objective: objective.level.bias.data.fill_(math.nan) if step == 8 else None
    with pytest.raises(TrainingError, match=rf"NaN at step 8 .*last good checkpoint is {directory.checkpoint_path}"):
        run.train()
    assert directory.checkpoint()["step"] == 7

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
from wildood.methods.objective import CrossEntropyObjective, Start
from wildood.models.classifier import Classifier
from wildood.train.callbacks import Callback, CallOnEpoch
from wildood.train.checkpoint import Checkpoint, RunDirectory
from wildood.train.loop import Training
from wildood.train.monitor import measure_start
from wildood.train.progress import LogEpochs, Timing

RNG = np.random.default_rng(0)
LABELLED = ArraySource(RNG.normal(size=(40, 4)).astype("float32"), RNG.integers(0, 3, 40))
WILD = WildPool(ArraySource(RNG.normal(size=(30, 4)).astype("float32") * 2))


def network(seed: int = 0) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(4, 3)


def training(method: Woods, schedule: Schedule, model: nn.Module | None = None, callbacks=()) -> Training:
    classifier = Classifier(model or network())
    objective = method.objective(classifier, measure_start(classifier, LABELLED, seed=7))
    return Training(objective, LABELLED, WILD, schedule, 7, callbacks)


def psi_by_hand(c, multiplier, penalty):
    if penalty * c + multiplier >= 0:
        return multiplier * c + penalty / 2 * c**2
    return torch.tensor(-(multiplier**2) / (2 * penalty))


def terms_by_hand(leaves, x, y, wild, *, logistic=False):
    """The loss and both constraints of eq. (energy_robust), and the wild logits, for a linear model.

    With `logistic`, false alarms have that loss.
    """
    weight, bias, rho, shift = leaves
    f, f_wild = x @ weight.T + bias, wild @ weight.T + bias
    w = -torch.log1p(torch.exp(rho))
    z, z_wild = w * f.logsumexp(1) + shift, w * f_wild.logsumexp(1) + shift
    c1 = (torch.log(1 + torch.exp(z)) if logistic else 1 / (1 + torch.exp(-z))).mean() - 0.1
    c2 = (f.logsumexp(1) - f[torch.arange(len(y)), y]).mean() - 0.5
    return (1 / (1 + torch.exp(z_wild))).mean(), c1, c2, f_wild


def start_by_hand(run):
    return [
        *(p.detach().clone() for p in run.objective.classifier.parameters()),
        *(p.detach().clone() for p in run.objective.logit.parameters()),
    ]


def assert_same(run, parameters, multipliers, penalties):
    found = [*run.objective.classifier.parameters(), *run.objective.logit.parameters()]
    for ours, expected in zip(found, parameters, strict=True):
        assert torch.allclose(ours, expected, atol=1e-6)
    names = ("false_alarm", "classification")
    assert [run.lagrangian.multipliers[name].item() for name in names] == pytest.approx(multipliers, abs=1e-6)
    assert [run.lagrangian.penalties[name] for name in names] == penalties


@pytest.mark.parametrize("mu2", [1.0, 0.3])
def test_two_epochs_are_what_the_papers_algorithm_1_says_by_hand(mu2):
    """Of one step each: lines 4 and 5 on a batch, line 7 and lines 8 to 13 on all labelled data."""
    method = replace(Woods.algorithm1(gamma=1.5, mu2=mu2), alpha=0.1, tau=0.5, tol=0.05)
    plain = {"averaging": False, "clip": 0.0, "momentum": 0.0}
    schedule = Schedule(epochs=2, batch=40, lr=0.5, weight_decay=0.01, duals="epoch", **plain)
    run = training(method, schedule)
    parameters = start_by_hand(run)
    run.train()

    x, y = LABELLED.gather(torch.arange(40))
    wild_order = ShuffledCycle(30, generator(7, "wild-0"))
    multipliers, penalties = [0.0, 0.0], [1.0, 1.0]
    grown = []
    for _epoch in range(2):
        wild = WILD.source.gather(wild_order.take(40))[0]
        leaves = [p.clone().requires_grad_() for p in parameters]
        loss, c1, c2, _ = terms_by_hand(leaves, x, y, wild)  # a batch is all labelled data, in another order
        value = loss + sum(map(psi_by_hand, (c1, c2), multipliers, penalties))
        gradients = torch.autograd.grad(value, leaves)
        parameters = [p - 0.5 * (g + 0.01 * p) for p, g in zip(parameters, gradients, strict=True)]
        constraints = [c.item() for c in terms_by_hand(parameters, x, y, wild)[1:3]]
        for i, c in enumerate(constraints):
            active = penalties[i] * c + multipliers[i] >= 0
            multipliers[i] += mu2 * (c if active else -multipliers[i] / penalties[i])
            penalties[i] *= 1.5 if c > 0.05 else 1.0
        grown.append(list(penalties))
    assert_same(run, parameters, multipliers, penalties)
    assert grown[-1] != [1.0, 1.0]  # lines 8 to 13 were needed


def test_two_steps_of_ours_are_algorithm_1_with_distillation_preconditioner_and_duals_in_each_step_by_hand():
    method = Woods(alpha=0.1, tau=0.5, mu2=0.3, gamma=2.0, tol=0.01, lambda1=0.6, lambda2=0.2)
    falling = {"decay": "milestones", "milestones": (0.5,), "factor": 0.25}
    schedule = Schedule(steps=2, batch=8, lr=0.1, weight_decay=0.01, averaging=False, clip=0.0, **falling)
    run = training(method, schedule)
    run.lagrangian.penalties = {"false_alarm": 1.5, "classification": 0.5}
    parameters = start_by_hand(run)
    weight, bias = parameters[:2]
    matrix = run.objective.precondition.matrix
    whitened = [matrix @ matrix, *(torch.eye(3), torch.eye(1), torch.eye(1))]
    shared = [torch.eye(3) + 1, *(torch.eye(1),) * 3]  # V and a direction that all rows share: (I + 11ᵀ) G
    run.train()

    order, wild_order = ShuffledCycle(40, generator(7, "labelled")), ShuffledCycle(30, generator(7, "wild-0"))
    decay = [0.01, 0.01, 0.0, 0.0]
    momentum = [torch.zeros_like(p) for p in parameters]
    multipliers, seen = [0.6, 0.2], []
    for lr in (0.1, 0.025):
        x, y = LABELLED.gather(order.take(8))
        wild = WILD.source.gather(wild_order.take(8))[0]
        leaves = [p.clone().requires_grad_() for p in parameters]
        loss, c1, c2, f_wild = terms_by_hand(leaves, x, y, wild, logistic=True)
        teacher = (wild @ weight.T + bias).softmax(1)
        divergence = (teacher * (teacher / f_wild.softmax(1)).log()).sum(1).mean()
        value = loss + divergence + sum(map(psi_by_hand, (c1, c2), multipliers, (1.5, 0.5)))
        for i, gradient in enumerate(torch.autograd.grad(value, leaves)):
            g = shared[i] @ gradient.reshape(-1, len(whitened[i])) @ whitened[i]
            g = g.reshape(gradient.shape) + decay[i] * parameters[i]
            momentum[i] = 0.9 * momentum[i] + g
            parameters[i] = parameters[i] - lr * (g + 0.9 * momentum[i])
        multipliers = [max(0, old + 0.3 * c.item()) for old, c in zip(multipliers, (c1, c2), strict=True)]
        seen.append((c1.item(), c2.item()))
    means = np.mean(seen, axis=0)
    assert_same(run, parameters, multipliers, [3.0 if means[0] > 0.01 else 1.5, 1.0 if means[1] > 0.01 else 0.5])


def test_duals_move_once_per_epoch_on_a_full_pass_in_evaluation_mode():
    model = nn.Sequential(nn.Dropout(0.5), network())
    schedule = Schedule(epochs=1, batch=8, averaging=False, duals="epoch")
    run = training(Woods(mu2=0.5, gamma=3.0, tol=0.01), schedule, model)
    run.train()
    row = run.history[-1]
    model.eval()
    with torch.no_grad():
        z = run.objective.logit(model(torch.as_tensor(LABELLED.examples)))
        c1 = torch.log1p(torch.exp(z)).mean().item() - 0.05
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
        Training(objective, LABELLED, WILD, Schedule(steps=7, batch=8), seed).train()
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
    history = Training(objective, LABELLED, None, Schedule(epochs=20, batch=8, lr=0.1), seed=0).train()
    after = F.cross_entropy(model(torch.as_tensor(LABELLED.examples)), torch.as_tensor(LABELLED.labels)).item()
    assert after < before
    assert history[-1]["loss"] < history[1]["loss"]
    assert not any(key.startswith(("lambda", "beta")) for key in history[-1])


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (Schedule(steps=60, batch=8), [0, 25, 35, 50, 60]),
        (Schedule(steps=12, batch=8, duals="epoch"), [0, 5, 10, 12]),
        (Schedule(epochs=3, batch=8), [0, 5, 10, 15]),
    ],
)
def test_history_holds_the_constraint_the_multipliers_and_w_of_every_look(schedule, steps):
    history = training(Woods(), schedule).train()
    assert [row["step"] for row in history] == steps
    wanted = {"wild_loss", "false_alarm", "classification", "lambda_false_alarm", "beta_classification", "w", "b", "lr"}
    assert all(wanted <= set(row) for row in history[1:])


def test_a_loss_that_is_not_finite_stops_with_its_step():
    run = training(Woods(), Schedule(steps=50, batch=8, lr=1e30))
    with pytest.raises(TrainingError, match=r"became (nan|inf|infinite or NaN) at step \d+ .*smaller lr"):
        run.train()


def test_epoch_of_the_published_schedule_is_the_shortest_pool():
    schedule = replace(Schedule.as_published("stationary"), batch=8)
    wild = WildMixture(id=np.zeros((33, 4)), ood=np.ones((17, 4)), pi=0.5)
    objective = Woods.as_published().objective(Classifier(network()), Start(0.1, 0.9, torch.randn(40), 3, 0, 0, LABELLED))
    run = Training(objective, LABELLED, wild, schedule, seed=0)
    assert (run.per_epoch, run.total) == (2, 200)
    rates = [schedule.lr_at(step, 2, 200) for step in (0, 99, 100, 149, 150, 179, 180, 199)]
    assert rates == [1e-3, 1e-3, 5e-4, 5e-4, 2.5e-4, 2.5e-4, 1.25e-4, 1.25e-4]


def test_on_epoch_gets_every_row_and_cannot_change_the_history():
    rows = []
    spy = CallOnEpoch(lambda row: (rows.append(copy.copy(row)), row.clear()))
    run = training(Woods(), Schedule(steps=5, batch=8), callbacks=[spy])
    run.train()
    assert rows == run.history


def test_one_readable_line_for_each_epoch_through_logging(caplog):
    with caplog.at_level(logging.INFO, logger="wildood"):
        training(Woods(), Schedule(epochs=2, batch=8), callbacks=[Timing(), LogEpochs()]).train()
    legend, *lines = caplog.messages
    assert legend == "each constraint must become <= 0; λ is its multiplier, β its penalty"
    assert len(lines) == 2
    for part in ("epoch 2/2", "wild 0.", "false_alarm", "classification", "λ", "β", "w -", "examples/s", "0:00 left"):
        assert part in lines[1]


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    directory = RunDirectory(tmp_path, {"seed": 7})

    class Spoil(Callback):
        def on_step_end(self, training):
            if training.steps == 8:
                training.objective.logit.bias.data.fill_(math.nan)

    callbacks = [Checkpoint(directory, seconds=0.0), Spoil()]
    run = training(Woods(), Schedule(steps=50, batch=8), callbacks=callbacks)
    with pytest.raises(TrainingError, match=rf"NaN at step 8 .*last good checkpoint is {directory.checkpoint_path}"):
        run.train()
    assert directory.checkpoint()["step"] == 7


class Recorder(Callback):
    """The hooks, in the order in which they are called."""

    def __init__(self):
        self.called = []

    def on_train_begin(self, training):
        self.called.append("begin")

    def on_step_begin(self, training):
        self.called.append(f"step {training.steps}")

    def on_step_end(self, training):
        self.called.append(f"ended {training.steps}")
        if training.steps == 6:
            training.stop()

    def on_epoch_end(self, training, row):
        row["mine"] = 1.0
        self.called.append(f"epoch {row['epoch']}")

    def on_train_end(self, training):
        self.called.append("end")


def test_callbacks_are_called_in_order_may_add_columns_and_stop_the_run():
    recorder = Recorder()
    run = training(Woods(), Schedule(epochs=4, batch=8), callbacks=[recorder])
    run.train()
    steps = [text for step in range(6) for text in (f"step {step}", f"ended {step + 1}")]
    assert recorder.called == ["begin", "epoch 0", *steps[:10], "epoch 1", *steps[10:], "epoch 2", "end"]
    assert [row["step"] for row in run.history] == [0, 5, 6]
    assert all(row["mine"] == 1.0 for row in run.history)


def test_a_column_of_another_type_becomes_a_number():
    class Column(Callback):
        def on_epoch_end(self, training, row):
            row |= {"numpy": np.float32(0.5), "torch": torch.tensor(2.0)}

    history = training(Woods(), Schedule(steps=5, batch=8), callbacks=[Column()]).train()
    assert all((row["numpy"], row["torch"]) == (0.5, 2.0) and type(row["numpy"]) is float for row in history)


def test_a_run_that_is_stopped_before_a_step_takes_no_further_step():
    class Stop(Callback):
        def on_step_begin(self, training):
            if training.steps == 3:
                training.stop()

    assert [row["step"] for row in training(Woods(), Schedule(steps=20, batch=8), callbacks=[Stop()]).train()] == [0, 3]


def test_a_resumed_run_calls_each_hook_of_a_callback_once_for_each_step(tmp_path):
    begun = []

    class Note(Callback):
        def on_step_begin(self, training):
            begun.append(training.steps)

        def on_step_end(self, training):
            if training.steps == 4 and begun.count(3) == 1 and len(begun) == 4:
                raise KeyboardInterrupt

    def run():
        saving = Checkpoint(RunDirectory(tmp_path, {}), seconds=0.0)
        training(Woods(), Schedule(steps=6, batch=8), callbacks=[saving, Note()]).train()

    with pytest.raises(KeyboardInterrupt):
        run()
    run()
    assert begun == [0, 1, 2, 3, 3, 4, 5]  # the fourth step was under way, and is taken again


def test_constraints_without_multipliers_are_refused():
    run = training(Woods(), Schedule(steps=5, batch=8))
    run.objective.constraints = lambda outputs, labels: {"other": torch.zeros(())}
    with pytest.raises(ValueError, match=r"has the constraints \['other'\], but its duals name"):
        run.train()


def test_a_callback_may_be_added_or_left_out_when_a_run_is_resumed(tmp_path):
    class Counter(Callback):
        steps = 0

        def on_step_end(self, training):
            self.steps += 1
            if training.steps == 6:
                raise KeyboardInterrupt

        def state_dict(self):
            return {"steps": self.steps}

        def load_state_dict(self, state):
            self.steps = state["steps"]

    def resumed(*callbacks):
        saving = Checkpoint(RunDirectory(tmp_path, {}), seconds=0.0)
        return training(Woods(), Schedule(steps=10, batch=8), callbacks=[saving, *callbacks])

    with pytest.raises(KeyboardInterrupt):
        resumed(Counter()).train()
    counter = Counter()
    run = resumed(Recorder(), counter)
    run.callbacks[0].on_train_begin(run)
    assert (run.steps, counter.steps) == (5, 5)
    assert resumed().train()[-1]["step"] == 10

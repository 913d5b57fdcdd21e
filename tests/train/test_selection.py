"""A schedule in rounds ends after the first that improves nothing on data set aside."""

import logging
import re

import numpy as np
import pytest
import torch
from torch import nn

import wildood
from wildood import InputError, Schedule, Woods
from wildood.data.sources import ArraySource
from wildood.data.wild import WildPool
from wildood.experiments.experiment import Experiment
from wildood.models.classifier import Classifier
from wildood.models.small import MLP
from wildood.train.callbacks import Callback
from wildood.train.checkpoint import Checkpoint, RunDirectory
from wildood.train.loop import Training
from wildood.train.monitor import Look, measure_start
from wildood.train.progress import LogEpochs, Timing
from wildood.train.selection import SelectEpoch

RNG = np.random.default_rng(0)
LABELLED = ArraySource(RNG.normal(size=(40, 4)).astype("float32"), RNG.integers(0, 3, 40))
WILD = WildPool(ArraySource(RNG.normal(size=(30, 4)).astype("float32") * 2))
ROUNDS = Schedule(steps=31, rounds=1, batch=8, lr=1e-3)


def training(looks: list[int], right: int = 100, constraints: list[float] | None = None, callbacks=()) -> Training:
    """A run whose looks see so many of 100 wild examples accepted, one after the other and then the last again."""
    given = iter(constraints or [])

    class Scripted:
        examples, seen = 200, iter(looks)
        last = looks[-1]

        def __call__(self, _objective, _score=None):
            self.last = next(self.seen, self.last)
            met = {} if constraints is None else {"c": next(given)}
            return Look({}, np.arange(100) < self.last, np.arange(100) < (100 if self.last == looks[0] else right), met)

    torch.manual_seed(0)
    classifier = Classifier(nn.Linear(4, 3))
    objective = Woods().objective(classifier, measure_start(classifier, LABELLED, seed=7))
    return Training(objective, LABELLED, WILD, ROUNDS, 7, [*callbacks, SelectEpoch(Scripted())])


def kept(run: Training) -> int:
    return run.callbacks[-1].kept


@pytest.mark.parametrize(
    ("looks", "steps"),
    [
        ([90, 90], [0, 1]),
        ([90, 80, 80], [0, 1, 3]),
        ([90, 80, 60, 61], [0, 1, 3, 7]),
        ([90, 80, 79], [0, 1, 3]),  # one example of 100: no more than chance
        ([90, 80, 70, 60, 50, 40], [0, 1, 3, 7, 15, 31]),
    ],
)
def test_a_run_ends_with_the_first_round_that_does_not_lower_wild_acceptance(looks, steps):
    history = training(looks).train()
    assert [row["step"] for row in history] == steps


def test_a_round_that_costs_accuracy_is_no_improvement():
    assert len(training([90, 50, 20], right=90).train()) == 2


@pytest.mark.parametrize(
    ("constraints", "rounds", "expected"),
    [
        ([0.5, 0.4, 0.3, 0.2, 0.1, 0.06], 5, 5),  # comes closer, until the schedule ends
        ([0.5, 0.2, 0.2], 2, 2),
        ([0.5, 0.2, 0.3], 2, 1),  # the last round ends further from it, and is not kept
        ([0.5, 0.04, -0.1], 2, 2),  # met within tol: there is nothing to come closer to
        ([0.04, 0.04], 1, 1),
        ([0.04, 0.2], 1, 0),
    ],
)
def test_a_run_goes_on_while_a_violated_constraint_comes_closer_on_the_holdout(constraints, rounds, expected):
    run = training([90], constraints=constraints)
    assert len(run.train()) - 1 == rounds
    assert kept(run) == expected


def test_a_round_that_lowers_wild_acceptance_is_kept_whatever_the_constraints():
    run = training([90, 80, 70, 70], constraints=[0.1, 0.2, 0.3, 0.3])
    assert len(run.train()) - 1 == kept(run) == 3


def test_a_run_that_has_ended_by_itself_stays_ended(tmp_path):
    runs = [training([90, 80, 80], callbacks=[Checkpoint(RunDirectory(tmp_path, {}))]) for _ in range(2)]
    first, second = (run.train() for run in runs)
    assert [row["step"] for row in second] == [row["step"] for row in first] == [0, 1, 3]


def test_a_run_that_is_cut_within_a_round_goes_on_from_there(tmp_path):
    whole = training([90, 80, 70, 70], constraints=[0.5, 0.3, 0.2, 0.25])
    steps = [row["step"] for row in whole.train()]

    class Cut(Callback):
        def on_step_end(self, training):
            if training.steps == 6:
                raise RuntimeError

    saving = Checkpoint(RunDirectory(tmp_path, {}), seconds=0.0)
    first = training([90, 80, 70], constraints=[0.5, 0.3, 0.2], callbacks=[saving, Cut()])
    with pytest.raises(RuntimeError):
        first.train()
    second = training([70], constraints=[0.25], callbacks=[Checkpoint(RunDirectory(tmp_path, {}))])
    assert [row["step"] for row in second.train()] == steps == [0, 1, 3, 7]
    assert kept(second) == kept(whole) == 2
    for name, value in whole.objective.state_dict().items():
        assert torch.equal(value, second.objective.state_dict()[name])


def data():
    def known(n):
        y = RNG.integers(0, 2, n)
        return (RNG.normal(size=(n, 2)) + 6 * y[:, None]).astype("float32"), y

    unknown = RNG.normal(size=(50, 2)).astype("float32") + np.float32([9, -9])
    return {"labelled": known(300), "wild": np.concatenate([known(250)[0], unknown]), "holdout": known(200)}


@pytest.mark.slow
def test_fit_with_an_auto_schedule_ends_by_itself():
    model = wildood.pretrain(MLP(2, 2), data()["labelled"], schedule=Schedule(epochs=5), verbose=False)
    detector = wildood.fit(model, **data(), schedule="auto", verbose=False)
    steps = [row["step"] for row in detector.history]
    assert steps == [0, 50, 150, 350, 750, 1550, 3150][: len(steps)]
    assert 1 < len(steps) < 7
    assert detector.record["schedule"]["rounds"] == 50


@pytest.mark.parametrize(
    "settings",
    [
        {"keep": "last"},
        {"keep": "as_published", "ood": np.zeros((20, 2), np.float32)},
        {"method": wildood.Godin(epsilon=0.0)},
    ],
)
def test_an_auto_schedule_without_wild_data_to_look_at_is_refused(settings):
    with pytest.raises(InputError, match="but there is none: give a method that uses wild data and keep='best'"):
        wildood.fit(MLP(2, 2), **data(), schedule="auto", verbose=False, **settings)
    with pytest.raises(InputError, match="but there is none"):
        wildood.pretrain(MLP(2, 2), data()["labelled"], schedule="auto", verbose=False)


def test_several_methods_are_all_asked_before_the_first_trains(tmp_path):
    methods = [Woods(), wildood.Godin(epsilon=0.0)]
    with pytest.raises(InputError, match="but there is none"):
        wildood.fit_many(MLP(2, 2), **data(), methods=methods, schedule="auto", run_dir=tmp_path / "runs", verbose=False)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "change",
    [{"method": "godin"}, {"keep": "last"}, {"protocol": "as_published"}, {"pretraining": Schedule.auto()}],
)
def test_an_experiment_that_cannot_train_in_rounds_is_refused_before_it_runs(change):
    given = {"method": "woods", "schedule": None if "pretraining" in change else Schedule.auto(), **change}
    with pytest.raises(InputError, match="but there is none"):
        Experiment("cifar10", ("svhn",), "svhn", 0.1, **given)


def test_lines_of_a_run_in_rounds_promise_no_end(caplog):
    with caplog.at_level(logging.INFO, logger="wildood"):
        training([90, 80, 80], callbacks=[Timing(), LogEpochs()]).train()
    _, *lines = caplog.messages
    assert [line.split("  ")[0] for line in lines] == ["round 1 of at most 5", "round 2 of at most 5"]
    assert all(re.search(r"  at most \d+:\d\d left$", line) for line in lines)


def test_auto_is_the_schedule_of_the_method_in_rounds():
    class Small(Woods):
        def schedule(self):
            return Schedule(batch=64, lr=0.01)

    detector = wildood.fit(MLP(2, 2), **data(), method=Small(), schedule="auto", verbose=False)
    assert {name: detector.record["schedule"][name] for name in ("batch", "lr", "steps", "rounds")} == {
        "batch": 64,
        "lr": 0.01,
        "steps": 3150,
        "rounds": 50,
    }
    with pytest.raises(InputError, match="every step"):
        wildood.fit(MLP(2, 2), **data(), method=Woods.as_published(), schedule="auto", verbose=False)


def test_milestones_are_those_of_the_round_whatever_limits_the_run():
    rounds = [Schedule(rounds=5, **limit) for limit in ({"steps": 100}, {"epochs": 10})]
    first, second = ([schedule.lr_at(step, 10, 100) for step in range(100)] for schedule in rounds)
    assert first == second
    assert first[4] < first[0] == first[5]

"""A run without a length ends by itself, when looks at data set aside show no more improvement; `minutes` ends any run."""

import logging
from types import SimpleNamespace

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
from wildood.train import selection
from wildood.train.callbacks import Callback
from wildood.train.checkpoint import Checkpoint, RunDirectory
from wildood.train.loop import Training, train
from wildood.train.monitor import Look, measure_start
from wildood.train.progress import LogEpochs, Timing
from wildood.train.selection import SelectEpoch, TimeLimit

RNG = np.random.default_rng(0)
LABELLED = ArraySource(RNG.normal(size=(40, 4)).astype("float32"), RNG.integers(0, 3, 40))
WILD = WildPool(ArraySource(RNG.normal(size=(30, 4)).astype("float32") * 2))
BY_ITSELF = Schedule(batch=8, lr=1e-3)
STEPS = [0, 25, 35, 50, 70, 100, 141, 200, 282, 400, 565, 800, 1131, 1600, 2262, 3200]  # of the looks


class Scripted:
    """Looks that see so many of 100 wild examples accepted, one after the other and then the last again."""

    alpha = 0.05

    def __init__(self, looks: list[int], right: int, offset: int):
        self.looks, self.right, self.offset, self.count = looks, right, offset, 0

    def __call__(self, _objective, _score=None):
        number, self.count = min(self.count, len(self.looks) - 1), self.count + 1
        accepted = np.roll(np.arange(100) < self.looks[number], self.offset * number)
        known = np.linspace(0, 1, 100)  # an accepted example is below all of them, a rejected one above
        right = np.arange(100) < (100 if self.looks[number] == self.looks[0] else self.right)
        return Look({}, (known, np.where(accepted, -1.0, 2.0)), right)


def objective() -> nn.Module:
    torch.manual_seed(0)
    classifier = Classifier(nn.Linear(4, 3))
    return Woods().objective(classifier, measure_start(classifier, LABELLED, seed=7))


def training(looks: list[int], callbacks=(), schedule: Schedule = BY_ITSELF, right: int = 100, offset: int = 0) -> Training:
    """A run with scripted looks, at which so many of the known examples are classified correctly after the start."""
    select = SelectEpoch(Scripted(looks, right, offset))
    return Training(objective(), LABELLED, WILD, schedule, 7, [*callbacks, select])


def steps_until(look: int) -> list[int]:
    """The steps of the rows of a run whose end begins with a look: the end has a quarter as many steps again."""
    return [*STEPS[: STEPS.index(look) + 1], -(-look * 5 // 4)]


def kept(run: Training) -> int:
    return run.callbacks[-1].kept


def saving(path, *, every_step: bool = False) -> Checkpoint:
    return Checkpoint(RunDirectory(path, {}), seconds=0.0 if every_step else None)


class Cut(Callback):
    """An error in a step, as if the process was killed."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, training):
        if training.steps == self.step:
            raise RuntimeError


@pytest.mark.parametrize(
    ("looks", "last"),
    [
        ([90], 100),
        ([90, 60], 100),  # improved at step 25
        ([90, 90, 90, 60], 100),  # at step 50
        ([90, 90, 90, 90, 60], 141),  # at step 70
        ([90, 90, 90, 90, 90, 60], 200),  # at step 100
        ([90, 80, 70, 60, 50, 40, 40, 30], 400),  # at step 200
        ([90, 60, 70, 80, 90, 61], 100),  # the least is of step 25
    ],
)
def test_the_end_begins_after_twice_the_steps_of_the_last_improvement_and_not_before_step_100(looks, last):
    history = training(looks).train()
    assert [row["step"] for row in history] == steps_until(last)
    assert [row["lr"] for row in history[1:-1]] == [1e-3] * (len(history) - 2)
    assert 0 < history[-1]["lr"] < 1e-3 / (last / 4) + 1e-9  # of the last step, after which it would be 0


def test_an_improvement_in_the_end_does_not_prolong_it():
    run = training([90, 90, 90, 90, 90, 90, 60])
    assert [row["step"] for row in run.train()] == steps_until(100)
    assert kept(run) == 6


@pytest.mark.slow
def test_a_run_that_always_improves_ends_after_3200_steps():
    run = training([100 - 6 * number for number in range(16)])
    assert [row["step"] for row in run.train()] == STEPS
    assert kept(run) == 15


@pytest.mark.parametrize(("offset", "last"), [(0, 141), (2, 100)])
def test_a_difference_by_chance_is_no_improvement(offset, last):
    """At step 70, 3 examples fewer are accepted: 3 verdicts of 100 have changed, or 13 of them, which is chance."""
    assert [row["step"] for row in training([90, 90, 90, 90, 87], offset=offset).train()] == steps_until(last)


def test_small_improvements_add_up():
    assert training([90, 89, 88, 87, 86, 85]).train()[-1]["step"] == 250


def test_a_look_that_costs_accuracy_is_no_improvement_and_not_kept():
    run = training([90, 80, 70, 60, 50, 40], right=90)
    assert run.train()[-1]["step"] == 125
    assert kept(run) == 0


def test_a_run_whose_multipliers_count_in_epochs_looks_after_each_and_ends_by_the_same_rule():
    schedule = Schedule(batch=8, lr=1e-3, duals="epoch")
    history = training([90] * 12 + [60], schedule=schedule).train()  # improved with the twelfth epoch of 5 steps
    assert [row["step"] for row in history] == list(range(0, 151, 5))


@pytest.mark.parametrize(("length", "last"), [({"steps": 150}, 150), ({"epochs": 25}, 125)])
def test_looks_do_not_end_a_run_that_has_a_length(length, last):
    assert training([90], schedule=Schedule(batch=8, lr=1e-3, **length)).train()[-1]["step"] == last


def test_the_weights_are_those_of_the_look_that_is_kept():
    seen = []

    class Seen(Callback):
        def on_epoch_end(self, training, row):
            seen.append({name: value.clone() for name, value in training.objective.state_dict().items()})

    run = training([90, 80, 60, 70], [Seen()])
    run.train()
    assert (kept(run), len(seen)) == (2, 7)
    assert all(torch.equal(value, seen[2][name]) for name, value in run.objective.state_dict().items())
    assert not torch.equal(seen[2]["logit.bias"], seen[-1]["logit.bias"])


def test_a_run_that_has_ended_by_itself_stays_ended(tmp_path):
    runs = [training([90, 90, 90, 90, 60], [saving(tmp_path)]) for _ in range(2)]
    first, second = (run.train() for run in runs)
    assert [row["step"] for row in second] == [row["step"] for row in first] == steps_until(141)
    assert kept(runs[0]) == kept(runs[1]) == 4
    for name, value in runs[0].objective.state_dict().items():
        assert torch.equal(value, runs[1].objective.state_dict()[name])


@pytest.mark.parametrize("step", [30, 70, 71, 150])
def test_a_run_that_is_cut_goes_on_from_there_and_ends_with_the_same_bits(tmp_path, step):
    looks = [90, 90, 90, 90, 60]  # the last improvement is at step 70, so that the end begins at step 141
    whole, first = training(looks), training(looks, [saving(tmp_path, every_step=True), Cut(step)])
    steps = [row["step"] for row in whole.train()]
    with pytest.raises(RuntimeError):
        first.train()
    seen = sum(look < step for look in STEPS)  # before the step that is taken again
    second = training(looks[min(seen, 4) :], [saving(tmp_path)])
    assert [row["step"] for row in second.train()] == steps == steps_until(141)
    assert kept(second) == kept(whole) == 4
    for name, value in whole.objective.state_dict().items():
        assert torch.equal(value, second.objective.state_dict()[name])


class Clock(Callback):
    """A clock that a step moves by 20 seconds."""

    def __init__(self, now: float = 0.0):
        self.now = now

    def on_step_begin(self, training):
        self.now += 20

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """A function that makes a clock and sets the time limit by it."""

    def of(now: float) -> Clock:
        made = Clock(now)
        monkeypatch.setattr(selection, "time", SimpleNamespace(monotonic=made.monotonic))
        return made

    return of


@pytest.mark.parametrize("schedule", [BY_ITSELF, Schedule(steps=50, batch=8), Schedule(epochs=9, batch=8)])
@pytest.mark.parametrize(("minutes", "last"), [(1, 4), (0.99, 3), (1e-9, 1), (2.01, 7)])
def test_the_step_that_exceeds_the_minutes_is_the_last_one(clock, schedule, minutes, last):
    limited = Schedule(schedule.steps, schedule.epochs, minutes, batch=8)
    history = train(objective(), LABELLED, WILD, limited, 7, callbacks=[clock(500.0)]).history
    assert [row["step"] for row in history] == ([0, last] if last < 5 or limited.epochs is None else [0, 5, last])
    assert {"wild_loss", "false_alarm"} <= history[-1].keys()


def test_minutes_that_are_not_used_up_change_nothing(clock):
    free, limited = (
        train(objective(), LABELLED, WILD, Schedule(7, minutes=minutes, batch=8), 7, callbacks=[clock(0.0)]).history
        for minutes in (None, 60)
    )
    times = {"images_per_second", "seconds_left"}
    assert [{name: row[name] for name in row.keys() - times} for row in free] == [
        {name: row[name] for name in row.keys() - times} for row in limited
    ]
    assert free[-1]["step"] == 7


def test_a_resumed_run_counts_the_time_before_and_not_that_between(clock, tmp_path):
    def run(now: float, *more: Callback) -> list[int]:
        callbacks = [saving(tmp_path, every_step=True), TimeLimit(), clock(now), *more]
        schedule = Schedule(steps=50, minutes=2, batch=8)
        return [row["step"] for row in Training(objective(), LABELLED, WILD, schedule, 7, callbacks).train()]

    with pytest.raises(RuntimeError):
        run(0.0, Cut(4))  # a checkpoint is saved before the fourth step, which is taken again
    assert run(90_000.0) == [0, 7]
    assert run(0.0) == [0, 7]  # stays ended


@pytest.mark.parametrize("minutes", [0, -1.0, float("nan"), float("inf"), "5", True])
def test_minutes_that_are_no_time_are_refused(minutes):
    with pytest.raises(InputError, match=r"the schedule's minutes is .*: give a positive number"):
        Schedule(minutes=minutes)


def data():
    rng = np.random.default_rng(0)

    def known(n):
        y = rng.integers(0, 2, n)
        return (rng.normal(size=(n, 2)) + 6 * y[:, None]).astype("float32"), y

    unknown = rng.normal(size=(50, 2)).astype("float32") + np.float32([9, -9])
    return {"labelled": known(300), "wild": np.concatenate([known(250)[0], unknown]), "holdout": known(200)}


@pytest.mark.slow
def test_a_fit_without_a_schedule_ends_by_itself():
    model = wildood.pretrain(MLP(2, 2), data()["labelled"], schedule=Schedule(epochs=5), verbose=False)
    detector = wildood.fit(model, **data(), verbose=False)
    steps = [row["step"] for row in detector.history]
    assert steps == steps_until(steps[-2])
    assert 100 <= steps[-2] < 3200
    assert (detector.record["schedule"]["steps"], detector.record["schedule"]["epochs"]) == (None, None)


def test_the_schedule_of_a_method_ends_by_itself_if_it_has_no_length():
    class Small(Woods):
        def schedule(self):
            return Schedule(batch=64, lr=0.01)

    detector = wildood.fit(MLP(2, 2), **data(), method=Small(), verbose=False)
    record = detector.record["schedule"]
    assert [record[name] for name in ("batch", "lr", "steps", "epochs")] == [64, 0.01, None, None]
    steps = [row["step"] for row in detector.history]
    assert steps == steps_until(steps[-2])
    assert steps[-2] >= 100


@pytest.mark.parametrize(
    "settings",
    [
        {"keep": "last"},
        {"keep": "as_published", "ood": np.zeros((20, 2), np.float32)},
        {"method": wildood.Godin(epsilon=0.0)},
    ],
)
def test_a_fit_takes_100_steps_where_no_wild_data_is_set_aside_to_end_it_by(settings):
    detector = wildood.fit(MLP(2, 2), **data(), schedule=Schedule(batch=32), verbose=False, **settings)
    assert (detector.history[-1]["step"], detector.record["schedule"]["steps"]) == (100, 100)


def test_pretraining_takes_100_steps_with_a_schedule_that_would_end_by_itself():
    rows = []
    wildood.pretrain(MLP(2, 2), data()["labelled"], schedule=Schedule(batch=32), on_epoch=rows.append, verbose=False)
    assert rows[-1]["step"] == 100


def test_several_methods_each_end_as_they_can():
    methods = [Woods(), wildood.Godin(epsilon=0.0)]
    fits = wildood.fit_many(MLP(2, 2), **data(), methods=methods, schedule=Schedule(batch=32), verbose=False)
    assert [detector.record["schedule"]["steps"] for detector in fits.detectors.values()] == [None, 100]


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        ({"keep": "best"}, None),
        ({"keep": "best", "method": "godin"}, 100),
        ({"keep": "last"}, 100),
        ({"keep": "best", "protocol": "as_published"}, 100),
    ],
)
def test_an_experiment_says_how_many_steps_it_takes_unless_it_ends_by_itself(change, steps):
    experiment = Experiment("cifar10", ("svhn",), "svhn", 0.1, schedule=Schedule(lr=0.01), pretraining=Schedule(), **change)
    assert (experiment.schedule.steps, experiment.schedule.lr) == (steps, 0.01)
    assert experiment.pretraining.steps == 100


@pytest.mark.parametrize(
    ("schedule", "ends"),
    [(BY_ITSELF, [("step 25", "examples/s"), ("step 35", "examples/s")]), (Schedule(30, batch=8), [("step 25", "left")])],
)
def test_lines_of_a_run_that_ends_by_itself_promise_no_end(schedule, ends, caplog):
    with caplog.at_level(logging.INFO, logger="wildood"):
        training([90], [Timing(), LogEpochs()], schedule).train()
    lines = caplog.messages[1 : 1 + len(ends)]
    assert [(line.split("  ")[0], line.split()[-1]) for line in lines] == ends

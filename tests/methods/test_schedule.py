import math
from itertools import pairwise

import pytest

from wildood import InputError, Schedule


def test_an_epoch_is_one_pass_over_the_labelled_data_whatever_the_wild_data():
    assert Schedule(epochs=3, batch=100).length(labelled=1050, wild=[10]) == (10, 30)
    assert Schedule(steps=25, batch=100).length(labelled=1050, wild=[10]) == (10, 25)


def test_published_epochs_are_those_of_the_released_code():
    published = Schedule.as_published("stationary")
    pools = {"textures": 2_763, "lsun": 4_900, "svhn": 35_895}
    lengths = {name: published.length(25_000, [17_500, ood])[0] for name, ood in pools.items()}
    assert lengths == {"textures": 21, "lsun": 38, "svhn": 136}
    assert (published.lr, published.decay, published.duals, published.batch) == (1e-3, "milestones", "epoch", 128)
    assert (published.momentum, published.weight_decay) == (0.9, 5e-4)
    assert (published.averaging, published.clip) == (False, 0.0)


def test_learning_rate_halves_at_the_milestones():
    schedule = Schedule(steps=200, lr=0.01, decay="milestones")
    assert [schedule.lr_at(step, 78, 200) for step in (0, 99, 100, 150, 180)] == [0.01, 0.01, 0.005, 0.0025, 0.00125]


@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 1.5},
        {"steps": True},
        {"steps": "15"},
        {"steps": 1, "lr": "1e-3"},
        {"steps": 30, "milestones": (10, 20)},
        {"steps": 30, "milestones": 0.5},
        {"steps": 1, "epochs": 1},
        {"steps": 0},
        {"epochs": -1},
        {"steps": 1, "lr": 0.0},
        {"steps": 1, "batch": 1},
        {"steps": 1, "momentum": -0.1},
        {"steps": 1, "momentum": 1.0},
        {"steps": 1, "weight_decay": -1.0},
        {"steps": 1, "duals": "sometimes"},
        {"steps": 1, "epoch": "longest"},
        {"steps": 1, "averaging": "no"},
        {"minutes": 0},
        {"minutes": -1.0},
        {"minutes": math.inf},
        {"minutes": "5"},
        {"minutes": True},
    ],
)
def test_schedules_that_make_no_sense_are_refused(settings):
    with pytest.raises(InputError):
        Schedule(**settings)


def test_unknown_published_setting_is_refused():
    with pytest.raises(InputError, match="stationary"):
        Schedule.as_published("moving")


def test_a_cosine_falls_to_zero_after_its_warm_up():
    schedule = Schedule(steps=100, lr=0.2, decay="cosine", warmup=0.1)
    rates = [schedule.lr_at(step, per_epoch=10, total=100) for step in range(100)]
    assert rates[0] == pytest.approx(0.2 / 11)
    assert max(rates) == rates[10] == pytest.approx(0.2)
    assert rates[55] == pytest.approx(0.1)
    assert rates[99] < 0.001
    assert all(first > second for first, second in pairwise(rates[10:]))


def test_pretraining_is_the_recipe_of_the_papers_classifier():
    schedule = Schedule.pretraining()
    assert (schedule.epochs, schedule.lr, schedule.decay, schedule.augment) == (100, 0.1, "cosine", True)
    assert (schedule.batch, schedule.momentum, schedule.weight_decay) == (128, 0.9, 5e-4)
    assert schedule.lr_at(0, per_epoch=10, total=1000) == 0.1
    assert (schedule.averaging, schedule.clip) == (False, 0.0)


def test_the_learning_rate_falls_to_0_over_the_last_fifth_after_its_warm_up():
    schedule = Schedule(lr=0.2, warmup=0.1)
    rates = [schedule.lr_at(step, per_epoch=3, total=100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * step / 11 for step in range(1, 11)])
    assert rates[10:81] == [0.2] * 71
    assert rates[80:] == pytest.approx([0.01 * left for left in range(20, 0, -1)])


def looks(schedule: Schedule, until: int, per_epoch: int = 10) -> list[int]:
    return [step for step in range(1, until + 1) if schedule.is_look(step, per_epoch)]


@pytest.mark.parametrize("schedule", [Schedule(), Schedule(steps=3200), Schedule(minutes=1)])
def test_each_look_comes_after_about_sqrt_2_times_the_steps_of_the_one_before(schedule):
    steps = looks(schedule, 3200)
    assert steps[::2] == [25, 50, 100, 200, 400, 800, 1600, 3200]
    assert steps[1::2] == [35, 70, 141, 282, 565, 1131, 2262]


@pytest.mark.parametrize("schedule", [Schedule(epochs=3), Schedule(steps=35, duals="epoch"), Schedule(duals="epoch")])
def test_there_is_a_look_after_each_epoch_where_the_schedule_or_its_multipliers_count_in_epochs(schedule):
    assert looks(schedule, 35) == [10, 20, 30]


@pytest.mark.parametrize("length", [{"steps": 99}, {"steps": 100}, {"steps": 101}, {"steps": 7}, {"epochs": 4}, {}])
@pytest.mark.parametrize("duals", ["step", "epoch"])
def test_number_of_looks_is_that_of_a_run_which_looks_after_its_last_step_too(length, duals):
    schedule = Schedule(batch=10, duals=duals, **length)
    per_epoch, total = schedule.length(labelled=100, wild=[])
    assert schedule.looks(per_epoch, total) == len({*looks(schedule, total, per_epoch), total})


@pytest.mark.parametrize(
    ("improved", "ended"), [(0, 100), (25, 100), (35, 100), (50, 100), (70, 141), (100, 200), (141, 282), (1600, 3200)]
)
def test_training_ends_with_the_first_look_from_step_100_on_after_twice_the_steps_of_the_last_improvement(improved, ended):
    ends = [step for step in looks(Schedule(), 3200) if step >= improved and Schedule().has_ended(step, improved)]
    assert ends[0] == ended


@pytest.mark.parametrize("schedule", [Schedule(steps=1000), Schedule(epochs=9)])
def test_a_schedule_with_a_length_does_not_end_by_itself(schedule):
    assert not schedule.ends_itself
    assert not any(schedule.has_ended(step, improved=0) for step in range(1001))
    assert schedule.fixed() == schedule


def test_a_schedule_that_ends_by_itself_has_3200_steps_at_most_and_100_where_its_length_is_fixed():
    schedule = Schedule(batch=10, lr=0.2, minutes=3)
    assert schedule.ends_itself
    assert schedule.length(labelled=100, wild=[]) == (10, 3200)
    assert schedule.fixed() == Schedule(steps=100, batch=10, lr=0.2, minutes=3)


@pytest.mark.parametrize(
    ("setting", "message"), [({"decay": "linear"}, "decay is 'linear'"), ({"warmup": 1.0}, "warmup is 1.0")]
)
def test_wrong_decay_is_refused(setting, message):
    with pytest.raises(InputError, match=message):
        Schedule(**setting)

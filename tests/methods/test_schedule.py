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


def test_learning_rate_halves_at_the_milestones():
    schedule = Schedule(steps=200, lr=0.01)
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
        {"steps": 1, "rounds": 0},
        {"steps": 1, "rounds": 5, "duals": "epoch"},
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


def test_each_round_is_twice_as_long_as_the_one_before_and_its_rate_falls_anew():
    schedule = Schedule(steps=60, rounds=10, lr=0.2)
    assert [step for step in range(1, 61) if schedule.is_end(step, per_epoch=3)] == [10, 30]
    assert schedule.ends(per_epoch=3, total=60) == 3
    rates = [schedule.lr_at(step, per_epoch=3, total=60) for step in range(60)]
    assert rates[:10] == [Schedule(lr=0.2).lr_at(step, per_epoch=3, total=10) for step in range(10)]
    assert rates[10:30] == [Schedule(lr=0.2).lr_at(step, per_epoch=3, total=20) for step in range(20)]
    assert rates[30:] == [Schedule(lr=0.2).lr_at(step, per_epoch=3, total=30) for step in range(30)]  # cut short


@pytest.mark.parametrize(
    ("setting", "message"), [({"decay": "linear"}, "decay is 'linear'"), ({"warmup": 1.0}, "warmup is 1.0")]
)
def test_wrong_decay_is_refused(setting, message):
    with pytest.raises(InputError, match=message):
        Schedule(**setting)

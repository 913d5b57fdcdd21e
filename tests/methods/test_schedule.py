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
    assert (published.lr, published.duals, published.batch) == (1e-3, "epoch", 128)
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
        {"steps": 1, "momentum": 0.0},
        {"steps": 1, "weight_decay": -1.0},
        {"steps": 1, "duals": "sometimes"},
        {"steps": 1, "epoch": "longest"},
    ],
)
def test_schedules_that_make_no_sense_are_refused(settings):
    with pytest.raises(InputError):
        Schedule(**settings)


def test_unknown_published_setting_is_refused():
    with pytest.raises(InputError, match="stationary"):
        Schedule.as_published("moving")

import dataclasses
import datetime as dt
import math

import pytest

from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.grids import GRIDS, grid
from wildood.methods.energy_logistic import EnergyLogistic
from wildood.methods.outlier_exposure import OutlierExposure
from wildood.methods.schedule import Schedule
from wildood.methods.woods import Woods
from wildood.methods.woods_alt import WoodsAlt


def test_hash_of_an_experiment_stays_what_it_is():
    # All settings are given, so that only the format of the hash is pinned, not a default.
    settings = dataclasses.asdict(OutlierExposure(weight=0.1))
    published = {"averaging": False, "duals": "epoch", "epoch": "shortest", "normalisation": "batch"}
    schedule = Schedule(epochs=100, lr=1e-3, decay="milestones", **published)
    experiment = Experiment(
        "cifar10", ("svhn",), "svhn", 0.1, "oe", settings, schedule, start="weights/a.safetensors", keep="best", seed=3
    )
    assert experiment.name == "c3d88b69569b"


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"pi": 0.2},
        {"settings": {"alpha": 0.1}},
        {"schedule": Schedule(steps=50)},
        {"test": ("svhn", "textures")},
        {"protocol": "as_published"},
        {"keep": "best"},
        {"model_settings": {"depth": 16}},
        {"start": "all"},
        {"pretraining": Schedule(epochs=1)},
    ],
)
def test_whatever_decides_the_outcome_changes_the_name(change):
    before = Experiment("cifar10", ("svhn",), "svhn", 0.1)
    assert dataclasses.replace(before, **change).name != before.name


def test_settings_that_are_not_given_are_filled_in_so_a_new_default_gives_a_new_name():
    assert Experiment("cifar10", ("svhn",), "svhn", 0.1).settings == dataclasses.asdict(Woods())
    assert Experiment("cifar10", ("svhn",), "svhn", 0.1, settings=dataclasses.asdict(Woods())).name == (
        Experiment("cifar10", ("svhn",), "svhn", 0.1).name
    )


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("woods", dataclasses.asdict(Woods.as_published())),
        ("woods-alt", dataclasses.asdict(WoodsAlt.as_published())),
        ("energy-logistic", dataclasses.asdict(EnergyLogistic.as_published())),
        ("oe", dataclasses.asdict(OutlierExposure())),
    ],
)
def test_as_published_is_as_published_for_every_method_of_a_file_that_says_no_more(method, settings):
    text = f'id = "cifar10"\ntest = ["svhn"]\nwild = "svhn"\npi = 0.1\nmethod = "{method}"\nprotocol = "as_published"\n'
    experiment = Experiment.from_toml(text)
    assert experiment.settings == settings
    assert experiment.schedule == Schedule.as_published("stationary")
    assert Experiment.from_toml(text.replace('["svhn"]', '["textures"]')).schedule == Schedule.as_published("non-stationary")
    assert Experiment.from_toml(experiment.to_toml()).name == experiment.name


@pytest.mark.parametrize("name", GRIDS)
def test_every_experiment_of_every_grid_survives_toml(name):
    for experiment in grid(name, seeds=1):
        again = Experiment.from_toml(experiment.to_toml())
        assert again == experiment
        assert again.name == experiment.name


def test_a_setting_that_is_none_survives_toml():
    whole = Experiment("cifar10", ("svhn",), "svhn", 0.1, settings={"tau": None, "tol": 0.1})
    assert Experiment.from_toml(whole.to_toml()).settings["tau"] is None


def test_cell_is_the_same_for_settings_and_seeds_and_another_for_anything_else():
    first = Experiment("cifar10", ("svhn",), "svhn", 0.1, "oe", {"weight": 0.1})
    assert first.cell == dataclasses.replace(first, settings={"weight": 1.0}, seed=4).cell
    assert first.cell != dataclasses.replace(first, pi=0.2).cell


def test_scores_have_no_schedule_and_weights_need_no_pretraining():
    assert Experiment("cifar10", ("svhn",), method="energy", schedule=Schedule(steps=3)).schedule is None
    assert Experiment("cifar10", ("svhn",), method="energy", start="weights/a.safetensors").pretraining is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "wood"}, "method is 'wood'"),
        ({"model": "VGG"}, "model is 'VGG'"),
        ({"protocol": "dishonest"}, "protocol is 'dishonest'"),
        ({"keep": "first"}, "keep is 'first'"),
        ({"test": ()}, "no OOD set to test on"),
        ({"pi": 0.0}, "give both, or neither"),
        ({"pi": 3}, "pi is 3: give the share of OOD in the wild data, from 0 to 1"),
        ({"pi": "x"}, "pi is 'x', expected a number"),
        ({"id": 3}, "id is 3, expected text"),
        ({"wild": ["svhn"]}, "wild is .'svhn'., expected text"),
        ({"seed": 0.5}, "seed is 0.5, expected a whole number"),
        ({"mean": ("x",)}, r"mean\[0\] is 'x', expected a number"),
        ({"method": []}, "method is .., expected text"),
        ({"method": "mine:Mine"}, "it is not wildood's, so name it with --method mine:Mine$"),
        ({"wild": None}, "give both, or neither"),
        ({"wild": None, "pi": 0.0}, "woods trains on wild data"),
        ({"settings": {"alhpa": 0.1}}, "alhpa"),
    ],
)
def test_what_cannot_be_is_refused(changes, said):
    with pytest.raises(InputError, match=said):
        Experiment(**{"id": "cifar10", "test": ("svhn",), "wild": "svhn", "pi": 0.1} | changes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id = ", "is not TOML"),
        ('id = "cifar10"', "an experiment's test is missing"),
        ('id = "a"\ntest = ["b"]\nmethod = "energy"\n[schedule]\nstep = 3', "schedule.step is not known to this wildood"),
        (
            'id = "a"\ntest = ["b"]\nmethod = "energy"\n[schedule]\nmilestones = ["x"]',
            r"schedule.milestones\[0\] is 'x', expected a number",
        ),
        ('id = "a"\ntest = ["b"]\nmethod = "energy"\nmodel_settings = 3', "model_settings is 3, expected an object"),
    ],
)
def test_toml_that_is_not_an_experiment_is_refused_in_one_line(text, said):
    with pytest.raises(InputError, match=said) as refused:
        Experiment.from_toml(text)
    assert "\n" not in str(refused.value)


def test_whole_numbers_and_numbers_with_a_point_are_one_experiment():
    first = Experiment("cifar10", ("svhn",), "svhn", 1, "oe", {"weight": 1})
    assert first.name == Experiment("cifar10", ("svhn",), "svhn", 1.0, "oe", {"weight": 1.0}).name


def test_one_set_instead_of_a_list_and_no_table_instead_of_one_are_refused():
    with pytest.raises(InputError, match="test is 'svhn', expected a list"):
        Experiment("cifar10", "svhn", "svhn", 0.1)
    with pytest.raises(InputError, match="schedule is 3, expected an object"):
        Experiment.from_toml('id = "a"\ntest = ["b"]\nmethod = "energy"\nschedule = 3')


def test_names_of_files_in_any_script_survive_toml():
    experiment = Experiment("猫🐈.npz", ("é.npz",), method="energy")
    assert Experiment.from_toml(experiment.to_toml()) == experiment


@pytest.mark.parametrize("value", [math.inf, 1e300, 3.0])
def test_settings_of_any_size_survive_toml(value):
    settings, schedule = {"gamma": value, "tau": value}, Schedule(steps=3, clip=value)
    experiment = Experiment("a.npz", ("b.npz",), "b.npz", 0.1, settings=settings, schedule=schedule)
    again = Experiment.from_toml(experiment.to_toml())
    assert (again, again.name) == (experiment, experiment.name)


def test_names_of_model_settings_and_texts_survive_toml_whatever_is_in_them():
    settings = {"the width": 1, 'a "b"': "\x7f\n\\", "c": [1, [2.5, "x"]]}
    experiment = Experiment("a.npz", ("b.npz",), method="energy", model_settings=settings)
    assert Experiment.from_toml(experiment.to_toml()) == experiment


@pytest.mark.parametrize("value", [{"a": 1}, [None], [{"a": 1}], dt.date(2026, 1, 1), "\ud800"])
def test_what_its_file_could_not_hold_is_refused_in_one_line(value):
    with pytest.raises(InputError, match=r"model_settings width is .*: give a number, text, or a list of such") as refused:
        Experiment("a.npz", ("b.npz",), method="energy", model_settings={"width": value})
    assert "\n" not in str(refused.value)

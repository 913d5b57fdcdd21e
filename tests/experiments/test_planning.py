"""What a plan says of the time that runs take, and what it refuses before they begin."""

from dataclasses import replace

import pytest
import torch

from wildood.errors import InputError
from wildood.experiments import probing
from wildood.experiments.experiment import Experiment
from wildood.experiments.passes import Passes, work_of
from wildood.experiments.planning import Plan, PlanRow, plan
from wildood.experiments.probing import measured_rate
from wildood.experiments.sizes import Sizes
from wildood.experiments.store import RunStore
from wildood.methods.schedule import Schedule

SIZES = Sizes(labelled=1000, wild_id=700, wild_ood=300, holdout=200, test=500, validation_ood=50)
ENERGY = Experiment("cifar10", ("svhn",), method="energy")


def row(runs, seconds, done=0):
    return PlanRow(ENERGY, runs, done, 0, 0, seconds)


@pytest.mark.parametrize(
    ("rows", "starts", "workers", "expected"),
    [
        ([row(1, 60.0)], (), 8, 60.0),  # not an eighth of it: one run is done by one worker
        ([row(4, 60.0, done=1)], (), 2, 120.0),
        ([row(1, 100.0), row(5, 20.0)], (), 2, 100.0),
        ([row(2, 60.0)], (30.0, 40.0), 4, 100.0),
        ([row(2, 60.0, done=2)], (), 4, 0.0),
    ],
)
def test_the_time_left_is_that_of_the_workers_that_have_something_to_do(rows, starts, workers, expected):
    assert Plan(tuple(rows), starts).seconds_left(workers) == expected


def test_a_score_looks_at_everything_once():
    assert work_of(ENERGY, SIZES) == (0, Passes(0, 1000 + 200 + 500))


def test_a_step_on_the_input_is_counted_for_each_epsilon_that_is_tried():
    mahalanobis = Experiment("cifar10", ("svhn",), method="mahalanobis")
    # Half of the holdout for each of 7 epsilons, of which one is 0; then the holdout and the tests with the one chosen.
    stepped = 6 * 100 + 200 + 500
    assert work_of(mahalanobis, SIZES) == (0, Passes(stepped, 1000 + 100 + stepped))
    fixed = replace(mahalanobis, settings={"epsilon": 0.0})
    assert work_of(fixed, SIZES) == (0, Passes(0, 1000 + 200 + 500))


@pytest.mark.parametrize(("protocol", "more"), [("honest", 1000), ("as_published", 50)])
def test_what_chooses_an_epsilon_is_counted_with_the_wild_or_the_ood_data(protocol, more):
    odin = Experiment("cifar10", ("svhn",), "svhn", 0.1, "odin", protocol=protocol)
    stepped = 9 * (100 + more) + 200 + 500
    assert work_of(odin, SIZES) == (0, Passes(stepped, 1000 + (100 + more) + stepped))


def test_csi_is_counted_with_its_views_and_its_second_stage():
    csi = Experiment("cifar10", ("svhn",), method="csi", settings={"head_epochs": 2}, schedule=Schedule(steps=7, batch=128))
    # 7 steps of 128 examples in 8 views; 2 epochs of 31 steps of 32 in 4 views, without a backward pass.
    evaluated = 1 * 200 + 2 * 200 * 4
    expected = Passes(7 * 128 * 8, 1000 + 4 * (200 + 500) + 62 * 32 * 4 + evaluated)
    assert work_of(csi, SIZES) == (7 + 62, expected)


def test_wild_data_doubles_a_batch():
    woods = Experiment("cifar10", ("svhn",), "svhn", 0.1, schedule=Schedule(steps=10, batch=100))
    steps, passes = work_of(woods, SIZES)
    assert (steps, passes.trained) == (10, 10 * 100 * 2)


def test_one_slow_step_does_not_ruin_the_measurement(small, monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 10.5, 20.0, 21.0, 30.0, 30.25, 40.0, 49.0, 50.0, 59.0])
    monkeypatch.setattr(probing.time, "perf_counter", lambda: next(clock))
    assert measured_rate(small, (8, 8, 3)) == (64 / 0.5, 64 / 0.25)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"mean": (0.5,), "std": (0.5,)},
            "mean has 1 numbers, which do not fit the images of known.npz, 8 x 8 with 3 channels",
        ),
        ({"mean": (0.5,)}, "mean has 1 and std 3 values"),
        (
            {"model_settings": {}},
            r"model SmallCNN does not take the images of known.npz, 8 x 8 with 3 channels: give another",
        ),
        (
            {"model_settings": {"wind": 3}},
            r"model SmallCNN \(wind = 3\) cannot be built \(got an unexpected keyword .*'wind'",
        ),
        ({"model": "MLP", "model_settings": {}}, "model MLP cannot be built .missing 1 required .*'inputs'"),
        ({"model": "WideResNet", "model_settings": {"depth": 3}}, "depth"),
    ],
)
def test_a_model_or_a_mean_that_does_not_fit_the_images_is_refused_in_one_line(change, said, small, small_root, tmp_path):
    with pytest.raises(InputError, match=said) as refused:
        plan([replace(small, **change)], RunStore(tmp_path), small_root)
    assert "\n" not in str(refused.value)


def test_an_experiment_on_digits_without_mean_and_model_is_refused_in_one_line(tmp_path):
    bare = Experiment.from_toml('id = "digits"\ntest = ["digits"]\nmethod = "energy"')
    with pytest.raises(
        InputError, match="mean has 3 numbers, which do not fit the images of digits, 8 x 8 with 1 channel: "
    ):
        plan([bare], RunStore(tmp_path))
    with pytest.raises(InputError, match="model WideResNet does not take the images of digits"):
        plan([replace(bare, mean=(0.5,), std=(0.5,))], RunStore(tmp_path))
    torch.manual_seed(0)
    assert plan([replace(bare, mean=(0.5,), std=(0.5,), model="SmallCNN")], RunStore(tmp_path)).runs == 1

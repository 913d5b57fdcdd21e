"""What a plan says of the time that runs take, and what it refuses before they begin."""

from dataclasses import replace

import numpy as np
import pytest

from wildood.errors import InputError
from wildood.experiments import plan as plans
from wildood.experiments.experiment import Experiment
from wildood.experiments.plan import Plan, PlanRow, Sizes, Work, estimate_work, measured_rate, plan
from wildood.experiments.store import OodMetrics, Result, RunStore
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
    assert estimate_work(ENERGY, SIZES) == Work(0, 0, 1000 + 200 + 500)


def test_a_step_on_the_input_is_counted_for_each_epsilon_that_is_tried():
    mahalanobis = Experiment("cifar10", ("svhn",), method="mahalanobis")
    perturbed = 7 * 100 + 200 + 500  # half of the holdout for each of 7 epsilons; then all of it and the tests
    assert estimate_work(mahalanobis, SIZES) == Work(0, perturbed, 1000 + perturbed)
    fixed = replace(mahalanobis, settings={"epsilon": 0.001})
    assert estimate_work(fixed, SIZES) == Work(0, 200 + 500, 1000 + 200 + 500)


@pytest.mark.parametrize(("protocol", "more"), [("honest", 1000), ("as_published", 50)])
def test_what_chooses_an_epsilon_is_counted_with_the_wild_or_the_ood_data(protocol, more):
    odin = Experiment("cifar10", ("svhn",), "svhn", 0.1, "odin", protocol=protocol)
    assert estimate_work(odin, SIZES).trained == 10 * (100 + more) + 200 + 500


def test_csi_is_counted_with_its_views_and_its_second_stage():
    csi = Experiment("cifar10", ("svhn",), method="csi", settings={"head_epochs": 2}, schedule=Schedule(epochs=3, batch=128))
    # 3 epochs of 7 steps of 128 examples, 2 of 31 steps of 32; 8 views of each.
    work = estimate_work(csi, SIZES)
    assert (work.steps, work.trained) == (21 + 62, 8 * (21 * 128 + 62 * 32))


def test_wild_data_doubles_a_batch():
    woods = Experiment("cifar10", ("svhn",), "svhn", 0.1, schedule=Schedule(steps=10, batch=100))
    assert estimate_work(woods, SIZES)[:2] == (10, 10 * 100 * 2)


def test_a_method_that_trains_without_wild_data_is_counted_without_it():
    alone = Experiment("cifar10", ("svhn",), method="godin", settings={"epsilon": 0.0}, schedule=Schedule(steps=10))
    assert estimate_work(replace(alone, wild="svhn", pi=0.1), SIZES) == estimate_work(alone, SIZES)


def test_runs_that_are_done_tell_how_long_others_of_their_cell_take(small, small_root, tmp_path):
    store, tests = RunStore(tmp_path), {"grey.npz": OodMetrics(0.25, 0.01, 0.9, 0.91, 0.92, 0.1, 30)}
    for seed, seconds in ((0, 100.0), (1, 200.0)):
        store.add(Result(replace(small, seed=seed), tests, 0.95, 0.05, 30, seconds=seconds), {})
    (row,) = plan([replace(small, seed=seed) for seed in range(3)], store, small_root).rows
    assert (row.runs, row.done, row.seconds) == (3, 2, 150.0)


def test_one_slow_step_does_not_ruin_the_measurement(small, monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 10.5, 20.0, 21.0, 30.0, 30.25, 40.0, 49.0, 50.0, 59.0])
    monkeypatch.setattr(plans.time, "perf_counter", lambda: next(clock))
    assert measured_rate(small, (8, 8, 3)) == (64 / 0.5, 64 / 0.25)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"mean": (0.5, 0.5), "std": (0.5, 0.5)},
            "mean has 2 numbers, which do not fit the images of known.npz, 8 x 8 with 3 channels",
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
        ({"model_settings": {"channels": 3, "width": -1}}, r"SmallCNN \(channels = 3, width = -1\) cannot be built \("),
        ({"model_settings": {"channels": 3, "width": 1.5}}, r"width = 1.5\) cannot be built \("),
        ({"model": "WideResNet", "model_settings": {"dropout": 2.0}}, r"dropout = 2.0\) cannot be built \("),
        ({"model": "MLP", "model_settings": {"inputs": -1}}, r"inputs = -1\) cannot be built \("),
        (
            {"test": ("large.npz",)},
            r"large.npz \(images\) has the shape 9 x 8 x 3, the training images of known.npz have 8 x 8 x 3",
        ),
        ({"test": ("svhn",)}, r"svhn \(images\) has the shape 32 x 32 x 3, the training"),
    ],
)
def test_a_model_or_a_mean_that_does_not_fit_the_images_is_refused_in_one_line(change, said, small, small_root, tmp_path):
    for file in small_root.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    np.savez(tmp_path / "large.npz", images=np.zeros((100, 9, 8, 3), np.uint8))
    with pytest.raises(InputError, match=said) as refused:
        plan([replace(small, **change)], RunStore(tmp_path), tmp_path)
    assert "\n" not in str(refused.value)


def test_an_experiment_on_digits_without_mean_and_model_is_refused_in_one_line(tmp_path):
    bare = Experiment.from_toml('id = "digits"\ntest = ["digits"]\nmethod = "energy"')
    with pytest.raises(
        InputError, match="mean has 3 numbers, which do not fit the images of digits, 8 x 8 with 1 channel: "
    ):
        plan([bare], RunStore(tmp_path))
    with pytest.raises(InputError, match="model WideResNet does not take the images of digits"):
        plan([replace(bare, mean=(0.5,), std=(0.5,))], RunStore(tmp_path))
    assert plan([replace(bare, mean=(0.5,), std=(0.5,), model="SmallCNN")], RunStore(tmp_path)).runs == 1


def test_one_mean_for_all_channels_is_taken(small, small_root, tmp_path):
    assert plan([replace(small, mean=(0.5,), std=(0.25,))], RunStore(tmp_path), small_root).runs == 1


def test_what_is_done_needs_no_data_and_no_time(tmp_path):
    store = RunStore(tmp_path)
    gone = Experiment("gone.npz", ("gone.npz",), method="energy")
    found = OodMetrics(0.25, 0.01, 0.9, 0.91, 0.92, 0.1, 30)
    store.add(Result(gone, {"gone.npz": found}, 0.95, 0.05, 30), {})
    (store.place(gone) / "experiment.toml").write_text("id =")  # on which a result does not depend
    assert plan([gone], store, tmp_path) == Plan((PlanRow(gone, 1, 1, 0, 0, 0.0),), ())

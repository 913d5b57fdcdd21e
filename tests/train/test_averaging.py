"""The mean of the weights over the steps: its values, and what a run does with it."""

from math import comb

import numpy as np
import pytest
import torch
from torch import nn

from wildood import Schedule, Woods
from wildood.data.sources import ArraySource
from wildood.data.wild import WildPool
from wildood.models.classifier import Classifier
from wildood.train.averaging import WeightAverage
from wildood.train.callbacks import Callback
from wildood.train.checkpoint import Checkpoint, RunDirectory
from wildood.train.loop import Training
from wildood.train.monitor import measure_start

RNG = np.random.default_rng(0)
LABELLED = ArraySource(RNG.normal(size=(40, 4)).astype("float32"), RNG.integers(0, 3, 40))
WILD = WildPool(ArraySource(RNG.normal(size=(30, 4)).astype("float32") * 2))


def weighted_mean(values: list[torch.Tensor]) -> torch.Tensor:
    """Of the values after steps 1, 2 ...: step t counts as t (t + 1) ... (t + 7) / 8!, a binomial coefficient."""
    counts = [comb(step + 7, 8) for step in range(1, len(values) + 1)]
    return sum(count / sum(counts) * value.double() for count, value in zip(counts, values, strict=True))


def training(schedule: Schedule, callbacks=()) -> Training:
    """A run of a network with dropout and batch normalisation."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 3))
    classifier = Classifier(model)
    objective = Woods().objective(classifier, measure_start(classifier, LABELLED, seed=7))
    return Training(objective, LABELLED, WILD, schedule, 7, callbacks)


class Weights(Callback):
    """The weights after each step, and those in each row of the history."""

    def __init__(self):
        self.steps, self.rows = [], []

    def on_step_end(self, training):
        self.steps.append({name: value.clone() for name, value in training.objective.state_dict().items()})

    def on_epoch_end(self, training, row):
        self.rows.append({name: value.clone() for name, value in training.objective.state_dict().items()})


def assert_mean(found: dict[str, torch.Tensor], steps: list[dict[str, torch.Tensor]]) -> None:
    for name, value in found.items():
        if value.is_floating_point():
            expected = weighted_mean([each[name] for each in steps])
            assert torch.allclose(value.double(), expected, rtol=1e-5, atol=1e-6), name
        else:
            assert torch.equal(value, steps[-1][name]), name


@pytest.mark.parametrize("count", [1, 2, 10, 100])
def test_a_mean_is_the_weighted_mean_of_all_steps(count):
    layer = nn.Linear(3, 2)
    average, steps = WeightAverage(layer), []
    for step in range(1, count + 1):
        nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(step))
        average.update(step)
        steps.append({name: value.clone() for name, value in layer.state_dict().items()})
    average.keep()
    assert_mean(layer.state_dict(), steps)


def test_in_a_long_run_step_t_counts_as_t_to_the_eighth():
    layer, steps = nn.Linear(1, 1, bias=False).double(), np.arange(1, 1001.0)
    average = WeightAverage(layer)
    for step in range(1, 1001):
        layer.weight.data.fill_(step)
        average.update(step)
    average.keep()
    assert layer.weight.item() == pytest.approx(np.average(steps, weights=steps**8), rel=1e-3)


def test_buffers_that_are_not_floats_are_those_of_the_last_step():
    layer = nn.BatchNorm1d(2)
    average = WeightAverage(layer)
    for step, mean in enumerate((0.0, 10.0), 1):
        layer.num_batches_tracked.fill_(step + 40)
        layer.running_mean.fill_(mean)
        average.update(step)
    with average.applied():
        assert layer.num_batches_tracked.item() == 42
        assert layer.num_batches_tracked.dtype == torch.int64
        assert layer.running_mean.tolist() == [9.0, 9.0]
    assert layer.running_mean.tolist() == [10.0, 10.0]


def test_before_the_first_step_the_weights_are_the_modules_own():
    layer = nn.Linear(2, 2)
    before = layer.weight.clone()
    average = WeightAverage(layer)
    with average.applied():
        assert torch.equal(layer.weight, before)
    average.keep()
    assert torch.equal(layer.weight, before)


def test_the_module_has_its_own_weights_again_after_an_error():
    layer = nn.Linear(1, 1, bias=False)
    average = WeightAverage(layer)
    for step, value in enumerate((0.0, 10.0), 1):
        layer.weight.data.fill_(value)
        average.update(step)

    def fail():
        with average.applied():
            assert layer.weight.item() == 9.0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert layer.weight.item() == 10.0


def test_rows_and_the_end_of_a_run_have_the_mean_of_its_steps():
    weights = Weights()
    run = training(Schedule(epochs=3, batch=8), [weights])
    run.train()
    for number, row in enumerate(weights.rows[1:], 1):
        assert_mean(row, weights.steps[: 5 * number])
    assert all(torch.equal(value, weights.rows[-1][name]) for name, value in run.objective.state_dict().items())
    assert run.history[-1]["b"] == run.objective.watch()["b"] != weights.steps[-1]["logit.bias"].item()


def test_the_steps_of_a_run_are_the_same_with_and_without_averaging():
    with_it, without = Weights(), Weights()
    training(Schedule(epochs=3, batch=8), [with_it]).train()
    last = training(Schedule(epochs=3, batch=8, averaging=False), [without])
    last.train()
    for first, second in zip(with_it.steps, without.steps, strict=True):
        assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert all(torch.equal(value, without.steps[-1][name]) for name, value in last.objective.state_dict().items())


@pytest.mark.parametrize("cut", [1, 4, 5, 6, 13])
def test_a_resumed_run_ends_with_the_same_bits(cut, tmp_path):
    class Cut(Callback):
        def on_step_begin(self, training):
            if training.steps == cut:
                raise RuntimeError

    def saving():
        return Checkpoint(RunDirectory(tmp_path, {}), seconds=0.0)

    schedule = Schedule(epochs=3, batch=8)
    whole, cut_short, resumed = training(schedule), training(schedule, [saving(), Cut()]), training(schedule, [saving()])
    whole.train()
    with pytest.raises(RuntimeError):
        cut_short.train()
    resumed.train()
    again = training(schedule, [saving()])
    again.train()
    assert again.history == resumed.history == whole.history
    for name, value in whole.objective.state_dict().items():
        assert torch.equal(resumed.objective.state_dict()[name], value)
        assert torch.equal(again.objective.state_dict()[name], value)


def test_small_steps_of_half_precision_weights_are_not_rounded_away():
    line = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    average = WeightAverage(line)
    for step in range(1, 3001):
        line.weight.data.fill_(1 + step / 6000)
        average.update(step)
    with average.applied():
        assert line.weight.dtype == torch.bfloat16
        assert line.weight.item() == pytest.approx(1.45, abs=0.01)


def test_a_buffer_that_is_replaced_is_averaged_as_it_is_now():
    norm = nn.BatchNorm1d(1)
    average = WeightAverage(norm)
    average.update(1)
    norm.running_mean = torch.tensor([10.0])
    average.update(2)
    assert average.weights["running_mean"].item() == pytest.approx(9.0)

"""The first Ctrl-C lets the step end and saves the run; what is not Python's own handling of it is left alone."""

import signal
import threading

import numpy as np
import pytest
import torch
from torch import nn

from wildood import Schedule, Woods
from wildood.data.sources import ArraySource
from wildood.data.wild import WildPool
from wildood.models.classifier import Classifier
from wildood.train.callbacks import Callback
from wildood.train.checkpoint import Checkpoint, HistoryFile, RunDirectory, defer_interrupt
from wildood.train.loop import Training
from wildood.train.monitor import Monitor, measure_start
from wildood.train.selection import SelectEpoch

RNG = np.random.default_rng(0)
LABELLED = ArraySource(RNG.normal(size=(40, 4)).astype("float32"), RNG.integers(0, 3, 40))
HOLDOUT = ArraySource(RNG.normal(size=(30, 4)).astype("float32"), RNG.integers(0, 3, 30))
WILD = WildPool(ArraySource(RNG.normal(size=(30, 4)).astype("float32") * 2))
TIMES = {"images_per_second", "seconds_left"}
STEPS = 17  # of 5 an epoch


@pytest.fixture(autouse=True)
def _as_in_a_terminal():
    """A shell starts what runs in its background with SIGINT ignored; these tests are about the other case."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press():
    signal.raise_signal(signal.SIGINT)


class OnStep(Callback):
    def __init__(self, function):
        self.function = function

    def on_step_end(self, training):
        self.function(training.steps)


def training(place, on_step=None, seconds=10.0) -> Training:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 3))
    classifier = Classifier(model)
    objective = Woods().objective(classifier, measure_start(classifier, LABELLED, seed=7))
    run = None if place is None else RunDirectory(place, {"seed": 7})
    callbacks = [] if run is None else [Checkpoint(run, seconds)]
    callbacks += [SelectEpoch(Monitor(HOLDOUT, WILD.source, alpha=0.1))]
    callbacks += [] if on_step is None else [OnStep(on_step)]
    callbacks += [] if run is None else [HistoryFile(run)]
    return Training(objective, LABELLED, WILD, Schedule(steps=STEPS, batch=8), 7, callbacks)


def saved(place):
    return RunDirectory(place, {"seed": 7}).checkpoint()


def result(run: Training):
    weights = torch.cat([value.detach().double().flatten() for value in run.objective.state_dict().values()])
    rows = [{name: value for name, value in row.items() if name not in TIMES} for row in run.history]
    return weights, rows, next(each.kept for each in run.callbacks if isinstance(each, SelectEpoch))


@pytest.mark.parametrize("at", [(1,), (3,), (5,), (12,), (2, 9, 10), (16,)])
def test_ctrl_c_saves_after_the_step_and_the_resumed_run_has_the_same_bits_with_no_step_repeated(tmp_path, at):
    whole = training(tmp_path / "whole")
    whole.train()
    steps = []

    def on_step(step):
        steps.append(step)
        if step in at:
            press()
            steps.append("the step ended")

    for expected in at:
        with pytest.raises(KeyboardInterrupt):
            training(tmp_path / "pressed", on_step).train()
        assert steps.pop() == "the step ended"
        assert saved(tmp_path / "pressed")["step"] == expected == steps[-1]
    resumed = training(tmp_path / "pressed", on_step)
    resumed.train()
    assert steps == list(range(1, STEPS + 1))
    (weights, rows, kept), (weights_again, rows_again, kept_again) = result(whole), result(resumed)
    assert torch.equal(weights, weights_again)
    assert rows == rows_again
    assert kept == kept_again


def test_ctrl_c_at_the_last_step_is_not_lost_and_leaves_a_finished_run(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        training(tmp_path, lambda step: press() if step == STEPS else None).train()
    steps = []
    again = training(tmp_path, lambda step: steps.append(step))
    again.train()
    assert steps == []
    assert again.history[-1]["step"] == STEPS


def test_ctrl_c_while_the_run_is_saved_stops_it_after_the_next_step(tmp_path, monkeypatch):
    real, writes = RunDirectory.save, []

    def save(self, state):
        writes.append(state["step"])
        if len(writes) == 1:
            press()
        real(self, state)

    monkeypatch.setattr(RunDirectory, "save", save)
    run = training(tmp_path, seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert writes == [1, 2]
    assert saved(tmp_path)["step"] == 2


def test_a_second_ctrl_c_interrupts_at_once(tmp_path):
    reached = []

    def on_step(step):
        press()
        reached.append("after the first")
        press()
        reached.append("after the second")

    run = training(tmp_path, on_step)
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert reached == ["after the first"]
    assert saved(tmp_path) is None


def test_without_a_run_directory_ctrl_c_interrupts_at_once():
    reached = []

    def on_step(step):
        reached.append(step)
        press()
        reached.append("after")

    with pytest.raises(KeyboardInterrupt):
        training(None, on_step).train()
    assert reached == [1]


@pytest.mark.parametrize("pressed", [True, False])
def test_pythons_handler_is_back_afterwards(tmp_path, pressed):
    handlers = []

    def on_step(_step):
        handlers.append(signal.getsignal(signal.SIGINT))
        if pressed:
            press()

    run = training(tmp_path, on_step)
    if pressed:
        with pytest.raises(KeyboardInterrupt):
            run.train()
    else:
        run.train()
    assert handlers[0] is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_pythons_handler_is_back_after_an_error(tmp_path):
    def fails(_step):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        training(tmp_path, fails).train()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_users_stays_and_training_goes_on(tmp_path):
    heard = []

    def own(number, _frame):
        heard.append(number)

    signal.signal(signal.SIGINT, own)
    run = training(tmp_path, lambda step: press() if step == 4 else None)
    assert run.train()[-1]["step"] == STEPS
    assert heard == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is own


def test_a_handler_that_a_callback_sets_stays():
    def own(_number, _frame):
        """Not called here."""

    with defer_interrupt():
        signal.signal(signal.SIGINT, own)
    assert signal.getsignal(signal.SIGINT) is own


def test_ignored_stays_ignored(tmp_path):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert training(tmp_path, lambda _: press()).train()[-1]["step"] == STEPS
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_thread_trains_without_touching_the_handler(tmp_path):
    seen = []
    run = training(tmp_path, lambda _: seen.append(signal.getsignal(signal.SIGINT)))
    thread = threading.Thread(target=run.train)
    thread.start()
    thread.join()
    assert run.steps == STEPS
    assert set(seen) == {signal.default_int_handler}


def test_another_error_in_the_block_comes_before_a_ctrl_c():
    def block():
        with defer_interrupt():
            press()
            raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        block()

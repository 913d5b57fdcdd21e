"""What was set aside trains once it has chosen, on all wild data; what is said about it is of the trial."""

import shutil

import numpy as np
import pytest
import torch

import wildood
from wildood.data.files import load_state
from wildood.detect import retrain
from wildood.errors import TrainingError
from wildood.models.small import MLP
from wildood.report.fit_page import fit_page
from wildood.train import checkpoint

SHORT = wildood.Schedule(batch=64)


def known(count, rng):
    """Three classes in twenty dimensions."""
    y = rng.integers(0, 3, count)
    return (4 * np.eye(3, 20)[y] + rng.normal(size=(count, 20))).astype(np.float32), y


def traffic(rng):
    """A third of it lies far out in a direction that tells no class from another."""
    x = known(300, rng)[0]
    x[:100, 10] += 4
    return x


@pytest.fixture(scope="module")
def case():
    """A classifier, labelled, wild and holdout data, and what the detectors are tried on."""
    rng = np.random.default_rng(5)
    labelled = known(200, rng)
    schedule = wildood.Schedule.pretraining(epochs=30, lr=0.05, augment=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(20, 3, hidden=(32,))
    model = wildood.pretrain(model, labelled, schedule=schedule, verbose=False)
    return model, labelled, traffic(rng), known(400, rng), known(300, rng)[0]


@pytest.fixture(scope="module")
def again(case, tmp_path_factory):
    model, labelled, wild, holdout, _ = case
    run = tmp_path_factory.mktemp("again") / "run"
    return wildood.fit(model, labelled, wild, holdout, schedule=SHORT, run_dir=run, verbose=False), run


def refit(case, schedule=SHORT, **settings):
    model, labelled, wild, holdout, _ = case
    wild = settings.pop("wild", wild)
    return wildood.fit(model, labelled, wild, holdout, schedule=schedule, verbose=False, **settings)


@pytest.mark.slow
def test_all_wild_data_trains_as_long_as_the_training_that_was_kept(again, case):
    detector, _ = again
    kept = detector.history[detector.record["kept_epoch"]]["step"]
    retrained = dict(detector.record["retrained"])
    assert 0.9 < retrained.pop("accuracy") <= 1
    assert retrained == {"steps": kept, "wild": 300}
    assert detector.record["assessment"]["start_kept"] is False
    test = case[4]
    assert not np.array_equal(detector.score(test), detector.trial.score(test))
    assert detector.trial.trial is None
    assert "retrained" not in detector.trial.record


@pytest.mark.slow
def test_what_is_said_about_data_set_aside_is_of_the_trial(again):
    detector, _ = again
    assert detector.record["assessment"] == detector.trial.record["assessment"]
    assert detector.promise == detector.trial.promise  # the same examples set both thresholds
    assert len(detector.holdout_scores) == len(detector.trial.holdout_scores) == detector.promise.examples
    assert detector.threshold != detector.trial.threshold


class Killed(BaseException):
    """What no code of ours catches, as a kill."""


@pytest.mark.slow
def test_a_run_that_was_killed_in_the_second_training_ends_with_the_same_bits(again, case, tmp_path, monkeypatch):
    detector, run = again
    copied, step = tmp_path / "run", retrain.StopAt.on_step_end
    shutil.copytree(run, copied)
    shutil.rmtree(copied / "stage-all-wild")

    def killed(callback, training):
        if training.steps == 40:
            raise Killed
        step(callback, training)

    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)  # a checkpoint after each step
    with monkeypatch.context() as patched:
        patched.setattr(retrain.StopAt, "on_step_end", killed)
        with pytest.raises(Killed):
            refit(case, run_dir=copied)
    saved = load_state((copied / "stage-all-wild" / "checkpoint.safetensors").read_bytes())
    assert 30 < saved["state"]["step"] < 40
    resumed = refit(case, run_dir=copied)
    assert np.array_equal(resumed.score(case[4]), detector.score(case[4]))
    assert resumed.threshold == detector.threshold


@pytest.mark.slow
def test_the_saved_detector_is_the_new_one_and_its_card_and_page_say_so(again, case, tmp_path):
    detector, _ = again
    detector.save(tmp_path)
    loaded = wildood.load(tmp_path, model=case[0])
    assert loaded.trial is None
    assert np.array_equal(loaded.score(case[4]), detector.score(case[4]))
    assert "trained:** twice; the second time for 100 steps on all 300 wild examples" in (tmp_path / "README.md").read_text()
    before = wildood.posthoc(case[0], wildood.EnergyScore(), holdout=case[3])
    texts = {"command": "wildood fit", "settings": ""}
    shown = fit_page(detector, before, case[2], case[3], is_holdout=True, **texts)
    assert "figures and pictures on this page are of the trial" in shown
    shares = [np.mean(each.predict(case[2]) == wildood.UNKNOWN) for each in (detector.trial, detector)]
    assert shares[0] != shares[1]
    assert f"<strong>{100 * shares[0]:.1f} %</strong>" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "settings"),
    [
        (wildood.Schedule(batch=64, steps=60), {}),
        (wildood.Schedule(batch=64, minutes=5), {}),
        (SHORT, {"frozen": True}),
        (SHORT, {"keep": "last"}),
    ],
)
def test_a_training_with_a_length_of_its_own_is_not_repeated(case, schedule, settings):
    detector = refit(case, schedule, **settings)
    assert detector.trial is None
    assert "retrained" not in detector.record


@pytest.mark.slow
def test_of_much_wild_data_little_is_set_aside_and_it_need_not_train(case):
    rng = np.random.default_rng(6)
    detector = refit(case, wild=np.concatenate([traffic(rng) for _ in range(11)]))
    assert not detector.record["assessment"]["start_kept"]
    assert detector.trial is None


@pytest.mark.slow
def test_a_mixture_of_little_data_trains_twice(case):
    rng = np.random.default_rng(7)
    unknown = known(300, rng)[0]
    unknown[:, 10] += 4
    detector = refit(case, wild=wildood.WildMixture(known(300, rng)[0], unknown, pi=0.4))
    assert detector.record["retrained"]["wild"] == 600


def raising(*_, **__):
    raise TrainingError("the loss became nan")


def shaken(objective, *_, **__):
    """Weights of nobody: the classes are guessed."""
    rng = torch.Generator().manual_seed(0)
    for parameter in objective.classifier.parameters():
        parameter.data.normal_(generator=rng)


def untouched(*_, **__):
    """The start: as accurate, and it accepts more wild data."""


@pytest.mark.slow
@pytest.mark.parametrize("broken", [raising, shaken, untouched])
def test_a_second_training_that_fails_is_not_used(case, again, monkeypatch, caplog, broken):
    monkeypatch.setattr(retrain, "train", broken)
    detector = refit(case)
    assert "retrained" not in detector.record
    assert np.array_equal(detector.score(case[4]), again[0].trial.score(case[4]))
    warned = "the second training failed, and the first one is kept: the loss became nan" in caplog.text
    assert warned == (broken is raising)

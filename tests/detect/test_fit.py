import logging
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import wildood
from wildood.data.validation import labelled_source
from wildood.detect.detector import Promise
from wildood.detect.split import split_for_fit
from wildood.evaluate.metrics import accuracy, fpr_at_tpr, rejection_rate
from wildood.methods.objective import CrossEntropyObjective
from wildood.models.classifier import Classifier
from wildood.models.small import MLP, SmallCNN
from wildood.train.loop import Training

CENTRES = np.array([[4.0, 0, 0, 0], [0, 4.0, 0, 0], [0, 0, 4.0, 0]])
STEPS = wildood.Schedule(steps=60, batch=64)


def known(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    return (CENTRES[y] + rng.normal(size=(count, 4))).astype("float32"), y


def unknown(count: int, seed: int) -> np.ndarray:
    return (np.array([2.0, 2, 2, 5]) + np.random.default_rng(seed).normal(size=(count, 4))).astype("float32")


@pytest.fixture(scope="module")
def classifier() -> MLP:
    torch.manual_seed(0)
    model = MLP(4, 3, hidden=(32, 16))
    source = labelled_source(known(600, seed=1), "labelled")
    schedule = wildood.Schedule(epochs=30, batch=32, lr=0.05)
    Training(CrossEntropyObjective(Classifier(model)), source, None, schedule, seed=0).train()
    return model


def data(**changes) -> dict:
    wild = wildood.WildMixture(id=known(600, seed=2)[0], ood=unknown(300, seed=3), pi=0.1)
    return {"labelled": known(600, seed=1), "wild": wild, "holdout": known(600, seed=4), "verbose": False} | changes


@pytest.mark.parametrize(("method", "lr"), [(wildood.Woods(), 0.05), (wildood.WoodsAlt(), 0.01)])
def test_fit_learns_the_unknown_from_wild_data_alone(classifier, method, lr):
    before = wildood.posthoc(classifier, wildood.EnergyScore(), holdout=known(600, seed=4))
    wild = wildood.WildMixture(id=known(600, seed=2)[0], ood=unknown(600, seed=3), pi=0.3)
    after = wildood.fit(classifier, **data(wild=wild), method=method, schedule=wildood.Schedule(steps=200, lr=lr))
    (x, y), strange = known(2000, seed=5), unknown(2000, seed=6)
    assert fpr_at_tpr(before.score(x), before.score(strange)) > 0.2
    assert fpr_at_tpr(after.score(x), after.score(strange)) < 0.1
    assert accuracy(after.classify(x), y) > accuracy(before.classify(x), y) - 0.01
    assert rejection_rate(after.score(x), after.threshold) < 0.08
    assert np.mean(after.predict(strange) == wildood.UNKNOWN) > 0.9


def test_a_model_with_logits_in_its_output_works_like_a_plain_one(classifier):
    class HuggingFaceStyle(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return SimpleNamespace(logits=self.inner(x), hidden_states=None)

    plain = wildood.fit(classifier, **data(), schedule=STEPS)
    wrapped = wildood.fit(HuggingFaceStyle(classifier), **data(), schedule=STEPS)
    x = known(50, seed=5)[0]
    assert np.array_equal(plain.score(x), wrapped.score(x))
    assert plain.threshold == wrapped.threshold


def test_arrays_tensors_and_datasets_give_the_same_detector(classifier):
    class OnlyInputs(Dataset):
        def __init__(self, x: np.ndarray) -> None:
            self.x = x

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.from_numpy(self.x[index])

    def tensors(pair):
        return torch.from_numpy(pair[0]), torch.from_numpy(pair[1])

    labelled, wild, holdout = known(600, seed=1), unknown(200, seed=3), known(200, seed=4)
    forms = [
        (labelled, wild, holdout),
        (tensors(labelled), torch.from_numpy(wild), tensors(holdout)),
        (TensorDataset(*tensors(labelled)), OnlyInputs(wild), TensorDataset(*tensors(holdout))),
    ]
    scores = [wildood.fit(classifier, *form, schedule=STEPS, verbose=False).score(known(50, seed=5)[0]) for form in forms]
    assert np.array_equal(scores[0], scores[1])
    assert np.array_equal(scores[0], scores[2])


def test_keeping_the_last_epoch_uses_the_whole_holdout_for_the_threshold(classifier):
    detector = wildood.fit(classifier, **data(), schedule=STEPS, keep="last")
    assert detector.promise == Promise(alpha=0.05, examples=600, unseen=True)
    assert detector.record["kept_epoch"] == len(detector.history) - 1


def test_without_a_holdout_nothing_is_promised_and_the_user_is_told(classifier, caplog):
    with caplog.at_level(logging.INFO, logger="wildood"):
        detector = wildood.fit(classifier, **data(holdout=None, verbose=True), schedule=STEPS)
    assert not detector.promise.unseen
    assert "no promise" in str(detector.promise)
    assert any("no holdout: 60 labelled examples set the threshold" in record.message for record in caplog.records)
    with pytest.raises(wildood.InputError, match="give holdout="):
        wildood.fit(classifier, **data(holdout=None, labelled=known(70, 1)), schedule=STEPS)


def test_the_deployed_alpha_may_differ_from_the_methods(classifier):
    loose = wildood.fit(classifier, **data(), schedule=STEPS, alpha=0.2)
    assert loose.promise.alpha == 0.2
    assert rejection_rate(loose.score(known(2000, 5)[0]), loose.threshold) == pytest.approx(0.2, abs=0.06)


def test_epoch_kept_is_the_one_whose_weights_the_detector_has(classifier):
    harmful = wildood.Schedule(steps=60, batch=64, weight_decay=5.0)
    detector = wildood.fit(classifier, **data(), schedule=harmful)
    assert detector.record["kept_epoch"] < len(detector.history) - 1
    row = detector.history[detector.record["kept_epoch"]]
    half = split_for_fit(
        *[data()[name] for name in ("labelled", "wild", "holdout")], harmful, 0.05, None, "best", 0
    ).selection
    x, y = half.gather(torch.arange(len(half)))
    assert accuracy(detector.classify(x), y) == pytest.approx(row["accuracy"])


def test_uint8_images_go_through_the_input_spec():
    rng = np.random.default_rng(0)
    images, y = rng.integers(0, 255, (200, 8, 8, 1), dtype=np.uint8), rng.integers(0, 2, 200)
    spec = wildood.InputSpec(mean=(0.5,), std=(0.25,))
    torch.manual_seed(0)
    detector = wildood.fit(
        SmallCNN(classes=2),
        (images[:100], y[:100]),
        images[100:150],
        (images[150:], y[150:]),
        input=spec,
        alpha=0.2,
        schedule=wildood.Schedule(steps=2, batch=16),
        keep="last",
        verbose=False,
    )
    inputs = torch.from_numpy((images[:5].astype("float32") / 255 - 0.5) / 0.25).permute(0, 3, 1, 2)
    with torch.no_grad():
        energies = -detector.classifier.model(inputs).logsumexp(1).numpy()
    assert np.allclose(detector.score(images[:5]), energies, atol=1e-5)
    with pytest.raises(wildood.InputError, match="x holds float values, expected uint8"):
        detector.score(images[:5].astype("float32"))


PROGRAM = """
import sys, numpy as np, torch, wildood
x = np.random.default_rng(0).normal(size=(250, 3)).astype("float32")
y = (x[:, 0] > 0).astype(int)
model = torch.nn.Linear(3, 2)
model.weight.data = torch.tensor([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])    # right on all of them
model.bias.data.zero_()
for verbose in (True, False):
    wildood.fit(model, (x[:100], y[:100]), x[200:], (x[100:200], y[100:200]), verbose=verbose,
                schedule=wildood.Schedule(epochs=2, batch=32))
    print("----", file=sys.stderr)
"""


@pytest.mark.slow
def test_plain_lines_on_standard_error_when_it_is_not_a_terminal_and_without_verbose_only_warnings():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    verbose, quiet = (text.splitlines() for text in done.stderr.split("----\n")[:2])
    assert done.stdout == ""
    assert verbose[0] == "each constraint must become <= 0; λ is its multiplier, β its penalty"
    assert [line.split("  ")[0] for line in verbose[1:3]] == ["epoch 1/2", "epoch 2/2"]
    assert verbose[-1].startswith("threshold ")
    assert "\x1b" not in done.stderr
    assert [line.split(":")[0].split(" in ")[0] for line in quiet] == [
        "no epoch accepted less wild data than the start without losing more than half a point of accuracy",
        "nothing unknown was shown",
    ]


def test_examples_known_to_be_ood_choose_the_epoch_and_train_nothing(classifier):
    plain = wildood.fit(classifier, **data(), schedule=STEPS, keep="last")
    chosen = wildood.fit(classifier, **data(), schedule=STEPS, keep="as_published", ood=unknown(50, seed=8))
    least = min(row["acceptance"] for row in chosen.history)
    assert chosen.history[chosen.record["kept_epoch"]]["acceptance"] == least
    assert {round(50 * row["acceptance"], 6) % 1 for row in chosen.history} == {0.0}  # shares of those fifty
    assert chosen.history[-1]["wild_loss"] != plain.history[-1]["wild_loss"]  # no wild data had to be set aside
    assert not chosen.promise.unseen
    assert chosen.promise.examples == 600


@pytest.mark.parametrize("missing", [{"ood": None}, {"holdout": None}])
def test_released_choice_needs_ood_examples_and_a_holdout(classifier, missing):
    given = data() | {"ood": unknown(50, seed=8)} | missing
    with pytest.raises(wildood.InputError, match="give ood=x and holdout="):
        wildood.fit(classifier, **given, schedule=STEPS, keep="as_published")


def test_by_class_that_cannot_be_done_is_said_and_recorded_and_what_was_trained_is_kept(toy, trained, schedule, caplog):
    x, y = toy.holdout
    detector = wildood.fit(trained(), toy.labelled, toy.wild, (x, y), schedule=schedule, by_class=True, verbose=False)
    (said,) = (text for text in caplog.messages if text.startswith("by class was NOT done, one threshold is for all"))
    assert said.endswith(detector.record["not_by_class"])
    assert "too few for a false-alarm rate of 0.05 in each class" in detector.record["not_by_class"]
    assert (detector.class_thresholds, detector.promise.by_class) == (None, False)
    assert detector.promise_text == f"{detector.promise} (over all classes: by class was NOT done)"
    assert detector.promise_text in repr(detector)
    detector.calibrate(toy.test, 0.2, by_class=True)
    assert detector.promise_text == str(detector.promise)


def test_a_step_that_known_ood_examples_chose_says_so(classifier):
    given = data(wild=None, ood=unknown(50, seed=8), schedule=STEPS, method=wildood.Godin())
    assert "OOD" in str(wildood.fit(classifier, **given).record["chosen"])


def test_without_wild_data_a_holdout_is_divided_only_where_a_setting_is_to_be_chosen(classifier):
    given = data(wild=None, schedule=STEPS)
    fixed = wildood.fit(classifier, **given, method=wildood.Godin(epsilon=0.01))
    chosen = wildood.fit(classifier, **given, method=wildood.Godin())
    assert (fixed.promise.examples, chosen.promise.examples) == (600, 300)
    assert [("chosen" in each.record, "chosen_by" in each.record) for each in (fixed, chosen)] == [
        (False, False),
        (True, True),
    ]


def test_a_holdout_that_is_too_small_to_be_divided_is_refused_only_if_it_must_be(classifier, tmp_path):
    given = data(wild=None, holdout=known(30, 3), schedule=STEPS)
    assert wildood.fit(classifier, **given, method=wildood.Godin(epsilon=0.01)).promise.examples == 30
    with pytest.raises(wildood.InputError, match=r"15 examples in each half .* or a fixed setting of the score"):
        wildood.fit(classifier, **given, method=wildood.Godin(), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class NobodyReads:
    """Standard error whose reader has gone."""

    def write(self, _text):
        raise BrokenPipeError

    def flush(self):
        raise BrokenPipeError

    def isatty(self):
        return False


def test_training_goes_on_where_nobody_reads_its_lines(toy, trained, schedule, monkeypatch):
    data = toy.labelled, toy.wild, toy.holdout
    expected = wildood.fit(trained(), *data, schedule=schedule, verbose=False)
    monkeypatch.setattr("sys.stderr", NobodyReads())
    found = wildood.fit(trained(), *data, schedule=schedule)
    assert found.threshold == expected.threshold


def test_line_on_the_kept_epoch_says_by_how_many_examples(toy, trained, schedule, caplog):
    caplog.set_level("INFO", "wildood")
    unknown = np.random.default_rng(0).normal((6, 3), 0.5, (40, 2)).astype(np.float32)  # of which the start accepts most
    wild = np.concatenate([toy.wild, toy.test[0][:160], unknown, unknown + 0.1])
    wildood.fit(trained(), toy.labelled, wild, toy.holdout, schedule=wildood.Schedule(steps=60, batch=64))
    assert " % of 170 examples set aside" in caplog.text

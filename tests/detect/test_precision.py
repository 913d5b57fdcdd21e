"""Training in bfloat16: what is computed in it and what is not, and what identifies a run."""

import copy

import pytest
import torch
from torch import nn

import wildood
from wildood.data.validation import labelled_source
from wildood.detect.pretrain import train_classifier
from wildood.errors import CheckpointError, InputError
from wildood.methods.objective import Batch
from wildood.models import classifier as module
from wildood.models.classifier import Classifier, evaluating
from wildood.models.features import FeatureTap
from wildood.models.small import MLP
from wildood.train.monitor import measure_start
from wildood.train.transforms import gradient_transforms


@pytest.fixture(autouse=True)
def has_bf16(monkeypatch):
    """Whatever this CPU has."""
    monkeypatch.setattr(module, "cpu_has_bf16", lambda: True)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def in_bf16(tap=None):
    classifier = Classifier(network(), tap=tap)
    classifier.train_in("bf16")
    return classifier


def seen(layer):
    """The dtypes of what a layer puts out, as it is called."""
    dtypes = []
    layer.register_forward_hook(lambda _layer, _inputs, output: dtypes.append(output.dtype))
    return dtypes


def test_training_computes_in_bf16_and_evaluation_in_float32():
    classifier, x = in_bf16(), torch.randn(4, 2)
    dtypes = seen(classifier.model[0])
    assert classifier.train()(x).logits.dtype == torch.float32
    with evaluating(classifier):
        evaluated = classifier(x).logits
    assert dtypes == [torch.bfloat16, torch.float32]
    plain = Classifier(copy.deepcopy(classifier.model))
    with evaluating(plain):
        assert torch.equal(evaluated, plain(x).logits)


def test_logits_are_those_of_autocast_as_float32_numbers():
    classifier, x = in_bf16(), torch.randn(4, 2)
    with torch.autocast("cpu", torch.bfloat16):
        expected = copy.deepcopy(classifier.model)(x)
    assert expected.dtype == torch.bfloat16
    assert torch.equal(classifier(x).logits, expected.float())


def test_features_are_float32_numbers():
    classifier = in_bf16(FeatureTap("3", side="input"))
    dtypes = seen(classifier.model[0])
    assert classifier(torch.randn(4, 2)).features.dtype == torch.float32
    assert classifier.features(torch.randn(4, 2)).dtype == torch.float32
    assert dtypes == [torch.bfloat16] * 2


@pytest.mark.parametrize("method", [wildood.Woods(), wildood.WoodsAlt()], ids=["Woods", "WoodsAlt"])
def test_losses_constraints_duals_and_gradients_are_float32(method, toy):
    classifier = in_bf16(FeatureTap("3", side="input"))
    objective = method.objective(classifier, measure_start(classifier, labelled_source(toy.labelled, "labelled"), 0)).train()
    x, y = torch.tensor(toy.labelled[0][:32]), torch.tensor(toy.labelled[1][:32])
    terms = objective(Batch(x, y, torch.tensor(toy.wild[:32])))
    terms.loss.backward()
    for transform in gradient_transforms(objective, wildood.Schedule()):
        transform()
    assert {value.dtype for value in (terms.loss, *terms.constraints.values())} == {torch.float32}
    assert {parameter.grad.dtype for parameter in objective.parameters() if parameter.grad is not None} == {torch.float32}
    assert {parameter.dtype for parameter in objective.parameters()} == {torch.float32}


def test_the_starting_classifier_has_the_precision_of_training_so_that_distillation_starts_at_zero(toy):
    torch.manual_seed(0)
    classifier = Classifier(MLP(2, 3))  # without layers that differ in training
    classifier.train_in("bf16")
    objective = wildood.Woods(distillation=1.0).objective(
        classifier, measure_start(classifier, labelled_source(toy.labelled, "labelled"), 0)
    )
    dtypes, x = seen(objective.distillation.teacher.model.head), torch.tensor(toy.wild[:32])
    assert objective.distillation(x, objective.train().classifier(x).logits).item() == pytest.approx(0, abs=1e-7)
    assert dtypes == [torch.bfloat16]
    assert not any(part.training for part in objective.distillation.teacher.model.modules())


def fit(model, toy, schedule, **settings):
    return wildood.fit(
        model, toy.labelled, toy.wild, toy.holdout, schedule=schedule, **{"keep": "last", "verbose": False, **settings}
    )


def test_a_fit_in_bf16_is_near_that_in_float32_and_says_so(toy, trained, schedule, fits):
    detector = fit(trained(), toy, schedule, precision="bf16")
    plain = fits["woods"]
    assert detector.record["precision"] == "bf16"
    assert "precision" not in plain.record
    assert {value.dtype for value in detector.classifier.state_dict().values()} == {torch.float32}
    scores, expected = (each.score(toy.test[0]) for each in (detector, plain))
    assert (scores != expected).any()
    assert abs(scores - expected).max() < 0.1 * expected.std()


def test_the_precision_is_part_of_what_identifies_a_run(toy, trained, schedule, tmp_path):
    detector = fit(trained(), toy, schedule, precision="bf16", run_dir=tmp_path / "run")
    again = fit(trained(), toy, schedule, precision="bf16", run_dir=tmp_path / "run")
    assert (again.score(toy.unknown) == detector.score(toy.unknown)).all()
    with pytest.raises(CheckpointError, match="precision"):
        fit(trained(), toy, schedule, run_dir=tmp_path / "run")


def test_a_saved_detector_has_the_scores_of_the_fitted_one(toy, trained, schedule, tmp_path):
    detector = fit(trained(), toy, schedule, precision="bf16")
    loaded = wildood.load(detector.save(tmp_path / "d"), model=trained())
    assert (loaded.score(toy.unknown) == detector.score(toy.unknown)).all()
    assert loaded.record["precision"] == "bf16"


def test_pretraining_in_bf16(toy):
    settings = {"schedule": wildood.Schedule(steps=40, batch=32, lr=0.1), "verbose": False}
    plain = wildood.pretrain(MLP(2, 3), toy.labelled, **settings).state_dict()
    short = train_classifier(
        MLP(2, 3), toy.labelled, toy.test, settings["schedule"], None, None, 0, precision="bf16", verbose=False
    )
    assert short.accuracy > 0.95
    assert {value.dtype for value in short.model.state_dict().values()} == {torch.float32}
    assert any(not torch.equal(value, plain[name]) for name, value in short.model.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"precision": "float16"}, "precision is 'float16': give 'float32' or 'bf16'"),
        ({"precision": None}, "precision is None: give 'float32' or 'bf16'"),
        ({"precision": "bf16", "frozen": True}, "frozen computes the features once, in float32: leave precision"),
    ],
)
def test_what_cannot_be_done_is_refused(toy, trained, schedule, settings, line):
    with pytest.raises(InputError, match=line):
        fit(trained(), toy, schedule, **settings)


def test_models_of_other_types_and_devices_without_autocast_are_refused(toy, trained, schedule):
    with pytest.raises(
        InputError, match="precision is 'bf16', for models in float32, but this one is in bfloat16: leave it out"
    ):
        fit(trained().bfloat16(), toy, schedule, precision="bf16")
    with pytest.raises(InputError, match="precision is 'bf16', which torch cannot use here: leave it out"):
        Classifier(nn.Linear(2, 3, device="meta")).train_in("bf16")


def test_a_cpu_without_instructions_for_it_is_warned_of(monkeypatch, caplog):
    monkeypatch.setattr(module, "cpu_has_bf16", lambda: False)
    in_bf16()
    assert "this CPU has no instructions for bfloat16: precision='bf16' is slower than float32 here" in caplog.text


@pytest.mark.parametrize(
    ("told", "has"), [({"avx2": True, "avx512_bf16": False}, False), ({"avx512_bf16": True}, True), ({}, True)]
)
def test_what_torch_tells_of_the_cpu(monkeypatch, told, has):
    monkeypatch.undo()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told, raising=False)
    assert module.cpu_has_bf16() is has

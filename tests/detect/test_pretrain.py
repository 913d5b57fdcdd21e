"""A classifier from scratch: trained, resumed, and left alone where it should be."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import wildood
from wildood.detect import pretrain as module
from wildood.models.small import MLP, SmallCNN
from wildood.train import checkpoint


def labelled(count, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    return (rng.normal(size=(count, 4)) + 4 * np.eye(4)[y]).astype("float32"), y


def model():
    torch.manual_seed(0)
    return MLP(4, 3, hidden=(8,))


SHORT = wildood.Schedule(epochs=6, batch=32, lr=0.05)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_pretrain_and_fit_train_whatever_mode_the_caller_is_in(mode):
    def detector():
        start = wildood.pretrain(model(), labelled(300, seed=1), schedule=SHORT, verbose=False)
        x, _ = labelled(200, seed=2)
        return wildood.fit(start, labelled(300, seed=1), x, schedule=wildood.Schedule(steps=5, batch=32), verbose=False)

    x, _ = labelled(50, seed=3)
    expected = detector().score(x)
    with mode():
        found = detector()
        assert not torch.is_grad_enabled()
    np.testing.assert_array_equal(found.score(x), expected)


def test_it_learns_the_classes_and_leaves_the_given_model_alone():
    start, (x, y) = model(), labelled(300, seed=1)
    before = {name: value.clone() for name, value in start.state_dict().items()}
    rows = []
    trained = wildood.pretrain(start, labelled(400), (x, y), schedule=SHORT, verbose=False, on_epoch=rows.append)
    assert all(torch.equal(before[name], value) for name, value in start.state_dict().items())
    assert type(trained) is MLP
    assert not trained.training
    with torch.no_grad():
        right = (trained(torch.from_numpy(x)).argmax(1).numpy() == y).mean()
    assert right > 0.9
    assert rows[-1]["accuracy"] == pytest.approx(right)
    assert "acceptance" not in rows[-1]


def nearly_right(y, *, mistakes, frequent=0):
    """What a classifier may answer: the truth, but for so many examples of the most frequent class."""
    found = y.copy()
    found[np.flatnonzero(y == frequent)[:mistakes]] = 1
    return found


@pytest.mark.parametrize(
    ("counts", "mistakes", "warned"),
    [
        ([100, 100, 100], 0, False),
        ([280, 10, 10], 0, False),  # 93 % are one class, and it is right on all
        ([280, 10, 10], 6, False),  # 98 %
        ([280, 10, 10], 18, True),  # 94 %: above 93 %, but that may be luck
        ([280, 10, 10], 40, True),  # 87 %
        ([280, 3, 0], 0, True),  # 3 examples cannot tell
    ],
)
@pytest.mark.parametrize("with_holdout", [False, True])
def test_an_accuracy_that_is_no_better_than_one_answer_for_all_is_warned_of(counts, mistakes, warned, with_holdout, caplog):
    y = np.repeat(np.arange(3), counts)
    x = np.eye(3, dtype="float32")[nearly_right(y, mistakes=mistakes)] * 9
    echo = torch.nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        echo.weight.copy_(torch.eye(3))
    given = {"labelled": (x, y), "holdout": (x, y) if with_holdout else None}
    still = wildood.Schedule(steps=1, batch=32, lr=1e-12)
    wildood.pretrain(echo, **given, schedule=still, verbose=False)
    name = "the holdout" if with_holdout else "labelled"
    above = 1 - mistakes / len(y) > max(counts) / len(y)
    better = f"on {len(y)} examples not shown to be better than" if above else "no better than"
    expected = (
        f"the classifier is right on {100 * (1 - mistakes / len(y)):.1f} % of {name}, {better} always answering the "
        f"most frequent class ({100 * max(counts) / len(y):.1f} %): train longer"
    )
    assert [record.getMessage()[: len(expected)] for record in caplog.records] == [expected] * warned


def test_of_many_labelled_examples_the_accuracy_is_measured_on_some(monkeypatch):
    monkeypatch.setattr(module, "ACCURACY_SAMPLE", 70)
    trained = module.train_classifier(model(), labelled(300), None, SHORT, None, None, 0, precision="float32", verbose=False)
    assert trained.examples == 70
    assert trained.accuracy > 0.9


def test_a_killed_run_resumes_to_the_same_bits(tmp_path, monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (96, 8, 8, 1), dtype=np.uint8), np.arange(96) % 3
    given = {
        "labelled": images,
        "schedule": wildood.Schedule.pretraining(epochs=4, lr=0.05),
        "input": wildood.InputSpec(mean=(0.5,), std=(0.5,)),
        "verbose": False,
    }
    given["schedule"] = wildood.Schedule(**{**vars(given["schedule"]), "batch": 16})
    torch.manual_seed(0)
    net = SmallCNN(channels=1, classes=3, width=4, hidden=8)
    whole = wildood.pretrain(net, **given)
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    steps = []

    def killed(row):
        if row["step"] >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wildood.pretrain(net, **given, run_dir=tmp_path / "run", on_epoch=killed)
    resumed = wildood.pretrain(net, **given, run_dir=tmp_path / "run", on_epoch=lambda row: steps.append(row["step"]))
    assert steps == [12, 18, 24]  # the kill came before the checkpoint of step 12
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_another_seed_or_schedule_does_not_go_on_with_the_run(tmp_path):
    wildood.pretrain(model(), labelled(100), schedule=SHORT, run_dir=tmp_path, verbose=False)
    with pytest.raises(wildood.CheckpointError, match="its seed is 0, this call's is 1"):
        wildood.pretrain(model(), labelled(100), schedule=SHORT, run_dir=tmp_path, verbose=False, seed=1)


def test_labels_beyond_the_classes_are_refused():
    x, y = labelled(100)
    with pytest.raises(wildood.InputError, match="labelled: a label is 5, but the model has 3 classes"):
        wildood.pretrain(model(), (x, np.where(y == 0, 5, y)), schedule=SHORT, verbose=False)


def test_vectors_cannot_be_flipped_and_cropped(tmp_path):
    with pytest.raises(
        wildood.InputError, match=r"augment is for images, but an example has shape \(4,\): give Schedule.pretraining"
    ):
        wildood.pretrain(model(), labelled(200), run_dir=tmp_path / "run", verbose=False)
    assert not (tmp_path / "run").exists()


def test_the_trained_weights_can_be_written_as_safetensors(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 1), dtype=np.uint8), np.arange(64) % 3
    spec, schedule = wildood.InputSpec(mean=(0.5,), std=(0.5,)), wildood.Schedule(steps=2, batch=16)
    trained = wildood.pretrain(SmallCNN(channels=1, classes=3), images, input=spec, schedule=schedule, verbose=False)
    save_file(trained.state_dict(), tmp_path / "w.safetensors")
    again = SmallCNN(channels=1, classes=3)
    again.load_state_dict(load_file(tmp_path / "w.safetensors"))
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in trained.state_dict().items())


@pytest.mark.parametrize(("wrong", "message"), [({"schedule": 5}, "schedule is 5"), ({"seed": "a"}, "seed is 'a'")])
def test_wrong_arguments_are_refused(wrong, message):
    with pytest.raises(wildood.InputError, match=message):
        wildood.pretrain(model(), labelled(100), verbose=False, **wrong)

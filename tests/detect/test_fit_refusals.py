"""Every bad input is a `wildood.InputError` before training starts; and `fit` changes nothing that is the user's."""

import copy
import logging
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import wildood
from wildood import InputError
from wildood.models.small import MLP
from wildood.train.loop import Training


class Pairs(Dataset):
    def __init__(self, *columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, index):
        return tuple(torch.tensor(column[index]) for column in self.columns)


class Dicts(Dataset):
    """As datasets of Hugging Face give their items."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return {"x": np.zeros(2, np.float32), "label": 0}


class Ragged(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return np.zeros(2 + index % 2, np.float32), 0


class Returning(nn.Module):
    """A trainable model whose output is whatever `make` makes of its logits."""

    def __init__(self, make):
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.make = make

    def forward(self, x):
        return self.make(self.linear(x))


def no_linear():
    return nn.Sequential(nn.Unflatten(1, (2, 1)), nn.Conv1d(2, 3, 1), nn.Flatten())


def with_value(x, value):
    """One bad number in the middle."""
    x = x.copy()
    x[len(x) // 2, 1] = value
    return x


def with_label(y, value):
    y = y.copy()
    y[len(y) // 2] = value
    return y


@pytest.fixture
def call(toy, trained, schedule, monkeypatch):
    """`fit` with good arguments, some of them replaced; it must not come to training."""

    def no_training(_):
        raise AssertionError("training has started")

    monkeypatch.setattr(Training, "train", no_training)
    good = {
        "model": trained(),
        "labelled": toy.labelled,
        "wild": toy.wild,
        "holdout": toy.holdout,
        "schedule": schedule,
        "verbose": False,
    }
    return lambda **changed: wildood.fit(**good | changed)


def refuses(call, message, **changed):
    with pytest.raises(InputError, match=message) as caught:
        call(**changed)
    assert isinstance(caught.value, wildood.WildoodError)
    assert isinstance(caught.value, ValueError)


def test_good_arguments_come_to_training(call):
    with pytest.raises(AssertionError, match="training has started"):
        call()


# Each entry makes the bad argument from the good (x, y); the message must hold the fragment.
PAIRS = {
    "empty": (lambda x, y: (x[:0], y[:0]), r"has shape \(0, 2\): give at least one example"),
    "more x than y": (lambda x, y: (x, y[:-1]), "examples but .* labels: give as many of one as of the other"),
    "more y than x": (lambda x, y: (x[:-1], y), "examples but .* labels: give as many of one as of the other"),
    "label too large": (lambda x, y: (x, with_label(y, 3)), "a label is 3, but the model has 3 classes: .* from 0 to 2"),
    "all labels too large": (lambda x, y: (x, y + 7), "a label is .*, but the model has 3 classes"),
    "negative label": (lambda x, y: (x, with_label(y, -1)), "a label is -1: classes count from 0"),
    "float labels": (lambda x, y: (x, y.astype(float)), "labels have dtype float64.*give one integer class"),
    "one-hot labels": (
        lambda x, y: (x, np.eye(3, dtype=int)[y]),
        r"give one integer class for each example \(one-hot: y.argmax\(1\); several",
    ),
    "NaN": (lambda x, y: (with_value(x, np.nan), y), "example .* holds NaN or infinity"),
    "infinity": (lambda x, y: (with_value(x, np.inf), y), "example .* holds NaN or infinity"),
    "NaN in a tensor": (lambda x, y: (torch.tensor(with_value(x, np.nan)), torch.tensor(y)), "holds NaN or infinity"),
    "dict": (lambda x, y: {"image": x, "y": y}, r"is a dict of 'image', 'y': give {name}=\(x, y\), or the classes as its"),
    "stream without classes": (
        lambda x, y: iter(x),
        r"{name}: a labelled dataset must give \(x, y\) for each index, 0 has 1",
    ),
    "stream that was read": (lambda x, y: iter([]), "{name} is a stream that gave no example: give a new one"),
    "x in a dict": (
        lambda x, y: ({"image": x}, y),
        r"(wild is one array, expected a dict of 'image': give the same|{name} is a dict of 1: give x alone, as one array$)",
    ),
    "y in a dict": (lambda x, y: (x, {"label": y}), r"y is a dict: give one of its arrays, such as y\['label'\]$"),
    "array of a dict": (lambda x, y: (np.asarray({"image": x}), y), r"has shape \(\): give at least one example"),
    "x from a generator": (lambda x, y: (iter(x), y), r"x is a \w+: give .*, such as np\.asarray\(list\(x\)\)$"),
    "x that is one number": (lambda x, y: (3.0, y), r"x is a float: give a numpy array or a torch tensor$"),
    "triple": (lambda x, y: (x, y, y), r"is a tuple of 3: give \(x, y\)"),
    "lists": (lambda x, y: (x.tolist(), y), r"x is a list: give a numpy array or a torch tensor, such as np\.asarray\(x\)$"),
    "objects": (lambda x, y: (x.astype(object), y), "has dtype object: give float32 numbers or uint8 images"),
    "empty dataset": (lambda x, y: Pairs(x[:0], y[:0]), "is empty: give at least one example"),
    "dataset without labels": (lambda x, y: Pairs(x), r"must give \(x, y\) for each index"),
    "dataset with a label too large": (lambda x, y: Pairs(x, with_label(y, 3)), "a label is 3, but the model has 3 classes"),
    "dataset with a negative label": (lambda x, y: Pairs(x, with_label(y, -1)), "a label is -1"),
    "dataset with float labels": (lambda x, y: Pairs(x, y + 0.5), "integer"),
    "dataset with NaN": (lambda x, y: Pairs(with_value(x, np.nan), y), "NaN|not finite"),
    "dataset with infinity": (lambda x, y: Pairs(with_value(x, np.inf), y), "NaN|not finite"),
    "dataset of dicts": (lambda x, y: Dicts(), "dict"),
    "dataset of unequal shapes": (lambda x, y: Ragged(), "shape"),
    "string": (lambda x, y: "data/train", "is a str"),
    "x alone": (lambda x, y: x, r"{name}.*\(x, y\)"),
}


@pytest.mark.parametrize("name", ["labelled", "holdout"])
@pytest.mark.parametrize("kind", PAIRS)
def test_bad_examples_with_labels_are_refused(call, toy, name, kind, request):
    make, message = PAIRS[kind]
    refuses(call, message.replace("{name}", name), **{name: make(*getattr(toy, name))})


@pytest.mark.parametrize("value", [3, -1])
@pytest.mark.parametrize("place", [0, 17, 80, 159])
def test_bad_label_is_found_wherever_it_is_without_a_holdout(call, toy, value, place):
    """Part of the labelled data is set aside then, and the label may fall into either part."""
    x, y = toy.labelled
    y = y.copy()
    y[place] = value
    refuses(call, f"labelled: a label is {value}", labelled=(x, y), holdout=None)


@pytest.mark.parametrize("place", [0, 30, 60, 119])
def test_bad_label_is_found_in_either_half_of_the_holdout(call, toy, place):
    x, y = toy.holdout
    y = y.copy()
    y[place] = 99
    refuses(call, "holdout: a label is 99, but the model has 3 classes", holdout=(x, y))


WILD = {
    "empty": (lambda x: x[:0], r"wild has shape \(0, 2\): give at least one example"),
    "too few to set some aside": (lambda x: x[:1], "too few to set a share of it aside: give more"),
    "NaN": (lambda x: with_value(x, np.nan), "wild: example 50 holds NaN or infinity"),
    "infinity": (lambda x: with_value(x, -np.inf), "wild: example 50 holds NaN or infinity"),
    "NaN in a tensor": (lambda x: torch.tensor(with_value(x, np.nan)), "wild: example 50 holds NaN or infinity"),
    "another shape": (lambda x: np.repeat(x, 2, axis=1), r"wild: an example has shape \(4,\), expected \(2,\)"),
    "another number of axes": (lambda x: x[:, :, None], r"wild: an example has shape \(2, 1\), expected \(2,\)"),
    "uint8 beside floats": (lambda x: x.astype(np.uint8), "wild holds uint8 values, expected float"),
    "integers beside floats": (lambda x: x.astype(np.int64), "wild holds integer values, expected float"),
    "(x, y)": (lambda x: (x, np.zeros(len(x), int)), "wild is a tuple of 2: give x alone, as one array, without labels"),
    "list": (list, "wild is a tuple of 100: give x alone, as one array: np.stack makes one"),
    "dict": (lambda x: {"image": x}, "wild is a dict of 1: give x alone, as one array$"),
    "stream of batches": (lambda x: iter([x, x]), r"wild: an example has shape \(100, 2\), expected \(2,\)"),
    "None": (lambda x: None, "this method trains on wild data: give wild=x"),
    "string": (lambda x: "data/wild", "wild is a str"),
    "empty dataset": (lambda x: Pairs(x[:0]), "wild is empty"),
    "dataset of another shape": (lambda x: Pairs(x[:, :1]), r"wild: an example has shape \(1,\), expected \(2,\)"),
    "dataset of dicts": (lambda x: Dicts(), "dict"),
    "mixture with another shape": (lambda x: wildood.WildMixture(x, x[:, :1], 0.1), r"wild: an example has shape \(1,\)"),
    "mixture of uint8": (
        lambda x: wildood.WildMixture(x, x.astype(np.uint8), 0.1),
        "wild holds uint8 values, expected float",
    ),
    "mixture with too few": (lambda x: wildood.WildMixture(x, x[:1], 0.1), "give more ID and OOD examples"),
}


@pytest.mark.parametrize("kind", WILD)
def test_bad_wild_data_is_refused(call, toy, kind, request):
    make, message = WILD[kind]
    with pytest.raises(InputError, match=message):
        call(wild=make(toy.wild))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bad_number_in_a_wild_dataset_is_refused_when_it_is_read(toy, trained, value):
    """Wild data may be too much to read it all before training; but the blame must fall on it."""
    schedule = wildood.Schedule(steps=8, batch=32)
    with pytest.raises(InputError, match=r"wild.*NaN"):
        wildood.fit(
            trained(), toy.labelled, Pairs(with_value(toy.wild, value)), toy.holdout, schedule=schedule, verbose=False
        )


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((120, 3), np.float32), r"holdout: an example has shape \(3,\), expected \(2,\)"),
        (np.zeros((120, 2), np.uint8), "holdout holds uint8 values, expected float"),
        pytest.param(
            np.zeros((120, 2), np.int64),
            "holdout holds integer values, expected float",
        ),
    ],
)
def test_holdout_unlike_labelled_is_refused(call, toy, x, message):
    refuses(call, message, holdout=(x, toy.holdout[1]))


@pytest.mark.parametrize("count", [1, 31])
def test_fewer_labelled_examples_than_a_batch_are_refused(call, toy, count):
    few = toy.labelled[0][:count], toy.labelled[1][:count]
    refuses(call, f"labelled has {count} examples to train on, fewer than a batch of 32", labelled=few)
    refuses(call, rf"labelled has {count} examples: too few .*give holdout=\(x, y\)", labelled=few, holdout=None)


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, float("nan"), float("inf")])
def test_alpha_outside_0_and_1_is_refused(call, alpha):
    refuses(call, "alpha is .*: give a false-alarm rate strictly between 0 and 1", alpha=alpha)
    with pytest.raises(InputError, match=r"alpha is .*: give a false-alarm rate strictly between 0 and 1"):
        wildood.Woods(alpha=alpha)


@pytest.mark.parametrize(("keep", "enough"), [("best", 38), ("last", 19)])
def test_holdout_too_small_for_alpha_is_refused(call, toy, keep, enough):
    """At alpha = 0.05 a threshold needs 19 examples; the best epoch needs another 19 to be chosen by."""
    x, y = toy.holdout
    instead = r", a larger alpha \(--alpha\), or keep='last' \(--keep last\)" if keep == "best" else r" or a larger alpha"
    message = f"needs at least 19: give a larger holdout{instead}"
    refuses(call, message, holdout=(x[: enough - 1], y[: enough - 1]), keep=keep)
    with pytest.raises(AssertionError, match="training has started"):
        call(holdout=(x[:enough], y[:enough]), keep=keep)


def test_holdout_too_small_for_a_smaller_alpha_is_refused(call):
    refuses(call, "60 examples in each half .* a false-alarm rate of 0.01 needs at least 99", alpha=0.01)
    refuses(call, "120 examples, but a false-alarm rate of 0.005 needs at least 199", alpha=0.005, keep="last")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda logits: logits[..., None], r"shape \(2, 3, 1\)"),
        (lambda logits: logits[:1], r"shape \(1, 3\)"),
        (lambda logits: {"scores": logits}, "the model returned a dict with 'scores': it must return logits"),
        (lambda logits: SimpleNamespace(logits=None), "the model returned a SimpleNamespace"),
        (lambda logits: logits.detach().numpy(), "the model returned a ndarray"),
        (lambda logits: logits * float("nan"), "the model's logits are not finite"),
        (lambda logits: logits @ logits, r"the model fails on a batch of shape \(2, 2\) and dtype torch.float32: mat1"),
    ],
)
def test_model_whose_output_is_not_batch_by_classes_is_refused(call, make, message):
    refuses(call, message, model=Returning(make))


@pytest.mark.parametrize("model", [MLP, "resnet", None, lambda x: x], ids=["class", "string", "None", "function"])
def test_model_that_is_no_module_is_refused(call, model):
    refuses(call, r"model is a .*: give a torch\.nn\.Module", model=model)


def test_model_for_other_examples_is_refused(call):
    refuses(call, "the model fails on a batch", model=MLP(5, 3))


def test_model_with_nothing_to_train_is_refused(call, trained):
    refuses(call, "no parameter of the model requires a gradient: .*unfreeze", model=trained().requires_grad_(False))


def test_model_that_cannot_be_copied_is_refused(call, trained):
    model = trained()
    model.last_features = model.body(torch.zeros(1, 2))  # as models do that keep activations to look at
    refuses(call, "cop", model=model)


def test_uint8_without_an_input_spec_is_refused(call, toy):
    x = np.zeros((160, 2), np.uint8)
    refuses(
        call,
        r"labelled holds uint8 examples: say how .* input=InputSpec\(mean=..., std=...\)",
        labelled=(x, toy.labelled[1]),
    )


def test_input_spec_for_what_is_no_image_is_refused(call):
    refuses(call, "an input spec is for images", input=wildood.InputSpec())


@pytest.mark.parametrize("features", ["nonsense", "head.weight", ""])
def test_features_that_name_no_submodule_are_refused(call, features):
    message = f"the model has no submodule '{features}': name one that gives one vector for each example: 'body.0'"
    refuses(call, message, method=wildood.WoodsAlt(), features=features)


def test_features_that_are_not_one_vector_for_each_example_are_refused(call):
    model = nn.Sequential(nn.Unflatten(1, (2, 1)), nn.Flatten(), nn.Linear(2, 3))
    refuses(call, "the features at layer '0' are", method=wildood.WoodsAlt(), model=model, features="0")


def test_model_without_a_linear_is_refused_only_by_methods_that_need_features(call):
    refuses(call, r"no nn\.Linear that a forward pass reaches", method=wildood.WoodsAlt(), model=no_linear())
    with pytest.raises(AssertionError, match="training has started"):
        call(method=wildood.Woods(), model=no_linear())
    with pytest.raises(AssertionError, match="training has started"):
        call(method=wildood.WoodsAlt(), model=no_linear(), features="2")


@pytest.mark.parametrize("keep", ["nonsense", "", None, "Best"])
def test_keep_is_best_or_last(call, keep):
    refuses(call, f"keep is {keep!r}: give 'best', 'last' or 'as_published'", keep=keep)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 5, "epochs": 5}, "steps=5 and epochs=5: give one of them"),
        ({"steps": 0}, "steps is 0: give a positive whole number"),
        ({"steps": 5, "batch": 1}, "at least 2 examples"),
        ({"steps": 5, "lr": -1.0}, "lr is -1.0: give a positive number"),
        ({"steps": 5, "duals": "never"}, "duals is 'never': give 'epoch' or 'step'"),
    ],
)
def test_schedule_that_makes_no_sense_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        wildood.Schedule(**settings)


def test_a_schedule_without_a_length_has_100_steps_where_nothing_is_set_aside_to_end_it_by():
    assert wildood.Schedule(lr=0.001).fixed() == wildood.Schedule(lr=0.001, steps=100)


@pytest.mark.parametrize("schedule", ["auto", 100, {"steps": 100}])
def test_a_schedule_of_another_type_is_refused(call, schedule):
    refuses(call, r"give a Schedule, such as Schedule\(steps=100\), or leave it out", schedule=schedule)


def test_a_holdout_that_was_trained_on_is_refused(call, toy):
    x, y = toy.labelled
    refuses(call, "160 of the 160 holdout examples are in labelled, too", holdout=(x, y))
    mixed = np.concatenate([toy.holdout[0], x[:5]]), np.concatenate([toy.holdout[1], y[:5]])
    refuses(call, "5 of the 125 holdout examples are in labelled, too", holdout=mixed)


def test_equal_examples_in_wild_and_elsewhere_are_counted(call, toy, caplog):
    wild = np.concatenate([toy.wild, toy.labelled[0][:7], toy.holdout[0][:1]])
    with caplog.at_level(logging.WARNING, logger="wildood"), pytest.raises(AssertionError, match="training has started"):
        call(wild=wild)
    said = " ".join(record.message for record in caplog.records)
    assert f"7 of the {len(toy.labelled[0])} labelled examples are in wild, too: the same data twice?" in said
    assert f"1 of the {len(toy.holdout[0])} holdout examples are in wild, too" in said


@pytest.mark.parametrize("last", [nn.Softmax(1), nn.LogSoftmax(1)])
def test_a_model_that_returns_probabilities_is_refused(call, trained, last):
    refuses(call, "return logits, without a softmax at its end", model=nn.Sequential(trained(), last))


def test_float_images_that_were_not_scaled_are_refused():
    with pytest.raises(InputError, match="float images reach 255: give uint8 from 0 to 255, or floats from 0 to 1"):
        wildood.InputSpec()(torch.full((1, 4, 4, 1), 255.0))
    with pytest.raises(InputError, match="divide mean and std by 255"):
        wildood.InputSpec(mean=(125.0,), std=(58.0,))


def test_refused_call_leaves_the_run_directory_to_the_corrected_one(call, toy, tmp_path):
    x, y = toy.labelled
    refuses(call, "a label is 3", labelled=(x, with_label(y, 3)), run_dir=tmp_path / "run")
    with pytest.raises(AssertionError, match="training has started"):
        call(run_dir=tmp_path / "run")


@pytest.mark.parametrize(
    "changed",
    [{"holdout": (np.zeros((120, 2), np.float32), np.full(120, 9))}, {"alpha": 2}, {"keep": "nonsense"}, {"wild": None}],
    ids=["labels", "alpha", "keep", "wild"],
)
def test_refused_call_leaves_the_model_alone(call, trained, changed):
    model = trained().train()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError):
        call(model=model, **changed)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_loss_that_is_not_finite_stops_with_the_step(toy, trained):
    schedule = wildood.Schedule(steps=50, batch=32, lr=1e30)
    with pytest.raises(wildood.TrainingError, match=r"the loss became (nan|inf) at step \d+ .*smaller lr"):
        wildood.fit(trained(), toy.labelled, toy.wild, toy.holdout, schedule=schedule, verbose=False)


@pytest.fixture
def delicate():
    """A model with everything that `fit` could disturb: BatchNorm, dropout, mixed modes, frozen parts, hooks, gradients."""
    model = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 3))
    model.train()
    model[1].eval()
    model[0].bias.requires_grad_(False)
    model[4].weight.grad = torch.full((3, 16), 0.5)
    model[3].register_forward_hook(lambda *_: None)
    model[4].register_forward_pre_hook(lambda *_: None)
    return model


def portrait(model):
    """Everything about a model that somebody could notice."""
    modules = list(model.named_modules())
    return {
        "state": {name: value.numpy().tobytes() for name, value in model.state_dict().items()},
        "identity": {name: id(value) for name, value in model.state_dict(keep_vars=True).items()},
        "strides": {name: value.stride() for name, value in model.state_dict().items()},
        "modes": {name: module.training for name, module in modules},
        "hooks": {name: (list(module._forward_hooks), list(module._forward_pre_hooks)) for name, module in modules},
        "requires_grad": {name: parameter.requires_grad for name, parameter in model.named_parameters()},
        "grad": {name: None if p.grad is None else p.grad.tolist() for name, p in model.named_parameters()},
    }


@pytest.mark.parametrize("method", [wildood.Woods(), wildood.WoodsAlt(), wildood.Woods.as_published()], ids=str)
def test_fit_leaves_the_given_model_bit_by_bit_as_it_was(delicate, toy, method, schedule):
    before = portrait(delicate)
    detector = wildood.fit(
        delicate, toy.labelled, toy.wild, toy.holdout, method=method, schedule=schedule, keep="last", verbose=False
    )
    assert portrait(delicate) == before
    trained = detector.classifier.model
    assert not torch.equal(trained[0].weight, delicate[0].weight)  # the copy did learn
    assert torch.equal(trained[0].bias, delicate[0].bias)  # but not what is frozen
    shared = {id(value) for value in trained.state_dict(keep_vars=True).values()} & set(before["identity"].values())
    assert shared == set()


@pytest.mark.parametrize("method", [wildood.Woods(), wildood.WoodsAlt(), wildood.Woods.as_published()], ids=str)
def test_fit_leaves_every_global_generator_as_it_was(delicate, toy, method, schedule):
    before = torch.get_rng_state(), repr(np.random.get_state()), random.getstate()  # noqa: NPY002 - the global one is meant
    wildood.fit(delicate, toy.labelled, toy.wild, toy.holdout, method=method, schedule=schedule, verbose=False)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (repr(np.random.get_state()), random.getstate()) == before[1:]  # noqa: NPY002 - the global one is meant


def test_fit_leaves_the_data_as_it_was(trained, toy, schedule):
    arrays = [torch.tensor(array) for array in (*toy.labelled, toy.wild, *toy.holdout)]
    before = [array.clone() for array in arrays]
    x, y, wild, held_x, held_y = arrays
    wildood.fit(trained(), (x, y), wild, (held_x, held_y), schedule=schedule, verbose=False)
    assert all(torch.equal(array, old) for array, old in zip(arrays, before, strict=True))


ODD = (
    object(),
    "x\n",
    b"x",
    1j,
    float("nan"),
    10**400,
    [None],
    {1},
    torch.empty(3, device="meta"),
    torch.eye(2).to_sparse(),
)
ARGUMENTS = ("alpha", "confidence", "by_class", "features", "frozen", "keep", "run_dir", "seed", "verbose", "on_epoch")
ARGUMENTS += ("schedule", "input", "method", "model", "labelled", "wild", "holdout", "ood")


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_odd_value_of_any_argument_is_refused_with_one_line(call, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in ODD:
        if name in {"features", "run_dir"} and value == "x\n":  # a name like others
            continue
        with pytest.raises(wildood.WildoodError, match=name) as refused:
            call(**{name: value})
        assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": -1}, "seed is -1: give a whole number from 0 on"),
        ({"alpha": 1e-320}, r"alpha is 1e-320: give a false-alarm rate strictly between 0 and 1 \(at least 1e-09\)"),
        ({"run_dir": "a\0b"}, "run_dir is .*, which no file can be named"),
        ({"on_epoch": lambda: None}, r"on_epoch cannot be called \(too many positional arguments\)"),
        ({"features": 3}, "features is 3: give a submodule's name"),
    ],
)
def test_arguments_that_would_fail_later_are_refused_now(call, changed, message):
    refuses(call, message, **changed)


@pytest.mark.parametrize(
    "name", ["score", "predict", "p_value", "classify", "predict_proba", "score_and_classify", "calibrate"]
)
def test_a_detector_refuses_odd_examples_with_one_line(toy, trained, name):
    detector = wildood.posthoc(trained(), wildood.EnergyScore(), holdout=toy.holdout)
    for value in (*ODD, None, [], (), {}, np.array(1.0), np.zeros((3, 2), "M8[s]"), np.zeros((3, 0))):
        if value is None and name == "calibrate":  # the holdout that it has
            continue
        with pytest.raises(InputError) as refused:
            getattr(detector, name)(value)
        assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match="the directory is 3: give a path"):
        detector.save(3)
    with pytest.raises(InputError, match="give what score_and_classify"):
        detector.accepts([1.0], [0])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 3, device="meta"), "the model's output is a tensor on the meta device"),
        (Returning(lambda y: y.to_sparse()), "the model's output is a sparse tensor"),
        (Returning(lambda y: y.to(torch.complex64)), "the model's output has dtype torch.complex64"),
    ],
)
def test_outputs_that_cannot_be_computed_with_are_refused(call, model, message):
    refuses(call, message, model=model)


def test_a_model_without_gradients_is_refused(toy, schedule):
    detached = Returning(lambda y: y.detach())
    with pytest.raises(wildood.TrainingError, match="the model's output has no gradient"):
        wildood.pretrain(detached, toy.labelled, schedule=schedule, verbose=False)
    with pytest.raises(InputError, match="no gradient with respect to its input: give epsilon=0"):
        wildood.posthoc(detached, wildood.Odin(epsilon=0.01), holdout=toy.holdout)

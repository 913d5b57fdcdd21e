"""Features are the input of the last Linear that a forward pass reaches, or what a named submodule gives."""

import pytest
import torch
from torch import nn

from wildood.errors import InputError
from wildood.models.features import FeatureTap, find_tap
from wildood.models.resnet import ResNet20
from wildood.models.small import MLP, SmallCNN
from wildood.models.wide_resnet import WideResNet


class Backwards(nn.Module):
    """Registers its layers in the opposite order of the one it calls them in."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.first = nn.Linear(3, 6)

    def forward(self, x):
        return self.head(self.first(x).relu())


class Unused(nn.Module):
    """Has a Linear behind its head that no forward pass reaches, such as the projection of another task."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 6)
        self.head = nn.Linear(6, 4)
        self.projection = nn.Linear(6, 9)

    def forward(self, x):
        return self.head(self.body(x).relu())


class Twice(nn.Module):
    """Calls one Linear twice."""

    def __init__(self):
        super().__init__()
        self.again = nn.Linear(4, 4)

    def forward(self, x):
        return self.again(self.again(x).relu())


class Keyword(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        return self.head(input=self.body(x).relu())


class NoLinear(nn.Module):
    """All convolutions, as in a fully convolutional network."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 5, 3)
        self.head = nn.Conv2d(5, 4, 1)

    def forward(self, x):
        return self.head(self.stem(x).relu()).mean((2, 3))


def hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def features(model, x, tap):
    with tap.attach(model), tap.catch(model) as caught:
        model(x)
    return caught.features()


@pytest.mark.parametrize("model", [Backwards(), Unused()], ids=["registered backwards", "unused layer registered last"])
def test_the_last_linear_is_the_last_one_called(model):
    x = torch.randn(5, 3)
    tap = find_tap(model, x)
    first = model.first if isinstance(model, Backwards) else model.body
    assert tap == FeatureTap("head", "input")
    assert torch.equal(features(model, x, tap), first(x).relu())


def test_a_layer_called_twice_gives_its_last_input():
    model, x = Twice(), torch.randn(5, 4)
    assert torch.equal(features(model, x, find_tap(model, x)), model.again(x).relu())


def test_features_of_a_bare_linear_are_the_examples():
    model, x = nn.Linear(3, 4), torch.randn(5, 3)
    assert torch.equal(features(model, x, find_tap(model, x)), x)


@pytest.mark.parametrize(
    ("model", "shape", "layer", "width"),
    [
        (ResNet20(4), (3, 32, 32), "linear", 64),
        (WideResNet(4, depth=10, widen=1), (3, 8, 8), "fc", 64),
        (SmallCNN(4), (1, 8, 8), "head", 64),
        (MLP(3, 4, hidden=(7, 5)), (3,), "head", 5),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_features_of_the_shipped_models_go_into_their_classifying_layer(model, shape, layer, width):
    x = torch.randn(2, *shape)
    tap = find_tap(model.eval(), x)
    found = features(model, x, tap)
    assert (tap.layer, found.shape) == (layer, (2, width))
    assert torch.allclose(model.get_submodule(layer)(found), model(x), atol=1e-6)


def test_named_submodule_gives_its_output():
    model, x = MLP(3, 4, hidden=(7, 5)), torch.randn(6, 3)
    tap = find_tap(model, x, "body.2")
    assert tap == FeatureTap("body.2", "output")
    assert torch.equal(features(model, x, tap), model.body[:3](x))


def test_image_shaped_features_are_averaged_over_their_positions():
    model, x = NoLinear(), torch.randn(2, 1, 6, 7)
    found = features(model, x, find_tap(model, x, "stem"))
    assert found.shape == (2, 5)
    assert torch.allclose(found, model.stem(x).flatten(2).mean(2), atol=1e-6)


def test_features_carry_gradients():
    model, x = Backwards(), torch.randn(5, 3)
    features(model, x, find_tap(model, x)).sum().backward()
    assert model.first.weight.grad.abs().sum() > 0
    assert model.head.weight.grad is None


def test_model_without_a_linear_is_refused_unless_a_submodule_is_named():
    with pytest.raises(InputError, match=r"no nn\.Linear that a forward pass reaches: name the submodule .* features="):
        find_tap(NoLinear(), torch.randn(2, 1, 6, 6))


@pytest.mark.parametrize("name", ["nonsense", "head.", "", "weight"])
def test_name_of_no_submodule_is_refused(name):
    with pytest.raises(InputError, match=rf"the model has no submodule '{name}'.*: name one that gives one vector"):
        find_tap(MLP(3, 4), torch.randn(2, 3), name)


def test_submodule_that_is_not_reached_is_refused():
    with pytest.raises(InputError, match="layer 'projection' was not reached: name another one with features="):
        find_tap(Unused(), torch.randn(2, 3), "projection")


@pytest.mark.parametrize(
    ("inner", "shape", "found"),
    [(nn.Unflatten(1, (3, 1)), (2, 3), r"\(2, 3, 1\)"), (nn.GRU(3, 4), (2, 3), "tuple"), (nn.Flatten(0), (2, 3), r"\(6,\)")],
    ids=["3-d", "tuple", "1-d"],
)
def test_output_that_is_not_one_vector_for_each_example_is_refused(inner, shape, found):
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            self.inner(x)
            return x

    with pytest.raises(InputError, match=rf"the features at layer 'inner' are {found}, not \(batch, features\)"):
        find_tap(Around(), torch.randn(shape), "inner")


def test_linear_called_by_keyword_is_found():
    model, x = Keyword(), torch.randn(5, 3)
    assert torch.equal(features(model, x, find_tap(model, x)), model.body(x).relu())


@pytest.mark.parametrize("name", [None, "body", "projection", "nonsense"])
def test_looking_for_features_leaves_no_hooks(name):
    model = Unused()
    try:
        find_tap(model, torch.randn(2, 3), name)
    except InputError:
        assert name in {"projection", "nonsense"}
    assert hooks(model) == 0


@pytest.mark.parametrize("side", ["input", "output"])
def test_hooks_are_removed_when_the_forward_pass_fails(side):
    model, tap = Unused(), FeatureTap("head", side)
    with tap.attach(model), tap.catch(model):
        assert hooks(model) == 1
    with pytest.raises(RuntimeError), tap.attach(model), tap.catch(model):
        model(torch.zeros(2, 99))
    assert hooks(model) == 0
    with pytest.raises(RuntimeError):
        find_tap(model, torch.zeros(2, 99))
    assert hooks(model) == 0


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_forward_pass_within_another_has_its_own_features(side):
    outer, inner, tap = Unused(), Unused(), FeatureTap("head", side)
    x, seen = torch.randn(2, 3), []
    for model in (outer, inner):
        tap.attach(model)
    outer.body.register_forward_hook(lambda *_: seen.append(features(inner, x + 1, tap)))
    found = features(outer, x, tap)
    assert torch.equal(found, outer.body(x).relu() if side == "input" else outer(x))
    assert torch.equal(seen[0], inner.body(x + 1).relu() if side == "input" else inner(x + 1))


def test_a_hook_keeps_nothing_of_passes_that_nobody_catches():
    model, tap = Unused(), FeatureTap("head", "input")
    with tap.attach(model), tap.catch(model) as caught:
        model(torch.zeros(2, 3))
        first = caught.features()
    with tap.attach(model):
        model(torch.ones(2, 3))
    assert caught.features() is first


def test_the_users_own_hooks_stay():
    model = Unused()
    seen = []
    model.head.register_forward_pre_hook(lambda *_: seen.append(1))
    find_tap(model, torch.zeros(2, 3))
    assert hooks(model) == 1
    assert seen

"""One forward pass serves everything: logits from any kind of output, modes as they were, batches that do not matter."""

import re
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from wildood.data.inputs import InputSpec
from wildood.data.sources import ArraySource
from wildood.data.validation import unlabelled_source
from wildood.errors import InputError
from wildood.models.classifier import Classifier, evaluating, forward_all, logits_of, tap_features, try_classifier
from wildood.models.features import FeatureTap, call_model
from wildood.models.small import MLP, SmallCNN


class Returning(nn.Module):
    """A model whose output is whatever `make` makes of its logits."""

    def __init__(self, make):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.make = make

    def forward(self, x):
        return self.make(self.linear(x))


@pytest.fixture
def mixed():
    """Dropout and BatchNorm; some parts train and some are frozen in evaluation mode."""
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Sequential(nn.ReLU(), nn.BatchNorm1d(8)))
    model.append(nn.Linear(8, 4)).train()
    model[1].eval()
    model[3][1].eval()
    return model


def modes(model):
    return {name: module.training for name, module in model.named_modules()}


@pytest.mark.parametrize(
    "make",
    [
        lambda logits: logits,
        lambda logits: SimpleNamespace(logits=logits, loss=None),
        lambda logits: namedtuple("Output", "loss logits")(None, logits),  # noqa: PYI024 - as Hugging Face's
    ],
    ids=["tensor", "object", "named tuple"],
)
def test_logits_are_found_in_what_the_model_returns(make):
    model = Returning(make)
    x = torch.randn(5, 3)
    assert torch.equal(Classifier(model)(x).logits, model.linear(x))
    assert try_classifier(model, x, None) == 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_logits_are_float32_and_keep_their_gradient(dtype):
    raw = torch.tensor([[1.5, -2.0]], dtype=dtype, requires_grad=True)
    logits = logits_of(raw)
    assert logits.dtype == torch.float32
    assert logits.tolist() == [[1.5, -2.0]]
    logits.sum().backward()
    assert raw.grad.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ((3, torch.zeros(2, 3)), "tuple"),
        ({"logits": 0}, "dict with 'logits'"),
        ({"hidden": torch.zeros(2, 3)}, "dict with 'hidden'"),
        (None, "NoneType"),
        (np.zeros((2, 3)), "ndarray"),
    ],
)
def test_output_without_logits_is_refused(output, kind):
    with pytest.raises(InputError, match=f"the model returned a {kind}: it must return logits, as a tensor, as .logits"):
        logits_of(output)


def test_logits_are_found_in_a_dict_in_a_tuple_and_in_an_attribute():
    logits = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    for output in ({"loss": 0.5, "logits": logits}, (logits, "attention"), [logits], SimpleNamespace(logits=logits)):
        assert torch.equal(logits_of(output), logits)


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_one_logit_is_that_of_the_second_class(shape):
    z = torch.tensor([-1.0, 0.0, 2.0])
    assert torch.equal(logits_of(z.reshape(shape)), torch.stack([torch.zeros(3), z], 1))
    assert torch.allclose(logits_of(z.reshape(shape)).softmax(1)[:, 1], torch.sigmoid(z))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda logits: logits[None], r"shape \(1, 2, 4\)"),
        (lambda logits: logits.T, r"shape \(4, 2\)"),
        (lambda logits: logits.mean(), r"shape \(\)"),
        (lambda logits: logits / 0, "logits are not finite"),
        (
            lambda logits: logits.nonsense,
            r"the model fails on a batch of shape \(2, 3\) and dtype torch.float32: .*nonsense'; give x as model\(x\) takes",
        ),
    ],
)
def test_model_whose_output_is_not_batch_by_classes_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        try_classifier(Returning(make), torch.randn(2, 3), None)


@pytest.mark.parametrize(
    ("x", "call", "advice"),
    [
        (
            torch.ones(2, 3, dtype=torch.int64),
            call_model,
            r"give x as model\(x\) .*; if it takes floats, x.astype\('float32'\)$",
        ),
        ({"ids": torch.ones(2, 3)}, call_model, r"give x as model\(\*\*x\) takes it, or forward=$"),
        ((torch.ones(2, 3), torch.ones(2, 3)), call_model, r"give x as model\(\*x\) takes it, or forward=$"),
        (torch.ones(2, 9), lambda model, x: model(x), "give x as forward= takes it$"),
    ],
)
def test_a_model_that_fails_is_answered_with_how_it_is_called(x, call, advice):
    with pytest.raises(InputError, match=f"the model fails on a batch of .*; {advice}"):
        try_classifier(nn.Linear(3, 2), x, None, call)


class Heads(nn.Module):
    """Two linear layers on one body; the output is whatever `make` makes of their logits and the features."""

    def __init__(self, make):
        super().__init__()
        self.body, self.first, self.second, self.make = nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(5, 2), make

    def forward(self, x):
        features = self.body(x)
        return self.make(self.first(features), self.second(features), features)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda a, b, h: (a, b), r"the logits of 2 heads: choose one, as forward=lambda model, x: model\(x\)\[0\] does"),
        (lambda a, b, h: [a, h, b], "the logits of 2 heads"),
        (
            lambda a, b, h: {"intent": a, "mood": b},
            r"a dict with 'intent', 'mood'.* or give forward=lambda model, x: \.\.\.",
        ),
        (lambda a, b, h: torch.stack([a, a], 1), r"shape \(2, 2, 4\): .* of several heads, return one \(forward=lambda"),
    ],
)
def test_several_heads_are_refused_with_the_line_that_chooses_one(make, message):
    with pytest.raises(InputError, match=message):
        try_classifier(Heads(make), torch.randn(2, 3), None)


def test_features_beside_the_logits_are_no_head_and_a_chosen_head_is_taken():
    assert try_classifier(Heads(lambda a, b, h: (a, h)), torch.randn(2, 3), None) == 4
    two = Heads(lambda a, b, h: (a, b))
    assert try_classifier(two, torch.randn(2, 3), None, lambda model, x: model(x)[1]) == 2
    assert not any(module._forward_hooks for module in two.modules())


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("width", [5, 4])
@pytest.mark.parametrize("inplace", [False, True])
def test_an_embedding_that_passes_an_activation_before_the_last_layer_is_no_head(frozen, width, inplace):
    class Embedding(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.relu, self.b = nn.Linear(3, width), nn.ReLU(inplace), nn.Linear(width, 4)

        def forward(self, x):
            z = self.a(x)
            return self.b(self.relu(z)), z

    assert try_classifier(Embedding().requires_grad_(not frozen), torch.randn(2, 3), None) == 4


def test_heads_of_a_frozen_model_are_counted():
    with pytest.raises(InputError, match="the logits of 2 heads"):
        try_classifier(Heads(lambda a, b, h: (a, b, h)).requires_grad_(False), torch.randn(2, 3), None)


@pytest.mark.parametrize("make", [torch.sigmoid, lambda z: {"logits": z.sigmoid()}, lambda z: z[:, :1].sigmoid()])
def test_sigmoids_are_refused(make):
    with pytest.raises(InputError, match=r"ends in a sigmoid: return .* the logits; with several labels .* \(multi-label\)"):
        try_classifier(Returning(make), torch.randn(2, 3), None)


def test_logits_between_0_and_1_are_no_sigmoids():
    assert try_classifier(Returning(lambda z: z.sigmoid() / 2), torch.randn(2, 3), None) == 4


def test_classifier_puts_the_input_spec_in_front():
    spec = InputSpec(mean=(0.5,), std=(0.25,))
    model = SmallCNN(3).eval()
    raw = torch.randint(0, 256, (4, 8, 8, 1), dtype=torch.uint8)
    expected = model((raw.permute(0, 3, 1, 2) / 255 - 0.5) / 0.25)
    assert torch.allclose(Classifier(model, spec)(raw).logits, expected, atol=1e-6)


def test_classifier_without_a_tap_has_no_features():
    assert Classifier(MLP(3, 4))(torch.zeros(2, 3)).features is None


def test_logits_and_features_come_from_one_forward_pass():
    model = MLP(3, 4, hidden=(6,))
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    x = torch.randn(5, 3)
    outputs = Classifier(model, tap=FeatureTap("head", "input"))(x)
    assert len(calls) == 1
    assert torch.equal(outputs.features, model.body(x))
    assert torch.equal(outputs.logits, model.head(outputs.features))


def test_evaluating_restores_every_submodules_mode(mixed):
    before = modes(mixed)
    assert set(before.values()) == {True, False}
    with evaluating(mixed):
        assert set(modes(mixed).values()) == {False}
    assert modes(mixed) == before


def test_evaluating_by_several_threads_lasts_until_the_last_one_leaves(mixed):
    before = modes(mixed)
    with torch.enable_grad():  # each thread has its own gradient mode, but these blocks are all in one thread
        first, second, third = (evaluating(mixed) for _ in range(3))
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert set(modes(mixed).values()) == {False}
        third.__enter__()
        second.__exit__(None, None, None)
        assert set(modes(mixed).values()) == {False}
        third.__exit__(None, None, None)
    assert modes(mixed) == before


def test_evaluating_restores_modes_and_gradients_after_an_error(mixed):
    before = modes(mixed)
    with pytest.raises(ZeroDivisionError), evaluating(mixed):
        raise ZeroDivisionError
    assert modes(mixed) == before
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_evaluating_makes_no_gradients_and_leaves_buffers_alone(mixed):
    buffers = {name: value.clone() for name, value in mixed.named_buffers()}
    with evaluating(mixed):
        assert not mixed(torch.randn(16, 3)).requires_grad
    assert all(torch.equal(value, buffers[name]) for name, value in mixed.named_buffers())


class Deep(nn.Module):
    """Many blocks, a sequence in the middle, and a layer that is not reached."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(3, 3) for _ in range(10))
        self.sequence, self.flat, self.unused = nn.Unflatten(1, (3, 1)), nn.Flatten(), nn.Linear(3, 3)
        self.classify = nn.Linear(3, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.classify(self.flat(self.sequence(x)))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("clasify", "(did you mean 'classify'?): name"),
        ("block.7", "(did you mean 'blocks.7'?): name"),
        ("nonsense", "'nonsense': name"),
        ("sequences", "'sequences': name"),  # 'sequence' is near, but gives no vectors
        ("unuse", "'unuse': name"),  # 'unused' is near, but not reached
    ],
)
def test_a_name_of_no_submodule_is_answered_with_those_that_can_be_used(name, said):
    model = Deep()
    with pytest.raises(InputError) as refused:
        tap_features(model, torch.randn(2, 3), None, name)
    message = str(refused.value)
    assert message.startswith(f"the model has no submodule {name!r}")
    assert said in message
    assert message.endswith(
        ": 'blocks.4', 'blocks.5', 'blocks.6', 'blocks.7', 'blocks.8', 'blocks.9', 'flat', 'classify', "
        "or one of 4 before them in model.named_modules()"
    )
    assert not any(module._forward_hooks for module in model.modules())


def test_every_submodule_that_the_answer_lists_can_be_named():
    model, x = SmallCNN(4), torch.randn(2, 1, 8, 8)
    with pytest.raises(InputError) as refused:
        tap_features(model, x, None, "nonsense")
    listed = re.findall(r"'([\w.]+)'", str(refused.value).partition("for each example")[2])
    assert len(listed) >= 3
    assert [tap_features(model, x, None, name).layer for name in listed] == listed


def test_a_model_without_submodules_is_told_to_give_no_features():
    with pytest.raises(InputError, match="no submodule 'a', and none gives one vector for each example: give no"):
        tap_features(nn.Linear(3, 4), torch.randn(2, 3), None, "a")


@pytest.mark.parametrize("look", [lambda m, x: try_classifier(m, x, None), lambda m, x: tap_features(m, x, None)])
def test_trying_a_model_leaves_it_as_it_was(mixed, look):
    before = modes(mixed), {name: value.clone() for name, value in mixed.state_dict().items()}
    look(mixed, torch.randn(2, 3))
    assert modes(mixed) == before[0]
    assert all(torch.equal(value, before[1][name]) for name, value in mixed.state_dict().items())


def test_trying_a_model_that_fails_leaves_its_modes_as_they_were(mixed):
    before = modes(mixed)
    with pytest.raises(InputError, match="the model fails on a batch"):
        try_classifier(mixed, torch.zeros(2, 7), None)
    assert modes(mixed) == before


def test_tensors_that_a_model_caches_while_it_is_tried_can_be_trained_with():
    class Caching(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 4)
            self.scale = None

        def forward(self, x):
            if self.scale is None:
                self.scale = torch.full((4,), 2.0)
            return self.linear(x) * self.scale

    model = Caching()
    try_classifier(model, torch.ones(2, 3), None)
    model(torch.ones(2, 3)).sum().backward()
    assert model.linear.bias.grad.tolist() == [4.0, 4.0, 4.0, 4.0]


@pytest.mark.parametrize("batch_size", [1, 7, 25, 50, 1000])
@pytest.mark.parametrize("labelled", [False, True])
def test_forward_all_is_one_big_forward_in_order(mixed, batch_size, labelled):
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    y = np.arange(50) if labelled else None
    classifier = Classifier(mixed, tap=FeatureTap("4", "input"))
    with evaluating(classifier):
        whole = classifier(torch.from_numpy(x))
        parts = list(forward_all(classifier, ArraySource(x, y), batch_size))
    assert [len(outputs.logits) for outputs, _ in parts[:-1]] == [batch_size] * (len(parts) - 1)
    torch.testing.assert_close(torch.cat([outputs.logits for outputs, _ in parts]), whole.logits, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(torch.cat([outputs.features for outputs, _ in parts]), whole.features, atol=1e-6, rtol=1e-6)
    if labelled:
        assert torch.cat([labels for _, labels in parts]).tolist() == list(range(50))
    else:
        assert {labels for _, labels in parts} == {None}


def test_forward_all_reads_datasets_as_it_reads_arrays():
    x = torch.randn(30, 3)
    classifier = Classifier(MLP(3, 4))
    with evaluating(classifier):
        arrays = torch.cat([outputs.logits for outputs, _ in forward_all(classifier, unlabelled_source(x, "x"), 8)])
        dataset = torch.utils.data.TensorDataset(x)
        items = torch.cat([outputs.logits for outputs, _ in forward_all(classifier, unlabelled_source(dataset, "x"), 8)])
    assert torch.equal(arrays, items)


def test_device_is_where_the_parameters_or_buffers_are():
    assert Classifier(MLP(3, 4)).device == torch.device("cpu")
    assert Classifier(MLP(3, 4).to("meta")).device == torch.device("meta")
    assert Classifier(nn.Identity()).device == torch.device("cpu")
    only_buffers = nn.Module()
    only_buffers.register_buffer("scale", torch.ones(1, device="meta"))
    assert Classifier(only_buffers).device == torch.device("meta")

"""The architectures have the weights' names, the right sizes, and the forward pass their papers describe."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from wildood.errors import InputError
from wildood.models.resnet import ResNet20, _Block, _shortcut
from wildood.models.small import MLP, SmallCNN
from wildood.models.wide_resnet import WideResNet

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"

# Each model twice: as it comes, and with every setting changed, so that a setting that is not kept shows.
MODELS = {
    "wide_resnet": (lambda: WideResNet(), (3, 32, 32), 10),
    "wide_resnet_changed": (lambda: WideResNet(7, depth=16, widen=1, dropout=0.1, channels=1), (1, 12, 20), 7),
    "resnet20": (lambda: ResNet20(), (3, 32, 32), 10),
    "resnet20_changed": (lambda: ResNet20(100, channels=1), (1, 28, 28), 100),
    "small_cnn": (lambda: SmallCNN(), (1, 8, 8), 10),
    "small_cnn_changed": (lambda: SmallCNN(3, channels=2, width=5, size=15, hidden=11), (2, 15, 15), 3),
    "mlp": (lambda: MLP(12, 4), (3, 2, 2), 4),
    "mlp_changed": (lambda: MLP(12, 4, hidden=(9, 8, 7)), (12,), 4),
    "mlp_without_hidden_layers": (lambda: MLP(12, 4, hidden=()), (12,), 4),
}


@pytest.fixture(params=MODELS)
def case(request):
    build, shape, classes = MODELS[request.param]
    torch.manual_seed(0)
    return build(), torch.randn(2, *shape), classes


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def shapes(model):
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def test_one_logit_per_class(case):
    model, x, classes = case
    logits = model.eval()(x)
    assert logits.shape == (2, classes)
    assert logits.isfinite().all()


def test_gradient_reaches_every_parameter(case):
    model, x, _ = case
    # A random direction, since the plain sum of logits could cancel in a way that hides a dead parameter.
    logits = model.train()(x)
    (logits * torch.randn_like(logits)).sum().backward()
    untouched = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert untouched == []


def test_settings_rebuild_the_same_architecture_after_json(case):
    model, _, _ = case
    settings = json.loads(json.dumps(model.settings))
    assert settings == model.settings
    rebuilt = type(model)(**settings)
    assert shapes(rebuilt) == shapes(model)
    assert rebuilt.settings == model.settings
    assert str(rebuilt) == str(model)


@pytest.mark.parametrize(
    ("classes", "depth", "widen", "channels"), [(10, 40, 2, 3), (100, 40, 2, 3), (10, 16, 4, 3), (7, 10, 1, 1)]
)
def test_wide_resnet_has_as_many_parameters_as_the_formula(classes, depth, widen, channels):
    expected = 9 * channels * 16
    before = 16
    for after in (16 * widen, 32 * widen, 64 * widen):
        first = 2 * before + 9 * before * after + 2 * after + 9 * after**2
        projection = before * after if before != after else 0
        rest = ((depth - 4) // 6 - 1) * (2 * 9 * after**2 + 2 * 2 * after)
        expected += first + projection + rest
        before = after
    expected += 2 * before + before * classes + classes
    assert parameters(WideResNet(classes, depth=depth, widen=widen, channels=channels)) == expected
    if (classes, depth, widen) == (10, 40, 2):
        assert expected == 2_243_546


@pytest.mark.parametrize(("classes", "channels"), [(10, 3), (100, 1)])
def test_resnet20_has_as_many_parameters_as_the_formula(classes, channels):
    # 19 convolutions without bias, each followed by a BatchNorm; the first of a group doubles the channels.
    convolutions = 9 * (channels * 16 + 6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64)
    norms = 2 * (7 * 16 + 6 * 32 + 6 * 64)
    assert parameters(ResNet20(classes, channels=channels)) == convolutions + norms + 64 * classes + classes


def test_small_models_have_as_many_parameters_as_the_formula():
    cnn = SmallCNN(3, channels=2, width=5, size=15, hidden=11)
    assert parameters(cnn) == (9 * 2 * 5 + 5) + (9 * 5 * 10 + 10) + (10 * 3 * 3 * 11 + 11) + (11 * 3 + 3)
    assert parameters(MLP(12, 4)) == (12 * 128 + 128) + (128 * 64 + 64) + (64 * 4 + 4)


def test_wide_resnet_has_the_parameter_names_of_the_public_weights():
    names = set(WideResNet().state_dict())
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = {"conv1.weight", "fc.weight", "fc.bias"} | {f"bn1.{part}" for part in norm}
    for group in (1, 2, 3):
        expected.add(f"block{group}.layer.0.convShortcut.weight")
        for block in range(6):
            place = f"block{group}.layer.{block}"
            expected |= {f"{place}.conv1.weight", f"{place}.conv2.weight"}
            expected |= {f"{place}.{bn}.{part}" for bn in ("bn1", "bn2") for part in norm}
    assert names == expected


def test_wide_resnet_without_widening_keeps_the_first_shortcut_an_identity():
    shortcuts = [name for name in WideResNet(depth=10, widen=1).state_dict() if "convShortcut" in name]
    assert shortcuts == ["block2.layer.0.convShortcut.weight", "block3.layer.0.convShortcut.weight"]


def test_wide_resnet_is_the_pre_activation_network_written_out():
    torch.manual_seed(0)
    model = WideResNet(5, depth=16, widen=2).eval()
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    weights = model.state_dict()

    def norm_relu(x, name):
        mean, var, scale, shift = (weights[f"{name}.{k}"] for k in ("running_mean", "running_var", "weight", "bias"))
        return F.relu(F.batch_norm(x, mean, var, scale, shift))

    images = torch.randn(2, 3, 32, 32)
    x = F.conv2d(images, weights["conv1.weight"], padding=1)
    for group, stride in ((1, 1), (2, 2), (3, 2)):
        head = f"block{group}.layer.0"
        x = norm_relu(x, f"{head}.bn1")
        out = norm_relu(F.conv2d(x, weights[f"{head}.conv1.weight"], stride=stride, padding=1), f"{head}.bn2")
        out = F.conv2d(out, weights[f"{head}.conv2.weight"], padding=1)
        x = out + F.conv2d(x, weights[f"{head}.convShortcut.weight"], stride=stride)
        out = F.conv2d(norm_relu(x, f"block{group}.layer.1.bn1"), weights[f"block{group}.layer.1.conv1.weight"], padding=1)
        out = norm_relu(out, f"block{group}.layer.1.bn2")
        x = x + F.conv2d(out, weights[f"block{group}.layer.1.conv2.weight"], padding=1)
    features = F.avg_pool2d(norm_relu(x, "bn1"), 8).flatten(1)
    torch.testing.assert_close(model(images), F.linear(features, weights["fc.weight"], weights["fc.bias"]))


def test_wide_resnet_starts_from_he_initialisation():
    torch.manual_seed(0)
    model = WideResNet()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 4:
            out, _, height, width = parameter.shape
            expected = (2 / (out * height * width)) ** 0.5
            # The standard error of a standard deviation from m normal draws is sigma / sqrt(2m); 4 of them.
            assert parameter.std().item() == pytest.approx(expected, rel=4 / (2 * parameter.numel()) ** 0.5), name
        elif "bn" in name:
            assert (parameter == (1 if name.endswith("weight") else 0)).all(), name
    assert (model.fc.bias == 0).all()


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    model, x = WideResNet(depth=10, widen=1, dropout=0.5), torch.randn(2, 3, 8, 8)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_option_a_shortcut_by_hand():
    x = torch.arange(2 * 3 * 3, dtype=torch.float32).reshape(1, 2, 3, 3)
    zero = [[0.0, 0.0], [0.0, 0.0]]
    by_hand = torch.tensor([[zero, [[0.0, 2.0], [6.0, 8.0]], [[9.0, 11.0], [15.0, 17.0]], zero]])
    assert torch.equal(_shortcut(x, 4), by_hand)
    assert torch.equal(_shortcut(x, 2), x)


def test_residual_block_without_its_residual_is_relu_of_the_shortcut():
    block = _Block(2, 4).eval()
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    expected = torch.zeros(3, 4, 3, 3)
    expected[:, 1:3] = x[:, :, ::2, ::2].clamp(min=0)
    assert torch.equal(block(x), expected)


@pytest.mark.parametrize(("weights", "floor"), [("resnet20-cifar10", 0.85), ("resnet20-cifar10-half", 0.75)])
def test_shared_weights_classify_cifar10(weights, floor):
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not here")
    model = ResNet20().eval()
    model.load_state_dict(load_file(SHARED / "weights" / f"{weights}.safetensors"), strict=True)
    with np.load(SHARED / "cifar10.npz") as data:
        images, labels = data["test_images"][:500], torch.from_numpy(data["test_labels"][:500].astype(np.int64))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = ((torch.from_numpy(images) / 255 - mean) / std).permute(0, 3, 1, 2)
    with torch.inference_mode():
        accuracy = (model(x).argmax(1) == labels).double().mean().item()
    assert accuracy > floor


@pytest.mark.parametrize("depth", [4, 12, 41])
def test_wide_resnet_refuses_a_depth_that_is_not_6n_plus_4(depth):
    with pytest.raises(InputError, match=f"depth is {depth}"):
        WideResNet(depth=depth)


def test_small_cnn_refuses_images_that_pooling_would_erase():
    with pytest.raises(InputError, match="size is 3"):
        SmallCNN(size=3)

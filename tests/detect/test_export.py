"""A detector as a module and as files for other runtimes, which answer as it does."""

import copy
import logging
import logging.handlers

import numpy as np
import pytest
import torch
from torch import nn

import wildood
from wildood.detect import export
from wildood.models.resnet import ResNet20
from wildood.models.small import MLP, SmallCNN
from wildood.models.wide_resnet import WideResNet
from wildood.scores.shipped import POSTHOC

onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 6)).astype(np.float32)
Y = RNG.integers(0, 3, 300)
SETTINGS = {wildood.Mahalanobis: {"epsilon": 0.0}, wildood.Knn: {"k": 5}, wildood.NnGuide: {"k": 5}}  # of few examples
SCORES = [*(cls(**SETTINGS.get(cls, {})) for cls in POSTHOC if cls is not wildood.Odin), wildood.Ash(variant="s")]


@pytest.fixture(scope="module")
def vectors():
    torch.manual_seed(0)
    return MLP(6, 3)


def answers_of(path, x, named=False):
    """What the file at a path says of examples."""
    if path.suffix == ".pt2":
        module = torch.export.load(path).module()
        found = module({name: torch.from_numpy(part) for name, part in x.items()} if named else torch.from_numpy(x))
        return [each.numpy() for each in found]
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return session.run(["class", "score", "known", "p_value"], x if named else {session.get_inputs()[0].name: x})


def check(detector, path, x, named=False):
    classes, scores, known, p_values = answers_of(path, x, named)
    expected = detector.score(x)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4 * max(1, expected.std()))
    assert np.mean(classes == detector.predict(x)) > 0.99  # a score may lie on the threshold
    assert np.array_equal(known, classes != wildood.UNKNOWN)
    np.testing.assert_allclose(p_values, detector.p_value(x), atol=0.02)


@pytest.mark.parametrize("score", SCORES, ids=lambda score: type(score).__name__)
@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_files_answer_as_the_detector_does_for_batches_of_any_size(vectors, score, suffix, tmp_path):
    detector = wildood.posthoc(vectors, score, labelled=(X[:200], Y[:200]), holdout=(X[200:], Y[200:]))
    path = detector.export(tmp_path / f"model{suffix}", examples=X[:50])
    for count in (1, 2, 77):
        check(detector, path, 2 * RNG.normal(size=(count, 6)).astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
@pytest.mark.parametrize("network", [lambda: ResNet20(4), lambda: WideResNet(depth=10, classes=4), lambda: SmallCNN(4)])
def test_image_models_take_raw_pixels(network, suffix, tmp_path):
    model = network().eval()
    channels = next(module for module in model.modules() if isinstance(module, nn.Conv2d)).in_channels
    side = 8 if isinstance(model, SmallCNN) else 32
    images = RNG.integers(0, 256, (60, side, side, channels), dtype=np.uint8)
    spec = wildood.InputSpec(mean=(0.5,) * channels, std=(0.25,) * channels)
    detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=images, input=spec)
    check(detector, detector.export(tmp_path / f"model{suffix}", examples=images[:4]), images[:9])


class Texts(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.last = nn.Embedding(50, 16), nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(-1)
        return self.last((self.embedding(input_ids) * mask).sum(1) / mask.sum(1))


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_models_of_named_inputs_keep_the_names(suffix, tmp_path):
    x = {"input_ids": RNG.integers(0, 50, (100, 8)), "attention_mask": np.ones((100, 8), np.float32)}
    detector = wildood.posthoc(Texts(), wildood.EnergyScore(), holdout=x)
    check(
        detector,
        detector.export(tmp_path / f"model{suffix}", examples=x),
        {name: part[:7] for name, part in x.items()},
        True,
    )


def test_a_trained_head_and_thresholds_by_class_are_inside(vectors, tmp_path):
    wild = np.concatenate([X, 5 + X[:60]])
    detector = wildood.fit(
        vectors, (X, Y), wild, (RNG.normal(size=(300, 6)).astype(np.float32), RNG.integers(0, 3, 300)),
        method=wildood.WoodsAlt(), schedule=wildood.Schedule(steps=5, batch=32), keep="last", verbose=False,
    )  # fmt: skip
    check(detector, detector.export(tmp_path / "model.pt2"), wild)
    by_class = wildood.posthoc(vectors, wildood.MaxLogit(), holdout=(X, Y), by_class=True, alpha=0.3)
    check(by_class, by_class.export(tmp_path / "model.onnx"), wild)


def test_the_module_is_in_evaluation_mode(vectors):
    detector = wildood.posthoc(nn.Sequential(vectors, nn.Dropout()), wildood.EnergyScore(), holdout=X)
    module = detector.to_module()
    assert not any(each.training for each in module.modules())


def test_what_torch_says_of_operators_that_are_not_installed_is_not_shown(vectors, tmp_path):
    lines = logging.handlers.BufferingHandler(1000)
    logger = logging.getLogger("torch.onnx")
    logger.addHandler(lines)
    wildood.posthoc(vectors, wildood.EnergyScore(), holdout=X).export(tmp_path / "model.onnx")
    logger.warning("after")
    logger.removeHandler(lines)
    assert [record.getMessage() for record in lines.buffer] == ["after"]


@pytest.mark.parametrize(
    ("dtype", "advice"), [(torch.float32, ""), (torch.float16, ": give a detector of a model in float32")]
)
def test_a_file_that_scores_otherwise_is_refused(vectors, dtype, advice):
    module = wildood.posthoc(copy.deepcopy(vectors).to(dtype), wildood.EnergyScore(), holdout=X).to_module()
    with torch.no_grad():
        classes, scores, known, p_values = module(torch.from_numpy(X))
    with pytest.raises(wildood.InputError, match=f"the exported file scores otherwise, by up to 0.5{advice}$"):
        export._check(module, torch.from_numpy(X), (classes, scores + 0.5, known, p_values))


def test_what_cannot_be_exported_is_refused_with_what_to_do(vectors, tmp_path):
    odin = wildood.posthoc(vectors, wildood.Odin(epsilon=0.01), holdout=(X, Y))
    with pytest.raises(wildood.InputError, match=r"Odin takes a gradient step .* give Odin\(epsilon=0\), or another score"):
        odin.export(tmp_path / "model.pt2")
    energy = wildood.posthoc(vectors, wildood.EnergyScore(), holdout=(X, Y))
    with pytest.raises(wildood.InputError, match=r"has the suffix '\.txt': give a name that ends with \.pt2 or \.onnx"):
        energy.export(tmp_path / "model.txt")
    with pytest.raises(wildood.InputError, match="examples has 1 example: give at least two"):
        energy.export(tmp_path / "model.pt2", examples=X[:1])

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return self.layer(x) if float(x.sum()) > 0 else -self.layer(x)

    branching = wildood.posthoc(Branching(), wildood.EnergyScore(), holdout=(X, Y))
    with pytest.raises(wildood.InputError, match=r"torch\.export cannot follow this detector: "):
        branching.export(tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())

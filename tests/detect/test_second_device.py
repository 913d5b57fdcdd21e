"""Training on a device that is not the CPU, without one: tensors that say they are there, and do not meet the CPU's."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import wildood
from wildood.data import sources
from wildood.models.small import MLP, SmallCNN
from wildood.scores.shipped import POSTHOC

THERE = torch.device("meta")  # the one that autograd knows everywhere, for tensors whose numbers are the subclass's business
INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default}
MOVING = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


class There(Tensor):
    """A tensor on the pretended device; its numbers are in a tensor on the CPU."""

    is_meta = False  # it has numbers
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        return Tensor._make_wrapper_subclass(cls, inner.size(), **layout, dtype=inner.dtype, device=THERE)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return computed(operation, args, kwargs or {})


def computed(operation, args, kwargs):
    """The operation on the CPU; refused where a real device would not find the numbers."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    away = [tensor for tensor in tensors if isinstance(tensor, There)]
    here = [
        tensor for tensor in tensors if not isinstance(tensor, There) and tensor.ndim > 0
    ]  # numbers may come from the CPU
    into_here = operation._schema.is_mutable and isinstance(args[0], Tensor) and not isinstance(args[0], There)
    indexed = operation in INDEXING and isinstance(args[0], There)
    if operation not in MOVING and away and (into_here or (here and not indexed)):
        raise RuntimeError(
            f"{operation} expects all tensors on one device, but {len(here)} of {len(tensors)} are on the CPU"
        )
    device = kwargs.get("device")
    inner = {name: torch.device("cpu") if name == "device" and value else value for name, value in kwargs.items()}
    result = operation(*tree_map(_inner, args), **tree_map(_inner, inner))
    if not operation._schema.returns:
        return None
    is_there = bool(away) if device is None else torch.device(device) == THERE
    same = {id(_inner(tensor)): tensor for tensor in tensors}  # what an operation in place returns

    def placed(value):
        if not isinstance(value, Tensor):
            return value
        return same.get(id(value)) if id(value) in same else There(value) if is_there else value

    return tree_map(placed, result)


def _inner(value):
    return value.inner if isinstance(value, There) else value


class Placing(TorchDispatchMode):
    """New tensors are where their `device` says."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        device = (kwargs or {}).get("device")
        if any(issubclass(kind, There) for kind in types) or (device is not None and torch.device(device) == THERE):
            return computed(operation, args, kwargs or {})
        return operation(*args, **(kwargs or {}))


class Making(TorchFunctionMode):
    """torch.tensor(..., device=...) makes its tensor without an operation that `Placing` could see."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.tensor and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return function(*args, **kwargs).to(device)
        return function(*args, **kwargs)


AUTOCAST = torch.autocast


@pytest.fixture
def there(monkeypatch):
    """A function that takes a model, an array or a tensor to the pretended device."""
    monkeypatch.setattr(sources, "_ITEM_ACCESS", {"__getitem__"})  # or `There` is refused as a subclass
    monkeypatch.setattr(
        torch, "autocast", lambda kind, *args, **kw: AUTOCAST("cpu" if kind == "meta" else kind, *args, **kw)
    )
    torch.__future__.set_overwrite_module_params_on_conversion(True)

    def moved(value):
        if isinstance(value, tuple):
            return tuple(map(moved, value))
        return (torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else copy.deepcopy(value)).to(THERE)

    with Making(), Placing():
        yield moved
    torch.__future__.set_overwrite_module_params_on_conversion(False)


pytestmark = pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")  # which is copied


def test_the_pretended_device_does_not_meet_the_cpu(there):
    x, here = there(np.ones((2, 3), np.float32)), torch.ones(2, 3)
    assert (x + torch.tensor(1.0)).cpu().tolist() == [[2.0] * 3] * 2
    assert x[torch.tensor([1])].device == THERE
    assert float(x.sum()) == 6.0
    for mix in (
        lambda: x + here,
        lambda: here + x.sum(),
        lambda: here.add_(x),
        lambda: torch.zeros(()).add_(x.sum()),
        lambda: torch.cat([x, here]),
        lambda: here[x[:, 0].long()],
        lambda: nn.Linear(3, 2)(x),
        x.numpy,
        lambda: np.asarray(x),
    ):
        with pytest.raises((RuntimeError, TypeError)):
            mix()


SHORT = wildood.Schedule(steps=6, batch=32, lr=0.01)
RECIPES = {
    "woods": {},
    "woods-alt": {"method": wildood.WoodsAlt()},
    "outlier-exposure": {"method": wildood.OutlierExposure()},
    "energy-margin": {"method": wildood.EnergyMargin()},
    "energy-logistic": {"method": wildood.EnergyLogistic()},
    "godin": {"method": wildood.Godin(), "keep": "best"},
    "as-published": {"method": wildood.Woods.as_published()},
    "epochs": {"schedule": wildood.Schedule(epochs=2, batch=32, duals="epoch")},
    "best": {"keep": "best"},
    "frozen": {"frozen": True},
    "fresh": {"fresh": "with classes"},
    "fresh-alone": {"fresh": "alone"},
    "by-class": {"by_class": True, "alpha": 0.2},
}


def answers(detector, x):
    return detector.score(x), detector.predict(x), detector.p_value(x), detector.predict_proba(x)


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("data_there", [False, True], ids=["arrays", "tensors-there"])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_fit_gives_the_bits_that_it_gives_on_the_cpu(toy, trained, there, tmp_path, recipe, data_there):
    model = trained()
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.1), model).eval()
    settings = {"schedule": SHORT, "keep": "last", "verbose": False, **recipe}
    data = {"labelled": toy.labelled, "wild": toy.wild, "holdout": toy.holdout}
    if "fresh" in recipe:
        data["fresh"] = toy.test if settings.pop("fresh") == "with classes" else toy.test[0]
    expected = wildood.fit(model, **data, **settings)
    data = {name: there(value) for name, value in data.items()} if data_there else data
    detector = wildood.fit(there(model), **data, **settings, run_dir=tmp_path / "run")
    again = wildood.fit(there(model), **data, **settings, run_dir=tmp_path / "run")
    assert {tensor.device for tensor in detector.classifier.state_dict().values()} == {THERE}
    loaded = wildood.load(detector.save(tmp_path / "detector"), model=copy.deepcopy(model))
    assert detector.threshold == expected.threshold
    for each in (detector, again, loaded):
        assert_same(answers(each, toy.unknown), answers(expected, toy.unknown))


SETTINGS = {
    wildood.Odin: {"epsilon": 0.01},
    wildood.Mahalanobis: {"epsilon": 0.01},
    wildood.Knn: {"k": 5},
    wildood.NnGuide: {"k": 5},
}
SCORES = [
    *(cls(**SETTINGS.get(cls, {})) for cls in POSTHOC if cls is not wildood.Ensemble),  # torch's quantile leaves THERE
    wildood.Ash(variant="s"),
]


@pytest.mark.parametrize("score", SCORES, ids=lambda score: type(score).__name__)
def test_a_score_gives_the_bits_that_it_gives_on_the_cpu(toy, trained, there, score):
    data = {"labelled": toy.labelled, "holdout": toy.holdout}
    expected = wildood.posthoc(trained(), score, **data)
    detector = wildood.posthoc(there(trained()), score, **{name: there(value) for name, value in data.items()})
    assert_same(answers(detector, toy.unknown), answers(expected, toy.unknown))


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [wildood.Woods(), wildood.Csi(head_epochs=1)],
    ids=["woods", "csi"],
)
def test_images_that_are_flipped_and_cropped(there, method):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (360, 8, 8, 3), dtype=np.uint8), rng.integers(0, 3, 360)
    torch.manual_seed(0)
    model, spec = SmallCNN(3, channels=3, width=4, hidden=8), wildood.InputSpec(mean=(0.5,) * 3, std=(0.25,) * 3)
    schedule = wildood.Schedule(steps=3, batch=16, lr=0.01, augment=method.uses_wild)
    data = {"labelled": (images[:160], labels[:160]), "holdout": (images[240:], labels[240:])}
    data |= {"wild": images[160:240]} if method.uses_wild else {}
    settings = {"method": method, "schedule": schedule, "input": spec, "keep": "last", "verbose": False}
    expected = wildood.fit(model, **data, **settings)
    detector = wildood.fit(there(model), **data, **settings)
    assert_same(answers(detector, images[:20]), answers(expected, images[:20]))


def test_pretraining(toy, there):
    torch.manual_seed(0)
    model, schedule = MLP(2, 3, hidden=(8,)), wildood.Schedule(steps=10, batch=32)
    expected = wildood.pretrain(model, toy.labelled, toy.holdout, schedule=schedule, verbose=False).state_dict()
    found = wildood.pretrain(there(model), there(toy.labelled), toy.holdout, schedule=schedule, verbose=False).state_dict()
    assert all(torch.equal(value.cpu(), expected[name]) for name, value in found.items())


def test_a_device_is_named_to_pretrain(toy):
    schedule = wildood.Schedule(steps=1, batch=32)
    for device in ("cpu", "auto"):
        model = wildood.pretrain(MLP(2, 3), toy.labelled, schedule=schedule, device=device, verbose=False)
        assert next(model.parameters()).device.type == ("cuda" if device == "auto" and torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("score", [wildood.EnergyScore(), wildood.Ensemble()], ids=lambda score: type(score).__name__)
def test_a_detector_is_moved_with_all_that_its_score_has_fitted(toy, trained, there, score, monkeypatch):
    monkeypatch.setattr("wildood.detect.detector.chosen_device", torch.device)  # which refuses "meta"
    detector = wildood.posthoc(trained(), score, labelled=toy.labelled, holdout=toy.holdout)
    expected = answers(detector, toy.unknown)
    assert detector.to(THERE) is detector
    tensors = [*detector.classifier.state_dict().values(), *detector.scorer.state_dict().values()]
    assert {tensor.device for tensor in tensors} == {THERE}
    assert_same(answers(detector, toy.unknown), expected)

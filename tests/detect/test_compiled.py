"""A model that torch.compile has wrapped is trained, scored and stored as the module inside it."""

import copy
import json
import logging

import numpy as np
import pytest
import torch
from torch import nn

import wildood
from wildood.data.files import digest, dump_tensors, load_tensors


def whole(model):
    return torch.compile(model, backend="eager")


def in_parts(model):
    """Two layers are compiled, one of them inside a block that is compiled, too."""
    model.body[0] = torch.compile(model.body[0], backend="eager")
    model.body = torch.compile(model.body, backend="eager")
    return model


def in_place(model):
    model.compile(backend="eager")
    return model


WAYS = {"whole": whole, "in parts": in_parts, "in place": in_place}
EVERY = pytest.mark.parametrize("way", WAYS)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 8), nn.ReLU())
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.body(x))


@pytest.fixture(scope="module")
def plain(toy):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return wildood.pretrain(Own(), toy.labelled, schedule=wildood.Schedule(epochs=20, batch=32, lr=0.1), verbose=False)


def fitted(model, toy, **settings):
    schedule = wildood.Schedule(steps=10, batch=32)
    return wildood.fit(model, toy.labelled, toy.wild, toy.holdout, schedule=schedule, keep="last", verbose=False, **settings)


@EVERY
def test_it_is_trained_like_the_plain_model_and_stays_as_it_was(way, plain, toy, caplog):
    model = WAYS[way](copy.deepcopy(plain))
    before = copy.deepcopy(model.state_dict())
    with caplog.at_level(logging.INFO, logger="wildood"):
        detector, expected = fitted(model, toy), fitted(plain, toy)
    assert np.array_equal(detector.score(toy.wild), expected.score(toy.wild))
    assert list(detector.classifier.model.state_dict()) == list(plain.state_dict())
    assert detector.record["model"] == expected.record["model"]
    assert "it may catch less" not in caplog.text
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@EVERY
def test_its_detector_loads_into_the_plain_model_and_that_of_the_plain_model_into_it(way, plain, toy, tmp_path):
    compiled = WAYS[way](copy.deepcopy(plain))
    for made_with, loaded_with in ((compiled, plain), (plain, compiled), (compiled, compiled)):
        detector = wildood.posthoc(made_with, wildood.EnergyScore(), holdout=toy.holdout)
        again = wildood.load(detector.save(tmp_path), model=loaded_with)
        assert np.array_equal(again.score(toy.test[0]), detector.score(toy.test[0]))
    built = wildood.load(tmp_path, model=lambda: WAYS[way](Own()))
    assert np.array_equal(built.score(toy.test[0]), detector.score(toy.test[0]))


def test_features_may_be_named_as_the_compiled_model_names_them(plain, toy):
    compiled = whole(copy.deepcopy(plain))
    names = [name for name, _ in compiled.named_modules() if name.endswith("body")]
    assert names == ["_orig_mod.body"]
    found = [fitted(compiled, toy, method=wildood.WoodsAlt(), features=name).score(toy.wild) for name in ("body", *names)]
    assert np.array_equal(*found)


def test_an_older_file_with_the_names_of_the_wrapper_still_loads(plain, toy, tmp_path):
    detector = wildood.posthoc(plain, wildood.ReAct(), labelled=toy.labelled, holdout=toy.holdout)
    directory = detector.save(tmp_path / "old")
    content = json.loads((directory / "detector.json").read_text())
    (file,) = directory.glob("*.safetensors")
    tensors = {
        name.replace("model.", "model._orig_mod.", 1): tensor for name, tensor in load_tensors(file.read_bytes()).items()
    }
    file.unlink()
    content["weights"] = digest(dump_tensors(tensors))
    content["tap"]["layer"] = f"_orig_mod.{content['tap']['layer']}"
    del content["digest"]
    content["digest"] = digest(json.dumps(content, sort_keys=True).encode())
    (directory / f"weights-{content['weights'][:16]}.safetensors").write_bytes(dump_tensors(tensors))
    (directory / "detector.json").write_text(json.dumps(content))
    for model in (plain, whole(copy.deepcopy(plain))):
        assert np.array_equal(wildood.load(directory, model=model).score(toy.wild), detector.score(toy.wild))

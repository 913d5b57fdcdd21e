"""A detector on disk comes back bit by bit, or is refused with what to do about it."""

import copy
import json
import math
import multiprocessing
import os
import pickle
import re
import shutil
import signal
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import wildood
from wildood import DetectorFileError, InputError
from wildood.cli.main import main
from wildood.data.files import digest, dump_tensors, load_tensors
from wildood.detect import storage
from wildood.detect.detector import Detector, Example
from wildood.models.classifier import Classifier
from wildood.models.features import FeatureTap
from wildood.models.heads import DeConfHead, JointHead
from wildood.models.resnet import ResNet20
from wildood.models.small import MLP, SmallCNN
from wildood.models.wide_resnet import WideResNet
from wildood.scores.head import HeadScore
from wildood.scores.max_softmax import MaxSoftmax


class Own(nn.Module):
    """A user's model: not one that ships with wildood."""

    def __init__(self, hidden=6, classes=3):
        super().__init__()
        self.body = nn.Linear(2, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.norm(self.body(x)).relu())


@pytest.fixture(scope="module")
def own(toy, schedule):
    """WOODS-alt on a user's model, with the features of a named submodule: everything that can be stored is there."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Own()
    method = wildood.WoodsAlt(alpha=0.1)
    return wildood.fit(
        model,
        toy.labelled,
        toy.wild,
        toy.holdout,
        method=method,
        schedule=schedule,
        features="norm",
        keep="last",
        verbose=False,
    )


@pytest.fixture
def saved(woods, tmp_path):
    return woods.save(tmp_path / "out")


def weights(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_equal_weights(module, expected):
    found = module.state_dict()
    assert list(found) == list(expected)
    for name, value in found.items():
        assert value.dtype == expected[name].dtype
        assert torch.equal(value, expected[name]), name


def assert_same_detector(again, detector, x):
    for say in ("score", "predict", "predict_proba", "classify"):
        assert np.array_equal(getattr(again, say)(x), getattr(detector, say)(x)), say
    for part in ("threshold", "promise", "history", "example"):
        assert getattr(again, part) == getattr(detector, part), part
    assert again.classifier.spec == detector.classifier.spec
    assert again.classifier.tap == detector.classifier.tap
    assert type(again.scorer) is type(detector.scorer)
    assert_equal_weights(again.classifier.model, detector.classifier.model.state_dict())
    assert_equal_weights(again.scorer, detector.scorer.state_dict())


def forge(directory, change, tensors=None):
    """Change what detector.json says, and the tensors, with checksums that agree: what no accident leads to."""
    content = change(json.loads((directory / "detector.json").read_bytes()))
    if tensors is not None:
        old = the_file(directory, "weights-*.safetensors")
        new = dump_tensors(tensors(load_tensors(old.read_bytes())))
        old.unlink()
        content |= {"weights": digest(new)}
        (directory / f"weights-{content['weights'][:16]}.safetensors").write_bytes(new)
    content = {name: value for name, value in content.items() if name != "digest"}
    (directory / "detector.json").write_text(json.dumps({"digest": storage._digest(content), **content}))


def refused(directory, message, **arguments):
    with pytest.raises(DetectorFileError, match=message) as caught:
        wildood.load(directory, **arguments)
    return str(caught.value)


@pytest.mark.parametrize("method", ["woods", "woods-alt"])
def test_fitted_detector_comes_back_bit_by_bit(fits, method, toy, tmp_path):
    again = wildood.load(fits[method].save(tmp_path))
    assert_same_detector(again, fits[method], np.concatenate([toy.test[0], toy.unknown]))
    assert not again.classifier.model.training
    assert not again.scorer.training


@pytest.mark.parametrize("method", ["woods", "woods-alt"])
def test_history_and_record_come_back_as_json_has_them(fits, method, tmp_path):
    detector = fits[method]
    again = wildood.load(detector.save(tmp_path))
    assert len(again.history) > 1
    assert json.dumps(again.record) == json.dumps(detector.record)
    assert again.record["versions"]["torch"] == torch.__version__


def test_record_comes_back_equal(woods, tmp_path):
    assert wildood.load(woods.save(tmp_path)).record == woods.record


def test_head_of_woods_alt_is_stored_with_its_weights_and_its_tap(woods_alt, toy, tmp_path):
    again = wildood.load(woods_alt.save(tmp_path))
    model, features = again.classifier.model, None
    with torch.no_grad():
        features = model.body(torch.tensor(toy.test[0]))
        energy = -model.head(features).logsumexp(1)
        by_hand = (again.scorer.head.layers(features)[:, 0] + again.scorer.slope * energy + again.scorer.bias).numpy()
    assert again.scorer.slope > 0
    assert vars(again.classifier.tap) == {"layer": "head", "side": "input"}
    np.testing.assert_allclose(again.score(toy.test[0]), by_hand, atol=1e-5)


@pytest.mark.parametrize("head", [DeConfHead(features=5, classes=3), JointHead(features=5, classes=3)])
def test_heads_are_stored_by_their_name(head, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))
    classifier = Classifier(model, wildood.InputSpec(mean=(0.5,), std=(0.5,)), FeatureTap("3", "input")).eval()
    classifier.head = head.eval()
    detector = Detector(classifier, MaxSoftmax(), Example((4, 4, 1), "uint8"))
    again = wildood.load(detector.save(tmp_path), model=model)
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 1)).astype(np.uint8)
    assert type(again.classifier.head) is type(head)
    np.testing.assert_array_equal(again.score(images), detector.score(images))
    np.testing.assert_array_equal(again.predict_proba(images), detector.predict_proba(images))


@pytest.mark.parametrize(
    ("name", "said"), [(None, None), ("Jointhead", "head.name is 'Jointhead', which this wildood does")]
)
def test_a_head_without_a_name_is_the_one_that_had_none_and_an_unknown_one_is_refused(tmp_path, name, said):
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    classifier = Classifier(model, tap=FeatureTap("2", "input")).eval()
    classifier.head = DeConfHead(features=5, classes=3).eval()
    Detector(classifier, MaxSoftmax(), Example((4,), "float")).save(tmp_path)
    head = {"features": 5, "classes": 3}
    forge(tmp_path, lambda content: content | {"head": head if name is None else {**head, "name": name}})
    if said is None:
        assert isinstance(wildood.load(tmp_path, model=model).classifier.head, DeConfHead)
    else:
        with pytest.raises(DetectorFileError, match=said):
            wildood.load(tmp_path, model=model)


def test_settings_of_a_score_are_stored(toy, tmp_path):
    classifier = Classifier(MLP(2, 3, hidden=(5,)), tap=FeatureTap("head", "input"))
    detector = Detector(
        classifier, HeadScore(features=5, hidden=7, slope=0.5, bias=2.0), Example((2,), "float"), threshold=0.0
    )
    again = wildood.load(detector.save(tmp_path))
    assert again.scorer.settings == {"features": 5, "hidden": 7, "slope": 0.5, "bias": 2.0}
    assert_same_detector(again, detector, toy.test[0])


SHIPPED = {
    "WideResNet": (lambda: WideResNet(4, depth=10, widen=1, dropout=0.1), (16, 16, 3)),
    "ResNet20": (lambda: ResNet20(4), (16, 16, 3)),
    "SmallCNN": (lambda: SmallCNN(4, width=3, hidden=9), (8, 8, 1)),
    "MLP": (lambda: MLP(64, 4, hidden=(5, 6)), (8, 8, 1)),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_models_are_rebuilt_without_being_passed(name, tmp_path):
    build, shape = SHIPPED[name]
    images = np.random.default_rng(0).integers(0, 256, size=(40, *shape), dtype=np.uint8)
    channels = shape[-1]
    spec = wildood.InputSpec(mean=(0.1, 0.2, 1 / 3)[:channels], std=(0.3, 0.2, 0.1)[:channels])
    model = build()
    model.train()(spec(torch.from_numpy(images)))  # so that BatchNorm has something to remember
    detector = wildood.posthoc(model, wildood.MaxSoftmax(), holdout=images, input=spec)
    again = wildood.load(detector.save(tmp_path))
    assert type(again.classifier.model) is type(model)
    assert again.classifier.model.settings == model.settings
    assert_same_detector(again, detector, images)


@pytest.mark.parametrize("how", ["module", "function", "class"])
def test_own_model_is_passed_as_module_or_function(own, how, toy, tmp_path):
    passed = {"module": Own(), "function": lambda: Own(hidden=6), "class": Own}[how]
    assert_same_detector(wildood.load(own.save(tmp_path), model=passed), own, toy.test[0])


def test_the_passed_module_is_never_changed(own, toy, tmp_path):
    passed = Own().train()
    passed.norm.eval()
    before, hooks = weights(passed), len(passed.norm._forward_hooks)
    again = wildood.load(own.save(tmp_path), model=passed)
    again.score(toy.test[0])
    again.classifier.model.head.weight.data.zero_()
    assert_equal_weights(passed, before)
    assert (passed.training, passed.norm.training, passed.head.training) == (True, False, True)
    assert len(passed.norm._forward_hooks) == hooks


def test_a_shipped_model_may_be_passed_all_the_same(woods, toy, tmp_path):
    again = wildood.load(woods.save(tmp_path), model=lambda: MLP(2, 3, hidden=(16,)))
    assert_same_detector(again, woods, toy.test[0])


def test_loaded_detector_can_be_calibrated_and_saved_again(woods, toy, tmp_path):
    again = wildood.load(woods.save(tmp_path / "first")).calibrate(toy.test, 0.2)
    third = wildood.load(again.save(tmp_path / "second"))
    assert third.promise == again.promise
    assert third.threshold == again.threshold != woods.threshold
    assert np.array_equal(third.score(toy.test[0]), woods.score(toy.test[0]))


def test_save_replaces_an_older_detector(fits, toy, tmp_path):
    fits["woods"].save(tmp_path)
    fits["woods-alt"].save(str(tmp_path))
    assert_same_detector(wildood.load(str(tmp_path)), fits["woods-alt"], toy.test[0])


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), 0.1, 1 / 3, 5e-324, -1e300])
def test_any_threshold_comes_back_exactly(threshold, tmp_path):
    detector = Detector(Classifier(MLP(2, 3)), wildood.EnergyScore(), Example((2,), "float"), threshold=threshold)
    again = wildood.load(detector.save(tmp_path))
    assert np.array_equal(again.threshold, threshold, equal_nan=True)
    assert again.promise is None


def the_file(directory, pattern):
    """The one file that matches: the weights carry their checksum in their name."""
    (path,) = directory.glob(pattern)
    return path


def test_spec_and_images_come_back(image_detector, images, tmp_path):
    assert_same_detector(wildood.load(image_detector.save(tmp_path)), image_detector, images)


def test_three_files_and_no_pickle(own, monkeypatch, tmp_path):
    def no_pickle(*_, **__):
        raise AssertionError("pickle")

    for module, names in ((pickle, ("dump", "dumps", "load", "loads")), (torch, ("save", "load"))):
        for name in names:
            monkeypatch.setattr(module, name, no_pickle)
    wildood.load(own.save(tmp_path), model=Own)
    assert len(list(tmp_path.iterdir())) == 3
    assert json.loads((tmp_path / "detector.json").read_text())["format"] == 1
    with safe_open(the_file(tmp_path, "weights-*.safetensors"), framework="pt") as file:
        assert len(file.keys()) > 0


def test_save_returns_the_directory_it_made(woods, tmp_path):
    assert woods.save(tmp_path / "a" / "b") == tmp_path / "a" / "b"


@pytest.mark.parametrize("failing_at", [1, 2, 3])
def test_interrupted_save_leaves_the_older_detector(fits, toy, failing_at, monkeypatch, tmp_path):
    fits["woods"].save(tmp_path)
    syncs, fsync = [], os.fsync

    def fail(number):
        syncs.append(number)
        if len(syncs) == failing_at:
            raise OSError(28, "No space left on device")
        fsync(number)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        fits["woods-alt"].save(tmp_path)
    monkeypatch.undo()
    assert_same_detector(wildood.load(tmp_path), fits["woods"], toy.test[0])


def save_and_be_killed(detector, place, number):
    """In another process, at the moment when so many files are on the disk, but the last has not yet its name."""

    def save():
        fsync, syncs = os.fsync, []

        def kill(file):
            fsync(file)
            syncs.append(file)
            if len(syncs) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        os.fsync = kill
        detector.save(place)

    process = multiprocessing.get_context("fork").Process(target=save)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_save_that_is_killed_leaves_the_older_detector_and_the_next_one_leaves_nothing_else(fits, toy, number, tmp_path):
    fits["woods"].save(tmp_path / "killed")
    fits["woods-alt"].save(tmp_path / "whole")
    save_and_be_killed(fits["woods-alt"], tmp_path / "killed", number)
    assert len(list((tmp_path / "killed").glob(".*.part"))) == number
    assert_same_detector(wildood.load(tmp_path / "killed"), fits["woods"], toy.test[0])
    fits["woods-alt"].save(tmp_path / "killed")
    found, expected = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("killed", "whole")
    )
    assert found == expected


def test_missing_directory_is_refused(tmp_path):
    refused(tmp_path / "nowhere", r"nowhere/detector\.json cannot be read \(No such file .*: give that of a saved detector")


def test_a_training_that_has_not_ended_is_told(toy, trained, schedule, tmp_path):
    wildood.fit(trained(), toy.labelled, toy.wild, schedule=schedule, run_dir=tmp_path / "run", verbose=False)
    refused(tmp_path, r"detector\.json is not there yet: call fit again with the same options, and the training goes on")


def test_a_file_in_the_place_of_the_directory_is_refused(saved):
    refused(saved / "detector.json", r"cannot be read \(Not a directory\): give that of a saved detector")


@pytest.mark.parametrize(
    ("name", "message"),
    [("detector.json", r"give that of a saved detector"), ("weights-*.safetensors", "save the detector again")],
)
def test_missing_file_is_refused(saved, name, message):
    path = the_file(saved, name)
    path.unlink()
    refused(saved, rf"{path.name} cannot be read \(No such file or directory\): {message}")


@pytest.mark.parametrize("name", ["detector.json", "weights-*.safetensors"])
def test_truncated_file_is_refused(saved, name):
    path = the_file(saved, name)
    content = path.read_bytes()
    for length in (*range(0, len(content), max(1, len(content) // 60)), len(content) - 1):
        path.write_bytes(content[:length])
        assert "save the detector again" in refused(saved, path.name), length


@pytest.mark.parametrize("name", ["detector.json", "weights-*.safetensors"])
@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80, 0xFF])
def test_flipped_byte_is_refused(image_detector, tmp_path, name, flip):
    path = the_file(image_detector.save(tmp_path), name)
    content = bytearray(path.read_bytes())
    for position in range(0, len(content), max(1, len(content) // 150)):
        content[position] ^= flip
        path.write_bytes(content)
        with pytest.raises(DetectorFileError, match=r"save the detector again|use the wildood that wrote it"):
            wildood.load(tmp_path)
        content[position] ^= flip


def test_flipped_byte_of_a_fitted_detector_is_refused(saved):
    for name in ("detector.json", "weights-*.safetensors"):
        path = the_file(saved, name)
        content = bytearray(path.read_bytes())
        for position in range(0, len(content), max(1, len(content) // 120)):
            content[position] ^= 0x80
            path.write_bytes(content)
            refused(saved, "save the detector again")
            content[position] ^= 0x80
        path.write_bytes(content)
    wildood.load(saved)


EDITS = {
    "threshold": lambda content: content | {"threshold": (0.0).hex()},
    "promise": lambda content: content | {"promise": content["promise"] | {"alpha": 0.001}},
    "unseen": lambda content: content | {"promise": content["promise"] | {"unseen": False}},
    "score": lambda content: content | {"score": {"name": "MaxSoftmax", "settings": {}}},
    "history": lambda content: content | {"history": content["history"][:-1]},
    "input": lambda content: content | {"input": wildood.InputSpec().to_dict()},
    "format": lambda content: content | {"format": 2},
    "one more key": lambda content: content | {"comment": "mine"},
    "one less key": lambda content: {key: value for key, value in content.items() if key != "record"},
}


@pytest.mark.parametrize("edit", EDITS)
def test_json_edited_by_hand_is_refused(saved, edit):
    path = saved / "detector.json"
    path.write_text(json.dumps(EDITS[edit](json.loads(path.read_text()))))
    refused(
        saved, r"detector\.json (was changed after it was written: save the detector again|.*use the wildood that wrote it)"
    )


@pytest.mark.parametrize("text", ["", "null", "[]", "3", '"text"', "{}", '{"digest": 1}', "not json", "\xff"])
def test_json_of_something_else_is_refused(saved, text):
    (saved / "detector.json").write_bytes(text.encode("latin-1"))
    refused(saved, r"detector\.json (is damaged or not a wildood detector|was changed).*save the detector again")


def test_format_of_a_later_version_is_refused(saved, monkeypatch, woods):
    monkeypatch.setattr(storage, "FORMAT", 2)
    woods.save(saved)
    monkeypatch.undo()
    refused(saved, r"has format 2, this wildood reads format 1: use the wildood that wrote it")


def test_weights_of_another_save_are_refused(woods, trained, toy, tmp_path):
    other = wildood.posthoc(trained(), wildood.EnergyScore(), holdout=toy.holdout)
    woods.save(tmp_path / "a")
    other.save(tmp_path / "b")
    shutil.copy(the_file(tmp_path / "b", "weights-*.safetensors"), the_file(tmp_path / "a", "weights-*.safetensors"))
    refused(
        tmp_path / "a", r"weights-\w+\.safetensors is not the file that detector\.json belongs to: save the detector again"
    )


@pytest.mark.parametrize(
    "passed",
    [Own(hidden=7), Own(classes=4), MLP(2, 3), nn.Linear(2, 3), lambda: Own(hidden=5), MLP(2, 3, hidden=(4,) * 50)],
    ids=["wider", "more classes", "MLP", "Linear", "function", "deep"],
)
def test_wrong_architecture_is_refused(own, passed, tmp_path):
    before = weights(passed) if isinstance(passed, nn.Module) else {}
    message = refused(own.save(tmp_path), "do not fit the model that was passed", model=passed)
    assert message.endswith("pass the architecture it was made with")
    assert len(message) < 600
    if before:
        assert_equal_weights(passed, before)


def test_model_without_the_layer_that_gives_the_features_is_refused(toy, schedule, tmp_path):
    """A layer without weights: the names and shapes of all weights agree."""
    with_pooling = nn.Sequential(OrderedDict(pool=nn.Identity(), head=nn.Linear(2, 3)))
    without = nn.Sequential(OrderedDict(head=nn.Linear(2, 3)))
    detector = wildood.fit(
        with_pooling,
        toy.labelled,
        toy.wild,
        toy.holdout,
        method=wildood.WoodsAlt(),
        features="pool",
        keep="last",
        schedule=schedule,
        verbose=False,
    )
    refused(detector.save(tmp_path), "pass the architecture it was made with", model=without)


def test_own_model_that_is_not_passed_is_asked_for(own, tmp_path):
    refused(own.save(tmp_path), r"a model of your own \(.*Own\): give it again, with model= in Python or --model")


def test_subclass_of_a_shipped_model_is_the_users_own(toy, tmp_path):
    class Larger(MLP):
        pass

    detector = wildood.posthoc(Larger(2, 3), wildood.EnergyScore(), holdout=toy.holdout)
    refused(detector.save(tmp_path), "a model of your own")
    assert_same_detector(wildood.load(tmp_path, model=Larger(2, 3)), detector, toy.test[0])


def test_function_that_builds_no_module_is_refused(own, tmp_path):
    refused(own.save(tmp_path), r"model\(\) returned a dict: it must build an nn\.Module", model=lambda: Own().__dict__)


def test_detector_survives_a_deep_copy_and_a_move_of_its_directory(woods, toy, tmp_path):
    twin = copy.deepcopy(woods)
    twin.save(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert_same_detector(wildood.load(tmp_path / "there"), woods, toy.test[0])


def test_thresholds_by_class_can_be_read_without_the_arrays(woods, toy, tmp_path):
    description = storage.read_description(woods.save(tmp_path / "one"))
    assert description["class_thresholds"] is None
    woods.calibrate(toy.test, 0.2, by_class=True)
    texts = storage.read_description(woods.save(tmp_path / "each"))["class_thresholds"]
    assert [float.fromhex(text) for text in texts] == woods.class_thresholds.tolist()


def changed(tree, path, value):
    """The tree with another value in one place; without it if the value is `DELETED`."""
    twin, (key, *below) = copy.copy(tree), path
    if value is DELETED and not below:
        del twin[key]
    else:
        twin[key] = changed(tree[key], below, value) if below else value
    return twin


def paths(tree, path=()):
    yield path
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield from paths(tree[key], (*path, key))


DELETED = object()
ODD = {"deleted": DELETED, "null": None, "below 0": -1, "huge": 10**30, "text": "a\nb", "list": [[1]], "object": {"x": 1}}


@pytest.mark.parametrize("odd", ODD)
def test_whatever_is_in_detector_json_it_works_or_is_refused_in_one_line(fits, odd, toy, tmp_path, capsys):
    """In every place of it, with a checksum that agrees; commands read it in more places than `load` does."""
    fits["woods-alt"].save(tmp_path)
    np.save(tmp_path / "x.npy", toy.test[0][:3])
    whole = json.loads((tmp_path / "detector.json").read_bytes())
    inner_rows = {("history", row) for row in range(1, len(whole["history"]) - 1)}
    places = [path for path in paths(whole) if path[:1] not in {(), ("digest",)} and path[:2] not in inner_rows]
    works = 0
    for path in places:
        forge(tmp_path, lambda _, path=path: changed(whole, path, ODD[odd]))
        for command in (["show", str(tmp_path)], ["score", str(tmp_path), str(tmp_path / "x.npy")]):
            code, said = main(command), capsys.readouterr().err.splitlines()
            assert code in {0, 2}, path
            if code == 2:
                assert (len(said), said[0][:9]) == (1, "wildood: "), path
                break
        else:
            works += 1
    assert 0 < works < len(places)


FORGED = {
    "model.settings.hidden[0] is 'x', expected a whole number": (("model", "settings", "hidden"), ["x"]),
    "model.settings.extra is not known to this wildood": (("model", "settings"), {"inputs": 2, "classes": 3, "extra": 1}),
    "input.mean[0] is None, expected a number": (("input",), {"mean": [None], "std": [1.0]}),
    "input: std is (-1.0,): every value must be positive": (("input",), {"mean": [0.5], "std": [-1]}),
    "tap is missing": (("tap",), DELETED),
    "score.name is 'Own', which this wildood does not have": (("score", "name"), "Own"),
    "score.settings.temperature is 'x', expected a number or null": (("score", "settings", "temperature"), "x"),
    "example.shape[0] is -2, expected a whole number from 0 on": (("example", "shape"), [-2]),
    "example.kind is 'text', expected 'float' or 'uint8' or 'integer'": (("example", "kind"), "text"),
    "threshold is 0.5, expected text": (("threshold",), 0.5),
    "threshold is 'half', expected a number as float.hex writes it": (("threshold",), "half"),
    "threshold is 'nan', expected a number, because of the promise": (("threshold",), "nan"),
    "class_thresholds is [], expected a list of at least one or null": (("class_thresholds",), []),
    "class_thresholds is there, expected null": (("class_thresholds",), ["0x1p0"]),
    "promise.alpha is 'x', expected a number": (("promise", "alpha"), "x"),
    "promise.alpha is 1.5, expected a number between 0 and 1": (("promise", "alpha"), 1.5),
    "promise.confidence is 1, expected a number between 0 and 1 or null": (("promise", "confidence"), 1),
    "promise.unseen is missing": (("promise", "unseen"), DELETED),
    "history[0].epoch is '0', expected a number": (("history", 0, "epoch"), "0"),
    "record.kept_epoch is 99, expected a row of history": (("record", "kept_epoch"), 99),
    "record.schedule is missing": (("record", "schedule"), DELETED),
    "record.data.wild is 3, expected text": (("record", "data", "wild"), 3),
    "record.classes[0] is '\\ud800', expected text that can be written": (("record", "classes"), ["\ud800"]),
    "record.classes[1] is 3, expected text": (("record", "classes"), ["cat", 3]),
}


@pytest.mark.parametrize("said", FORGED)
def test_the_wrong_value_of_detector_json_is_named_by_its_path(saved, said):
    path, value = FORGED[said]
    forge(saved, lambda content: changed(content, path, value))
    message = refused(saved, re.escape(f"detector.json: {said}"))
    assert message.endswith(": save the detector again")
    assert "\n" not in message


def test_json_that_is_nested_without_end_is_refused(saved):
    (saved / "detector.json").write_bytes(b"[" * 100_000)
    refused(saved, r"detector\.json is damaged or not a wildood detector: save the detector again")


PROMISES = {
    "lower alpha": (
        lambda content: changed(content, ("promise", "alpha"), 0.001),
        r"promise cannot be kept \(.* at least 999",
    ),
    "other alpha": (lambda content: changed(content, ("promise", "alpha"), 0.1), "a promise of 0.1 needs "),
    "confidence": (lambda content: changed(content, ("promise", "confidence"), 0.9), "a promise of 0.05 needs "),
    "by class": (lambda content: changed(content, ("promise", "by_class"), True), "class_thresholds is None"),
    "more examples": (lambda content: changed(content, ("promise", "examples"), 10_000), "rests on 10000 examples, but"),
    "threshold": (lambda content: changed(content, ("threshold",), (3.5).hex()), "the threshold is 3.5, but a promise of"),
}


@pytest.mark.parametrize("forged", PROMISES)
def test_a_promise_that_the_stored_holdout_scores_do_not_give_is_refused(saved, forged):
    change, said = PROMISES[forged]
    forge(saved, change)
    assert refused(saved, said).endswith(": save the detector again")


def test_holdout_scores_that_do_not_give_the_threshold_are_refused(saved):
    forge(saved, lambda content: content, lambda tensors: tensors | {"holdout_scores": tensors["holdout_scores"] + 1})
    refused(saved, r"the threshold is .*, but a promise of 0\.05 needs .*: save the detector again")


def test_thresholds_by_class_that_the_promise_does_not_need_are_refused(woods, toy, tmp_path):
    woods.calibrate(toy.test, 0.2, by_class=True).save(tmp_path)
    forge(tmp_path, lambda content: content, lambda tensors: tensors | {"class_thresholds": tensors["class_thresholds"] + 1})
    refused(tmp_path, "the thresholds of classes are not those that the promise needs: save the detector again")


def test_a_threshold_set_by_hand_is_not_saved_with_a_promise(woods, tmp_path):
    woods.threshold += 1
    with pytest.raises(InputError, match=r"the threshold is .*, but a promise of 0\.05 needs .* detector\.promise = None"):
        woods.save(tmp_path)
    woods.promise = None
    assert wildood.load(woods.save(tmp_path)).threshold == woods.threshold


TENSORS = {
    "missing": (lambda tensors: without(tensors, "model.head.bias"), r'do not fit the MLP .*\(Missing key.*"head\.bias"'),
    "shape": (lambda tensors: tensors | {"model.head.bias": torch.zeros(4)}, r"\(size mismatch for head\.bias"),
    "dtype": (
        lambda tensors: tensors | {"model.head.bias": torch.zeros(3).double()},
        r"\(head\.bias is torch\.float64, expected torch\.float32\)",
    ),
    "nan": (
        lambda tensors: tensors | {"model.head.bias": torch.full((3,), math.nan)},
        r"score of a blank example is \w+, expected a number",
    ),
    "one more": (lambda tensors: tensors | {"more": torch.zeros(3)}, "'more' is not known to this wildood"),
    "one more of the model": (lambda tensors: tensors | {"model.more": torch.zeros(3)}, r'Unexpected key.*"more"'),
    "no holdout": (lambda tensors: without(tensors, "holdout_scores"), "there are no scores and 120 classes of them"),
    "fewer classes": (
        lambda tensors: tensors | {"holdout_classes": tensors["holdout_classes"][:9]},
        "rests on 120 examples, but there are 120 scores and 9 classes of them",
    ),
    "classes that the model has not": (
        lambda tensors: tensors | {"holdout_classes": tensors["holdout_classes"] + 3},
        "is not of the model's 3 classes",
    ),
    "classes below 0": (
        lambda tensors: tensors | {"holdout_classes": -tensors["holdout_classes"]},
        "holdout_classes holds -2",
    ),
    "type of scores": (
        lambda tensors: tensors | {"holdout_scores": tensors["holdout_scores"].double()},
        r"holdout_scores is torch\.float64 of shape \(120,\), expected torch\.float32 in one dimension",
    ),
}


def without(tensors, name):
    return {each: tensor for each, tensor in tensors.items() if each != name}


@pytest.mark.parametrize("forged", TENSORS)
def test_tensors_that_do_not_fit_are_refused(saved, forged):
    change, said = TENSORS[forged]
    forge(saved, lambda content: content, change)
    message = refused(saved, said)
    assert message.endswith(": save the detector again")
    assert "\n" not in message


def test_tensors_of_a_score_that_do_not_fit_the_features_are_refused(trained, toy, tmp_path):
    wildood.posthoc(trained(), wildood.Knn(k=2), labelled=toy.labelled, holdout=toy.holdout).save(tmp_path)
    forge(tmp_path, lambda content: content, lambda tensors: tensors | {"score.bank": tensors["score.bank"][:, 1:]})
    refused(tmp_path, r"the model does not fit the .* score that is stored with it \(.*\): save the detector again")


def test_settings_that_ask_for_more_memory_than_there_is_are_refused(saved):
    forge(saved, lambda content: changed(content, ("model", "settings", "hidden"), [10**6, 10**6]))
    refused(saved, r"do not fit the MLP they belong to \(.*\): save the detector again")
    forge(saved, lambda content: changed(content, ("model", "settings"), {"inputs": 10**9, "classes": 3}))
    refused(saved, r"model\.settings\.inputs is 1000000000, but \d+ weights are stored: save the detector again")


def test_a_mistake_in_a_users_function_is_not_taken_for_a_damaged_file(own, tmp_path):
    with pytest.raises(TypeError, match="hiden"):
        wildood.load(own.save(tmp_path), model=lambda: Own(hiden=6))


def test_a_shipped_model_in_half_precision_comes_back_in_it(images, tmp_path):
    spec = wildood.InputSpec(mean=(0.5,), std=(0.25,))
    detector = wildood.posthoc(SmallCNN(4).bfloat16(), wildood.EnergyScore(), holdout=images, input=spec)
    again = wildood.load(detector.save(tmp_path))
    assert again.classifier.dtype == torch.bfloat16
    assert_same_detector(again, detector, images)


def test_a_model_in_another_precision_than_the_saved_one_is_refused(own, tmp_path):
    message = refused(own.save(tmp_path), r"\(.* is torch\.float32, expected torch\.float16\)", model=Own().half())
    assert message.endswith("pass the architecture it was made with")


@pytest.mark.parametrize("method", ["woods", "woods-alt"])
def test_loading_draws_no_random_numbers(fits, method, tmp_path):
    place, before = fits[method].save(tmp_path), torch.get_rng_state()
    wildood.load(place)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_that_cannot_be_copied_is_refused(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    wildood.posthoc(nn.Linear(4, 3), wildood.EnergyScore(), holdout=x).save(tmp_path)
    pruned = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    pruned.extra = pruned.weight * 2  # no leaf, as pruning leaves one
    with pytest.raises(wildood.DetectorFileError, match=r"the model cannot be copied .*: pass a function that builds it"):
        wildood.load(tmp_path, model=pruned)
    with pytest.raises(wildood.InputError, match="the directory is 3: give a path"):
        wildood.load(3)

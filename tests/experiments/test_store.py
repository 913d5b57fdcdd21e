"""A directory of runs in which files were damaged, or went away."""

import json
from dataclasses import replace

import numpy as np
import pytest

from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.running import run
from wildood.experiments.store import Failure, OnOod, Result, RunStore

ENERGY = Experiment("digits", ("digits",), method="energy")
AGAIN = "run its wildood reproduce again, or remove the folder"


@pytest.fixture
def store(tmp_path):
    made = RunStore(tmp_path)
    found = OnOod(0.25, 0.01, 0.9, 0.91, 0.92, 0.1, 30)
    history = [{"epoch": 0, "accuracy": 0.9}]
    result = Result(ENERGY, {"digits": found}, 0.95, 0.05, 30, acceptance=0.5, history=history, about={"code": "a"})
    made.add(result, {"id": np.zeros(3, "float32")})
    return made


def changed(store, change):
    """Write something else into the result."""
    path = store.place(ENERGY) / "result.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_result_comes_back_from_its_file_as_it_was(store):
    assert store.result(ENERGY).tests["digits"].fpr95 == 0.25
    assert store.result(ENERGY).history == [{"epoch": 0, "accuracy": 0.9}]
    assert store.is_done(ENERGY)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content["tests"]["digits"].update(fpr95="x"), "fpr95 on digits is 'x', which is no number"),
        (lambda content: content["tests"]["digits"].pop("auroc"), "missing 1 required positional argument: 'auroc'"),
        (lambda content: content["tests"].update(digits=3), "must be a mapping"),
        (lambda content: content.pop("tests"), "'tests' is missing"),
        (lambda content: content.update(accuracy=None), "accuracy is None, which is no number"),
        (lambda content: content.update(acceptance="x"), "acceptance is 'x', which is no number"),
        (lambda content: content.update(seconds=[]), "seconds is [], which is no number"),
        (lambda content: content.update(history=[{"accuracy": "x"}]), "accuracy in the history is 'x', which is no number"),
        (lambda content: content.update(history=[3]), "'int' object has no attribute 'items'"),
        (lambda content: content.update(history=None), "'NoneType' object is not iterable"),
        (lambda content: content.update(about=3), "about is 3, which is no object"),
        (lambda content: content.update(wind=3), "unexpected keyword argument 'wind'"),
    ],
)
def test_a_result_that_holds_something_else_is_left_out_by_name_and_is_not_done(store, change, said):
    changed(store, change)
    with pytest.raises(InputError):
        store.result(ENERGY)
    assert not store.is_done(ENERGY)
    ((name, why),) = store.left_out()
    assert name == ENERGY.name
    assert why.startswith("result.json cannot be read (")
    assert said in why
    assert why.endswith(AGAIN)


@pytest.mark.parametrize("content", [b"", b'{"tests": {', b"[]", b"3", b"\xff\xfe"])
def test_a_result_that_is_torn_is_left_out_and_is_not_done(store, content):
    (store.place(ENERGY) / "result.json").write_bytes(content)
    assert not store.is_done(ENERGY)
    assert [name for name, _ in store.left_out()] == [ENERGY.name]
    assert store.results() == []


def test_a_result_without_its_experiment_is_left_out_with_what_to_do(store):
    (store.place(ENERGY) / "experiment.toml").unlink()
    assert store.left_out() == [(ENERGY.name, f"experiment.toml is not there: {AGAIN}")]
    assert not store.is_done(ENERGY)


def test_a_failure_that_cannot_be_read_is_still_a_failure(store):
    other = replace(ENERGY, seed=1)
    with store.claimed(other):
        store.add_failure(Failure(other, "ValueError: no", "Traceback"))
    (store.place(other) / "failure.json").write_text("{")
    (failure,) = store.failures()
    assert failure.error == "why is not known: its failure.json cannot be read"
    assert store.failure(other) == failure


def test_a_damaged_result_is_run_again_and_kept_aside(small, small_root, tmp_path, caplog):
    store = RunStore(tmp_path)
    before = run(small, store, small_root)
    place = store.place(small)
    for torn, kept in ((b"{", "result.json.damaged"), (b"[", "result.json.damaged2")):
        (place / "result.json").write_bytes(torn)
        assert run(small, store, small_root).tests == before.tests
        assert store.result(small).tests == before.tests
        assert (place / kept).read_bytes() == torn
        assert f"{place / 'result.json'} cannot be read: it is kept as {kept}, and made again" in caplog.messages
    assert (place / "result.json.damaged").read_bytes() == b"{"


@pytest.mark.parametrize("text", [None, "id =", ENERGY.to_toml()])
def test_an_experiment_that_is_damaged_or_gone_is_written_again_and_its_result_stays(text, store, caplog):
    energy = replace(ENERGY, seed=1)
    store.add(replace(store.result(ENERGY), experiment=energy), {"id": np.zeros(3, "float32")})
    toml = store.place(energy) / "experiment.toml"
    toml.unlink()
    if text is not None:
        toml.write_text(text)
    assert not store.is_done(energy)
    assert run(energy, store) is None  # nothing is run: the result is there
    assert store.is_done(energy)
    assert toml.read_text() == energy.to_toml()
    kept = toml.with_name("experiment.toml.damaged")
    assert (kept.read_text() if kept.exists() else None) == text
    assert ("is kept as experiment.toml.damaged" in caplog.text) == (text is not None)

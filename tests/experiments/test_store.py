"""A directory of runs in which files were damaged, or went away."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.pool import run_all
from wildood.experiments.run import run
from wildood.experiments.store import Failure, OodMetrics, Result, RunStore

ENERGY = Experiment("digits", ("digits",), method="energy")
AGAIN = "run its wildood reproduce again, or remove the folder"


@pytest.fixture
def store(tmp_path):
    made = RunStore(tmp_path)
    found = OodMetrics(0.25, 0.01, 0.9, 0.91, 0.92, 0.1, 30)
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
        (lambda content: content["tests"]["digits"].update(fpr95="x"), "tests.digits.fpr95 is 'x', expected a number"),
        (lambda content: content["tests"]["digits"].pop("auroc"), "tests.digits.auroc is missing"),
        (lambda content: content["tests"].update(digits=3), "tests.digits is 3, expected an object"),
        (lambda content: content.update(tests={}), "it has tests on nothing, its experiment on digits"),
        (lambda content: content["tests"].update(svhn=content["tests"]["digits"]), "tests on digits, svhn, its"),
        (lambda content: content.pop("tests"), "tests is missing"),
        (lambda content: content.update(accuracy=None), "accuracy is None, expected a number"),
        (lambda content: content.update(acceptance="x"), "acceptance is 'x', expected a number or null"),
        (lambda content: content.update(seconds=[]), "seconds is [], expected a number"),
        (lambda content: content.update(seconds=10**400), "seconds is 1000000000"),
        (lambda content: content.update(history=[{"accuracy": "x"}]), "history[0].accuracy is 'x', expected a number"),
        (lambda content: content.update(history=[3]), "history[0] is 3, expected an object"),
        (lambda content: content.update(history=None), "history is None, expected a list"),
        (lambda content: content.update(history=""), "history is '', expected a list"),
        (lambda content: content.update(about=3), "about is 3, expected an object or null"),
    ],
)
def test_a_result_that_holds_something_else_is_left_out_by_name_and_is_not_done(store, change, said):
    changed(store, change)
    with pytest.raises(InputError):
        store.result(ENERGY)
    assert not store.is_done(ENERGY)
    ((name, why),) = store.contents().left_out
    assert name == ENERGY.name
    assert why.startswith("result.json cannot be read (")
    assert said in why
    assert why.endswith(AGAIN)


@pytest.mark.parametrize("content", [b"", b'{"tests": {', b"[]", b"3", b"\xff\xfe"])
def test_a_result_that_is_torn_is_left_out_and_is_not_done(store, content):
    (store.place(ENERGY) / "result.json").write_bytes(content)
    assert not store.is_done(ENERGY)
    assert [name for name, _ in store.contents().left_out] == [ENERGY.name]
    assert store.contents().results == ()


def test_a_result_without_its_experiment_is_left_out_with_what_to_do(store):
    (store.place(ENERGY) / "experiment.toml").unlink()
    assert store.contents().left_out == ((ENERGY.name, f"experiment.toml is not there: {AGAIN}"),)


def test_a_failure_that_cannot_be_read_is_still_a_failure(store):
    other = replace(ENERGY, seed=1)
    with store.claimed(other):
        store.add_failure(Failure(other, "ValueError: no", "Traceback"))
    (store.place(other) / "failure.json").write_text("{")
    (failure,) = store.contents().failures
    assert failure.error == "why is not known: its failure.json cannot be read"
    assert store.outcome(other) == failure


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


@pytest.fixture(params=[None, "id =", ENERGY.to_toml()])
def torn(request, store):
    """A run that is done, and what stands in the place of its experiment: nothing, no TOML, or another experiment."""
    energy = replace(ENERGY, seed=1)
    store.add(replace(store.result(ENERGY), experiment=energy), {"id": np.zeros(3, "float32")})
    toml = store.place(energy) / "experiment.toml"
    toml.unlink()
    if request.param is not None:
        toml.write_text(request.param)
    return energy, toml, request.param


@pytest.mark.parametrize(
    "mended",
    [
        run,
        lambda experiment, store: store.pending([ENERGY, experiment]) or None,
        lambda experiment, store: run_all([experiment], store, None, 2, None) or None,  # nothing is left to run
    ],
)
def test_an_experiment_that_is_damaged_or_gone_is_written_again_and_its_result_stays(torn, mended, store, caplog):
    energy, toml, text = torn
    assert store.is_done(energy)
    assert mended(energy, store) is None  # nothing is run: the result is there
    assert toml.read_text() == energy.to_toml()
    kept = toml.with_name("experiment.toml.damaged")
    assert (kept.read_text() if kept.exists() else None) == text
    assert ("is kept as experiment.toml.damaged" in caplog.text) == (text is not None)
    assert len(store.contents().results) == 2


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_mends_leaves_a_run_that_the_next_one_mends(store):
    toml = store.place(ENERGY) / "experiment.toml"
    toml.write_text("id =")
    ended = subprocess.run(
        [sys.executable, Path(__file__).with_name("killed_repair.py"), store.root], check=False, capture_output=True
    )
    assert ended.returncode == -signal.SIGKILL
    assert not toml.exists()
    assert store.is_done(ENERGY)
    store.pending([ENERGY])
    assert toml.read_text() == ENERGY.to_toml()
    assert toml.with_name("experiment.toml.damaged").read_text() == "id ="


def test_a_result_of_another_version_is_read_without_what_is_new_and_with_what_was_not_there(store):
    def older(content):
        content.update(wind=3)
        content["tests"]["digits"].update(wind=3)
        del content["accuracy_lost"], content["about"]

    before = store.result(ENERGY)
    changed(store, older)
    assert store.is_done(ENERGY)
    assert store.result(ENERGY) == replace(before, about=None)


def test_an_experiment_of_another_run_or_version_is_left_out_with_what_helps(store):
    toml = store.place(ENERGY) / "experiment.toml"
    toml.write_text(replace(ENERGY, seed=3).to_toml())
    said = "experiment.toml is that of another run, or of another version of wildood: remove the folder"
    assert store.contents().left_out == ((ENERGY.name, said),)
    toml.write_text(f"wind = 3\n{ENERGY.to_toml()}")
    ((_, why),) = store.contents().left_out
    assert why.endswith("run its wildood reproduce again, or remove the folder if another version of wildood made it")


@pytest.mark.parametrize(("method", "is_own"), [("mine:Mine", True), ("--method", False)])
def test_a_run_of_a_method_of_ones_own_is_not_called_damaged(method, is_own, store):
    text = ENERGY.to_toml().replace('"energy"', f'"{method}"')
    (store.place(ENERGY) / "experiment.toml").write_text(text)
    ((_, why),) = store.contents().left_out
    assert ("remove the folder" not in why) == is_own


def test_a_result_that_may_not_be_read_is_refused_in_one_line_and_left_out(store):
    file = store.place(ENERGY) / "result.json"
    file.unlink()
    file.mkdir()
    said = r"cannot be read (Is a directory): make it readable, or remove the folder"
    with pytest.raises(InputError) as refused:
        store.is_done(ENERGY)
    assert str(refused.value) == f"{file} {said}"
    assert store.contents().left_out == ((ENERGY.name, f"result.json {said}"),)

"""One run: what fit and posthoc make of the same data, stored once, and failures recorded."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from wildood import UNKNOWN
from wildood.data.files import locked
from wildood.detect.detector import Promise
from wildood.detect.fit import fit
from wildood.detect.posthoc import posthoc
from wildood.errors import InputError
from wildood.evaluate.metrics import auroc, fpr_at_tpr
from wildood.experiments import run as run_module
from wildood.experiments.grids import demo_grid, grid, only
from wildood.experiments.pool import using_threads
from wildood.experiments.run import measure_detector, perform, run
from wildood.experiments.split import Split, digits_split, load_split
from wildood.experiments.starts import start_name, starting_classifier
from wildood.experiments.store import Failure, Result, RunStore
from wildood.methods.schedule import Schedule
from wildood.methods.woods import Woods, WoodsObjective
from wildood.report.run_page import run_page
from wildood.scores.shipped import NAMES


@pytest.mark.slow
def test_a_run_is_what_fit_makes_of_the_same_data_and_classifier(tmp_path):
    experiment = only(grid("digits", seeds=1), ["method=woods", "pi=0.1"])[0]
    with using_threads(1):
        found = run(experiment, RunStore(tmp_path))
        split = digits_split(0)
        model = starting_classifier(experiment, split, tmp_path)
        data = {"labelled": split.labelled, "wild": split.wild, "holdout": split.holdout, "input": split.spec}
        detector = fit(model, **data, method=Woods(), seed=0, keep="last", verbose=False)
    known, unknown = detector.score(split.test_id[0]), detector.score(split.test_ood)
    test = found.tests["digits"]
    assert (test.fpr95, test.auroc) == (fpr_at_tpr(known, unknown), auroc(known, unknown))
    assert found.accuracy == np.mean(detector.classify(split.test_id[0]) == split.test_id[1])
    assert found.false_alarms == np.mean(detector.predict(split.test_id[0]) == UNKNOWN)
    assert test.accepted == np.mean(detector.predict(split.test_ood) != UNKNOWN)
    assert found.acceptance == detector.history[detector.record["kept_epoch"]]["acceptance"]


@pytest.mark.slow
def test_the_runs_of_the_demo_share_their_starting_classifier_and_promise_on_the_whole_holdout(tmp_path, monkeypatch):
    monkeypatch.setattr(Woods, "schedule", lambda _: Schedule(steps=4, batch=64))
    energy, woods = (perform(each, tmp_path) for each in demo_grid(5) if each.method in {"energy", "woods"})
    assert len(list((tmp_path / "starts").iterdir())) == 1
    for outcome in (energy, woods):
        assert outcome.detector.promise == Promise(0.05, 200, unseen=True)  # nothing is chosen: the last epoch is deployed
    assert woods.detector.record["seed"] == 5
    split = digits_split(5)
    assert woods.result.false_alarms == np.mean(woods.detector.predict(split.test_id[0]) == UNKNOWN)
    assert np.array_equal(woods.scores["digits"], woods.detector.score(split.test_ood))


class ByHand:
    """A detector whose scores are its examples, and which calls every example class 1."""

    threshold = 2.0

    def score_and_classify(self, x):
        return np.asarray(x, dtype="float32").reshape(-1), np.ones(len(x), dtype="int64")

    def accepts(self, scores, classes):
        return scores <= self.threshold


def test_metrics_are_those_of_the_scores():
    known = np.array([*range(19), 30], "float32")[:, None]  # 19 of 20 lie at or below 18: the threshold of FPR95
    unknown = [1, 18, 19, 31, 32]
    split = Split(None, None, None, (known, np.array([1] * 15 + [0] * 5)), {"ood": unknown}, 2, None)
    tests, on_id, _ = measure_detector(ByHand(), split)
    assert tests["ood"].fpr95 == 2 / 5
    # Known scores below each unknown one: 1.5, 18.5, 19, 20 and 20 of 20, ties counted as one half.
    assert tests["ood"].auroc == pytest.approx((1.5 + 18.5 + 19 + 20 + 20) / 100)
    assert tests["ood"].accepted == 1 / 5
    assert on_id == {"accuracy": 0.75, "false_alarms": 17 / 20, "examples": 20}  # rejected or not; 0, 1 and 2 are accepted


def test_result_is_kept_with_what_it_takes_to_make_it_again(small, small_root, tmp_path):
    store = RunStore(tmp_path)
    found = run(small, store, small_root)
    assert isinstance(found, Result)
    kept = store.result(small)
    assert kept.tests == found.tests
    assert kept.experiment == small
    assert kept.about["versions"]["torch"] == torch.__version__
    assert kept.about["split"] == load_split(small, small_root).record
    assert set(kept.about["split"]) == {"grey.npz"}
    assert {"code", "hardware", "finished"} <= set(kept.about)
    assert kept.seconds > 0
    assert kept.about["kept_epoch"] in {0, 1}
    assert [row["step"] for row in kept.history] == [0, 6]
    scores = store.scores(small)
    assert {name: len(values) for name, values in scores.items()} == {"id": 200, "grey.npz": 60}
    assert not store.training(small).exists()


def test_a_run_that_is_done_or_claimed_is_not_done_again(small, small_root, tmp_path):
    store = RunStore(tmp_path)
    with store.claimed(small) as mine:
        assert mine
        assert run(small, RunStore(tmp_path), small_root) is None
    assert run(small, store, small_root) is not None
    before = (store.place(small) / "result.json").read_bytes()
    assert run(small, store, small_root) is None
    assert (store.place(small) / "result.json").read_bytes() == before


def test_a_failed_run_is_recorded_with_its_error_and_is_tried_again_when_it_is_forgotten(small, small_root, tmp_path):
    store, wrong = RunStore(tmp_path), replace(small, test=("none.npz",), wild="none.npz")
    failure = run(wrong, store, small_root)
    assert isinstance(failure, Failure)
    assert "none.npz is not there" in failure.error
    assert "InputError" in failure.traceback
    assert store.contents().failures == (failure,)
    assert run(wrong, store, small_root) is None
    store.forget_failure(wrong)
    assert isinstance(run(wrong, store, small_root), Failure)


def test_an_error_that_is_not_ours_is_recorded_by_its_kind(small, small_root, tmp_path, monkeypatch):
    monkeypatch.setattr("wildood.experiments.run.load_split", lambda *_: 1 / 0)
    failure = run(small, RunStore(tmp_path), small_root)
    assert failure.error == "ZeroDivisionError: division by zero"


def test_starting_classifier_is_trained_once_for_all_that_start_from_it(small, small_root, tmp_path, monkeypatch):
    trained = []
    real = __import__("wildood.detect.pretrain", fromlist=["pretrain"]).pretrain
    monkeypatch.setattr("wildood.experiments.starts.pretrain", lambda *a, **k: trained.append(1) or real(*a, **k))
    store = RunStore(tmp_path)
    for change in ({}, {"method": "oe", "settings": {}}, {"method": "energy", "settings": {}, "wild": None, "pi": 0.0}):
        assert isinstance(run(replace(small, **change), store, small_root), Result)
    assert len(trained) == 1
    assert isinstance(run(replace(small, seed=1), store, small_root), Result)
    assert len(trained) == 2  # another labelled part


def test_a_classifier_trained_on_all_is_one_for_all_seeds(small):
    assert start_name(replace(small, start="all")) == start_name(replace(small, start="all", seed=3))
    assert start_name(small) != start_name(replace(small, seed=3))


@pytest.mark.parametrize("name", [name for name in NAMES if not NAMES[name].needs.gradients])
def test_a_score_on_the_run_module_is_the_score_on_the_images(small, small_root, tmp_path, name):
    settings = {"k": 5} if name == "knn" else {}
    experiment = replace(small, method=name, settings=settings, wild=None, pi=0.0)
    store = RunStore(tmp_path)
    found = run(experiment, store, small_root)
    assert isinstance(found, Result), found
    split = load_split(experiment, small_root)
    model = starting_classifier(experiment, split, tmp_path, small_root)
    plain = posthoc(model, experiment.recipe(), labelled=split.labelled, holdout=split.holdout, input=split.spec)
    expected = plain.score(split.tests["grey.npz"])
    np.testing.assert_allclose(store.scores(experiment)["grey.npz"], expected, rtol=1e-3, atol=1e-4)


def test_scores_share_one_pass_over_the_images(small, small_root, tmp_path, monkeypatch):
    passes = []
    real = run_module.features_of
    monkeypatch.setattr(run_module, "features_of", lambda *a: passes.append(len(a[1])) or real(*a))
    store = RunStore(tmp_path)
    for name in ("energy", "max-softmax", "react", "scale", "she", "kl-matching", "temperature-scaling"):
        assert isinstance(run(replace(small, method=name, settings={}, wild=None, pi=0.0), store, small_root), Result)
    assert sorted(passes) == [60, 60, 200, 200]  # holdout, OOD test, labelled, ID test: once each


def test_released_protocol_chooses_the_epoch_by_ood_examples_and_promises_nothing(small, small_root, tmp_path):
    published = replace(small, protocol="as_published", start="all", schedule=None, settings={})
    published = replace(published, schedule=replace(small.schedule, duals="epoch", epoch="shortest"))
    found = run(published, RunStore(tmp_path), small_root)
    assert isinstance(found, Result), found.traceback
    least = min(row["acceptance"] for row in found.history)
    assert found.acceptance == least
    shares = {round(row["acceptance"] * 42, 6) % 1 for row in found.history}
    assert shares == {0.0}  # of the 42 validating OOD examples


def test_result_file_is_plain_json(small, small_root, tmp_path):
    store = RunStore(tmp_path)
    run(small, store, small_root)
    assert json.loads((store.place(small) / "result.json").read_text())["examples"] == 200


def test_features_of_another_normalisation_are_not_shared(small, small_root, tmp_path):
    start = run(replace(small, method="energy", settings={}, wild=None, pi=0.0), RunStore(tmp_path / "start"), small_root)
    assert isinstance(start, Result)
    weights = next((tmp_path / "start").glob("starts/*/weights.safetensors"))
    (tmp_path / "root").mkdir()
    for file in (*small_root.iterdir(), weights):
        (tmp_path / "root" / file.name).write_bytes(file.read_bytes())
    one = replace(start.experiment, start="weights.safetensors")
    other = replace(one, mean=(0.1, 0.1, 0.1), std=(1.0, 1.0, 1.0))
    together, apart = RunStore(tmp_path / "together"), RunStore(tmp_path / "apart")
    run(one, together, tmp_path / "root")
    run(other, together, tmp_path / "root")
    run(other, apart, tmp_path / "root")
    assert np.array_equal(together.scores(other)["id"], apart.scores(other)["id"])
    assert not np.array_equal(together.scores(other)["id"], together.scores(one)["id"])


def test_a_starting_classifier_is_not_used_with_other_images_of_the_same_name(small, small_root, tmp_path):
    store = RunStore(tmp_path / "runs")
    assert isinstance(run(small, store, small_root), Result)
    for file in small_root.iterdir():
        with np.load(file) as arrays:
            changed = {name: 255 - array if array.ndim > 1 else array for name, array in arrays.items()}
        np.savez(tmp_path / file.name, **changed)
    failure = run(replace(small, pi=0.5), store, tmp_path)
    assert "give each data root its own --runs" in failure.error


def test_a_run_whose_process_died_again_and_again_counts_as_failed_until_it_is_forgotten(small, small_root, tmp_path):
    store = RunStore(tmp_path)
    store.place(small).mkdir()
    (store.place(small) / "attempts").write_bytes(b"...")
    failure = run(small, store, small_root)
    assert "died 3 times" in failure.error
    store.forget_failure(small)
    assert isinstance(run(small, store, small_root), Result)
    assert not (store.place(small) / "attempts").exists()


def test_a_checkpoint_that_does_not_fit_is_begun_again(small, small_root, tmp_path, caplog):
    store = RunStore(tmp_path)
    store.training(small).mkdir(parents=True)
    (store.training(small) / "checkpoint.safetensors").write_bytes(b"torn")
    (store.training(small) / "run.json").write_text("{}")
    assert isinstance(run(small, store, small_root), Result)
    assert "starts again from its beginning" in caplog.text


def test_a_run_waits_its_turn_while_another_process_trains_its_starting_classifier(small, small_root, tmp_path):
    place = tmp_path / "starts" / start_name(small)
    place.mkdir(parents=True)
    with locked(place / "lock"):
        assert run(small, RunStore(tmp_path), small_root) is None
    assert isinstance(run(small, RunStore(tmp_path), small_root), Result)


def test_released_godin_is_trained_from_scratch(small, small_root, tmp_path):
    godin = replace(
        small, method="godin", settings={"epsilon": 0.0}, wild=None, pi=0.0, protocol="as_published", start="all"
    )
    assert isinstance(run(godin, RunStore(tmp_path), small_root), Result)
    assert not (tmp_path / "starts").exists()


def test_damaged_and_foreign_folders_are_left_out_by_name_and_the_rest_is_read(small, small_root, tmp_path):
    store = RunStore(tmp_path)
    for seed in range(2):
        run(replace(small, seed=seed), store, small_root)
    torn = store.place(replace(small, seed=1)) / "result.json"
    torn.write_bytes(torn.read_bytes()[:100])
    for name, text in (("aaaaaaaaaaaa", small.to_toml()), ("bbbbbbbbbbbb", "id = ")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.toml").write_text(text)
    assert [found.experiment for found in store.contents().results] == [small]
    assert {name for name, _ in store.contents().left_out} == {torn.parent.name, "aaaaaaaaaaaa", "bbbbbbbbbbbb"}


def test_a_directory_without_locks_or_writing_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written to"):
        RunStore(tmp_path / "file").check_locks()
    monkeypatch.setattr("wildood.data.files._lock", lambda *_, **__: False)
    with pytest.raises(InputError, match="without locks"):
        RunStore(tmp_path).check_locks()


def test_an_infinite_setting_ends_with_a_result_that_is_not_made_again(small, small_root, tmp_path):
    store, endless = RunStore(tmp_path), replace(small, settings={"gamma": math.inf})
    assert isinstance(run(endless, store, small_root), Result)
    assert store.is_done(endless)
    assert run(endless, store, small_root) is None
    assert [each.experiment for each in store.contents().results] == [endless]


def test_what_could_not_be_read_again_is_a_failure_and_not_a_run_without_end(small, small_root, tmp_path, monkeypatch):
    monkeypatch.setattr(WoodsObjective, "watch", lambda _: {"weights": [1.0, 2.0]})
    store = RunStore(tmp_path)
    failure = run(small, store, small_root)
    value = "history[0].weights is [1.0, 2.0], expected a number or true or false"
    assert failure.error == f"the result of woods cannot be stored ({value}): correct the method"
    assert not (store.place(small) / "result.json").exists()
    assert run(small, store, small_root) is None


@pytest.mark.slow
def test_csi_runs_as_an_experiment_and_its_page_shows_both_stages(small, small_root, tmp_path):
    schedule = Schedule(epochs=1, batch=64, lr=1.0, decay="cosine", weight_decay=1e-6)
    experiment = replace(
        small,
        method="csi",
        settings={"head_epochs": 1},
        schedule=schedule,
        wild=None,
        pi=0.0,
        test=("grey.npz", "white.npz"),
    )
    store = RunStore(tmp_path)
    result = run(experiment, store, small_root)
    assert isinstance(result, Result), result
    assert [(row["stage"], row["epoch"]) for row in result.history] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert result.accuracy_lost == result.history[0]["accuracy"] - result.history[3]["accuracy"]
    assert set(result.tests) == {"grey.npz", "white.npz"}
    assert not store.training(experiment).exists()  # of both stages, once it is done
    page = run_page(result, store.scores(experiment))
    assert "The loss of stage 1" in page
    assert "The loss of stage 2" in page

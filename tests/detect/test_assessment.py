"""A fit that is not shown to help keeps the start and says so; what is told of wild data was measured on unseen data."""

import copy
import logging
import re

import numpy as np
import pytest
import torch

import wildood
from wildood.data.validation import labelled_source
from wildood.data.wild import as_wild
from wildood.detect.assessment import Assessment, accuracy_lost, training_benefit, training_helped
from wildood.detect.baseline import best_start
from wildood.detect.card import description_lines
from wildood.detect.split import split_for_fit, split_wild
from wildood.detect.storage import read_description
from wildood.evaluate.selection import Comparison
from wildood.evaluate.thresholds import tied_scores
from wildood.methods.objective import CrossEntropyObjective
from wildood.models.classifier import Classifier
from wildood.models.small import MLP
from wildood.scores.energy import EnergyScore
from wildood.train.loop import Training

CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])


def known(count, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    return (CENTRES[y] + rng.normal(size=(count, 2))).astype(np.float32), y


def mixed(count, unknown, seed):
    rng = np.random.default_rng(seed)
    far = (0.5 * rng.normal(size=(unknown, 2)) + (6, 3)).astype(np.float32)  # of which all scores of the start accept most
    return rng.permutation(np.concatenate([known(count - unknown, seed)[0], far]))


@pytest.fixture(scope="module")
def fit(trained, toy):
    def call(wild, steps=30, **settings):
        schedule = wildood.Schedule(steps=steps, batch=64, lr=settings.pop("lr", 0.03))
        return wildood.fit(trained(), toy.labelled, wild, known(400, 9), schedule=schedule, verbose=False, **settings)

    return call


@pytest.fixture(scope="module")
def helped(fit):
    return fit(mixed(800, 160, seed=1), steps=60)


@pytest.fixture(scope="module")
def useless(fit):
    return fit(known(800, seed=1)[0])


def test_training_that_is_shown_to_help_is_kept(helped, toy):
    assert helped.record["assessment"]["helped"]
    assert not helped.record["assessment"]["start_kept"]
    assert helped.record["kept_epoch"] > 0
    assert helped.record["assessment"]["warnings"] == []


def test_without_anything_unknown_the_start_is_kept_and_two_warnings_say_why(useless, toy, trained):
    found = useless.record["assessment"]
    assert (found["helped"], found["start_kept"], useless.record["kept_epoch"]) == (False, True, 0)
    why, nothing = found["warnings"]
    assert why.startswith(("training was not shown to help: of 400 wild", "no epoch accepted less wild data"))
    assert nothing.startswith("nothing unknown was shown in the 400 wild examples set aside")
    assert type(useless.scorer) is wildood.Ensemble
    assert np.array_equal(useless.predict_proba(toy.test[0]), start_of(trained, toy).predict_proba(toy.test[0]))


def start_of(trained, toy):
    return wildood.posthoc(trained(), EnergyScore(), holdout=toy.holdout)


def test_warnings_are_logged_saved_and_shown_first(fit, useless, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="wildood"):
        fit(known(800, seed=1)[0])
    logged = [record.message for record in caplog.records]
    assert useless.record["assessment"]["warnings"] == logged
    lines = description_lines(read_description(useless.save(tmp_path)))
    assert list(lines)[:2] == ["warning 1", "warning 2"]
    assert [*lines.values()][:2] == useless.record["assessment"]["warnings"]


def test_woods_alt_without_an_epoch_to_keep_deploys_the_ensemble_of_the_start(fit, toy, trained):
    """Its head is random before training: 98.7 % of unknowns were accepted where it was deployed."""
    detector = fit(mixed(800, 160, seed=1), steps=2, lr=1e-9, method=wildood.WoodsAlt())
    assert type(detector.scorer) is wildood.Ensemble
    assert detector.record["assessment"]["start_kept"]
    assert np.array_equal(detector.predict_proba(toy.test[0]), start_of(trained, toy).predict_proba(toy.test[0]))


@pytest.mark.parametrize("method", [wildood.WoodsAlt(), wildood.OutlierExposure(), wildood.EnergyMargin()])
def test_the_start_is_judged_by_its_energy_whatever_the_methods_own_score_is(fit, trained, toy, method):
    wild, holdout = mixed(800, 160, seed=1), known(400, 9)
    detector = fit(wild, steps=2, method=method)
    start = wildood.posthoc(trained(), EnergyScore(), holdout=holdout)
    aside = split_wild(as_wild(wild), "best", seed=0)[1]
    accepted = np.mean(start.score(aside) <= np.sort(start.score(holdout[0]))[379])  # about the same threshold
    assert detector.history[0]["acceptance"] == pytest.approx(accepted, abs=0.03)


def test_the_last_epoch_is_deployed_where_it_is_asked_for_and_the_warning_stands(fit):
    detector = fit(known(800, seed=1)[0], keep="last")
    assert not detector.record["assessment"]["start_kept"]
    assert detector.record["kept_epoch"] == len(detector.history) - 1
    assert detector.record["assessment"]["warnings"][0].endswith("the trained detector is deployed because keep asks for it")


def test_what_is_said_of_wild_data_comes_from_the_part_that_training_did_not_see(helped):
    kept, aside = split_wild(as_wild(mixed(800, 160, seed=1)), "best", seed=0)
    found = helped.record["assessment"]
    assert found["rejected"] == np.mean(helped.predict(aside) == wildood.UNKNOWN)
    assert found["rejected_of_trained"] == np.mean(helped.predict(kept.whole(0)) == wildood.UNKNOWN)
    assert (found["aside"], found["trained_on"]) == (400, 400)


def test_known_ood_examples_judge_the_training_in_the_place_of_wild_data(fit, toy):
    detector = fit(mixed(800, 160, seed=1), ood=toy.unknown)
    found = detector.record["assessment"]
    assert (found["examples"], found["aside"], found["trained_on"]) == ("OOD", len(toy.unknown), 0)


BETTER = Comparison(start=0.9, trained=0.8, error=0.02, wild=500, tail=25.0)


@pytest.mark.parametrize(
    ("trained_on", "rejected_of_trained", "warned"),
    [(400, 0.458, True), (400, 0.29, False), (40, 0.37, False), (400, 0.1, False)],
)
def test_traffic_that_was_memorised_is_warned_of(trained_on, rejected_of_trained, warned):
    found = Assessment(BETTER, False, "wild", 400, 0.28, 1e-9, trained_on, rejected_of_trained)
    said = [text for text in found.warnings if text.startswith("the detector rejects 45.8 % of the wild data that it was")]
    assert len(said) == len(found.warnings) == warned


@pytest.mark.parametrize(("score", "scale", "tied"), [(wildood.MaxSoftmax(), 1e9, 300), (EnergyScore(), 0.0, 300)])
def test_a_score_that_ties_is_warned_of_and_recorded(trained, toy, score, scale, tied, caplog):
    model = trained()
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.mul_(scale)
    detector = wildood.posthoc(model, score, holdout=toy.test)
    warning = detector.warnings[-1]
    assert warning.startswith(f"{tied} of the 300 holdout examples share the highest score")
    assert warning in caplog.text


def test_saturated_scores_of_known_examples_are_no_reason_to_warn():
    assert tied_scores(np.append([-1.0] * 90, np.linspace(-0.9, 0, 10)), alpha=0.05) == ""


def test_a_tie_within_a_predicted_class_is_named(trained, toy):
    detector = wildood.posthoc(trained(), EnergyScore(), holdout=toy.test, alpha=0.2)
    detector.holdout_scores = np.where(detector.holdout_classes == 0, 3.0, detector.holdout_scores).astype(np.float32)
    assert detector.calibrate(by_class=True).warnings[-1].startswith("predicted class 0: ")


def test_logits_that_are_too_small_are_warned_of(trained, toy, caplog):
    model = trained()
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.mul_(1e-4)
    detector = wildood.posthoc(model, EnergyScore(), holdout=toy.test)
    assert detector.warnings[0].startswith("the largest of 3 probabilities is 33.3")
    assert detector.warnings[0] in caplog.text
    assert wildood.posthoc(trained(), EnergyScore(), holdout=toy.test).warnings == []


def test_a_tie_at_the_top_lets_the_threshold_reject_nothing():
    assert tied_scores(np.append(np.arange(90), [200.0] * 10), alpha=0.05).startswith("10 of the 100 holdout examples")
    assert tied_scores(np.append(np.arange(96), [200.0] * 4), alpha=0.05) == ""
    assert tied_scores(np.arange(100), alpha=0.05, confidence=0.99) == ""


def test_a_new_threshold_drops_the_warning_of_the_old_one(woods, toy):
    woods.record["ties"] = "all tie"
    assert woods.calibrate(toy.test).warnings == [text for text in woods.warnings if text != "all tie"]


def test_copies_of_one_wild_example_are_all_on_one_side():
    rows = np.repeat(np.random.default_rng(0).normal(size=(60, 2)), 10, axis=0)
    kept, aside = split_wild(as_wild(rows), "best", seed=0)
    sides = [{tuple(row) for row in part.gather(torch.arange(len(part)))[0].tolist()} for part in (kept.whole(0), aside)]
    assert sides[0] & sides[1] == set()
    assert len(kept.whole(0)) + len(aside) == 600
    assert 280 <= len(aside) <= 300


@pytest.mark.parametrize(("after", "warned"), [(0.5, True), (0.93, False)])
def test_a_classifier_that_lost_its_accuracy_is_warned_of(useless, after, warned):
    detector = copy.deepcopy(useless)
    detector.history = [{"epoch": 0, "accuracy": 0.96}, {"epoch": 1, "accuracy": after}]
    detector.record = {"kept_epoch": 1}
    detector.record |= accuracy_lost(detector, 200)
    said = ["the classifier is right on 50.0 % of 200 examples set aside, the start on 96.0 %"]
    assert detector.warnings == (said if warned else [])


def test_a_ranking_says_whose_training_was_not_shown_to_help(trained, toy, caplog):
    methods = [wildood.Woods(), wildood.OutlierExposure()]
    schedule = wildood.Schedule(steps=2, batch=32, lr=1e-9)
    wildood.fit_many(
        trained(), toy.labelled, known(800, seed=1)[0], known(400, 9), methods=methods, schedule=schedule, verbose=False
    )
    expected = "training was not shown to help, so the detector is the start with its best score: Woods, OutlierExposure"
    assert expected in [record.getMessage() for record in caplog.records]


def test_show_does_not_call_a_method_deployed_whose_start_was_kept(useless, tmp_path):
    lines = description_lines(read_description(useless.save(tmp_path)))
    assert lines["method"].endswith("(not deployed)")
    assert lines["score"].startswith("Ensemble")


def test_a_holdout_of_few_distinct_examples_is_said_in_the_promise(trained, toy):
    holdout = np.repeat(toy.holdout[0][:25], 8, axis=0)
    promise = wildood.posthoc(trained(), EnergyScore(), labelled=toy.labelled, holdout=holdout).promise
    assert promise.caveat == "only 25 of them are distinct: the promise holds only if all were drawn independently"


def test_a_holdout_that_is_scaled_otherwise_is_noticed(fit, toy, trained):
    x, y = known(400, 9)
    detector = wildood.fit(
        trained(), toy.labelled, mixed(800, 160, seed=1), (20 * x, y), schedule=wildood.Schedule(steps=2, batch=64),
        verbose=False,
    )  # fmt: skip
    (warning,) = detector.warnings
    assert re.fullmatch(
        r"the threshold rejects \d\d+ % of labelled: is the holdout scaled or preprocessed otherwise\?", warning
    )


@pytest.mark.parametrize(("nothing_unknown", "helped"), [(0.04, True), (0.06, False)])
def test_training_helps_only_where_some_wild_example_is_shown_to_be_unknown(nothing_unknown, helped):
    less = Comparison(start=0.95, trained=0.90, error=0.01, wild=500, tail=25, nothing_unknown=nothing_unknown)
    assert less.helped
    assert training_helped(less) == helped
    assessment = Assessment(less, not helped, "wild", aside=500, rejected=0.09, nothing_unknown=0.5)
    assert assessment.helped == helped
    if helped:  # by the part of the holdout that chooses; the other part does not contradict it
        assert assessment.warnings == []
    else:
        (only,) = assessment.warnings
        assert only.startswith("training found nothing unknown in the 500 wild")


@pytest.mark.parametrize(
    ("shares", "begins"),
    [
        ({"rejected_of_fresh": 0.5}, "the threshold rejects 50 % of fresh: known data has changed since the holdout"),
        (
            {"rejected": 0.99},
            "the threshold rejects 99 % of the 500 wild examples set aside: unless most of these are unknown",
        ),
    ],
)
def test_a_threshold_that_rejects_most_of_todays_data_is_warned_of(shares, begins):
    benefit = Comparison(start=0.95, trained=0.90, error=0.01, wild=500, tail=25)
    settings = {"aside": 500, "rejected": 0.09, "nothing_unknown": 0.01} | shares
    (warning,) = Assessment(benefit, start_kept=False, examples="wild", **settings).warnings
    assert warning.startswith(begins)


def test_whether_traffic_holds_unknowns_is_asked_even_of_a_holdout_that_is_not_like_it(trained, toy):
    parts = split_for_fit(
        toy.labelled, known(800, seed=1)[0], known(400, 9), wildood.Schedule(batch=64), 0.05, None, "best", 0
    )
    start = best_start(trained(), Classifier(trained()), parts, 0.05, seed=0, only_energy=True)
    classifier = start.classifier, start.score
    found = [training_benefit(start._replace(like_labelled=each), classifier, parts, 0.05) for each in (False, True)]
    assert [each.nothing_unknown > 0.05 for each in found] == [True, True]


@pytest.fixture(scope="module")
def memorised():
    """200 wild examples of 100 features that say nothing, and a wide network that learns most of them by heart."""
    rng = np.random.default_rng(0)

    def noisy(count, unknown=0):
        x, y = rng.normal(size=(count, 100)).astype(np.float32), rng.integers(0, 3, count)
        x[np.arange(count), y] += 6
        x[:unknown, 99] += 4
        return x, y

    data = noisy(600), noisy(200, unknown=60)[0], noisy(1000)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(100, 3, hidden=(256,))
        source = labelled_source(data[0], "labelled")
        pretraining = wildood.Schedule(steps=60, batch=64, lr=0.02)
        Training(CrossEntropyObjective(Classifier(model)), source, None, pretraining, seed=0).train()
    schedule = wildood.Schedule(steps=150, batch=64, lr=0.1)
    return wildood.fit(model, *data, schedule=schedule, keep="last", verbose=False), noisy(2000, unknown=600)[0]


def test_a_network_that_learns_200_wild_examples_by_heart_is_found_out(memorised):
    detector, traffic = memorised
    found = detector.record["assessment"]
    assert (found["aside"], found["trained_on"]) == (20, 180)
    assert found["rejected_of_trained"] > found["rejected"] + 0.3
    assert any("it has memorised some of it; expect the latter on new data" in text for text in detector.warnings)
    assert np.mean(detector.predict(traffic) == wildood.UNKNOWN) == pytest.approx(found["rejected"], abs=0.15)


@pytest.mark.parametrize(("labelled", "wild", "warned"), [(0.4, 0.45, True), (0.4, 0.2, False), (0.04, 0.45, False)])
def test_a_holdout_that_is_easier_than_labelled_and_wild_data_is_warned_of(labelled, wild, warned):
    found = Assessment(BETTER, False, "wild", 400, wild, 1e-9, rejected_of_labelled=labelled)
    said = f"the threshold rejects 40 % of labelled and {100 * wild:.0f} % of the wild examples set aside: is the holdout"
    assert [text.startswith(said) for text in found.warnings] == [True] * warned

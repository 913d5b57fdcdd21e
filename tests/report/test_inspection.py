"""What an inspection says, and when it says that it cannot say."""

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats

import wildood
from wildood.data.images import Images
from wildood.detect.promise import Promise
from wildood.errors import InputError
from wildood.evaluate.mixture import fpr_by_share, unknown_share
from wildood.evaluate.thresholds import p_values
from wildood.report.decisions import Decisions
from wildood.report.inspection import SHARES, inspected, used_as
from wildood.report.inspection_record import inspection_record
from wildood.report.labelling import borderline, label_first, most_ood
from wildood.report.promise_check import Rate, by_luck, check_on_known, check_on_traffic

RNG = np.random.default_rng(0)
HOLDOUT = RNG.normal(size=400).astype("f")
TRAFFIC = np.append(RNG.normal(size=450), RNG.normal(size=50) + 5)
CLASSES = RNG.integers(0, 2, 500)


@pytest.fixture
def detector():
    found = wildood.posthoc(torch.nn.Linear(1, 2), wildood.EnergyScore(), holdout=np.zeros((400, 1), "f"))
    found.holdout_scores, found.holdout_classes = HOLDOUT, np.arange(400) % 2
    return found.calibrate(alpha=0.05)


def decided(detector, scores=TRAFFIC, classes=None):
    return Decisions.of(detector, scores, CLASSES[: len(scores)] if classes is None else classes)


def test_the_share_of_unknowns_is_tested_against_the_holdout(detector):
    found = inspected(detector, decided(detector), confidence=0.9)
    assert found.unknown == unknown_share(HOLDOUT, TRAFFIC, 0.9)
    assert found.found
    assert (found.known_name, found.untested) == ("holdout", "")
    assert np.array_equal(found.p_values, p_values(TRAFFIC, HOLDOUT))
    assert found.says.startswith(f"at least {100 * found.unknown.bound:.3g} % of this traffic is unknown at 90 % confidence")
    assert "or its known part is no longer like these" in found.says


def test_traffic_like_the_holdout_holds_nothing_unknown(detector):
    found = inspected(detector, decided(detector, HOLDOUT))
    assert not found.found
    assert found.says.startswith("no unknowns are found at 95 % confidence (estimate ")


def test_id_examples_that_are_given_take_the_holdouts_place(detector):
    known = np.linspace(-3, 3, 300)
    found = inspected(detector, decided(detector), decided(detector, known))
    assert found.unknown == unknown_share(known, TRAFFIC)
    assert found.known_name == "--id"
    assert "compared with 300 examples of --id" in found.says
    assert np.array_equal(found.p_values, p_values(TRAFFIC, known))


@pytest.mark.parametrize("promise", [None, Promise(alpha=0.05, examples=400, unseen=False)])
def test_a_holdout_that_cannot_be_trusted_is_not_tested_against(detector, promise):
    detector.promise = promise
    found = inspected(detector, decided(detector))
    assert (found.unknown, found.p_values, found.fpr(), found.found) == (None, None, None, False)
    assert found.says.startswith(
        "whether any of this traffic is unknown was not tested: the ID scores of this detector are of"
    )
    assert "give some with --id" in found.says
    assert found.promise.verdict == "no promise"
    trusted = inspected(detector, decided(detector), decided(detector, HOLDOUT))
    assert trusted.found


def test_traffic_that_a_fit_has_seen_is_not_tested(detector):
    found = inspected(detector, decided(detector), decided(detector, HOLDOUT), trained_on="wild")
    assert (found.unknown, found.p_values, found.fpr(), found.found) == (None, None, None, False)
    assert "the data that fit was given as wild" in found.says
    assert found.promise.rate is not None  # which does not rest on the traffic
    assert inspected(detector, decided(detector, HOLDOUT - 9), trained_on="wild").promise.verdict == "cannot be told"


def test_data_of_a_fit_is_found_in_its_record():
    record = {"data": {"labelled": "1f", "wild": "2a+3b at pi = 0.1", "holdout": "4c"}, "chosen_by": "5d"}
    names = [used_as(record, text) for text in ("1f", "2a", "3b", "4c", "5d", "6e", "a", "")]
    assert names == ["labelled", "wild", "wild", "holdout", "holdout", "", "", ""]
    assert used_as({}, "1f") == ""


def test_the_fpr_is_told_for_each_share_with_its_band(detector):
    told, expected = inspected(detector, decided(detector)).fpr(), fpr_by_share(HOLDOUT, TRAFFIC, detector.threshold, SHARES)
    for name in ("share", "fpr", "lower", "upper", "possible"):
        assert np.array_equal(getattr(told, name), getattr(expected, name))


def test_the_fpr_below_thresholds_by_class_needs_examples_that_did_not_set_them(detector):
    detector.calibrate(alpha=0.05, by_class=True)
    assert inspected(detector, decided(detector)).fpr() is None
    known, classes = RNG.normal(size=300), np.arange(300) % 2
    told = inspected(detector, decided(detector), decided(detector, known, classes)).fpr([0.3])
    rejected = [np.mean(s > detector.class_thresholds[c]) for s, c in ((TRAFFIC, CLASSES), (known, classes))]
    assert told.fpr.item() == pytest.approx(1 - rejected[1] - (rejected[0] - rejected[1]) / 0.3)


def test_decisions_are_the_detectors_own_by_class_and_at_infinity(detector):
    detector.class_thresholds = np.array([1.0, np.inf])
    scores, classes = np.array([1.0, 1.5, 3.0, np.inf, -np.inf]), np.array([0, 0, 1, 1, 0])
    found = Decisions.of(detector, scores, classes)
    assert found.rejected.tolist() == [False, True, False, False, False]
    assert found.margins.tolist() == [0.0, 0.5, -np.inf, 0.0, -np.inf]


def test_a_detector_without_a_threshold_is_refused(detector):
    detector.threshold = float("nan")
    with pytest.raises(InputError, match="this detector has no threshold"):
        decided(detector)


@pytest.mark.parametrize(("count", "examples"), [(0, 30), (7, 30), (30, 30)])
def test_limits_of_a_rate_are_those_of_clopper_and_pearson(count, examples):
    rate = Rate.of(np.arange(examples) < count, 0.9)
    expected = stats.binomtest(count, examples).proportion_ci(0.9, method="exact")
    assert (rate.lower, rate.upper) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert rate.share == count / examples


def test_luck_is_the_share_of_all_orders_with_as_many_false_alarms(detector):
    """Seven scores: in which of the 35 ways to draw a holdout of four is the threshold exceeded by so many of the rest?"""
    ranks, held, fresh = range(7), np.array([0.0, 1.0, 2.0, 4.0]), np.array([3.0, 5.0, 6.0])
    detector.holdout_scores, detector.threshold = held, 2.0  # the third of four
    as_many = [sum(rank > sorted(chosen)[2] for rank in set(ranks) - set(chosen)) >= 3 for chosen in combinations(ranks, 4)]
    assert by_luck(detector, decided(detector, fresh)) == pytest.approx(np.mean(as_many))


def test_luck_by_class_is_paid_for_in_each_class(detector):
    detector.calibrate(alpha=0.05, by_class=True)
    fresh, classes = np.array([3.0] * 40), np.zeros(40, int)
    both, held = by_luck(detector, decided(detector, fresh, classes)), HOLDOUT[::2]
    detector.class_thresholds, detector.threshold, detector.holdout_scores = None, detector.class_thresholds[0], held
    assert both == pytest.approx(2 * by_luck(detector, decided(detector, fresh, classes)))
    assert 0 < both < 1e-9


def alarms(detector, count, examples, confidence=0.95):
    """What is said of so many false alarms among so many ID examples."""
    return check_on_known(detector, decided(detector, np.where(np.arange(examples) < count, 9.0, -9.0)), confidence)


def test_the_promise_is_compared_with_the_rate_on_id_examples(detector):
    said = [alarms(detector, count, 500) for count in (5, 25, 37, 100)]
    assert [check.verdict for check in said] == ["holds", "not contradicted", "above", "broken"]
    assert [check.rate.lower > 0.05 for check in said] == [False, False, True, True]
    assert said[0].rate.upper <= 0.05
    assert said[2].by_luck > 0.05 >= said[3].by_luck
    assert said[0].says.startswith(
        "5 of 500 (1 %; 0.325 to 2.32 % at 95 % confidence) of the ID examples of --id are rejected"
    )
    assert "the luck of drawing 400 holdout examples may explain it" in said[2].says
    assert "the promise of at most 5 % looks broken" in said[3].says


def test_an_aim_without_a_promise_can_be_missed_but_not_broken(detector):
    detector.promise = Promise(alpha=0.05, examples=400, unseen=False)
    said = [alarms(detector, count, 500) for count in (5, 100)]
    assert [(check.verdict, check.by_luck) for check in said] == [("holds", None), ("above", None)]
    assert "which is no promise, is missed" in said[1].says
    detector.promise = None
    assert alarms(detector, 5, 500).verdict == "no promise"


def test_a_promise_for_each_class_is_judged_over_all_of_them(detector):
    detector.calibrate(alpha=0.05, by_class=True)
    assert "the promise of at most 5 % over all classes holds" in alarms(detector, 0, 500).says


def test_traffic_alone_says_up_to_which_share_of_unknowns_the_promise_holds():
    promise, few, many = (
        Promise(0.05, 400, unseen=True),
        Rate.of(np.arange(900) < 9, 0.95),
        Rate.of(np.arange(900) < 45, 0.95),
    )
    check = check_on_traffic(promise, few)
    assert check.verdict == "holds unless"
    assert few.upper / (1 - check.unless_above) == pytest.approx(0.05)  # U / (1 - pi) = alpha
    assert check_on_traffic(promise, many).verdict == check_on_traffic(promise, None).verdict == "cannot be told"
    assert check_on_traffic(Promise(0.05, 400, unseen=False), few).verdict == "no promise"


def numbers(choices):
    return [number for number, _ in choices]


def margins(*values):
    found = np.array(values)
    return Decisions(found, np.zeros(len(found), int), found > 0, found)


def test_the_highest_scores_come_first_whatever_threshold_they_meet():
    found = Decisions(np.array([3.0, 9.0, 5.0, 9.0]), np.zeros(4, int), np.ones(4, bool), np.array([4.0, 0.5, 1.0, 1.0]))
    assert numbers(most_ood(found, 3)) == [1, 3, 2]
    assert numbers(borderline(found, 2)) == [1, 2]


def test_borderline_examples_come_from_both_sides_in_turn():
    found = margins(-5.0, 3.0, -0.1, 0.2, 0.0, 1.0, -2.0)
    sides = ["just rejected", "just accepted"]
    assert borderline(found, 5) == list(zip([3, 4, 5, 2, 1], [*sides, *sides, sides[0]], strict=True))
    assert numbers(borderline(found, 99)) == [3, 4, 5, 2, 1, 6, 0]
    assert numbers(borderline(margins(-5.0, -1.0, -2.0), 2)) == [1, 2]


def test_what_to_label_first_mixes_both_sides_with_the_highest_and_names_none_twice():
    found = margins(-5.0, 3.0, -0.1, 0.2, 7.0, 1.0, -2.0)
    whys = ["just rejected", "just accepted", "highest score"]
    assert label_first(found, 6) == list(zip([3, 2, 4, 5, 6, 1], whys * 2, strict=True))
    assert sorted(numbers(label_first(found, 99))) == list(range(7))
    assert numbers(label_first(margins(-3.0, -1.0, -2.0), 2)) == [1, 2]


def test_the_record_has_files_where_there_are_some_and_the_classes_names(detector):
    detector.record["classes"] = ["cat", "dog"]
    found = inspected(detector, decided(detector))
    files = tuple(f"day/{number}.png" for number in range(500))
    record = inspection_record(detector, found, Images(np.zeros((500, 1)), where="inbox", names=files), top=4)
    number = int(np.argmax(TRAFFIC))
    assert record["most_ood"][0] == {
        "example": f"day/{number}.png",
        "number": number,
        "why": "highest score",
        "score": TRAFFIC[number],
        "p_value": pytest.approx(1 / 401),
        "decision": "unknown",
        "class": ["cat", "dog"][CLASSES[number]],
    }
    assert [len(record[kind]) for kind in ("label_first", "most_ood", "borderline")] == [4, 4, 4]
    assert {row["decision"] for row in record["borderline"]} == {"known", "unknown"}
    assert record["rejected"]["count"] == int(np.sum(detector.threshold < TRAFFIC))
    assert [row["pi"] for row in record["fpr_by_share"]] == list(SHARES)
    assert record["unknown"] == {
        "says": found.says,
        "tested": True,
        "bound": found.unknown.bound,
        "estimate": found.unknown.estimate,
        "p_value": found.unknown.p_value,
        "compared_with": "holdout",
        "id_examples": 400,
    }

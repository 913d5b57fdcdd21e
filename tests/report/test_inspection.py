"""What an inspection says, and when it says that it cannot say."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

import wildood
from wildood.data.images import Images
from wildood.detect.detector import Promise
from wildood.evaluate.mixture import fpr_by_share, unknown_share
from wildood.evaluate.thresholds import p_values
from wildood.experiments.evaluation import Decisions
from wildood.report.inspection import SHARES, borderline, inspect_traffic, label_first, most_ood
from wildood.report.inspection_page import inspection_record

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
    found = inspect_traffic(detector, decided(detector), confidence=0.9)
    assert found.unknown == unknown_share(HOLDOUT, TRAFFIC, 0.9)
    assert found.found
    assert (found.known_name, found.untested) == ("holdout", "")
    assert np.array_equal(found.p_values, p_values(TRAFFIC, HOLDOUT))
    assert found.says == f"{found.unknown}, compared with the holdout; or its known part is no longer like that"
    assert found.says.startswith("at least ")


def test_traffic_like_the_holdout_holds_nothing_unknown(detector):
    found = inspect_traffic(detector, decided(detector, HOLDOUT))
    assert not found.found
    assert found.says == f"{found.unknown}, compared with the holdout"


def test_id_examples_that_are_given_take_the_holdouts_place(detector):
    known = np.linspace(-3, 3, 300)
    found = inspect_traffic(detector, decided(detector), decided(detector, known))
    assert found.unknown == unknown_share(known, TRAFFIC)
    assert found.known_name == "--id"
    assert "300 ID and 500 wild scores" in found.says
    assert "compared with --id" in found.says
    assert np.array_equal(found.p_values, p_values(TRAFFIC, known))


@pytest.mark.parametrize("promise", [None, Promise(alpha=0.05, examples=400, unseen=False)])
def test_a_holdout_that_cannot_be_trusted_is_not_tested_against(detector, promise):
    detector.promise = promise
    found = inspect_traffic(detector, decided(detector))
    assert (found.unknown, found.p_values, found.fpr(), found.found) == (None, None, None, False)
    assert found.says.startswith("whether any of this traffic is unknown was not tested: the classifier may have trained on")
    assert "give some with --id" in found.says
    assert found.promise.verdict == "no promise"
    trusted = inspect_traffic(detector, decided(detector), decided(detector, HOLDOUT))
    assert trusted.found


def test_traffic_that_a_fit_has_seen_is_not_tested(detector):
    found = inspect_traffic(detector, decided(detector), decided(detector, HOLDOUT), role_of="wild")
    assert (found.unknown, found.p_values, found.fpr(), found.found) == (None, None, None, False)
    assert "was not tested: these examples were the detector's wild data, so they are no sample" in found.says
    assert found.promise.rate is not None  # which does not rest on the traffic
    assert inspect_traffic(detector, decided(detector, HOLDOUT - 9), role_of="wild").promise.verdict == "cannot be told"


def test_the_fpr_is_told_for_each_share_with_a_band_and_a_bound_that_hold_jointly(detector):
    """Each of the two at 97.5 %, for a joint confidence of 95 %; the bound that stands alone stays at 95 %."""
    found = inspect_traffic(detector, decided(detector))
    told, least = found.fpr(), found.least_possible
    assert least == unknown_share(HOLDOUT, TRAFFIC, 0.975).bound < found.unknown.bound
    assert told.share.tolist() == sorted([*SHARES, least])
    expected = fpr_by_share(HOLDOUT, TRAFFIC, detector.threshold, told.share, confidence=0.975)
    for name in ("share", "fpr", "lower", "upper"):
        assert np.array_equal(getattr(told, name), getattr(expected, name))
    assert np.array_equal(told.possible, expected.possible & (told.share >= least))
    assert told.confidence == 0.95
    assert inspect_traffic(detector, decided(detector, HOLDOUT)).fpr().share.tolist() == list(SHARES)  # nothing is found


@pytest.mark.parametrize("count", [5, 50, 400, 2000])
def test_no_share_below_the_bound_is_possible_and_some_above_it_are(detector, count):
    """Unknowns of which some are accepted: the band at the threshold knows less than the bound does."""
    rng = np.random.default_rng(count)
    scores = np.append(rng.normal(size=450), rng.normal(size=count) + 3)
    found = inspect_traffic(detector, decided(detector, scores, np.zeros(len(scores), int)))
    record = inspection_record(detector, found, Images(np.zeros((len(scores), 1))), top=1)
    rows, bound = record["fpr_by_share"], found.least_possible
    assert [row["pi"] for row in rows if row["possible"] and row["pi"] < bound] == []
    possible = [row["pi"] for row in rows if row["possible"]]
    assert len(possible) >= 2
    assert 1.0 in possible
    if bound > 0:
        assert bound in [row["pi"] for row in rows]
    wide = fpr_by_share(HOLDOUT, scores, detector.threshold, np.linspace(0.001, 1, 500), confidence=0.975)
    if count in {50, 400}:  # what this is about: the band alone would call some of them possible
        assert np.any(wide.possible & (wide.share < bound))


def test_the_fpr_below_thresholds_by_class_needs_examples_that_did_not_set_them(detector):
    detector.calibrate(alpha=0.05, by_class=True)
    assert inspect_traffic(detector, decided(detector)).fpr() is None
    known, classes = RNG.normal(size=300), np.arange(300) % 2
    told = inspect_traffic(detector, decided(detector), decided(detector, known, classes)).fpr([0.3])
    rejected = [np.mean(s > detector.class_thresholds[c]) for s, c in ((TRAFFIC, CLASSES), (known, classes))]
    assert told.fpr.item() == pytest.approx(1 - rejected[1] - (rejected[0] - rejected[1]) / 0.3)


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
    found = inspect_traffic(detector, decided(detector))
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
    assert record["rejected"] == asdict(found.rejected)
    assert record["rejected"]["count"] == int(np.sum(detector.threshold < TRAFFIC))
    assert [row["pi"] for row in record["fpr_by_share"]] == sorted([*SHARES, found.least_possible])
    assert record["unknown"] == {
        "says": found.says,
        "tested": True,
        "bound": found.unknown.bound,
        "estimate": found.unknown.estimate,
        "p_value": found.unknown.p_value,
        "compared_with": "holdout",
        "id_examples": 400,
    }

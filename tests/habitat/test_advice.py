"""What comes first of what could be done next."""

from dataclasses import replace

import pytest

from wildood.evaluate.intervals import CaughtBound
from wildood.habitat.advice import advice
from wildood.habitat.calibrate import CalibrationNeed
from wildood.habitat.judged import JudgedCounts
from wildood.habitat.status import Day

NOTHING = JudgedCounts(evidence=0, choice=0, fresh=0, chosen=0, unknown=0, random_unknown=0, newest=None)
SOME = replace(NOTHING, evidence=40, choice=20, fresh=20, unknown=20, random_unknown=12, newest=0.0)
QUIET = CalibrationNeed("", 40, 19)


@pytest.fixture
def now(plane_habitat):
    """A status without anything to do."""
    status = plane_habitat.status()
    return replace(status, days=(Day(0.0, seen=1),), judged=SOME, calibration=QUIET, time=0.0)


def says(now, **changes):
    return advice(replace(now, **{"people": changes.get("judged", NOTHING).random_unknown} | changes))


def test_doubt_about_known_scores_asks_for_answers_before_anything_is_trained_or_promoted(now):
    changes = {"doubt": True, "challenger": "d0002", "compared": {"separated": True}}
    assert says(now, **changes) == (
        "review: known scores may have changed; 32 more known answers of the random sample would tell"
    )
    assert says(now, **changes | {"doubt": False}) == "promote: d0002 accepts less unknown traffic than d0001"


def test_unknowns_that_people_have_judged_are_enough_for_a_refresh(now):
    """After a calibration on few examples, the test of the traffic can find hardly anything."""
    due = {"judged": SOME, "waiting": 900, "enough": 500}
    assert says(now, **due, unknowns=150) == "refresh: people have found unknowns, and 900 examples are collected"
    assert (
        says(now, **due, unknowns=60)
        == "wait: people have found unknowns; a refresh needs 100 of them, and about 60 are collected"
    )
    assert says(now, **due, unknowns=150, missing=40).startswith(
        "review: people have found unknowns; a refresh needs 40 more known"
    )
    assert says(now, **due | {"judged": replace(SOME, random_unknown=9)}, unknowns=150) == "nothing"


def test_a_failed_refresh_is_repeated_unless_most_unknowns_are_caught(now):
    due = {"judged": SOME, "waiting": 900, "enough": 500, "unknowns": 150, "tried": "d0002"}
    few, most = (CaughtBound.of(counts) for counts in ((4, 12), (11, 12)))
    assert says(now, **due, retry=300, caught=few) == (
        "wait: d0002 is not shown to be better; another refresh is worth while after 300 more answers"
    )
    assert says(now, **due, caught=few).endswith("900 examples are collected; d0002 was not shown to be better")
    assert says(now, **due, caught=most).startswith('nothing: d0001 answers unknowns with "unknown" (11 of 12')

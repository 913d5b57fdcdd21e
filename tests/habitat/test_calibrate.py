"""Where known data changes, the champion gets a threshold of today; and refreshes that do not help become rare."""

import numpy as np
import pytest

import wildood
from wildood.errors import InputError
from wildood.habitat.drift import changed_at, measured_until
from wildood.habitat.habitat import Habitat, Settings
from wildood.habitat.judged import is_evidence, is_random

CHANGED = {"shift": 3.0}


@pytest.fixture
def changed(plane_habitat, plane, clock):
    """A function that feeds a day of known data, as it was and then changed, and judges so much evidence of the latter."""

    def make(count, before=0):
        clock.pass_days()
        plane.feed(plane_habitat, *plane.traffic(1000))
        plane.feed(plane_habitat, *plane.traffic(3000, **CHANGED))
        old, new = evidence(1, 1000), evidence(1001, 4000)
        plane.judge(plane_habitat, [*old[:before], *new[:count]])
        return plane_habitat

    return make


def evidence(first, last):
    ids = np.arange(first, last + 1)
    return ids[is_evidence(ids)]


def test_calibration_brings_false_alarms_back_without_training(changed, plane):
    habitat = changed(100)
    before, x = habitat.detector(), plane.known(4000, **CHANGED)[0]
    assert np.mean(before.predict(x) < 0) > 0.25
    done = habitat.calibrate(who="ann")
    after = habitat.detector()
    assert (done.champion, done.former, habitat.champion, habitat.challenger) == ("d0002", "d0001", "d0002", None)
    assert np.array_equal(after.score(x), before.score(x))
    assert np.mean(after.predict(x) < 0) == pytest.approx(0.05, abs=0.04)
    assert done.examples == after.promise.examples == 100
    assert "judged known answers from" in done.promise
    promotion = habitat.promotions()[-1]
    assert (promotion.who, promotion.former, promotion.forced) == ("ann", "d0001", False)
    assert promotion.evidence["drift"].startswith("known scores have changed since the calibration")
    assert habitat.check() == []


def test_only_what_came_after_the_change_calibrates(plane_habitat, plane, clock):
    clock.pass_days()
    plane.feed(plane_habitat, *plane.traffic(1000))
    plane.feed(plane_habitat, *plane.traffic(1000, shift=9.0))
    after = evidence(1001, 2000)
    plane.judge(plane_habitat, [*evidence(1, 1000)[-24:], *after])
    plane_habitat.calibrate(who="ann")
    detector = plane_habitat.detector()
    assert detector.promise.examples == pytest.approx(len(after), abs=3)
    assert changed_at(detector) == pytest.approx(after[0], abs=60)


def test_the_test_of_the_traffic_and_of_drift_begin_anew(changed, plane, clock):
    habitat = changed(60)
    assert habitat.status().found  # changed data looks unknown
    last = evidence(1001, 4000)[59]
    habitat.calibrate(who="ann")
    assert measured_until(habitat.detector()) == last
    now = habitat.status()
    assert (now.found, now.looks.rows, now.drift.examples, now.false_alarms) == (False, 0, 0, None)
    clock.pass_days()
    plane.feed(habitat, *plane.traffic(600, **CHANGED))
    plane.judge(habitat, evidence(4001, 4600))
    now = habitat.status()
    assert not now.drift.found
    assert now.drift.examples == now.false_alarms.examples == len(evidence(4001, 4600))


def test_what_trained_the_champion_stays_known(changed):
    """The rows after its training are still its later traffic: a calibration trains nothing."""
    habitat = changed(60)
    habitat.calibrate(who="ann")
    first, second = habitat.detectors()
    assert (second.parent, second.trained_until) == (first.id, first.trained_until)


def test_a_calibration_leaves_the_challenger_of_before(changed, first_detector):
    habitat = changed(60)
    habitat.add(first_detector, parent="d0001", trained_until=100)
    assert habitat.challenger == "d0002"
    assert habitat.status().next.startswith("calibrate: known scores have changed")
    habitat.calibrate(who="ann")
    assert (habitat.champion, habitat.challenger) == ("d0003", None)


def test_too_few_examples_are_said_and_nothing_is_changed(changed):
    habitat = changed(16)
    now = habitat.status()
    assert now.drift.found
    assert now.next.startswith("review: known scores have changed")
    assert now.next.endswith("6 more known answers of the random sample are needed to calibrate")
    with pytest.raises(InputError, match="6 more known answers of the random sample"):
        habitat.calibrate(who="ann")
    assert len(habitat.detectors()) == 1


def test_without_a_change_the_threshold_stays_unless_it_is_forced(plane_habitat, plane, clock):
    clock.pass_days()
    plane.feed(plane_habitat, *plane.traffic(1000))
    plane.judge(plane_habitat, evidence(1, 1000)[:40])
    with pytest.raises(InputError, match="no change of known scores is found"):
        plane_habitat.calibrate(who="ann")
    assert plane_habitat.calibrate(who="ann", force=True).examples == 40
    assert changed_at(plane_habitat.detector()) == 0  # the holdout still serves a refresh


def test_twice_as_many_examples_calibrate_again(changed, plane):
    habitat = changed(20)
    habitat.calibrate(who="ann")
    new = evidence(1001, 4000)
    plane.judge(habitat, new[20:39])
    assert not habitat.status().next.startswith("calibrate")
    plane.judge(habitat, new[39:40])
    assert habitat.status().next.startswith("calibrate: the threshold rests on only 20 examples, and 40 known answers")
    assert habitat.calibrate(who="ann").examples == 40


def test_a_detector_without_a_promise_gets_one(tmp_path, plane_model, plane, clock):
    detector = wildood.posthoc(plane_model, wildood.EnergyScore(), labelled=plane.known(300))
    habitat = Habitat.create(tmp_path / "h", detector, Settings(retain=None), clock=clock)
    clock.pass_days()
    plane.feed(habitat, *plane.traffic(1000))
    assert habitat.status().next.startswith("review: the threshold promises nothing; 38 more known answers")
    plane.judge(habitat, evidence(1, 1000)[:30])
    habitat.calibrate(who="ann")
    assert (habitat.detector().promise.unseen, habitat.detector().promise.examples) == (True, 30)


def test_two_calibrations_at_once_make_one_champion(changed):
    habitat = changed(60)
    champion = habitat.detector()
    habitat.calibrate(who="ann")
    with pytest.raises(InputError, match="d0001 is the champion no more, d0002 is"):
        habitat.add_champion(champion, trained_until=0, against="d0001", who="bob", why="", evidence={})
    assert len(habitat.detectors()) == 2
    assert habitat.check() == []


def failed_try(habitat, detector, until):
    habitat.add(detector, parent=habitat.champion, trained_until=until)


@pytest.mark.slow
def test_refreshes_that_do_not_help_become_rare(plane_habitat, plane, clock, first_detector):
    """Each needs as much new traffic as there was before the last."""
    habitat, tries = plane_habitat, []
    holdout = plane.known(400)
    for day in range(13):
        clock.pass_days()
        plane.feed(habitat, *plane.traffic(400, 0.3))
        if day == 2:
            plane.judge(habitat, [item.answer for item in habitat.review(top=40).items if item.why != "random sample"])
        action = habitat.status().next.partition(":")[0]
        if action == "compare":
            habitat.compare(holdout)
            action = habitat.status().next.partition(":")[0]
        if action == "refresh":
            tries.append((day + 1) * 400)
            failed_try(habitat, first_detector, tries[-1])
    assert tries == [1200, 2400, 4800]


def test_compared_again_only_after_half_as_much_traffic_again(plane_habitat, plane, clock, first_detector):
    """However much of it is still stored: retention must not make the comparison due for ever, nor never."""
    habitat, holdout, compared = plane_habitat, plane.known(400), []
    failed_try(habitat, first_detector, 0)
    for day in range(1, 11):
        clock.pass_days()
        plane.feed(habitat, *plane.traffic(400))
        habitat.store.sweep(retain=2.5 * 86400.0)
        for _ in range(2):
            if habitat.status().next.startswith("compare"):
                habitat.compare(holdout)
                compared.append(400 * day)
    assert compared == [400, 800, 1200, 2000, 3200]


def test_where_most_unknowns_are_caught_a_failed_refresh_is_the_last(plane_habitat, plane, clock, first_detector):
    habitat = plane_habitat
    clock.pass_days()
    plane.feed(habitat, *plane.traffic(2000, 0.3))
    failed_try(habitat, first_detector, 2000)
    for _ in range(3):
        clock.pass_days()
        plane.feed(habitat, *plane.traffic(1000, 0.3))
    habitat.compare(plane.known(400))
    ids = np.arange(1, 5001)
    rows = habitat.store.rows()
    caught = [each for each in ids[is_evidence(ids)] if habitat.truth[each] < 0 and not rows.known[each - 1]]
    plane.judge(habitat, [*caught[:12], *ids[~is_random(ids)][:5]])
    assert habitat.status().next == (
        'nothing: d0001 answers unknowns with "unknown" (12 of 12 that measure), and d0002 is not shown to be better'
    )

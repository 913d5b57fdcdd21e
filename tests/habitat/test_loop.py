"""The loop of a habitat: status, review, refresh, compare, promote; what each may use, and what it refuses."""

import json
import shutil

import numpy as np
import pytest
import torch

import wildood
from wildood.data.sources import ArraySource
from wildood.errors import InputError
from wildood.evaluate.binomial import lower_limit
from wildood.evaluate.mixture import unknown_share
from wildood.habitat import holdout
from wildood.habitat import refresh as refreshing
from wildood.habitat.answers import Answers
from wildood.habitat.compare import compare
from wildood.habitat.habitat import Habitat, Settings
from wildood.habitat.holdout import HoldoutParts
from wildood.habitat.judged import is_choice, is_evidence, is_random
from wildood.habitat.refresh import recorded_method, recorded_schedule
from wildood.habitat.status import status
from wildood.methods.woods import Woods
from wildood.train import checkpoint

DAY = 86400.0
SHORT = wildood.Schedule(steps=40, batch=64)
SETTINGS = {"schedule": SHORT, "verbose": False}


@pytest.fixture
def habitat(plane_habitat):
    return plane_habitat


def feed_days(plane, habitat, clock, days, count, share=0.0, shift=0.0):
    for _ in range(days):
        clock.pass_days()
        plane.feed(habitat, *plane.traffic(count, share, shift))


# -- status


def test_a_new_habitat_has_nothing_to_do(habitat):
    now = habitat.status()
    assert (now.champion, now.challenger, now.found, now.recent) == ("d0001", None, False, None)
    assert now.next == "nothing: there is no traffic yet"
    assert now.looks.values == ()


def test_status_says_the_same_however_often_it_is_asked(habitat, plane, clock):
    """A day is one look, whether it is looked at while it passes or long after."""
    asked = Habitat(habitat.path, clock=clock)
    for _ in range(3):
        clock.pass_days(0.6)
        plane.feed(habitat, *plane.traffic(50, 0.1))
        asked.status()
        plane.feed(habitat, *plane.traffic(50, 0.1))
        asked.status()
    often = asked.status()
    with habitat.store.index.writing() as index:
        index.execute("DELETE FROM looks")
    once = habitat.status()
    assert often.looks == once.looks
    assert often.days == once.days


def test_days_have_the_bound_and_the_counters_of_their_rows(habitat, plane, clock):
    feed_days(plane, habitat, clock, 2, 150, share=0.3)
    day = habitat.status().days[-1]
    rows = habitat.store.rows()
    expected = unknown_share(habitat.detector().holdout_scores, rows.score[-150:])
    assert (day.seen, day.sampled, day.rows, day.bound) == (150, 150, 150, expected.bound)
    assert day.unknown == int(np.sum(~rows.known[-150:]))


def test_unknowns_are_found_and_the_finding_stands(habitat, plane, clock):
    feed_days(plane, habitat, clock, 2, 200)
    assert not habitat.status().found
    feed_days(plane, habitat, clock, 3, 200, share=0.3)
    found = habitat.status()
    assert found.found
    assert found.looks.first in {2, 3}
    assert found.next == "review: unknowns are found; see what they are"
    feed_days(plane, habitat, clock, 2, 600)
    assert habitat.status().found


def test_what_people_have_found_is_said_beside_a_test_that_begins_anew(habitat, plane, clock, first_detector):
    feed_days(plane, habitat, clock, 2, 400, share=0.3)
    ids, truth = np.arange(1, 801), np.array(list(habitat.truth.values()))
    people = int(np.sum(truth[is_random(ids)] < 0))
    plane.judge(habitat, ids[is_random(ids)])
    assert habitat.status().found
    habitat.add(first_detector, parent="d0001", trained_until=0)
    habitat.promote(who="ann", force=True)
    now = habitat.status()
    assert people >= 10
    assert (now.found, now.found_by_people, now.people) == (False, True, people)
    assert now.summary["unknown"] == (
        f"not tested yet: the test begins anew with d0002; people have called {people} answers of the random sample unknown"
    )
    assert now.next.startswith("refresh: people have found unknowns, and 800 examples")
    feed_days(plane, habitat, clock, 1, 30)
    assert habitat.status().summary["unknown"].startswith("no unknowns are found in 1 look at 30 rows")
    assert habitat.status().summary["unknown"].endswith(f"people have called {people} answers of the random sample unknown")


def test_closed_days_outlive_their_rows(habitat, plane, clock):
    feed_days(plane, habitat, clock, 3, 200, share=0.3)
    before = habitat.status()
    with habitat.store.index.writing() as index:
        index.execute("DELETE FROM answers WHERE id <= 400")
    after = habitat.status()
    assert after.looks == before.looks
    assert [day.bound for day in after.days] == [day.bound for day in before.days]


def test_rows_that_their_window_may_still_exchange_are_not_looked_at(habitat, plane, clock):
    feed_days(plane, habitat, clock, 1, 60)
    clock.pass_days()
    plane.feed(habitat, *plane.traffic(60), per_window=50)
    assert habitat.status().looks.rows == 60
    clock.pass_days(0.05)  # the window has ended
    assert habitat.status().looks.rows == 110


def test_a_read_only_habitat_has_a_status(habitat, plane, clock):
    feed_days(plane, habitat, clock, 2, 100)
    looked = Habitat(habitat.path, clock=clock, readonly=True).status()
    with habitat.store.index.reading() as index:
        assert index.execute("SELECT count(*) FROM looks").fetchone()[0] == 0
    assert looked == habitat.status()


def test_without_an_unseen_holdout_unknowns_are_not_tested(tmp_path, plane_model, plane, clock):
    detector = wildood.posthoc(plane_model, wildood.EnergyScore(), labelled=plane.known(300))
    habitat = Habitat.create(tmp_path / "h", detector, clock=clock)
    feed_days(plane, habitat, clock, 1, 50, share=0.5)
    now = habitat.status()
    assert (now.looks, now.recent, now.drift, now.found) == (None, None, None, False)
    assert now.untested.startswith("not tested: the classifier may have trained on the holdout")


def test_results_are_json_and_html(habitat, plane, clock):
    feed_days(plane, habitat, clock, 1, 100)
    for result in (habitat.status(), habitat.review()):
        assert json.loads(json.dumps(result.to_dict()))["summary"] == result.summary
        assert "<table" in result._repr_html_()
        assert str(result) == repr(result)


def test_a_score_that_is_not_finite_is_none_in_json(habitat, plane, first_detector):
    x, _ = plane.traffic(3)
    answers = Answers([""] * 3, "d0001", [np.inf, np.nan, 1.0], [0, 1, 2], [False, False, True], np.full(3, 0.5))
    habitat.store.append(answers, torch.from_numpy(x))
    listed = habitat.review().to_dict()
    scores = {item["answer"]: item["score"] for item in [*listed["random"], *listed["chosen"]]}
    assert scores == {1: None, 2: None, 3: 1.0}
    now = habitat.status()
    assert now.looks.rows == 3
    assert now.recent.wild == 3


# -- review


def test_review_lists_a_random_sample_and_chosen_examples_that_never_mix(habitat, plane, clock):
    feed_days(plane, habitat, clock, 1, 300, share=0.2)
    listed = habitat.review(top=12)
    random, chosen = ([item.answer for item in items] for items in (listed.random, listed.chosen))
    assert len(random) == len(chosen) == 6
    assert is_random(random).all()
    assert not is_random(chosen).any()
    sample = np.flatnonzero(is_random(np.arange(301)))
    assert random == sample[sample > 0][::-1][:6].tolist()  # the newest, whatever their scores
    assert {item.why for item in listed.chosen} == {"just rejected", "just accepted", "highest score"}


def test_right_after_a_promotion_the_list_has_answers_of_the_former_champion(habitat, plane, clock, first_detector):
    feed_days(plane, habitat, clock, 1, 300, share=0.2)
    before = habitat.review(top=20)
    habitat.add(first_detector, parent="d0001", trained_until=200)
    habitat.promote(who="ann", force=True)
    after = habitat.review(top=20)
    assert after.detector == "d0002"
    assert [item.answer for item in after.items] == [item.answer for item in before.items]
    assert {item.detector for item in after.items} == {"d0001"}
    feed_days(plane, habitat, clock, 1, 30)
    mixed = habitat.review(top=60)
    assert [item.detector for item in mixed.chosen] == sorted((item.detector for item in mixed.chosen), reverse=True)
    random = [item.answer for item in mixed.random]
    assert random == np.flatnonzero(is_random(np.arange(331)))[::-1][:30].tolist()
    assert not is_random([item.answer for item in mixed.chosen]).any()
    habitat.promote("d0001", who="ann")
    assert {item.detector for item in habitat.review(top=60).items} == {"d0001", "d0002"}  # also after going back


def test_the_list_has_nothing_of_another_line(habitat, plane, clock, first_detector):
    feed_days(plane, habitat, clock, 1, 100)
    habitat.add(first_detector, parent=None, trained_until=0)
    habitat.promote(who="ann", force=True)
    assert habitat.review().items == ()
    assert str(habitat.review()) == "review       nothing to review: no answer with an example is waiting"


def test_the_list_has_nothing_from_before_a_change(habitat, plane, clock):
    feed_days(plane, habitat, clock, 1, 300)
    feed_days(plane, habitat, clock, 1, 700, shift=9.0)
    ids = np.arange(301, 1001)
    plane.judge(habitat, ids[is_evidence(ids)])
    habitat.calibrate(who="ann")
    since = habitat.detector().record["habitat"]["since"]
    listed = [item.answer for item in habitat.review(top=2000).items]
    assert since > 290
    assert min(listed) >= since
    assert len(listed) > 500


def test_answers_are_recorded_by_name_or_number_and_leave_the_list(habitat, plane, clock):
    feed_days(plane, habitat, clock, 1, 200)
    first, second, third = (item.answer for item in habitat.review().items[:3])
    after = habitat.review({first: "unknown", second: 2, third: None}, who="ann")
    assert after.recorded == 3
    assert not {first, second, third} & {item.answer for item in after.items}
    judged = habitat.store.judged()
    assert dict(zip(judged.answer.tolist(), judged.class_.tolist(), strict=True)) == {first: -1, second: 2, third: -1}
    assert set(judged.who) == {"ann"}


@pytest.mark.parametrize(
    ("answers", "message"), [({1: "dog"}, "answer 1 is called 'dog'"), ({1: 3}, "0 to 2"), ({9: 0}, "9")]
)
def test_wrong_answers_are_refused_and_none_is_recorded(habitat, plane, answers, message):
    plane.feed(habitat, *plane.traffic(3))
    with pytest.raises(InputError, match=message):
        habitat.review({2: 0, **answers}, who="ann")
    assert len(habitat.store.judged()) == 0


def test_an_example_that_is_removed_while_answers_are_recorded_does_not_stop_the_others(habitat, plane, clock, monkeypatch):
    feed_days(plane, habitat, clock, 1, 60)
    first, second, third = (item.answer for item in habitat.review().items[:3])
    judge = habitat.store.judge

    def judge_but_the_second(answer, class_, who):
        if answer == second:
            raise InputError("it was removed")
        judge(answer, class_, who)

    monkeypatch.setattr(habitat.store, "judge", judge_but_the_second)
    with pytest.raises(InputError, match=rf"2 answers recorded; the examples of 1 more \({second}\) were removed"):
        habitat.review({first: 0, second: 1, third: None}, who="ann")
    assert sorted(habitat.store.judged().answer) == sorted([first, third])


def test_drift_of_known_scores_is_found_in_judged_evidence(habitat, plane, clock):
    feed_days(plane, habitat, clock, 1, 600, shift=3.0)
    ids = np.arange(1, 601)
    plane.judge(habitat, ids[is_evidence(ids)][:32])
    now = habitat.status()
    assert now.drift.found
    assert now.false_alarms.examples == now.judged.evidence == 32
    assert now.next == (
        "calibrate: known scores have changed, so the threshold is of another time, and 32 known answers of today can set it"
    )


def test_chosen_examples_do_not_measure_drift(habitat, plane, clock):
    feed_days(plane, habitat, clock, 1, 300)
    ids = np.arange(1, 301)
    plane.judge(habitat, ids[~is_random(ids)][:20])
    now = habitat.status()
    assert (now.drift.examples, now.false_alarms, now.judged.chosen) == (0, None, 20)


def test_judged_unknowns_of_the_random_sample_bound_what_is_caught(habitat, plane, clock):
    feed_days(plane, habitat, clock, 1, 2000, share=0.3)
    ids, truth = np.arange(1, 2001), np.array(list(habitat.truth.values()))
    evidence, others = ids[(truth < 0) & is_evidence(ids)], ids[(truth < 0) & ~is_evidence(ids)]
    plane.judge(habitat, [*others[:40], *evidence[:9]])
    few = habitat.status()
    assert (few.caught.examples, few.caught.least) == (9, None)
    assert few.summary["caught"] == (
        "no bound yet on what is caught: 10 judged unknowns are needed, there are 9 "
        "(only those of the evidence count, half of the random sample)"
    )
    plane.judge(habitat, evidence)
    now = habitat.status()
    caught = int(np.sum(~habitat.store.rows().known[evidence - 1]))
    assert (now.caught.count, now.caught.examples) == (caught, len(evidence))
    assert now.caught.least == pytest.approx(lower_limit(caught, len(evidence), 0.05))
    assert now.to_dict()["caught"]["least"] == now.caught.least
    assert f"({caught} of {len(evidence)} judged unknowns)" in now.summary["caught"]


def test_what_a_detector_from_elsewhere_may_have_trained_on_does_not_measure(habitat, plane, clock, first_detector):
    feed_days(plane, habitat, clock, 1, 2000, share=0.3)
    ids, truth = np.arange(1, 2001), np.array(list(habitat.truth.values()))
    evidence = ids[(truth < 0) & is_evidence(ids)]
    plane.judge(habitat, evidence)
    habitat.add(first_detector, parent="d0001", trained_until=1200)
    habitat.promote(who="ann", force=True)
    assert habitat.status().caught.examples == np.sum(evidence > 1200)


# -- refresh


@pytest.fixture
def known(plane):
    return {"labelled": plane.known(300), "holdout": plane.known(400)}


@pytest.mark.slow
def test_a_challenger_is_trained_compared_and_promoted(habitat, plane, clock, known):
    feed_days(plane, habitat, clock, 3, 300, share=0.2)
    plane.judge(habitat, [item.answer for item in habitat.review(top=30).items])
    assert habitat.status().next.startswith("refresh: unknowns are found, and 900 examples")
    made = habitat.refresh(**known, **SETTINGS)
    assert (made.challenger, made.champion, made.until, made.helped) == ("d0002", "d0001", 900, True)
    assert habitat.challenger == "d0002"
    assert not (habitat.path / "refresh" / "run").exists()
    assert habitat.compare(known["holdout"]).missing == "100 more examples of traffic that came after the training"
    with pytest.raises(InputError, match="nothing says that d0002 is better than d0001"):
        habitat.promote(who="ann")
    feed_days(plane, habitat, clock, 1, 400, share=0.2)
    later = np.sum(~is_evidence(np.arange(901, 1301)))
    now = habitat.status()
    assert (now.later, now.next) == (later, f"compare: {later} later examples can judge d0002")
    compared = habitat.compare(known["holdout"])
    assert compared.separated
    assert (compared.later, compared.look) == (later, 1)
    assert compared.result.trained < compared.result.start
    assert habitat.status().next.startswith("promote: d0002")
    promotion = habitat.promote(who="ann", why="it catches more")
    assert (promotion.detector, promotion.forced, promotion.evidence["separated"]) == ("d0002", False, True)
    now = habitat.status()
    assert (now.champion, now.challenger, now.looks.rows) == ("d0002", None, 0)
    assert habitat.promote("d0001", who="ann", why="back").forced is False
    assert habitat.status().looks.rows == 1300  # its test goes on where it was
    assert habitat.check() == []


@pytest.mark.slow
def test_a_refresh_uses_what_it_may(habitat, plane, clock, known, monkeypatch):
    feed_days(plane, habitat, clock, 1, 600, share=0.2)
    ids = np.arange(1, 601)
    evidence, choice, others = ids[is_evidence(ids)], ids[is_choice(ids)], ids[~is_random(ids)]
    fresh = np.setdiff1d(ids[is_random(ids)], [*evidence, *choice])
    plane.judge(habitat, [*evidence[:5], *choice[:5], *fresh[:5], *others[:20]])
    used = {}

    def fit(model, labelled, wild, holdout, **settings):
        used.update(labelled=labelled, wild=wild, holdout=holdout, **settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(refreshing, "fit", fit)
    with pytest.raises(KeyboardInterrupt):
        habitat.refresh(**known, **SETTINGS)
    x = habitat.store.source(ids).gather(torch.arange(600))[0].numpy()
    truth = np.array([habitat.truth[each] for each in ids])
    judged_known = [each for each in [*fresh[:5], *others[:20]] if truth[each - 1] >= 0]
    expected = ids[~is_evidence(ids) & ~is_choice(ids) & ~np.isin(ids, judged_known)]
    assert np.array_equal(used["wild"].gather(torch.arange(len(used["wild"])))[0].numpy(), x[expected - 1])
    added = [each for each in [*fresh[:5], *others[:20]] if truth[each - 1] >= 0]
    assert len(used["labelled"]) == 300 + len(added)
    assert used["fresh"] is None  # five are too few for ten false alarms
    more, labels = used["labelled"].gather(torch.arange(300, 300 + len(added)))
    assert {tuple(row) for row in more.numpy()} == {tuple(x[each - 1]) for each in added}
    assert sorted(labels.tolist()) == sorted(truth[np.array(added) - 1].tolist())
    parts = HoldoutParts.of(ArraySource(known["holdout"][0], known["holdout"][1]))
    assert torch.equal(used["holdout"].selection, parts.choice.indices)
    assert torch.equal(used["holdout"].threshold, parts.threshold.indices)


@pytest.mark.slow
def test_a_killed_refresh_goes_on_with_the_same_rows(habitat, plane, clock, known, monkeypatch, tmp_path):
    feed_days(plane, habitat, clock, 2, 200, share=0.2)
    shutil.copytree(habitat.path, tmp_path / "other")
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    real = refreshing.fit

    def killed(*arguments, **settings):
        def stop(row):
            if row["step"] >= 25:
                raise KeyboardInterrupt

        return real(*arguments, **settings, on_epoch=stop)

    monkeypatch.setattr(refreshing, "fit", killed)
    with pytest.raises(KeyboardInterrupt):
        habitat.refresh(**known, **SETTINGS)
    monkeypatch.setattr(refreshing, "fit", real)
    assert (habitat.path / "refresh" / "run" / "checkpoint.safetensors").exists()
    feed_days(plane, habitat, clock, 1, 100)  # what comes after the start changes nothing,
    plane.judge(habitat, [201, 202, 203])
    habitat.store.sweep(retain=1.5 * DAY)
    assert habitat.store.rows().id.min() == 201  # nor what is removed
    assert habitat.refresh(**known, **SETTINGS).until == 400
    uninterrupted = Habitat(tmp_path / "other", clock=clock)
    uninterrupted.refresh(**known, **SETTINGS)
    x = plane.known(50)[0]
    assert np.array_equal(habitat.detector("d0002").score(x), uninterrupted.detector("d0002").score(x))
    assert not any((habitat.path / "refresh").iterdir())


def test_a_refresh_that_was_killed_after_its_challenger_was_added_is_not_made_twice(habitat, plane, clock, known):
    feed_days(plane, habitat, clock, 1, 300, share=0.2)
    frozen = refreshing._frozen_rows
    (habitat.path / "refresh").mkdir()
    arguments = habitat, habitat.detector(), "d0001", 0.05, None
    rows, _ = frozen(*arguments, restart=False)
    habitat.add(habitat.detector(), parent="d0001", trained_until=rows.until)
    feed_days(plane, habitat, clock, 1, 50)
    assert frozen(*arguments, restart=False)[0].until > rows.until


def test_the_promise_of_a_challenger_rests_on_a_quarter_that_does_nothing_else(habitat, plane, clock, known):
    feed_days(plane, habitat, clock, 1, 400, share=0.2)
    habitat.refresh(**known, **SETTINGS)
    detector = habitat.detector("d0002")
    source = ArraySource(*known["holdout"])
    parts = HoldoutParts.of(source)
    x = parts.threshold.gather(torch.arange(len(parts.threshold)))[0].numpy()
    assert np.allclose(np.sort(detector.score(x)), np.sort(detector.holdout_scores))
    assert (detector.promise.unseen, detector.promise.caveat, detector.promise.examples) == (True, "", len(x))


def test_a_holdout_has_the_same_parts_when_it_grows(plane):
    x = plane.known(300)[0]
    before = HoldoutParts.of(ArraySource(x))
    after = HoldoutParts.of(ArraySource(np.concatenate([plane.known(100)[0], x[::-1]])))
    for name in ("choice", "threshold", "comparison"):
        first, second = (
            {tuple(row) for row in part.gather(torch.arange(len(part)))[0].tolist()}
            for part in (getattr(before, name), getattr(after, name))
        )
        assert first < second


def test_after_a_change_a_refresh_says_how_many_answers_are_missing(habitat, plane, clock, known):
    feed_days(plane, habitat, clock, 1, 600, shift=3.0)
    ids = np.arange(1, 601)
    plane.judge(habitat, ids[is_evidence(ids)][:32])
    with pytest.raises(InputError, match="a refresh needs about 800 more known answers of the random sample"):
        habitat.refresh(**known, **SETTINGS)
    assert not any((habitat.path / "refresh").glob("frozen*"))


@pytest.mark.slow
def test_after_a_change_judged_examples_of_now_take_the_place_of_the_holdout(habitat, plane, clock, known, monkeypatch):
    feed_days(plane, habitat, clock, 1, 400)
    feed_days(plane, habitat, clock, 1, 1200, share=0.1, shift=3.0)
    ids = np.arange(1, 1601)
    monkeypatch.setattr(holdout, "TAIL", 1.0)  # 20 examples of each kind
    chosen, others = ids[is_random(ids)], ids[~is_random(ids)]
    plane.judge(habitat, [*chosen, *others[:10]])
    used, real = {}, refreshing.fit

    def fit(model, labelled, wild, holdout, **settings):
        used.update(wild=len(wild), holdout=holdout, fresh=settings["fresh"])
        return real(model, labelled, wild, holdout, **settings)

    monkeypatch.setattr(refreshing, "fit", fit)
    made = habitat.refresh(**known, **SETTINGS)
    assert made.calibrated_on == "judged known examples, because known scores have changed"
    detector, truth = habitat.detector("d0002"), habitat.truth
    since = detector.record["habitat"]["since"]
    later = [each for each in chosen if each >= since and truth[each] >= 0]
    assert len(used["holdout"].selection) == is_choice(later).sum() >= 20
    assert len(used["fresh"]) == made.fresh == len(later) - is_choice(later).sum() - is_evidence(later).sum()
    assert used["wild"] == np.sum(~is_evidence(ids[since - 1 :]) & ~is_choice(ids[since - 1 :])) - made.fresh
    assert detector.promise.examples == len(used["holdout"].threshold) == 20
    assert not set(used["holdout"].threshold.tolist()) & set(used["holdout"].selection.tolist())
    today = plane.known(2000, shift=3.0)[0]
    assert np.mean(habitat.detector("d0001").predict(today) < 0) > 0.25
    assert np.mean(detector.predict(today) < 0) < 0.15
    compared = habitat.compare(known["holdout"])
    assert (compared.holdout, compared.evidence) == (0, is_evidence(later).sum())


def test_a_refresh_needs_traffic_and_a_holdout(habitat, plane, known):
    with pytest.raises(InputError, match="has no traffic with examples"):
        habitat.refresh(**known, **SETTINGS)
    plane.feed(habitat, *plane.traffic(20))
    with pytest.raises(InputError, match="a refresh needs holdout"):
        habitat.refresh(known["labelled"], None, **SETTINGS)
    with pytest.raises(InputError, match=r"the holdout has \d examples, but"):
        habitat.refresh(known["labelled"], plane.known(30), **SETTINGS)


def test_the_holdout_of_a_fitted_champion_is_refused_unless_its_start_is_given(tmp_path, plane, plane_model, clock, known):
    champion = wildood.fit(
        plane_model, known["labelled"], plane.traffic(300, 0.2)[0], known["holdout"], schedule=SHORT, verbose=False
    )
    habitat = Habitat.create(tmp_path / "h", champion, Settings(), clock=clock)
    feed_days(plane, habitat, clock, 1, 200, share=0.2)
    with pytest.raises(InputError, match=r"were the detector's holdout \(d0001\).*--weights"):
        habitat.refresh(**known, verbose=False)
    made = habitat.refresh(**known, start=plane_model, verbose=False)
    with pytest.raises(InputError, match="were the detector's labelled data"):
        habitat.refresh(known["labelled"], known["labelled"], start=None, verbose=False)
    record = habitat.detector(made.challenger).record
    assert record["schedule"]["steps"] == 40  # the champion's
    feed_days(plane, habitat, clock, 1, 150)
    assert "can only make d0001 look better" in habitat.compare(known["holdout"]).caveat


def test_method_and_schedule_come_from_the_record(plane, plane_model, known):
    method = Woods(alpha=0.1)
    fitted = wildood.fit(
        plane_model,
        known["labelled"],
        plane.traffic(300, 0.2)[0],
        known["holdout"],
        method=method,
        schedule=SHORT,
        verbose=False,
    )
    assert recorded_method(fitted) == method
    assert recorded_schedule(fitted, method) == SHORT
    assert recorded_schedule(fitted, Woods()) == Woods().schedule()


def test_a_champion_that_was_not_trained_is_refreshed_by_woods(first_detector):
    assert recorded_method(first_detector) == Woods()


class Sentences(torch.nn.Module):
    """Two classes of sequences, by the mean of what their tokens are embedded as."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(30, 4), torch.nn.Linear(4, 2)
        with torch.no_grad():
            self.embedding.weight.normal_(generator=torch.Generator().manual_seed(0))

    def forward(self, ids, mask):
        return self.head((self.embedding(ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def test_structured_examples_go_round_the_loop(tmp_path, clock):
    rng, truth = np.random.default_rng(0), {}

    def sentences(count):
        y = rng.integers(0, 2, count)
        return {"ids": rng.integers(0, 15, (count, 6)) + 15 * y[:, None], "mask": np.ones((count, 6), "float32")}, y

    def feed(count):
        (x, y), detector = sentences(count), habitat.detector(model=Sentences)
        scores, classes = detector.score_and_classify(x)
        known = detector.accepts(scores, classes)
        truth.update(enumerate(y.tolist(), int(habitat.store.rows().id.max(initial=0)) + 1))
        answers = Answers([""] * count, "d0001", scores, classes, known, np.full(count, 0.5))
        habitat.store.append(answers, {name: torch.from_numpy(part) for name, part in x.items()})

    holdout = sentences(300)
    first = wildood.posthoc(Sentences(), wildood.EnergyScore(), holdout=sentences(200))
    habitat = Habitat.create(tmp_path / "h", first, clock=clock)
    feed(200)
    items = habitat.review(model=Sentences, top=8).items
    habitat.review({item.answer: truth[item.answer] for item in items}, who="ann", model=Sentences)
    made = habitat.refresh(sentences(100), holdout, model=Sentences, **SETTINGS)
    asked = [item.answer for item in items]
    evidence = int(is_evidence(asked).sum())
    assert (made.challenger, made.labelled) == ("d0002", 8 - evidence - is_choice(asked).sum())
    feed(120)
    compared = habitat.compare(holdout, model=Sentences)
    later = np.sum(~is_evidence(np.arange(201, 321)))
    assert (compared.later, compared.evidence, compared.result is None) == (later, evidence, False)


# -- compare


def test_every_look_at_a_comparison_makes_the_next_one_stricter(habitat, plane, clock, known, first_detector):
    feed_days(plane, habitat, clock, 1, 200)
    habitat.add(first_detector, parent="d0001", trained_until=200)
    looks = []
    for _ in range(3):
        feed_days(plane, habitat, clock, 1, 150)
        looks.append(habitat.compare(known["holdout"]))
    assert [each.look for each in looks] == [1, 2, 3]
    assert habitat.compare(known["holdout"]).look == 3  # the same data again
    assert not any(each.separated for each in looks)
    assert habitat.status().next == "wait: d0002 is not shown to be better; compare again after 225 more answers"


def test_a_look_at_new_traffic_counts_however_many_rows_are_compared(habitat, plane, clock, known, monkeypatch):
    monkeypatch.setattr("wildood.habitat.compare.MOST", 100)
    habitat.add(habitat.detector(), parent="d0001", trained_until=0)
    looks = []
    for _ in range(2):
        feed_days(plane, habitat, clock, 1, 150)
        looks.append(habitat.compare(known["holdout"]))
    assert [(each.later, each.look) for each in looks] == [(100, 1), (100, 2)]


def test_shadow_scores_compare_where_no_example_is_kept(habitat, plane, clock, known, first_detector):
    habitat.add(first_detector, parent="d0001", trained_until=0)
    x, _ = plane.traffic(200, 0.2)
    scores, classes = first_detector.score_and_classify(x)
    shadow = {"shadow": "d0002", "shadow_score": scores, "shadow_known": first_detector.accepts(scores, classes)}
    answers = Answers([""] * 200, "d0001", scores, classes, shadow["shadow_known"], np.full(200, 0.5), **shadow)
    habitat.store.append(answers, None)
    compared = compare(habitat, first_detector, first_detector, known["holdout"])
    assert compared.later == np.sum(~is_evidence(np.arange(1, 201)))
    assert compared.result.start == compared.result.trained


def test_what_is_missing_for_a_comparison_is_said(habitat, first_detector):
    habitat.add(first_detector, parent="d0001", trained_until=0)
    compared = habitat.compare()
    assert compared.result is None
    assert compared.missing == (
        "100 more examples of traffic that came after the training and 41 more known examples (review answers them, or give "
        "the holdout (--holdout))"
    )


def test_without_a_challenger_there_is_nothing_to_compare(habitat):
    with pytest.raises(InputError, match="has no challenger"):
        habitat.compare()


def test_status_is_a_function_of_a_habitat_and_its_champion(habitat, first_detector):
    assert status(habitat, first_detector).champion == "d0001"

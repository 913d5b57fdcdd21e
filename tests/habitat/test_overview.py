"""Rates, bounds and galleries are those of the traffic, whichever part of it was kept."""

import numpy as np
import pytest
import torch

import wildood
from wildood.habitat.answers import Answers, Counts
from wildood.habitat.habitat import Habitat, Settings
from wildood.habitat.judged import is_random
from wildood.habitat.overview import SHOWN, SPANS, bounds, chosen_span, latest, promotion_ticks, time_ticks, traffic, when
from wildood.habitat.status import status

NOW = 1000 * 86_400.0
HOUR, DAY = 3600.0, 86_400.0
BY_KEY = {span.key: span for span in SPANS}


@pytest.fixture(scope="module")
def detector():
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(60, 2)).astype("float32")
    return wildood.posthoc(torch.nn.Linear(2, 3), wildood.EnergyScore(), holdout=x, alpha=0.1)


@pytest.fixture
def habitat(tmp_path, detector, clock):
    clock.now = NOW - 40 * DAY
    return Habitat.create(tmp_path / "h", detector, Settings(retain=None), clock=clock)


def record(habitat, times, known=True, examples=True, score=0.0, **settings):
    times = np.atleast_1d(np.asarray(times, float))
    habitat.clock.now = max(habitat.clock.now, float(times.max()))
    shape, x = len(times), torch.zeros(len(times), 2)
    scores, flags = np.broadcast_to(np.asarray(score, float), shape), np.broadcast_to(known, shape)
    answers = Answers(["r"] * len(times), "d0001", scores, np.zeros(shape, int), flags, np.full(shape, 0.5), time=times)
    habitat.store.append(answers, x if examples else None, **settings)


def test_answers_are_counted_in_the_minute_they_were_given(habitat):
    record(habitat, NOW - 600 + np.arange(30), known=[True] * 20 + [False] * 10)
    record(habitat, NOW - 60 + np.arange(6))
    shown = traffic(habitat, BY_KEY["hour"], NOW)
    assert (shown.unit, shown.answers, shown.unknown, shown.estimated) == ("minute", 36, 10, False)
    assert [(bar.start, bar.known, bar.unknown) for bar in shown.bars] == [(NOW - 600, 20, 10), (NOW - 60, 6, 0)]
    assert shown.bars[0].says == "10 minutes ago: 20 known, 10 unknown"


def test_what_was_not_kept_is_counted_by_the_shape_of_what_was(habitat):
    start = NOW - HOUR
    counts = {start: Counts(seen=1000, unknown=100, dropped=7)}
    record(habitat, start + 60 * np.arange(10), known=[False] * 5 + [True] * 5, counts=counts)
    shown = traffic(habitat, BY_KEY["hour"], NOW)
    assert (shown.answers, shown.unknown, shown.dropped, shown.estimated) == (1000, 100, 7, True)
    assert [bar.unknown for bar in shown.bars] == pytest.approx([20] * 5 + [0] * 5)
    assert [bar.known for bar in shown.bars] == pytest.approx([0] * 5 + [180] * 5)


def test_counters_stay_when_rows_are_gone(habitat):
    record(habitat, NOW - 2 * DAY + np.arange(50), known=False)
    habitat.store.sweep(retain=DAY)
    month = traffic(habitat, BY_KEY["month"], NOW)
    assert (month.answers, month.unknown) == (50, 50)
    assert traffic(habitat, BY_KEY["day"], NOW).answers == 0
    record(habitat, NOW - 1800 + np.arange(20))
    with habitat.store.index.writing() as index:
        index.execute("DELETE FROM answers")
    hour = traffic(habitat, BY_KEY["hour"], NOW)
    assert (hour.answers, hour.unit) == (20, "hour")
    assert [bar.known for bar in hour.bars] == pytest.approx([20] * len(hour.bars))


def test_the_span_fits_the_traffic_unless_one_is_chosen(habitat):
    assert chosen_span(habitat, None, NOW).key == "hour"
    record(habitat, NOW - 20 * DAY)
    assert chosen_span(habitat, None, NOW - 20 * DAY + 60).key == "hour"
    assert chosen_span(habitat, None, NOW).key == "month"
    assert chosen_span(habitat, "day", NOW).key == "day"
    assert chosen_span(habitat, "<script>", NOW).key == "month"
    whole = chosen_span(habitat, "all", NOW)
    assert (whole.seconds, whole.bin) == (20 * DAY, 12 * HOUR)
    assert chosen_span(habitat, None, NOW + 400 * DAY).key == "all"


def test_the_most_unknown_are_the_highest_scores_but_none_of_the_random_sample(habitat, detector):
    record(habitat, NOW + np.arange(200), score=np.arange(200))
    habitat.store.judge(200 if not is_random(200) else 199, None, "ann")
    last = latest(habitat, "d0001", detector)
    chosen = last.rows.id[last.most_unknown()]
    assert len(chosen) == SHOWN
    assert not is_random(chosen).any()
    others = [each for each in range(200, 0, -1) if not is_random(each) and each not in last.judged]
    assert chosen.tolist() == others[:SHOWN]
    assert last.rows.id[last.newest()].tolist() == list(range(200, 200 - SHOWN, -1))


def test_answers_without_an_example_are_in_no_gallery(habitat, detector):
    record(habitat, NOW + np.arange(5), examples=False)
    last = latest(habitat, "d0001", detector)
    assert len(last.rows) == 5
    assert last.newest() == last.most_unknown() == []


def test_times_are_said_as_people_say_them():
    assert [when(NOW - ago, NOW) for ago in (0, 61, 119 * 60, 30 * HOUR, 3 * DAY)] == [
        "1 minute ago", "1 minute ago", "119 minutes ago", "30 hours ago", "24 Sep"
    ]  # fmt: skip
    assert [tick.label for tick in time_ticks(NOW, HOUR)] == ["−60 min", "−45 min", "−30 min", "−15 min", "now"]
    assert [tick.label for tick in time_ticks(NOW, 10 * DAY)] == ["17 Sep", "19 Sep", "21 Sep", "23 Sep", "25 Sep", "27 Sep"]


def test_the_bounds_of_former_champions_stay_in_the_figure(habitat, detector):
    rng = np.random.default_rng(0)
    for day in (5, 4, 3):
        record(habitat, NOW - day * DAY + np.arange(60), score=rng.normal(size=60) + (50 if day == 3 else -50))
    habitat.clock.now = NOW - 2 * DAY
    status(habitat, detector)
    habitat.add(detector, parent="d0001", trained_until=0)
    habitat.promote("d0002", who="ann", why="it is newer", force=True)
    habitat.clock.now = NOW
    points = bounds(habitat, status(habitat, detector), detector, BY_KEY["month"], NOW)
    assert [point.start for point in points] == [NOW - 5 * DAY, NOW - 4 * DAY, NOW - 3 * DAY]
    assert [point.bound > 0.5 for point in points] == [False, False, True]
    assert points[0].says == "22 Sep: at least 0.0 % of 60 answers"
    assert [tick.label for tick in promotion_ticks(habitat.promotions(), NOW - 30 * DAY, NOW)] == ["d0002"]

"""The page's figures are SVG that any parser reads, with their texts escaped and their marks where the numbers are."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from wildood.habitat import charts
from wildood.habitat.charts import LEFT, RIGHT, WIDTH, Bar, Bound, Tick, acceptance, bounds, scores, ticks, traffic

HOSTILE = "<script>alert('x')</script> & \"more\""
AXIS = (0.0, 100.0)


def parsed(markup):
    root = ET.fromstring(str(markup))  # noqa: S314 - our own markup
    assert root.get("role") == "img"
    assert root.get("aria-label")
    assert not any("style" in element.attrib for element in root.iter())  # the page's policy would drop it
    return root


def rectangles(root, role):
    return [each for each in root.iter("rect") if each.get("class") == f"bar {role}"][:-1]  # the last: in the legend


def texts(root):
    return ["".join(each.itertext()) for each in root.iter("text")]


@pytest.mark.parametrize(
    ("most", "labels"),
    [(7, ["0", "2", "4", "6", "8"]), (1, ["0", "0.25", "0.5", "0.75", "1"]), (1200, ["0", "500", "1,000", "1,500"])],
)
def test_ticks_are_round_and_reach_the_largest(most, labels):
    assert [tick.label for tick in ticks(most)] == labels


def test_known_and_unknown_answers_are_stacked():
    root = parsed(traffic([Bar(0, 50, 8, 2, HOSTILE), Bar(50, 100, 0, 4, "then")], "minute", AXIS, [Tick(0, HOSTILE)]))
    (known,), (unknown, later) = rectangles(root, "known"), rectangles(root, "unknown")
    assert float(known.get("height")) == pytest.approx(4 * float(unknown.get("height")), abs=0.2)
    assert float(unknown.get("y")) + float(unknown.get("height")) == pytest.approx(float(known.get("y")), abs=0.2)
    assert float(later.get("height")) == pytest.approx(2 * float(unknown.get("height")), abs=0.2)
    assert [each.text for each in root.iter("title")] == [HOSTILE, "then"]
    assert HOSTILE in texts(root)


def test_a_bound_is_drawn_at_its_height_and_promotions_have_names():
    points = [Bound(0, 50, 0.0, "none"), Bound(50, 100, 0.1, "some")]
    root = parsed(bounds(points, [Tick(40, HOSTILE), Tick(95, "d0003")], AXIS, [Tick(100, "now")]))
    (area,) = [each for each in root.iter("rect") if each.get("class") == "bar unknown pale"]
    assert float(area.get("width")) == pytest.approx((WIDTH - LEFT - RIGHT) / 2, abs=0.2)
    names = {"".join(each.itertext()): each.get("text-anchor") for each in root.iter("text")}
    assert names[HOSTILE] == "start"
    assert names["d0003"] == "end"


def test_heavy_tails_do_not_squeeze_the_rest_of_a_histogram_into_one_bin():
    known = np.random.default_rng(0).normal(size=1000)
    far = np.append(known, np.geomspace(10, 27_000, 100))
    low, high = charts._range(known, far, threshold=2.0)
    assert -4 < low < -2.5
    assert 7 < high < 10
    assert charts._range(known, known, threshold=2.0) == tuple(np.quantile(np.append(known, known), [0.002, 0.998]))


def test_scores_that_are_not_finite_or_all_equal_are_drawn():
    strange = np.array([np.inf, -np.inf, np.nan, 1.0])
    for known, now, threshold in (
        (strange, strange, np.inf),
        (np.ones(5), np.ones(3), 1.0),
        (np.zeros(0), np.zeros(0), 0.0),
    ):
        markup = scores(known, now, threshold, "score")
        parsed(markup)
        assert "nan" not in markup
        assert "inf" not in markup.replace("info", "")


def test_the_better_detector_has_the_shorter_bar():
    root = parsed(acceptance(("d0001", 0.9), ("d0002", 0.6), 0.05))
    (first,), (second,) = (
        [each for each in root.iter("rect") if each.get("class") == f"bar {role}"] for role in ("first", "fourth")
    )
    assert float(second.get("width")) == pytest.approx(float(first.get("width")) * 2 / 3, abs=0.2)
    assert {"90.0 %", "60.0 %"} <= set(texts(root))


def test_labels_of_an_axis_never_touch():
    root = parsed(traffic([Bar(0, 1, 1, 0, "")], "day", AXIS, [Tick(each, "12 November") for each in range(0, 101, 5)]))
    places = sorted(float(each.get("x")) for each in root.iter("text") if each.text == "12 November")
    assert len(places) > 2
    assert np.diff(places).min() > 6 * len("12 November")

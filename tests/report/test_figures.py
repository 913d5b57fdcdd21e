"""What is drawn is what the arrays and the history say, in the colours of the page, with ids of its own."""

import re
import sys
from contextlib import contextmanager
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from sklearn.metrics import roc_curve

from wildood.report import figures
from wildood.report.figures import (
    COLOURS,
    DASHES,
    INK,
    KNOWN,
    SERIES,
    UNKNOWN,
    Curve,
    Point,
    drawing,
    mean_of_runs,
    plots_installed,
)

HISTORY = [
    {"step": 0, "accuracy": 0.9, "acceptance": 0.95, "holdout_false_alarm": 0.01, "holdout_classification": 0.02},
    {
        "step": 40,
        "false_alarm": 0.03,
        "classification": -0.5,
        "lambda_false_alarm": 1.5,
        "lambda_classification": 0.2,
        "w": -0.5,
        "b": 3.0,
        "accuracy": 0.88,
        "acceptance": 0.91,
        "holdout_false_alarm": 0.04,
        "holdout_classification": -0.1,
    },
    {
        "step": 80,
        "false_alarm": -0.01,
        "classification": -0.7,
        "lambda_false_alarm": 1.2,
        "lambda_classification": 0.0,
        "w": -0.8,
        "b": 4.0,
        "accuracy": 0.89,
        "acceptance": 0.87,
        "holdout_false_alarm": 0.0,
        "holdout_classification": -0.2,
    },
]
RNG = np.random.default_rng(0)
KNOWN_SCORES, OTHER_SCORES = RNG.normal(0, 1, 300).astype("float32"), RNG.normal(2, 1, 200).astype("float32")
SCORES = {"energy": (KNOWN_SCORES, OTHER_SCORES, 1.5), "WOODS": (KNOWN_SCORES, OTHER_SCORES + 1, 1.6)}
CLASSES = [("cat", 0.2, 0.1, 0.4), ("a class with a very long name", 0.05, 0.01, 0.1), ("_$2_$", 0.0, 0.0, 0.02)]
FIGURES = {
    "histogram": lambda name: figures.histogram(name, KNOWN_SCORES, OTHER_SCORES, 1.5, ("known", "wild")),
    "roc": lambda name: figures.roc(name, SCORES),
    "by_class": lambda name: figures.by_class(name, CLASSES, 0.05),
    "constraint": lambda name: figures.constraint(name, HISTORY, 0.05, "soft false-alarm rate"),
    "classification": lambda name: figures.classification(name, HISTORY),
    "multipliers": lambda name: figures.multipliers(name, HISTORY),
    "slope": lambda name: figures.slope(name, HISTORY),
    "acceptance": lambda name: figures.acceptance(name, HISTORY, 1),
}


@pytest.fixture
def drawn(monkeypatch):
    """A function that draws a figure and gives the axes it is on."""
    seen = []

    @contextmanager
    def remembering(*words, **options):
        with drawing(*words, **options) as (axes, svg):
            seen.append(axes)
            yield axes, svg

    def axes_of(draw):
        draw()
        return seen.pop()

    monkeypatch.setattr(figures, "drawing", remembering)
    return axes_of


def curve(axes, label):
    """What is plotted under this name in the legend, as points (rounded: 0.05 + 0.03 is not 0.08)."""
    (line,) = (line for line in axes.get_lines() if line.get_label() == label)
    return [tuple(point) for point in line.get_xydata().round(12).tolist()]


def bars(axes, colour):
    """Edges, sum, and first and last of the bars of the filled histogram in this colour."""
    (outline,) = (patch for patch in axes.patches if patch.get_fill() and to_hex(patch.get_facecolor()) == colour)
    points = outline.get_xy()
    edges = np.unique(points[:, 0])
    assert len(edges) == 41
    width = edges[1] - edges[0]
    closed = np.concatenate([points, points[:1]])
    area = abs(np.sum(closed[:-1, 0] * closed[1:, 1] - closed[1:, 0] * closed[:-1, 1])) / 2
    return edges, area / width, [points[points[:, 0] == edge, 1].max() for edge in (edges[0], edges[-1])]


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_keeps_its_ids_and_colours_to_the_page(figure, parse):
    svg = FIGURES[figure]("the-name")
    tree = parse(svg)
    ids = tree.ids()
    assert len(ids) == len(set(ids))
    assert [name for name in ids if not name.startswith("the-name-")] == []
    assert tree.references() <= set(ids)
    painted = set(re.findall(r"(?:fill|stroke): ([^;\"]*)", svg))
    assert {colour for colour in painted if not re.fullmatch(r"var\(--\w+\)|none|url\(#the-name-\w+\)", colour)} == set()
    assert re.findall(r"#[0-9a-fA-F]{6}\b", svg) == []


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_is_the_same_when_it_is_drawn_again(figure):
    assert FIGURES[figure]("a") == FIGURES[figure]("a")


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_says_what_it_shows_and_names_its_axes(figure, drawn, parse):
    svg = parse(FIGURES[figure]("a")).one("svg")
    assert len(svg.attributes["aria-label"]) > 20
    axes = drawn(lambda: FIGURES[figure]("a"))
    assert axes.get_xlabel() != ""
    assert axes.get_ylabel() != "" or figure == "slope"  # whose legend names its one curve


def test_histogram_shows_shares_of_each_group(drawn):
    axes = drawn(lambda: FIGURES["histogram"]("a"))
    for colour in (KNOWN, UNKNOWN):
        _, total, _ = bars(axes, colour)
        assert total == pytest.approx(1)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["known", "wild"]


@pytest.mark.parametrize("scale", [1.0, 3.3, 7e-5, 1e9])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_histogram_puts_outliers_into_the_outermost_bars(drawn, dtype, scale):
    known = scale * np.concatenate([[-1e6, -1e6], np.linspace(0.1, 1.1, 996), [1e6, 1e6]])
    other = scale * np.linspace(0.1, 1.1, 1000)
    axes = drawn(lambda: figures.histogram("a", known.astype(dtype), other.astype(dtype), 0.5 * scale, ("known", "wild")))
    edges, total, (first, last) = bars(axes, KNOWN)
    assert 0 < edges[0] < edges[-1] < 2 * scale  # the bars have the width of the bulk
    assert total == pytest.approx(1)
    assert first == pytest.approx(np.mean(known < edges[1]))
    assert last == pytest.approx(np.mean(known >= edges[-2]))


@pytest.mark.parametrize("threshold", [-50.0, 0.5, 50.0])
def test_histogram_shows_the_threshold_wherever_it_is(drawn, threshold):
    axes = drawn(lambda: figures.histogram("a", KNOWN_SCORES, OTHER_SCORES, threshold, ("known", "wild")))
    (line,) = axes.get_lines()
    assert line.get_xdata() == [threshold, threshold]
    low, high = axes.get_xlim()
    assert low < threshold < high
    assert [text.get_text() for text in axes.texts] == ["rejected →"]


@pytest.mark.parametrize(("low", "high"), [(-109500.0, -96500.0), (168880.0, 168920.0), (-1.1842, -1.1838), (-21.0, -3.0)])
def test_histogram_has_so_few_numbers_below_it_that_they_stay_apart(drawn, low, high):
    scores = np.linspace(low, high, 50)
    axes = drawn(lambda: figures.histogram("a", scores, scores, (low + high) / 2, ("known", "wild"), figures.MARGIN))
    boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    gaps = [second.x0 - first.x1 for first, second in pairwise(sorted(boxes, key=lambda box: box.x0))]
    assert len(gaps) >= 2
    assert min(gaps) > 12  # hundredths of an inch: the page's own font may be wider than the one they are placed with
    assert axes.get_xlabel() == "score - threshold of the predicted class"


def test_histogram_of_equal_scores_is_drawn(drawn):
    same = np.zeros(20, dtype="float32")
    axes = drawn(lambda: figures.histogram("a", same, same, 0.0, ("known", "wild")))
    assert axes.get_lines()[0].get_xdata() == [0.0, 0.0]


def test_roc_is_scikit_learns_with_a_dot_at_the_deployed_threshold(drawn):
    axes = drawn(lambda: FIGURES["roc"]("a"))
    dots = [line for line in axes.get_lines() if line.get_marker() == "o"]
    for (name, (known, unknown, threshold)), dot in zip(SCORES.items(), dots, strict=True):
        is_ood, scores = np.r_[np.zeros(len(known)), np.ones(len(unknown))], np.r_[known, unknown]
        false_alarms, caught, _ = roc_curve(is_ood, scores, drop_intermediate=False)
        np.testing.assert_allclose(curve(axes, name), np.stack([false_alarms, caught], axis=1), atol=1e-12)
        assert dot.get_xydata().tolist() == [[np.mean(known > threshold), np.mean(unknown > threshold)]]
        assert dot.get_color() == next(line.get_color() for line in axes.get_lines() if line.get_label() == name)


def test_roc_shows_every_dot(drawn):
    poor = {"poor": (KNOWN_SCORES, KNOWN_SCORES, 1.6), "good": SCORES["WOODS"]}
    axes = drawn(lambda: figures.roc("a", poor))
    lowest, highest = axes.get_ylim()
    assert lowest <= np.mean(KNOWN_SCORES > 1.6)
    assert highest >= 1
    assert axes.get_xlim() == (0, 0.3)


@pytest.mark.parametrize(("lowest", "bottom"), [(0.05, 0.0), (0.3, 0.0), (0.49, 0.0), (0.55, 0.4), (0.97, 0.8)])
def test_roc_begins_at_0_where_a_dot_lies_below_one_half(drawn, lowest, bottom):
    axes = drawn(lambda: figures.roc("a", SCORES, points={"energy": (0.05, lowest), "WOODS": (0.05, 0.99)}))
    assert axes.get_ylim()[0] == pytest.approx(bottom)


def test_roc_tells_its_series_apart_by_colour_and_by_dashes(drawn):
    four = dict.fromkeys(("max-softmax", "energy", "WOODS", "WOODS-alt"), SCORES["energy"])
    axes = drawn(lambda: figures.roc("a", four))
    curves = [line for line in axes.get_lines() if line.get_label() in four]
    assert len({line.get_color() for line in curves}) == 4
    assert len({str(line._dash_pattern) for line in curves}) == 4


def test_roc_puts_the_dots_where_it_is_told(drawn):
    axes = drawn(lambda: figures.roc("a", SCORES, points={"energy": (0.4, 0.3), "WOODS": (0.1, 0.8)}))
    dots = [line.get_xydata().tolist() for line in axes.get_lines() if line.get_marker() == "o"]
    assert dots == [[[0.4, 0.3]], [[0.1, 0.8]]]
    assert axes.get_xlim() == (0, 0.4)
    assert axes.get_ylim()[0] <= 0.3


def test_by_class_shows_each_share_with_its_interval_and_its_name(drawn):
    axes = drawn(lambda: FIGURES["by_class"]("a"))
    assert [bar.get_width() for bar in axes.patches] == [0.2, 0.05, 0.0]
    places = [bar.get_y() + bar.get_height() / 2 for bar in axes.patches]
    (intervals,) = axes.collections
    ends = [segment.tolist() for segment in intervals.get_segments()]
    assert np.array(ends) == pytest.approx(
        np.array([[[low, y], [high, y]] for (_, _, low, high), y in zip(CLASSES, places, strict=True)])
    )
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "a class with a ve…", "_$2_$"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first class on top
    (limit,) = axes.get_lines()
    assert limit.get_xdata() == [0.05, 0.05]
    assert [text.get_text() for text in axes.texts] == ["α = 5 %"]


def test_by_class_shows_a_limit_far_above_a_single_class(drawn):
    axes = drawn(lambda: figures.by_class("a", CLASSES[2:], 0.5))
    assert axes.get_xlim()[0] == 0
    assert axes.get_xlim()[1] > 0.5


def test_by_class_without_a_promise_has_no_limit(drawn):
    axes = drawn(lambda: figures.by_class("a", CLASSES, None))
    assert list(axes.get_lines()) == []


def test_constraint_is_drawn_from_0_with_alpha_as_its_limit(drawn):
    axes = drawn(lambda: FIGURES["constraint"]("a"))
    assert curve(axes, "labelled, mean of the epoch") == [(40, 0.08), (80, 0.04)]
    assert curve(axes, "set aside") == [(0, 0.06), (40, 0.09), (80, 0.05)]
    (limit,) = (line for line in axes.get_lines() if line.get_linestyle() == "--" and len(set(line.get_ydata())) == 1)
    assert limit.get_ydata() == [0.05, 0.05]
    assert [text.get_text() for text in axes.texts] == ["limit α = 0.05"]
    assert axes.get_ylim()[0] == 0


def test_classification_is_drawn_as_its_distance_from_tau(drawn):
    axes = drawn(lambda: FIGURES["classification"]("a"))
    assert curve(axes, "labelled, mean of the epoch") == [(40, -0.5), (80, -0.7)]
    assert curve(axes, "set aside") == [(0, 0.02), (40, -0.1), (80, -0.2)]
    assert [text.get_text() for text in axes.texts] == ["limit τ"]


def test_multipliers_are_each_under_its_own_constraint(drawn):
    axes = drawn(lambda: FIGURES["multipliers"]("a"))
    assert curve(axes, "λ₁ (false alarms)") == [(40, 1.5), (80, 1.2)]
    assert curve(axes, "λ₂ (cross-entropy)") == [(40, 0.2), (80, 0.0)]


def test_slope_is_w(drawn):
    assert curve(drawn(lambda: FIGURES["slope"]("a")), "w (slope)") == [(40, -0.5), (80, -0.8)]


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_acceptance_marks_the_epoch_that_was_kept(drawn, kept):
    axes = drawn(lambda: figures.acceptance("a", HISTORY, kept))
    assert curve(axes, "accuracy") == [(0, 0.9), (40, 0.88), (80, 0.89)]
    assert curve(axes, "wild data accepted") == [(0, 0.95), (40, 0.91), (80, 0.87)]
    (mark,) = (line for line in axes.get_lines() if line.get_linestyle() == ":")
    assert mark.get_xdata() == [40 * kept, 40 * kept]


def test_steps_are_whole_numbers_from_0(drawn):
    axes = drawn(lambda: figures.slope("a", [{"step": step, "w": -1.0} for step in range(3)]))
    assert axes.get_xlim()[0] == 0
    assert [tick for tick in axes.get_xticks() if tick != int(tick)] == []


def test_a_curve_over_pi_has_a_point_with_its_error_for_each_pi(drawn):
    points = [Point(0.05, 0.3, 0.02), Point(1.0, 0.1, None)]
    axes = drawn(lambda: figures.over_pi("a", [Curve("woods", "WOODS", points)]))
    (line,) = (line for line in axes.get_lines() if line.get_label() == "WOODS")
    assert line.get_xydata().tolist() == [[0.0, 0.3], [1.0, 0.1]]
    ends = axes.collections[0].get_segments()
    assert [end[:, 1].tolist() for end in ends] == [pytest.approx([0.28, 0.32]), pytest.approx([0.1, 0.1])]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.05", "1"]


def test_the_mean_constraint_is_over_the_epochs_that_all_runs_have():
    one = [{"epoch": 0, "accuracy": 0.9}, {"epoch": 1, "false_alarm": 0.2}, {"epoch": 2, "false_alarm": 0.1}]
    two = [{"epoch": 1, "false_alarm": 0.4}]
    assert mean_of_runs([one, two]) == ([1], [pytest.approx(0.3)])


def test_methods_of_a_users_own_look_different(monkeypatch):
    drawn = []
    monkeypatch.setattr(Axes, "plot", lambda self, *given, **style: drawn.append(style.get("marker")))
    points = [Point(0.1, 0.2, None), Point(0.5, 0.1, None)]
    with pytest.warns(UserWarning, match="No artists"):
        figures.over_pi("a", [Curve(name, name, points) for name in ("mine:A", "mine:B", "woods")])
    assert len(set(drawn)) == 3


PAPER = ("#ffffff", "#15181c")


def line(name="line", says="a line", **style):
    with drawing(name, says) as (axes, drawn):
        axes.plot([0, 1, 2], [0, 3, 1], **{"color": KNOWN, "label": "values"} | style)
        axes.legend()
    return drawn.svg


def luminance(colour):
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def settings():
    """Matplotlib's, but the backend: it is chosen when somebody asks for it."""
    return {name: mpl.rcParams[name] for name in mpl.rcParams if name != "backend"}


def contrast(first, second):
    lower, higher = sorted([luminance(first), luminance(second)])
    return (higher + 0.05) / (lower + 0.05)


@pytest.mark.parametrize("role", COLOURS)
def test_a_colour_is_drawn_as_the_role_it_plays(role):
    svg = line(color=COLOURS[role][0])
    curve = re.search(r'<path d="[^"]*" clip-path="[^"]*" style="[^"]*stroke: ([^;"]*); stroke-width: 1.8', svg)
    assert curve.group(1) == f"var(--{role})"


def test_every_colour_is_a_role_and_no_code_is_left():
    svg = line()
    painted = re.findall(r"(?:fill|stroke): ([^;\"]*)", svg)
    assert {colour for colour in painted if colour != "none"} == {
        f"var(--{role})" for role in ("known", "ink", "faint", "grid")
    }
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?![-_\w])", svg) == []


def test_no_two_roles_share_a_code():
    """A code that stands for two roles would turn into the first of them."""
    assert len({light for light, _ in COLOURS.values()}) == len(COLOURS)


@pytest.mark.parametrize(("theme", "paper"), [(0, PAPER[0]), (1, PAPER[1])])
@pytest.mark.parametrize("role", sorted(set(COLOURS) - {"grid"}))
def test_colours_stand_out_from_the_paper(role, theme, paper):
    """WCAG 2: 4.5 for text, 3 for the lines of a figure."""
    assert contrast(COLOURS[role][theme], paper) >= (4.5 if role in {"ink", "faint"} else 3)


def test_series_are_told_apart_without_colour():
    assert len(set(SERIES)) == len(set(DASHES)) == 4


def test_every_id_begins_with_the_name_and_every_reference_finds_one(parse):
    tree = parse(line("a-name"))
    ids = tree.ids()
    assert len(ids) == len(set(ids)) > 10
    assert [name for name in ids if not name.startswith("a-name-")] == []
    assert tree.references()
    assert tree.references() <= set(ids)


def test_two_figures_with_the_same_content_share_no_id(parse):
    assert set(parse(line("one")).ids()) & set(parse(line("two")).ids()) == set()


def test_the_same_drawing_gives_the_same_bytes():
    assert line() == line()


def test_a_drawing_says_nothing_of_when_and_where_it_was_made():
    svg = line()
    for word in ("<metadata", "<?xml", "<!DOCTYPE", "http", "matplotlib.org", "rdf:"):
        assert word not in svg


def test_the_description_is_escaped(parse):
    says = "\"caught\" <b> & 'known'"
    svg = parse(line(says=says)).one("svg")
    assert (svg.attributes["role"], svg.attributes["aria-label"]) == ("img", says)
    assert svg.all("b") == []


def test_the_figure_has_a_shape_but_no_size_so_that_the_page_decides(parse):
    svg = parse(line()).one("svg")
    assert set(svg.attributes) == {"role", "aria-label", "viewbox"}
    assert svg.attributes["viewbox"] == "0 0 316.8 180"  # 4.4 x 2.5 inches of 72 points


def test_text_stays_text(parse):
    assert "values" in [text.text for text in parse(line()).all("text")]


def test_nobodys_settings_are_changed():
    before = settings()
    line()
    assert settings() == before


def test_a_mistake_while_drawing_is_not_swallowed():
    before = settings()
    with pytest.raises(ZeroDivisionError), drawing("line", "a line") as (_, drawn):
        _ = 1 / 0
    assert drawn.svg == ""
    assert settings() == before


@pytest.mark.parametrize(("share", "text"), [(0, "0 %"), (0.05, "5 %"), (0.125, "12.5 %"), (1, "100 %"), (0.07, "7 %")])
@pytest.mark.parametrize("which", ["x", "y"])
def test_shares_are_shown_in_percent(which, share, text):
    with drawing("line", "a line", percent=which) as (axes, _):
        axes.plot([0, 1], [0, 1], color=INK)
        axis = axes.xaxis if which == "x" else axes.yaxis
        assert axis.get_major_formatter()(share, None) == text


def test_names_are_shown_letter_by_letter_whatever_they_hold(parse):
    """Neither formulas nor warnings about letters that matplotlib's own font has not."""
    shown = [text.text for text in parse(line(label="$x$ 猫 <b>")).all("text")]
    assert "$x$ 猫 <b>" in shown


def test_without_matplotlib_there_are_no_plots(monkeypatch):
    assert plots_installed()
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    assert not plots_installed()

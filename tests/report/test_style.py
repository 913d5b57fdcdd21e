"""Figures that live in a page: they take its colours, and leave its ids and everybody's settings alone."""

import re

import matplotlib as mpl
import pytest

from wildood.report.style import COLOURS, DASHES, INK, KNOWN, SERIES, drawing, percent

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
    with drawing("line", "a line") as (axes, _):
        percent(axes, which)
        axes.plot([0, 1], [0, 1], color=INK)
        axis = axes.xaxis if which == "x" else axes.yaxis
        assert axis.get_major_formatter()(share, None) == text


def test_names_are_shown_letter_by_letter_whatever_they_hold(parse):
    """Neither formulas nor warnings about letters that matplotlib's own font has not."""
    shown = [text.text for text in parse(line(label="$x$ 猫 <b>")).all("text")]
    assert "$x$ 猫 <b>" in shown

"""The frame of every page: its colours, its pictures, and texts that are shown as text."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from wildood.data.inputs import InputSpec
from wildood.data.sources import ArraySource
from wildood.report import page
from wildood.report.figures import COLOURS
from wildood.report.page import LARGEST, SHOWN, gallery, generator, is_picture, render

EVIL = "<script>alert('1')</script> & \"2\" $title ${lead} &lt; {{ 1 }}"


def variables(block):
    """`--name: value` of a style sheet's block."""
    return dict(re.findall(r"--(\w+): (#\w+);", block))


def test_titles_and_what_made_a_page_are_shown_as_they_are_given(parse):
    tree = parse(render("page.html", title=EVIL, generator=EVIL))
    assert tree.all("script") == []
    assert tree.one("title").text == tree.one("h1").text == tree.one("meta", name="generator").attributes["content"] == EVIL


def test_definitions_are_shown_as_they_are_given(parse):
    tree = parse(page._TEMPLATES.get_template("macros.html").module.definitions({EVIL: EVIL}))
    assert tree.all("script") == []
    assert (tree.one("dt").text, tree.one("dd").text) == (EVIL, EVIL)


def test_every_colour_has_a_value_by_day_by_night_and_on_paper(parse):
    style = parse(render("page.html", title="t")).one("style").text
    light, rest = style.split("@media (prefers-color-scheme: dark)")
    dark, paper = rest.split("@media print")
    assert variables(light).items() >= {role: value for role, (value, _) in COLOURS.items()}.items()
    assert variables(dark).items() >= {role: value for role, (_, value) in COLOURS.items()}.items()
    assert variables(paper).items() >= {role: value for role, (value, _) in COLOURS.items()}.items()
    assert (
        set(variables(light)) == set(variables(dark)) == set(variables(paper)) >= set(re.findall(r"var\(--(\w+)\)", style))
    )


def test_what_made_a_page_changes_with_its_templates(monkeypatch, tmp_path):
    before = generator.__wrapped__()
    assert before == generator()
    (tmp_path / "templates").mkdir()
    monkeypatch.setattr(page, "__file__", str(tmp_path / "page.py"))
    assert generator.__wrapped__() != before


NHWC, NCHW = InputSpec(), InputSpec(layout="NCHW")


def random_images(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def show(images, numbers=(0,), spec=NHWC, captions=None):
    captions = [f"number {number}" for number in range(len(images))] if captions is None else captions
    return gallery(images, np.array(numbers, dtype=np.intp), captions, spec)


def panel_of(shown, parse):
    """The panel of a gallery in a page."""
    macros = page._TEMPLATES.get_template("macros.html").module
    return parse(macros.gallery("Rejected", "what to see", shown))


@pytest.fixture
def pictures():
    """A function from a gallery to its pictures, as PIL reads them."""

    def read(shown):
        sources = [picture.source for picture in shown.pictures]
        kind = "data:image/png;base64,"
        assert all(source.startswith(kind) for source in sources)
        return [Image.open(io.BytesIO(base64.b64decode(source.removeprefix(kind), validate=True))) for source in sources]

    return read


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_bytes_are_shown_as_they_are(pictures, layout, channels):
    images = random_images(2, 6, 9, channels)
    given = images if layout == "NHWC" else images.transpose(0, 3, 1, 2)
    (picture,) = pictures(show(given, [1], InputSpec(layout)))
    assert picture.mode == ("L" if channels == 1 else "RGB")
    assert picture.size == (9, 6)
    assert np.array_equal(np.asarray(picture).reshape(6, 9, channels), images[1])


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_from_0_to_1_are_shown_as_the_same_bytes(pictures, layout, dtype):
    images = random_images(1, 6, 9, 3)
    given = (images / 255).astype(dtype)
    (picture,) = pictures(show(given if layout == "NHWC" else given.transpose(0, 3, 1, 2), [0], InputSpec(layout)))
    assert np.array_equal(np.asarray(picture), images[0])


def test_floats_are_shown_as_the_nearest_byte(pictures):
    given = np.array([0.01, 0.25, 0.75, 0.999]).reshape(1, 2, 2, 1)  # times 255: 2.55, 63.75, 191.25, 254.7
    assert np.asarray(pictures(show(given))[0]).tolist() == [[3, 64], [191, 255]]


def test_floats_outside_are_shown_as_black_and_white(pictures):
    given = np.array([-0.5, 0.0, 1.0, 1.7]).reshape(1, 2, 2, 1)
    assert np.asarray(pictures(show(given))[0]).tolist() == [[0, 0], [255, 255]]


def test_of_a_source_only_what_is_shown_is_read(pictures):
    images, read = random_images(30, 6, 9, 3), []

    class Reads(ArraySource):
        def gather(self, indices):
            read.extend(indices.tolist())
            return super().gather(indices)

    shown = show(Reads(images), [7, 2, *range(8, 30)])
    assert read == [7, 2, *range(8, 22)]
    assert (len(shown.pictures), shown.chosen, shown.total) == (SHOWN, 24, 30)
    assert np.array_equal(np.asarray(pictures(shown)[1]), images[2])
    assert show(Reads(images), []).pictures == []


@pytest.mark.parametrize(("before", "after"), [((200, 100), (64, 32)), ((65, 65), (64, 64)), ((64, 64), (64, 64))])
def test_a_large_image_is_shrunk_in_its_proportions(pictures, before, after):
    (picture,) = pictures(show(np.full((1, *before, 3), 200, np.uint8)))
    assert picture.size == after[::-1]
    assert max(picture.size) <= LARGEST
    assert np.asarray(picture).tolist() == np.full((*after, 3), 200).tolist()


def test_images_come_in_the_order_chosen_each_with_its_own_caption(pictures, parse):
    images = np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1) * 50
    shown = show(images, [3, 0, 4])
    assert [np.asarray(picture).item() for picture in pictures(shown)] == [150, 0, 200]
    tree = panel_of(shown, parse)
    assert [caption.text for caption in tree.all("figcaption")] == ["number 3", "number 0", "number 4"]
    assert [image.attributes["alt"] for image in tree.all("img")] == ["number 3", "number 0", "number 4"]


def test_captions_are_shown_as_they_are_given(parse):
    caption = "<script>1</script> \"a\" & 'b'"
    tree = panel_of(show(random_images(1, 2, 2, 1), captions=[caption]), parse)
    assert tree.all("script") == []
    assert tree.one("figcaption").text == tree.one("img").attributes["alt"] == caption


def test_nothing_to_show_is_said(parse):
    panel = panel_of(show(random_images(3, 2, 2, 1), []), parse)
    assert panel.one("h3").text == "Rejected: 0 of 3"
    assert [paragraph.text for paragraph in panel.all("p")] == ["what to see", "None."]


@pytest.mark.parametrize(
    ("count", "title"), [(SHOWN, "Rejected: 16 of 40"), (SHOWN + 1, "Rejected: 17 of 40, 16 are shown")]
)
def test_the_first_16_are_shown_and_the_title_says_so(parse, count, title):
    panel = panel_of(show(random_images(40, 2, 2, 1), range(count)), parse)
    assert panel.one("h3").text == title
    assert len(panel.all("img")) == 16


@pytest.mark.parametrize(
    ("shape", "spec", "shown"),
    [
        ((8, 8, 1), NHWC, True),
        ((8, 8, 3), NHWC, True),
        ((1, 8, 8), NCHW, True),
        ((3, 8, 8), NCHW, True),
        ((8, 8, 2), NHWC, False),  # grey with transparency, or two sensors
        ((8, 8, 4), NHWC, False),
        ((3, 8, 8), NHWC, False),
        ((8, 8, 3), NCHW, False),
        ((8, 8), NHWC, False),
        ((5, 8, 8, 3), NHWC, False),
        ((3,), NHWC, False),
        ((8, 8, 3), None, False),
    ],
)
def test_only_grey_and_coloured_images_are_pictures(shape, spec, shown):
    assert is_picture(spec, shape) is shown

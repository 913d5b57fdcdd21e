"""Pictures in a page are the examples that the detector was given, pixel for pixel."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from wildood.data.inputs import InputSpec
from wildood.report.gallery import LARGEST, SHOWN, Pictures, can_be_shown, gallery

NHWC, NCHW = InputSpec(), InputSpec(layout="NCHW")


def random_images(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def show(images, numbers=(0,), spec=NHWC, captions=None):
    captions = [f"number {number}" for number in range(len(images))] if captions is None else captions
    return gallery("Rejected", "what to see", Pictures(images, np.array(numbers, dtype=np.intp), captions, spec))


@pytest.fixture
def pictures(parse):
    """A function from a panel to its pictures, as PIL reads them."""

    def read(panel):
        sources = [image.attributes["src"] for image in parse(panel.body).all("img")]
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


@pytest.mark.parametrize(("before", "after"), [((200, 100), (64, 32)), ((65, 65), (64, 64)), ((64, 64), (64, 64))])
def test_a_large_image_is_shrunk_in_its_proportions(pictures, before, after):
    (picture,) = pictures(show(np.full((1, *before, 3), 200, np.uint8)))
    assert picture.size == after[::-1]
    assert max(picture.size) <= LARGEST
    assert np.asarray(picture).tolist() == np.full((*after, 3), 200).tolist()


def test_images_come_in_the_order_chosen_each_with_its_own_caption(pictures, parse):
    images = np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1) * 50
    panel = show(images, [3, 0, 4])
    assert [np.asarray(picture).item() for picture in pictures(panel)] == [150, 0, 200]
    tree = parse(panel.body)
    assert [caption.text for caption in tree.all("figcaption")] == ["number 3", "number 0", "number 4"]
    assert [image.attributes["alt"] for image in tree.all("img")] == ["number 3", "number 0", "number 4"]


def test_captions_are_shown_as_they_are_given(parse):
    caption = "<script>1</script> \"a\" & 'b'"
    tree = parse(show(random_images(1, 2, 2, 1), captions=[caption]).body)
    assert tree.all("script") == []
    assert tree.one("figcaption").text == tree.one("img").attributes["alt"] == caption


def test_nothing_to_show_is_said():
    panel = show(random_images(3, 2, 2, 1), [])
    assert (panel.title, panel.says, panel.body) == ("Rejected: 0 of 3", "what to see", "<p>None.</p>")


@pytest.mark.parametrize(
    ("count", "title"), [(SHOWN, "Rejected: 16 of 40"), (SHOWN + 1, "Rejected: 17 of 40, 16 are shown")]
)
def test_the_first_16_are_shown_and_the_title_says_so(pictures, count, title):
    panel = show(random_images(40, 2, 2, 1), range(count))
    assert panel.title == title
    assert len(pictures(panel)) == 16


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
    assert can_be_shown(shape, spec) is shown

"""Pictures are cut as torchvision and Pillow do it, worked out by hand."""

import numpy as np
import pytest
from PIL import Image

from wildood.data.images import Framing, PictureError, covering, framed
from wildood.errors import InputError


def triangle_weights(source, target):
    """Pillow's bilinear filter, by its definition: a triangle as wide as the scale, cut at the edges, summing to one."""
    scale = source / target
    centres = (np.arange(target) + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(np.arange(source) + 0.5 - centres[:, None]) / max(scale, 1))
    return weights / weights.sum(1, keepdims=True)


def coordinates(height, width):
    """A picture whose red is the row and whose green is the column."""
    rows, columns = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([rows, columns, 0 * rows], 2).astype(np.uint8))


def test_cover_halves_a_picture_with_weights_worked_out_by_hand():
    # Halving, the first new column weighs the old ones by 3/7, 3/7, 1/7, 0; the second the other way round.
    columns = Image.fromarray(np.tile(np.array([70, 0, 140, 210], np.uint8), (4, 1)))
    assert framed(columns, Framing(2, channels=1), "a.png")[..., 0].tolist() == [[50, 150], [50, 150]]


@pytest.mark.parametrize(("height", "width"), [(40, 40), (50, 33), (33, 50), (97, 64), (8, 21), (5, 5)])
def test_cover_of_a_square_is_resize_of_the_short_side_and_centre_crop(height, width):
    rng = np.random.default_rng(height)
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    new_height, new_width = (16, int(16 * width / height)) if height <= width else (int(16 * height / width), 16)
    down, across = triangle_weights(height, new_height), triangle_weights(width, new_width)
    resized = np.einsum("ih,hwc,jw->ijc", down, pixels, across)
    top, left = round((new_height - 16) / 2), round((new_width - 16) / 2)
    expected = resized[top : top + 16, left : left + 16]
    # Pillow rounds between its two passes.
    assert np.abs(framed(Image.fromarray(pixels), Framing(16), "a.png") - expected).max() <= 1.01


@pytest.mark.parametrize("size", [(7, 1), (1, 7), (30, 20), (20, 30), (31, 17)])
@pytest.mark.parametrize("target", [(4, 9), (9, 4), (8, 8), (64, 48)])
def test_covering_size_has_one_exact_side_and_no_smaller_one(size, target):
    width, height = covering(size, target)
    assert width >= target[0]
    assert height >= target[1]
    assert width == target[0] or height == target[1]


@pytest.mark.parametrize(("side", "first"), [(4, 0), (5, 0), (6, 1), (7, 2), (8, 2), (9, 2), (11, 4)])
def test_centre_crop_gives_half_a_pixel_to_the_even_side(side, first):
    pixels = framed(coordinates(side, 4), Framing(4, "centre"), "a.png")
    assert pixels[:, 0, 0].tolist() == [first, first + 1, first + 2, first + 3]
    assert pixels[0, :, 1].tolist() == [0, 1, 2, 3]


def test_size_is_height_and_width():
    assert framed(coordinates(10, 10), Framing((4, 6), "centre"), "a.png").shape == (4, 6, 3)
    assert framed(coordinates(10, 10), Framing((4, 6)), "a.png").shape == (4, 6, 3)


def test_without_a_size_a_picture_stays_as_it_is():
    picture = coordinates(5, 7)
    assert np.array_equal(framed(picture, Framing(), "a.png"), np.asarray(picture))
    assert framed(picture.convert("L"), Framing(channels=1), "a.png").shape == (5, 7, 1)


@pytest.mark.parametrize(("height", "width"), [(3, 8), (8, 3)])
def test_picture_too_small_for_centre_is_refused_by_name(height, width):
    with pytest.raises(InputError) as refused:
        framed(coordinates(height, width), Framing((4, 5), "centre"), "photos/a.png")
    assert str(refused.value) == (
        f"photos/a.png is {width} x {height} pixels, too small to cut 5 x 4 (width x height) from: "
        "give a smaller size, or how='cover'"
    )


def test_published_crop_is_a_window_of_the_padded_picture_that_the_name_decides():
    picture = coordinates(32, 32)
    padded = np.full((40, 40, 3), (125, 123, 114), np.uint8)
    padded[4:36, 4:36] = np.asarray(picture)
    windows = {padded[top : top + 32, left : left + 32].tobytes(): (top, left) for top in range(9) for left in range(9)}
    found = [windows[framed(picture, Framing(32, "as_published"), f"{number}.png").tobytes()] for number in range(2000)]
    assert set(found) == set(windows.values())
    assert framed(picture, Framing(32, "as_published"), "x/7.png").tobytes() == (
        framed(picture, Framing(32, "as_published"), "y/z/7.png").tobytes()
    )


def test_published_crop_of_another_size_and_of_grey():
    grey = framed(Image.new("L", (30, 28), 9), Framing(36, "as_published", channels=1), "a.png")
    assert grey.shape == (36, 36, 1)
    assert set(np.unique(grey)) == {9, 123}
    with pytest.raises(InputError, match="too small to cut 37 x 37"):
        framed(Image.new("L", (30, 28), 9), Framing(37, "as_published", channels=1), "a.png")


def test_picture_that_would_fill_the_memory_when_resized_is_refused():
    with pytest.raises(PictureError, match="its 5000000 x 1 pixels are too long and thin to be resized"):
        framed(Image.new("RGB", (5_000_000, 1)), Framing(32), "a.png")


@pytest.mark.parametrize("size", [0, -1, (3,), (3, 4, 5), "32", (0, 3), (2.5, 3), True, (True, 2), [3, None]])
def test_size_that_is_none_is_refused(size):
    with pytest.raises(InputError, match="give a number of pixels, or a height and a width, as in 32 or"):
        Framing(size)


def test_size_may_be_a_list_or_of_numpy_integers():
    assert Framing([3, 4]).size == (3, 4)
    assert Framing(np.int64(5)).size == (5, 5)
    assert Framing(np.array([1, 2]).shape * 2).size == (2, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"how": "stretch"}, "how is 'stretch': give 'cover', 'centre' or 'as_published'"),
        ({"channels": 4}, "channels is 4: give 3 for colour or 1 for grey"),
        ({"how": "as_published"}, "how is 'as_published' but there is no size"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Framing(**settings)

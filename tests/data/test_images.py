"""Images of every format and mode become the right pixels, or a reason; they are cropped as torchvision and Pillow do it."""

import builtins
import io
import os
import struct
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from wildood.data.images import Broken, Framing, ImageError, covering_size, decode, frame, pillow_warnings
from wildood.errors import InputError

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (6, 5, 3), dtype=np.uint8)
GREYS = RNG.integers(0, 256, (6, 5), dtype=np.uint8)


@pytest.fixture(autouse=True)
def _quiet():
    with pillow_warnings():
        yield


def pixels(path, framing=None):
    found = decode(str(path), framing or Framing())
    assert not isinstance(found, Broken), found
    return found.pixels


def saved(place, picture, name="a.png", **options):
    picture.save(place / name, **options)
    return place / name


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif", "a.tiff", "a.webp", "a.ppm"])
def test_colours_of_lossless_formats_come_back_exactly(tmp_path, name):
    options = {"lossless": True} if name == "a.webp" else {}
    assert np.array_equal(pixels(saved(tmp_path, Image.fromarray(COLOURS), name, **options)), COLOURS)


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif", "a.gif", "a.pgm"])
def test_greys_of_lossless_formats_come_back_in_three_channels_or_one(tmp_path, name):
    path = saved(tmp_path, Image.fromarray(GREYS), name)
    assert np.array_equal(pixels(path), np.repeat(GREYS[..., None], 3, 2))
    assert np.array_equal(pixels(path, Framing(channels=1)), GREYS[..., None])


@pytest.mark.parametrize("name", ["a.jpg", "a.jpeg", "a.JPG"])
def test_jpeg_is_what_pillow_decodes(tmp_path, name):
    path = saved(tmp_path, Image.fromarray(COLOURS), name, quality=95)
    with Image.open(path) as image:
        assert np.array_equal(pixels(path), np.asarray(image))


def test_format_is_told_by_the_content_not_by_the_name(tmp_path):
    assert np.array_equal(pixels(saved(tmp_path, Image.fromarray(COLOURS), "a.jpg", format="PNG")), COLOURS)


def test_palette_becomes_its_colours(tmp_path):
    picture = Image.new("P", (2, 1))
    picture.putpalette([10, 20, 30, 40, 50, 60])
    picture.putdata([1, 0])
    for name in ("a.png", "a.gif", "a.bmp"):
        assert pixels(saved(tmp_path, picture, name)).tolist() == [[[40, 50, 60], [10, 20, 30]]]


@pytest.mark.parametrize("transparency", [0, b"\x00\x80"])
def test_transparency_of_a_palette_is_dropped_without_a_warning(tmp_path, transparency):
    picture = Image.new("P", (2, 1))
    picture.putpalette([10, 20, 30, 40, 50, 60])
    picture.putdata([1, 0])
    path = saved(tmp_path, picture, transparency=transparency)
    assert pixels(path).tolist() == [[[40, 50, 60], [10, 20, 30]]]


def test_transparency_is_dropped_as_convert_does(tmp_path):
    rgba = RNG.integers(0, 256, (3, 4, 4), dtype=np.uint8)
    assert np.array_equal(pixels(saved(tmp_path, Image.fromarray(rgba))), rgba[..., :3])
    grey = Image.merge("LA", Image.fromarray(rgba).split()[:2])
    assert np.array_equal(pixels(saved(tmp_path, grey)), np.repeat(rgba[..., :1], 3, 2))


def test_black_and_white_becomes_0_and_255(tmp_path):
    picture = Image.fromarray(np.array([[True, False], [False, True]]))
    assert picture.mode == "1"
    assert pixels(saved(tmp_path, picture))[..., 1].tolist() == [[255, 0], [0, 255]]


def test_cmyk_becomes_rgb(tmp_path):
    cmyk = Image.merge("CMYK", [Image.new("L", (2, 2), value) for value in (0, 255, 255, 0)])
    assert pixels(saved(tmp_path, cmyk, "a.tif"))[0, 0].tolist() == [255, 0, 0]
    red = pixels(saved(tmp_path, cmyk.resize((16, 16)), "a.jpg", quality=100))[8, 8]
    assert np.abs(red.astype(int) - [255, 0, 0]).max() <= 3
    assert pixels(tmp_path / "a.tif", Framing(channels=1))[0, 0].tolist() == [76]


def test_grey_of_colours_is_their_luma(tmp_path):
    path = saved(tmp_path, Image.fromarray(np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]], np.uint8)))
    assert pixels(path, Framing(channels=1)).ravel().tolist() == [76, 150, 29]


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_16_bits_are_scaled_to_8_not_clipped(tmp_path, name):
    picture = Image.fromarray(np.array([[0, 255, 256, 32768, 65280, 65535]], np.uint16))
    path = saved(tmp_path, picture, name)
    assert pixels(path, Framing(channels=1)).ravel().tolist() == [0, 0, 1, 128, 255, 255]
    assert pixels(path).reshape(-1, 3).tolist() == [[value] * 3 for value in (0, 0, 1, 128, 255, 255)]


def test_big_endian_16_bits_are_scaled_alike(tmp_path):
    values = struct.pack(">4H", 0, 256, 32768, 65535)
    entries = [(256, 4), (257, 1), (258, 16), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 8)]
    directory = b"".join(struct.pack(">HHIHxx", tag, 3, 1, value) for tag, value in entries)
    content = b"MM\x00*" + struct.pack(">I", 16) + values + struct.pack(">H", len(entries)) + directory + bytes(4)
    (tmp_path / "a.tif").write_bytes(content)
    assert pixels(tmp_path / "a.tif", Framing(channels=1)).ravel().tolist() == [0, 1, 128, 255]


def test_16_bits_of_colour_are_scaled_alike(tmp_path):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\x00" + struct.pack(">6H", 0, 255, 256, 32768, 65280, 65535)
    header = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(content)
    assert pixels(tmp_path / "a.png").tolist() == [[[0, 0, 1], [128, 255, 255]]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 0.5, 1], [0, 128, 255]),
        ([-0.1, 0.2, 1.1], [0, 51, 255]),
        ([0, 2.4, 2.6, 255], [0, 2, 3, 255]),
        ([-3, 100, 260], [0, 100, 255]),
    ],
)
def test_floats_from_0_to_1_are_scaled_and_those_to_255_taken_as_they_are(tmp_path, values, expected):
    path = saved(tmp_path, Image.fromarray(np.array([values], np.float32)), "a.tif")
    assert pixels(path, Framing(channels=1)).ravel().tolist() == expected


@pytest.mark.parametrize("values", [[0, np.nan], [0, np.inf], [-1, 1], [0, 65535], [-200, 255]])
def test_floats_in_another_range_are_refused(tmp_path, values):
    path = saved(tmp_path, Image.fromarray(np.array([values], np.float32)), "a.tif")
    found = decode(str(path), Framing())
    assert found.reason.startswith("has float values from ")
    assert found.reason.endswith(": 0 to 1 or 0 to 255 are read")


@pytest.mark.parametrize(("values", "expected"), [([0, 7, 255], [0, 7, 255]), ([0, 256, 65535], [0, 1, 255])])
@pytest.mark.parametrize("turned", [False, True])
def test_32_bits_are_taken_as_the_8_or_16_that_their_values_need(tmp_path, values, expected, turned):
    exif = Image.Exif()
    exif[0x0112] = 3 if turned else 1
    path = saved(tmp_path, Image.fromarray(np.array([values], np.int32)), "a.tif", exif=exif)
    assert pixels(path, Framing(channels=1)).ravel().tolist() == expected[:: -1 if turned else 1]


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_dark_pictures_of_16_bits_stay_dark(tmp_path, name):
    path = saved(tmp_path, Image.fromarray(np.array([[0, 7, 255]], np.uint16)), name)
    assert pixels(path, Framing(channels=1)).ravel().tolist() == [0, 0, 0]


def test_dark_pictures_of_16_bits_with_a_sign_stay_dark(tmp_path):
    path = saved(tmp_path, Image.fromarray(np.array([[0, 7, 255]], np.uint16)), "a.tif", tiffinfo={339: 2})
    with Image.open(path) as image:
        assert image.mode == "I"
    assert pixels(path, Framing(channels=1)).ravel().tolist() == [0, 0, 0]


@pytest.mark.parametrize("values", [[0, 65536], [-1, 5]])
def test_integers_of_more_than_16_bits_are_refused(tmp_path, values):
    path = saved(tmp_path, Image.fromarray(np.array([values], np.int32)), "a.tif")
    assert decode(str(path), Framing()) == Broken(
        f"has integer values from {min(values)} to {max(values)}: those of 8 and 16 bits are read"
    )


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "a.webp"])
@pytest.mark.parametrize("orientation", range(10))
def test_exif_rotation_is_applied(tmp_path, name, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path, Image.fromarray(COLOURS), name, exif=exif)
    with Image.open(path) as image:
        expected = ImageOps.exif_transpose(image).convert("RGB")
    assert np.array_equal(pixels(path), np.asarray(expected))
    assert pixels(path).shape == ((5, 6, 3) if 5 <= orientation <= 8 else (6, 5, 3))


def test_damaged_exif_is_not_minded(tmp_path):
    path = saved(tmp_path, Image.fromarray(COLOURS), exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff\x00\x01")
    assert np.array_equal(pixels(path), COLOURS)


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png", "a.tif"])
def test_first_frame_of_an_animation_is_taken(tmp_path, name):
    frames = [Image.new("RGB", (4, 3), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if name == "a.webp" else {}
    path = saved(tmp_path, frames[0], name, save_all=True, append_images=frames[1:], **options)
    with Image.open(path) as image:
        assert image.n_frames == 3
    assert np.array_equal(pixels(path), np.full((3, 4, 3), (255, 0, 0)))


def test_digest_is_that_of_the_bytes_wherever_they_lie(tmp_path):
    (tmp_path / "b").mkdir()
    first = decode(str(saved(tmp_path, Image.fromarray(COLOURS))), Framing())
    second = decode(str(saved(tmp_path, Image.fromarray(COLOURS), "b/c.png")), Framing(4))
    other = decode(str(saved(tmp_path, Image.fromarray(COLOURS[::-1].copy()))), Framing())
    assert first.digest == second.digest != other.digest


def test_digest_knows_the_name_where_the_name_decides_the_crop(tmp_path):
    first, second = (saved(tmp_path, Image.fromarray(COLOURS), name) for name in ("a.png", "b.png"))
    framing = Framing(5, "as_published")
    assert decode(str(first), framing).digest != decode(str(second), framing).digest


def test_digest_of_a_large_file_covers_its_end(tmp_path):
    path = saved(tmp_path, Image.fromarray(COLOURS), "a.bmp")
    digests = set()
    for end in (b"x", b"y"):
        path.write_bytes(path.read_bytes()[:146] + bytes(600_000) + end)
        digests.add(decode(str(path), Framing()).digest)
    assert len(digests) == 2


def png():
    place = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(place, "PNG")
    return place.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"hello", "is no picture in JPEG, PNG, BMP, GIF, TIFF, WEBP, PPM"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "is no picture in JPEG, PNG,"),
        (png()[:-600], "truncated"),
        (png()[:30], ""),
    ],
)
def test_broken_file_gives_a_reason_of_one_line(tmp_path, content, reason):
    (tmp_path / "a.png").write_bytes(content)
    found = decode(str(tmp_path / "a.png"), Framing())
    assert isinstance(found, Broken)
    assert reason in found.reason
    assert found.reason
    assert "\n" not in found.reason
    assert not found.unread


def test_truncated_jpeg_is_broken(tmp_path):
    path = saved(tmp_path, Image.fromarray(np.tile(COLOURS, (20, 20, 1))), "a.jpg")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "truncated" in decode(str(path), Framing()).reason


@pytest.mark.parametrize("limit", [20, 10])
def test_decompression_bomb_is_broken_and_no_warning(tmp_path, monkeypatch, limit):
    path = saved(tmp_path, Image.fromarray(COLOURS))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    assert "could be decompression bomb" in decode(str(path), Framing()).reason


def test_file_that_cannot_be_read_is_told_from_a_broken_one(tmp_path, monkeypatch):
    path = saved(tmp_path, Image.fromarray(COLOURS))

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(builtins, "open", refuse)
    assert decode(str(path), Framing()) == Broken("Permission denied", unread=True)


def test_file_that_is_gone_a_folder_and_a_pipe_are_broken(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    assert decode(str(tmp_path / "gone.png"), Framing()) == Broken("No such file or directory", unread=True)
    assert decode(str(tmp_path / "pipe.png"), Framing()) == Broken("is not a plain file")
    assert decode(str(tmp_path / "folder.png"), Framing()) == Broken("is not a plain file")
    assert decode(str(tmp_path / "loop.png"), Framing()).unread


def test_picture_too_long_and_thin_to_resize_is_broken(tmp_path):
    path = saved(tmp_path, Image.new("1", (5_000_000, 1)))
    assert "too long and thin" in decode(str(path), Framing(32)).reason


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM"]), data=st.data())
def test_any_damage_gives_a_picture_or_a_reason(tmp_path, name, data):
    path = tmp_path / "a"
    Image.fromarray(np.tile(COLOURS, (4, 4, 1))).save(path, name)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 5_000)  # or a damaged header would ask for gigabytes
        found = decode(str(path), Framing(8))
    assert found.reason if isinstance(found, Broken) else found.pixels.shape == (8, 8, 3)


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
    assert frame(columns, Framing(2, channels=1), "a.png")[..., 0].tolist() == [[50, 150], [50, 150]]


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
    assert np.abs(frame(Image.fromarray(pixels), Framing(16), "a.png") - expected).max() <= 1.01


@pytest.mark.parametrize("size", [(7, 1), (1, 7), (30, 20), (20, 30), (31, 17)])
@pytest.mark.parametrize("target", [(4, 9), (9, 4), (8, 8), (64, 48)])
def test_covering_size_has_one_exact_side_and_no_smaller_one(size, target):
    width, height = covering_size(size, target)
    assert width >= target[0]
    assert height >= target[1]
    assert width == target[0] or height == target[1]


@pytest.mark.parametrize(("side", "first"), [(4, 0), (5, 0), (6, 1), (7, 2), (8, 2), (9, 2), (11, 4)])
def test_centre_crop_gives_half_a_pixel_to_the_even_side(side, first):
    pixels = frame(coordinates(side, 4), Framing(4, "centre"), "a.png")
    assert pixels[:, 0, 0].tolist() == [first, first + 1, first + 2, first + 3]
    assert pixels[0, :, 1].tolist() == [0, 1, 2, 3]


def test_size_is_height_and_width():
    assert frame(coordinates(10, 10), Framing((4, 6), "centre"), "a.png").shape == (4, 6, 3)
    assert frame(coordinates(10, 10), Framing((4, 6)), "a.png").shape == (4, 6, 3)


def test_without_a_size_a_picture_stays_as_it_is():
    picture = coordinates(5, 7)
    assert np.array_equal(frame(picture, Framing(), "a.png"), np.asarray(picture))
    assert frame(picture.convert("L"), Framing(channels=1), "a.png").shape == (5, 7, 1)


@pytest.mark.parametrize(("height", "width"), [(3, 8), (8, 3)])
def test_picture_too_small_for_centre_is_refused_by_name(height, width):
    with pytest.raises(InputError) as refused:
        frame(coordinates(height, width), Framing((4, 5), "centre"), "photos/a.png")
    assert str(refused.value) == (
        f"photos/a.png is {width} x {height} pixels, too small to cut 5 x 4 (width x height) from: "
        "give a smaller size, or how='cover'"
    )


def test_published_crop_is_a_window_of_the_padded_picture_that_the_name_decides():
    picture = coordinates(32, 32)
    padded = np.full((40, 40, 3), (125, 123, 114), np.uint8)
    padded[4:36, 4:36] = np.asarray(picture)
    windows = {padded[top : top + 32, left : left + 32].tobytes(): (top, left) for top in range(9) for left in range(9)}
    found = [windows[frame(picture, Framing(32, "as_published"), f"{number}.png").tobytes()] for number in range(2000)]
    assert set(found) == set(windows.values())
    assert frame(picture, Framing(32, "as_published"), "x/7.png").tobytes() == (
        frame(picture, Framing(32, "as_published"), "y/z/7.png").tobytes()
    )


def test_published_crop_of_another_size_and_of_grey():
    grey = frame(Image.new("L", (30, 28), 9), Framing(36, "as_published", channels=1), "a.png")
    assert grey.shape == (36, 36, 1)
    assert set(np.unique(grey)) == {9, 123}
    with pytest.raises(InputError, match="too small to cut 37 x 37"):
        frame(Image.new("L", (30, 28), 9), Framing(37, "as_published", channels=1), "a.png")


def test_picture_that_would_fill_the_memory_when_resized_is_refused():
    with pytest.raises(ImageError, match="its 5000000 x 1 pixels are too long and thin to be resized"):
        frame(Image.new("RGB", (5_000_000, 1)), Framing(32), "a.png")


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

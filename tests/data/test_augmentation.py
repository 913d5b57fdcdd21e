"""Random views change images as they should, and nothing else."""

import colorsys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from wildood.data import augmentation
from wildood.data.augmentation import flip_and_crop, random_flip, random_view, rotations


def by_loops(images, rng):
    """Image by image, with the same draws."""
    count, height, width, _ = images.shape
    flipped = torch.rand(count, generator=rng) < 0.5
    rows, columns = torch.randint(0, 9, (2, count), generator=rng)
    crops = []
    for image, flip, row, column in zip(images, flipped, rows, columns, strict=True):
        padded = F.pad(image.permute(2, 0, 1), (4, 4, 4, 4))
        crop = padded[:, row : row + height, column : column + width]
        crops.append((crop.flip(2) if flip else crop).permute(1, 2, 0))
    return torch.stack(crops)


def draw(seed):
    return torch.Generator().manual_seed(seed)


def test_it_is_a_padded_crop_and_a_flip_of_each_image():
    images = torch.randint(0, 256, (64, 8, 10, 3), dtype=torch.uint8, generator=draw(0))
    found = flip_and_crop(images, "NHWC", draw(1))
    assert found.dtype == torch.uint8
    assert torch.equal(found, by_loops(images, draw(1)))


def test_the_layout_changes_nothing_else():
    images = torch.randint(0, 256, (16, 8, 10, 3), dtype=torch.uint8, generator=draw(0))
    last = flip_and_crop(images, "NHWC", draw(1))
    first = flip_and_crop(images.permute(0, 3, 1, 2), "NCHW", draw(1))
    assert torch.equal(first.permute(0, 2, 3, 1), last)


def test_images_get_different_offsets_and_about_half_are_flipped():
    images = torch.zeros(1000, 9, 9, 1)
    images[:, 4, 4] = 1.0  # one bright pixel in the middle: where it goes tells the offset
    images[:, 4, 5] = 2.0  # and its neighbour tells the flip
    found = flip_and_crop(images, "NHWC", draw(0))[..., 0]
    places = {tuple((image == 1).nonzero()[0].tolist()) for image in found if (image == 1).any()}
    assert len(places) == 81
    whole = [image for image in found if (image == 1).any() and (image == 2).any()]
    right = [bool((image == 2).nonzero()[0, 1] > (image == 1).nonzero()[0, 1]) for image in whole]
    assert 0.44 < sum(right) / len(right) < 0.56


def test_an_image_of_a_share_gets_what_it_gets_in_the_whole_batch():
    images = torch.randint(0, 256, (10, 6, 8, 1), dtype=torch.uint8, generator=draw(0))
    whole = flip_and_crop(images, "NHWC", draw(1))
    for share in (slice(0, None, 3), slice(1, None, 3), slice(2, None, 3)):
        rng = draw(1)
        assert torch.equal(flip_and_crop(images[share], "NHWC", rng, of=10, share=share), whole[share])
        expected = draw(1)
        flip_and_crop(images, "NHWC", expected)
        assert torch.equal(rng.get_state(), expected.get_state())


def test_the_draws_can_be_resumed():
    images = torch.randint(0, 256, (8, 6, 6, 1), dtype=torch.uint8, generator=draw(0))
    rng = draw(3)
    flip_and_crop(images, "NHWC", rng)
    state = rng.get_state()
    second = flip_and_crop(images, "NHWC", rng)
    again = torch.Generator()
    again.set_state(state)
    assert torch.equal(flip_and_crop(images, "NHWC", again), second)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(count=64, channels=3, side=12):
    return torch.rand(count, channels, side, side, generator=generator(7))


def places(count, side=32):
    """The red channel is the place from left to right, the green one from top to bottom."""
    across = torch.linspace(0, 1, side).expand(side, side)
    return torch.stack([across, across.T, torch.zeros(side, side)]).repeat(count, 1, 1, 1)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_views_keep_the_shape_and_stay_between_0_and_1(channels):
    images = pictures(channels=channels)
    seen = random_view(images, generator())
    assert seen.shape == images.shape
    assert seen.min() >= 0
    assert seen.max() <= 1
    assert not torch.equal(seen, images)


def test_the_generator_decides_every_view():
    images = pictures()
    assert torch.equal(random_view(images, generator(1)), random_view(images, generator(1)))
    assert not torch.equal(random_view(images, generator(1)), random_view(images, generator(2)))


def test_each_image_has_its_own_view():
    seen = random_view(pictures(1).repeat(20, 1, 1, 1), generator())
    assert len({view.numpy().tobytes() for view in seen}) == 20


def test_an_image_of_one_colour_stays_of_one_colour():
    seen = random_view(torch.full((30, 3, 8, 8), 0.5), generator())
    assert (seen.amax((2, 3)) - seen.amin((2, 3))).max() < 1e-5


def test_jitter_changes_most_images_and_grey_some():
    images = pictures(2000, side=2)
    jittered = (augmentation._colour_jitter(images, generator()) != images).flatten(1).any(1).float().mean()
    grey = augmentation._random_grey(images, generator())
    greyed = ((grey.amax(1) - grey.amin(1)).flatten(1).amax(1) < 1e-6).float().mean()
    assert jittered.item() == pytest.approx(augmentation.JITTERED, abs=0.04)
    assert greyed.item() == pytest.approx(augmentation.GREYED, abs=0.04)


def test_settings_are_the_published_ones():
    assert (augmentation.JITTERED, augmentation.GREYED, augmentation.FLIPPED) == (0.8, 0.2, 0.5)
    assert (augmentation.STRENGTH, augmentation.HUE) == (0.4, 0.1)
    assert (augmentation.AREA, augmentation.ASPECT) == ((0.08, 1.0), (3 / 4, 4 / 3))
    assert augmentation._LUMA == (0.299, 0.587, 0.114)


def test_views_are_jittered_and_greyed():
    colour = torch.tensor([0.6, 0.3, 0.4]).view(1, 3, 1, 1)
    seen = random_view(colour.expand(2000, 3, 4, 4), generator())
    grey = ((seen.amax(1) - seen.amin(1)) < 1e-6).flatten(1).all(1)
    changed = ((seen - colour).abs() > 1e-4).flatten(1).any(1)
    assert grey.float().mean().item() == pytest.approx(augmentation.GREYED, abs=0.04)
    assert changed[~grey].float().mean().item() == pytest.approx(augmentation.JITTERED, abs=0.04)


def test_brightness_contrast_saturation_and_hue_each_reach_as_far_as_their_strength():
    coloured, grey = (0.35, 0.25, 0.3), 0.2  # two pixels, of which saturation and hue change one; nothing is cut off
    picture = torch.tensor([coloured, (grey, grey, grey)]).T.view(1, 3, 1, 2)
    seen = augmentation._colour_jitter(picture.repeat(4000, 1, 1, 1), generator()).double()
    luma = 0.299 * 0.35 + 0.587 * 0.25 + 0.114 * 0.3
    mean = (luma + grey) / 2
    # The grey pixel is b mean + bc (grey - mean), the value of the other b mean + bc (luma - mean) + bcs (value - luma).
    all_three = (seen[:, :, 0, 0].amax(1) - seen[:, :, 0, 0].amin(1)) / 0.1  # bcs, by the chroma
    other = seen[:, :, 0, 0].amax(1) - all_three * (0.35 - luma)
    both = (other - seen[:, 0, 0, 1]) / (luma - grey)
    brightness = (seen[:, 0, 0, 1] - both * (grey - mean)) / mean
    for strength in (brightness, both / brightness, all_three / both):
        assert strength.min().item() == pytest.approx(1 - augmentation.STRENGTH, abs=0.005)
        assert strength.max().item() == pytest.approx(1 + augmentation.STRENGTH, abs=0.005)
    hues = np.array([colorsys.rgb_to_hsv(*pixel)[0] for pixel in seen[:, :, 0, 0].tolist()])
    turns = (hues - colorsys.rgb_to_hsv(*coloured)[0] + 0.5) % 1 - 0.5
    assert turns.min() == pytest.approx(-augmentation.HUE, abs=0.002)
    assert turns.max() == pytest.approx(augmentation.HUE, abs=0.002)


@pytest.mark.parametrize("share", [-0.1, 0.0, 0.07, 0.5])
def test_hue_turns_as_in_the_standard_library(share):
    images = pictures(3, side=4)
    turned = augmentation._shift_hue(images, torch.full((3, 1, 1, 1), share))
    for image, other in zip(
        images.permute(0, 2, 3, 1).reshape(-1, 3), turned.permute(0, 2, 3, 1).reshape(-1, 3), strict=True
    ):
        hue, saturation, value = colorsys.rgb_to_hsv(*image.tolist())
        assert other.tolist() == pytest.approx(colorsys.hsv_to_rgb((hue + share) % 1, saturation, value), abs=1e-4)


def test_crops_show_a_part_of_the_image_in_its_order_or_flipped():
    seen = augmentation._resized_crop(places(500), generator(), flip=True)
    widths = (seen[:, 0, 16, -2] - seen[:, 0, 16, 1]) / (29 / 31)
    heights = (seen[:, 1, -2, 16] - seen[:, 1, 1, 16]) / (29 / 31)
    assert (heights > 0).all()  # never upside down
    assert (widths < 0).float().mean().item() == pytest.approx(augmentation.FLIPPED, abs=0.07)
    area, aspect = (widths.abs() * heights), (widths.abs() / heights)
    assert area.min() > augmentation.AREA[0] - 0.03
    assert area.max() < 1.05
    assert aspect.min() > augmentation.ASPECT[0] - 0.08
    assert aspect.max() < augmentation.ASPECT[1] + 0.08


def test_crops_reach_every_edge_of_the_image_and_no_further():
    seen = augmentation._resized_crop(places(2000), generator(), flip=True)
    for ends in (seen[:, 0, 16, [1, -2]], seen[:, 1, [1, -2], 16]):
        size, centre = (ends[:, 1] - ends[:, 0]).abs() / (29 / 31), 2 * ends.mean(1) - 1
        reached = (centre / (1 - size))[size < 0.8]  # a share of the way from the middle to where crop and image end alike
        assert reached.min().item() == pytest.approx(-1, abs=0.05)
        assert reached.max().item() == pytest.approx(1, abs=0.05)


def test_rotations_are_in_the_order_of_their_turns():
    images = pictures(3)
    turned = rotations(images)
    assert torch.equal(turned[:3], images)
    for turns in range(4):
        assert torch.equal(turned[3 * turns : 3 * turns + 3], torch.rot90(images, turns, (2, 3)))


def test_flips_mirror_half_of_the_images_from_left_to_right():
    images = pictures(600, side=4)
    seen = random_flip(images, generator())
    mirrored = (seen == images.flip(3)).flatten(1).all(1)
    assert torch.equal(seen[~mirrored], images[~mirrored])
    assert mirrored.float().mean().item() == pytest.approx(augmentation.FLIPPED, abs=0.07)


def test_views_without_flips_never_mirror_an_image():
    images = torch.linspace(0, 1, 16).expand(200, 3, 16, 16)  # brighter from left to right
    seen = random_view(images, generator(), flip=False)
    assert (seen[:, :, :, -1] >= seen[:, :, :, 0]).all()
    assert (seen[:, :, :, -1] > seen[:, :, :, 0]).any()

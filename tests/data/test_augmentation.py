import torch
import torch.nn.functional as F

from wildood.data.augmentation import flip_and_crop


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

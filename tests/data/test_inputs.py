"""The input spec does to a batch what numpy does by hand, whatever the layout."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from wildood.data.inputs import InputSpec, to_model_input
from wildood.errors import InputError

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


@pytest.fixture
def images():
    """uint8, NHWC, neither square nor symmetric."""
    return np.random.default_rng(0).integers(0, 256, size=(5, 6, 9, 3), dtype=np.uint8)


def by_hand(images):
    """NHWC uint8 to normalised NCHW, in float64."""
    return ((images / 255 - MEAN) / STD).transpose(0, 3, 1, 2)


def triangle(before, after):
    """The weights of antialiased bilinear resizing along one axis: a triangle as wide as the pixels that fall together."""
    scale = max(before / after, 1.0)
    centres = (np.arange(after) + 0.5) * before / after
    weights = np.maximum(0, 1 - np.abs(np.arange(before) + 0.5 - centres[:, None]) / scale)
    return weights / weights.sum(1, keepdims=True)


def test_uint8_is_divided_by_255_then_normalised_by_channel(images):
    batch = InputSpec(mean=MEAN, std=STD)(torch.from_numpy(images))
    assert batch.dtype == torch.float32
    np.testing.assert_allclose(batch.numpy(), by_hand(images), atol=2e-6)


def test_both_layouts_give_the_same_bits(images):
    nhwc = InputSpec("NHWC", MEAN, STD)(torch.from_numpy(images))
    nchw = InputSpec("NCHW", MEAN, STD)(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    assert nhwc.shape == (5, 3, 6, 9)
    assert torch.equal(nhwc, nchw)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_floats_are_normalised_but_not_divided(dtype):
    raw = torch.tensor([0.0, 0.5, 1.0, 2.0], dtype=dtype).reshape(1, 2, 2, 1)
    batch = InputSpec(mean=(0.5,), std=(0.25,))(raw)
    assert batch.dtype == torch.float32
    assert batch.flatten().tolist() == [-2.0, 0.0, 2.0, 6.0]


def test_one_mean_serves_every_channel(images):
    one = InputSpec(mean=(0.5,), std=(0.2,))(torch.from_numpy(images))
    each = InputSpec(mean=(0.5,) * 3, std=(0.2,) * 3)(torch.from_numpy(images))
    assert torch.equal(one, each)


@pytest.mark.parametrize("size", [(3, 9), (3, 4), (12, 18), (6, 5), (1, 1)])
def test_size_resizes_as_the_triangle_filter_does(images, size):
    batch = InputSpec(mean=MEAN, std=STD, size=size)(torch.from_numpy(images))
    resized = triangle(6, size[0]) @ by_hand(images) @ triangle(9, size[1]).T
    assert batch.shape == (5, 3, *size)
    np.testing.assert_allclose(batch.numpy(), resized, atol=1e-5)


def test_size_leaves_images_of_that_size_alone(images):
    raw = torch.from_numpy(images)
    assert torch.equal(InputSpec(mean=MEAN, std=STD, size=(6, 9))(raw), InputSpec(mean=MEAN, std=STD)(raw))


def test_raw_batch_is_not_changed(images):
    for raw in (torch.from_numpy(images.copy()), torch.from_numpy(images / 255.0)):
        before = raw.clone()
        InputSpec(mean=MEAN, std=STD, size=(3, 3))(raw)
        assert torch.equal(raw, before)


def test_batch_is_channels_last(images):
    assert InputSpec(mean=MEAN, std=STD)(torch.from_numpy(images)).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "spec",
    [InputSpec(), InputSpec("NCHW", MEAN, STD), InputSpec(mean=[0.1, 1 / 3], std=np.array([0.7, 0.2]), size=[32, 24])],
)
def test_spec_survives_json_exactly(spec):
    again = InputSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert hash(again) == hash(spec)


def test_spec_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        InputSpec().layout = "NCHW"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layout": "HWC"}, "layout is 'HWC': give 'NHWC' or 'NCHW'"),
        ({"mean": (0.5,), "std": (0.5, 0.5)}, "mean has 1 and std 2 values"),
        ({"mean": (), "std": ()}, "one for each channel"),
        ({"std": (0.0,)}, "every value must be positive"),
        ({"mean": (0.5, 0.5), "std": (1.0, -1.0)}, "every value must be positive"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        InputSpec(**settings)


@pytest.mark.parametrize(
    ("shape", "layout", "message"),
    [
        ((4, 3), "NHWC", r"for images, but a batch has shape \(4, 3\): leave input= out"),
        ((8, 8, 3), "NHWC", "for images"),
        ((2, 8, 8, 1), "NHWC", "has 1 channels in layout NHWC, but mean and std have 3 values"),
        ((2, 8, 8, 3), "NCHW", "has 8 channels in layout NCHW.*or the other layout"),
        ((2, 3, 8, 8), "NHWC", "has 8 channels in layout NHWC.*or the other layout"),
    ],
)
def test_batch_that_the_spec_cannot_read_is_refused(shape, layout, message):
    with pytest.raises(InputError, match=message):
        InputSpec(layout, MEAN, STD)(torch.zeros(shape, dtype=torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_without_a_spec_floats_go_in_as_they_are(dtype):
    raw = torch.tensor([[-3.0, 300.0]], dtype=dtype)
    batch = to_model_input(raw, None)
    assert batch.dtype == torch.float32
    assert batch.tolist() == [[-3.0, 300.0]]


def test_without_a_spec_integers_such_as_tokens_stay_integers():
    raw = torch.tensor([[7, 101, 2]])
    assert to_model_input(raw, None).dtype == torch.int64
    assert to_model_input(raw, None).tolist() == [[7, 101, 2]]


def test_without_a_spec_uint8_is_refused_with_what_to_pass(images):
    with pytest.raises(InputError, match=r"uint8 examples need an input spec: pass input=InputSpec\(mean=..., std=...\)"):
        to_model_input(torch.from_numpy(images), None)


def test_with_a_spec_model_input_is_the_specs(images):
    spec = InputSpec(mean=MEAN, std=STD)
    assert torch.equal(to_model_input(torch.from_numpy(images), spec), spec(torch.from_numpy(images)))

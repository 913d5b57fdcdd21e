"""The demo's data: every scan is in one part only, and the test scans are never anything else."""

import sys
from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from wildood.errors import InputError
from wildood.experiments.digits import SPEC, digits, starting_classifier

SEEDS, PARTS = (0, 1, 7), ("test", "validation")


@pytest.fixture(scope="module")
def scans():
    """How often each scan, as bytes, is there with its digit."""
    x, y = load_digits(return_X_y=True)
    images = np.round(x * 255 / 16).astype("uint8").reshape(-1, 8, 8, 1)
    return Counter((image.tobytes(), int(label)) for image, label in zip(images, y, strict=True))


def images_of(source):
    return source.gather(torch.arange(len(source)))[0].numpy()


def bag(*parts):
    return Counter(image.tobytes() for images in parts for image in images)


def labelled_bag(*pairs):
    return Counter((image.tobytes(), int(label)) for x, y in pairs for image, label in zip(x, y, strict=True))


def id_images(parts):
    return parts.labelled[0], images_of(parts.wild.id), parts.holdout[0], parts.test_id[0]


def ood_images(parts):
    return images_of(parts.wild.ood), parts.test_ood


def test_no_two_scans_are_equal(scans):
    """So that parts can be compared by their bytes."""
    assert len(scans) == 1797


@pytest.mark.parametrize("seed", SEEDS)
def test_every_scan_is_in_one_part_and_in_one_only(seed, scans):
    parts = digits(seed)
    assert bag(*id_images(parts)) == Counter(image for image, label in scans if label < 7)
    assert bag(*ood_images(parts)) == Counter(image for image, label in scans if label >= 7)


@pytest.mark.parametrize("seed", SEEDS)
def test_validation_divides_what_is_not_the_tests(seed, scans):
    test, parts = digits(seed), digits(seed, part="validation")
    rest = Counter(image for image, _ in scans) - bag(test.test_id[0], test.test_ood)
    assert bag(*id_images(parts), *ood_images(parts)) == rest
    assert bag(parts.test_id[0], parts.test_ood) & bag(test.test_id[0], test.test_ood) == Counter()
    assert bag(parts.test_id[0]) <= bag(images_of(test.wild.id))
    assert bag(parts.test_ood) <= bag(images_of(test.wild.ood))


@pytest.mark.parametrize(
    ("part", "sizes"), [("test", [450, 400, 200, 214, 373, 160]), ("validation", [450, 270, 200, 130, 262, 111])]
)
def test_the_parts_have_the_sizes_they_are_said_to_have(part, sizes):
    parts = digits(0, part)
    assert [len(images) for images in (*id_images(parts), *ood_images(parts))] == sizes
    assert parts.wild.pi == 0.1


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_label_is_its_scans_and_unknowns_have_none(seed, part, scans):
    parts = digits(seed, part)
    pairs = labelled_bag(parts.labelled, parts.holdout, parts.test_id)
    assert pairs <= scans
    assert {label for _, label in pairs} == set(range(7))
    unknown = {image for image, label in scans if label >= 7}
    assert set(bag(*ood_images(parts))) <= unknown


def test_the_test_scans_are_the_same_for_every_seed():
    first = digits(0)
    for seed in SEEDS[1:]:
        parts = digits(seed)
        assert np.array_equal(parts.test_id[0], first.test_id[0])
        assert np.array_equal(parts.test_id[1], first.test_id[1])
        assert np.array_equal(parts.test_ood, first.test_ood)


@pytest.mark.parametrize("part", PARTS)
def test_the_seed_decides_the_split(part):
    first, again, other = digits(3, part), digits(3, part), digits(4, part)
    for before, after in zip((*id_images(first), *ood_images(first)), (*id_images(again), *ood_images(again)), strict=True):
        assert np.array_equal(before, after)
    for before, after in zip(id_images(first)[:3], id_images(other)[:3], strict=True):
        assert bag(before) != bag(after)


def test_scans_are_bytes_that_use_their_whole_range():
    images = digits(0).labelled[0]
    assert (images.dtype, images.shape[1:]) == (np.uint8, (8, 8, 1))
    assert (images.min(), images.max()) == (0, 255)
    batch = SPEC(torch.from_numpy(images))
    assert (batch.min().item(), batch.max().item()) == (-1.0, 1.0)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match="pip install scikit-learn"):
        digits(0)


@pytest.fixture(scope="module")
def few():
    x, y = digits(0).labelled
    return x[:130], y[:130]


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_the_starting_classifier_depends_on_its_seed_only(few):
    first = weights(starting_classifier(few, seed=1))
    torch.manual_seed(99)  # nobody else's draws matter
    assert torch.equal(weights(starting_classifier(few, seed=1)), first)
    assert not torch.equal(weights(starting_classifier(few, seed=2)), first)


def test_the_starting_classifier_leaves_torchs_generator_as_it_was(few):
    before = torch.get_rng_state()
    starting_classifier(few, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_starting_classifier_says_nothing(few, capfd, caplog):
    starting_classifier(few, seed=1)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_the_starting_classifier_has_learned_the_known_digits():
    parts = digits(0)
    model = starting_classifier(parts.labelled, seed=0)
    with torch.no_grad():
        logits = model(SPEC(torch.from_numpy(parts.test_id[0])))
    assert logits.shape == (214, 7)
    assert float((logits.argmax(1).numpy() == parts.test_id[1]).mean()) > 0.97

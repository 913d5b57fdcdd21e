"""Splits: no example is in two parts, labels stay with their images, and sizes are known without opening the sets."""

import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from wildood.data.validation import all_labels, labelled_source, unlabelled_source
from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.plan import image_shape, known_counts, split_sizes
from wildood.experiments.split import DIGITS_SPEC, digits_split, load_split, paper_split


def rows(part):
    """The examples of a part, as bytes each."""
    source = unlabelled_source(part[0] if isinstance(part, tuple) else part, "part")
    return {example.numpy().tobytes() for example in source.gather(torch.arange(len(source)))[0]}


@pytest.mark.parametrize("start", ["labelled", "all"])
def test_parts_of_an_experiment_have_no_example_in_common(small, small_root, start):
    split = load_split(replace(small, start=start), small_root)
    known = [rows(part) for part in (split.labelled, split.wild.id, split.holdout, split.test_id)]
    unknown = [rows(part) for part in (split.wild.ood, split.validation_ood, *split.tests.values())]
    for group in (known, unknown):
        assert len(set().union(*group)) == sum(map(len, group))


def test_holdout_is_of_the_test_set_where_the_starting_classifier_has_seen_the_training_set(small, small_root):
    with np.load(small_root / "known.npz") as file:
        test = {image.tobytes() for image in file["test_images"]}
    for change in ({"start": "all"}, {"start": "weights/a.safetensors"}, {"protocol": "as_published"}):
        assert rows(load_split(replace(small, **change), small_root).holdout) < test
    honest = load_split(small, small_root)
    assert not rows(honest.holdout) & test
    assert len(rows(honest.test_id)) == 200


def test_labels_stay_with_their_images(small, small_root):
    split = load_split(small, small_root)
    for part in (split.labelled, split.holdout, split.test_id):
        source = labelled_source(part, "part")
        brightness = source.gather(torch.arange(len(source)))[0].float().mean((1, 2, 3))
        assert ((brightness > 128).long() == all_labels(source)).all()


def test_a_set_that_was_not_in_the_wild_is_tested_whole_and_the_wild_one_in_its_test_part(small, small_root):
    split = load_split(replace(small, test=("grey.npz", "white.npz")), small_root)
    assert {name: len(test) for name, test in split.tests.items()} == {"grey.npz": 60, "white.npz": 150}


def test_without_wild_data_each_set_is_tested_in_the_part_that_runs_with_it_are_tested_on(small, small_root):
    alone = load_split(Experiment("known.npz", ("grey.npz", "white.npz"), method="energy", start="all"), small_root)
    assert alone.wild is None
    assert {name: len(test) for name, test in alone.tests.items()} == {"grey.npz": 60, "white.npz": 45}
    assert rows(alone.tests["grey.npz"]) == rows(load_split(replace(small, start="all"), small_root).tests["grey.npz"])


def test_seed_decides_the_split_and_the_record_says_which(small, small_root):
    first, again, other = (load_split(replace(small, seed=seed), small_root) for seed in (0, 0, 1))
    assert first.record == again.record
    assert first.record["grey.npz"]["labelled"]["hash"] != other.record["grey.npz"]["labelled"]["hash"]


@pytest.mark.parametrize("tests", [("grey.npz",), ("grey.npz", "white.npz")])
@pytest.mark.parametrize("start", ["labelled", "all"])
def test_sizes_are_those_of_the_parts(small, small_root, tests, start):
    experiment = replace(small, test=tests, start=start)
    split, sizes = load_split(experiment, small_root), split_sizes(experiment, small_root)
    tested = len(split.test_id) + sum(map(len, split.tests.values()))
    found = (
        len(split.labelled),
        len(split.wild.id),
        len(split.wild.ood),
        len(split.holdout),
        tested,
        len(split.validation_ood),
    )
    assert tuple(sizes) == found


def test_sizes_of_digits_are_those_of_the_parts():
    experiment = Experiment("digits", ("digits",), "digits", 0.1)
    split, sizes = load_split(experiment), split_sizes(experiment)
    assert sizes.labelled == len(split.labelled[0])
    assert sizes.test == len(split.test_id[0]) + len(split.tests["digits"])


def test_official_counts_are_known_without_the_files():
    counts = known_counts(Experiment("cifar100", ("svhn", "300k"), method="energy"))
    assert (counts.id_train, counts.id_test, counts.ood) == (50_000, 10_000, {"svhn": (73_257, 26_032), "300k": 300_000})


def test_300k_random_images_give_99_percent_to_training():
    sizes = split_sizes(Experiment("cifar10", ("300k",), "300k", 0.1, start="all"))
    assert (sizes.wild_ood, sizes.test) == (287_000, 7_000 + 3_000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "nowhere.npz"}, "nowhere.npz is not there"),
        ({"test": ("none.npz",), "wild": "none.npz"}, "none.npz is not there"),
        ({"id": "grey.npz"}, "train_images"),
        ({"id": "cifar10"}, "cifar10:train is not below"),
        ({"id": "digits"}, "their own OOD set"),
    ],
)
def test_what_is_missing_is_told_in_one_line(small, small_root, change, said):
    with pytest.raises(InputError, match=said) as refused:
        load_split(replace(small, **change), small_root)
    assert "\n" not in str(refused.value)


def test_a_file_without_the_array_is_told_before_anything_runs(small, small_root):
    with pytest.raises(InputError, match="holds no array 'train_images'"):
        split_sizes(replace(small, id="grey.npz"), small_root)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"id": "cifra"},
            "no set is named 'cifra': give one of cifar10, cifar100, svhn, digits, or a .npz file below the data",
        ),
        ({"id": "lsun-c"}, "no set is named 'lsun-c': give one of cifar10,"),  # which has no classes
        ({"test": ("svnh",), "wild": "svnh"}, "no set is named 'svnh': give one of cifar10, cifar100, svhn, lsun-c,"),
        ({"id": "digits"}, "their own OOD set"),
    ],
)
def test_an_unknown_set_is_told_with_the_names_that_exist_before_anything_runs(small, small_root, change, said):
    with pytest.raises(InputError, match=said):
        split_sizes(replace(small, **change), small_root)


def test_the_shape_of_images_is_known_without_opening_them(small, small_root):
    assert image_shape(small, small_root) == (8, 8, 3)
    assert image_shape(Experiment("cifar10", ("svhn",), method="energy")) == (32, 32, 3)


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


def id_images(split):
    return split.labelled[0], images_of(split.wild.id), split.holdout[0], split.test_id[0]


def ood_images(split):
    return images_of(split.wild.ood), split.test_ood


def test_no_two_scans_are_equal(scans):
    """So that split can be compared by their bytes."""
    assert len(scans) == 1797


@pytest.mark.parametrize("seed", SEEDS)
def test_every_scan_is_in_one_part_and_in_one_only(seed, scans):
    split = digits_split(seed)
    assert bag(*id_images(split)) == Counter(image for image, label in scans if label < 7)
    assert bag(*ood_images(split)) == Counter(image for image, label in scans if label >= 7)


@pytest.mark.parametrize("seed", SEEDS)
def test_validation_divides_what_is_not_the_tests(seed, scans):
    test, split = digits_split(seed), digits_split(seed, part="validation")
    rest = Counter(image for image, _ in scans) - bag(test.test_id[0], test.test_ood)
    assert bag(*id_images(split), *ood_images(split)) == rest
    assert bag(split.test_id[0], split.test_ood) & bag(test.test_id[0], test.test_ood) == Counter()
    assert bag(split.test_id[0]) <= bag(images_of(test.wild.id))
    assert bag(split.test_ood) <= bag(images_of(test.wild.ood))


@pytest.mark.parametrize(
    ("part", "sizes"), [("test", [450, 400, 200, 214, 373, 160]), ("validation", [450, 270, 200, 130, 262, 111])]
)
def test_the_parts_have_the_sizes_they_are_said_to_have(part, sizes):
    split = digits_split(0, part)
    assert [len(images) for images in (*id_images(split), *ood_images(split))] == sizes
    assert split.wild.pi == 0.1


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_label_is_its_scans_and_unknowns_have_none(seed, part, scans):
    split = digits_split(seed, part)
    pairs = labelled_bag(split.labelled, split.holdout, split.test_id)
    assert pairs <= scans
    assert {label for _, label in pairs} == set(range(7))
    unknown = {image for image, label in scans if label >= 7}
    assert set(bag(*ood_images(split))) <= unknown


def test_the_test_scans_are_the_same_for_every_seed():
    first = digits_split(0)
    for seed in SEEDS[1:]:
        split = digits_split(seed)
        assert np.array_equal(split.test_id[0], first.test_id[0])
        assert np.array_equal(split.test_id[1], first.test_id[1])
        assert np.array_equal(split.test_ood, first.test_ood)


@pytest.mark.parametrize("part", PARTS)
def test_the_seed_decides_the_split(part):
    first, again, other = digits_split(3, part), digits_split(3, part), digits_split(4, part)
    for before, after in zip((*id_images(first), *ood_images(first)), (*id_images(again), *ood_images(again)), strict=True):
        assert np.array_equal(before, after)
    for before, after in zip(id_images(first)[:3], id_images(other)[:3], strict=True):
        assert bag(before) != bag(after)


def test_scans_are_bytes_that_use_their_whole_range():
    images = digits_split(0).labelled[0]
    assert (images.dtype, images.shape[1:]) == (np.uint8, (8, 8, 1))
    assert (images.min(), images.max()) == (0, 255)
    batch = DIGITS_SPEC(torch.from_numpy(images))
    assert (batch.min().item(), batch.max().item()) == (-1.0, 1.0)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match="pip install scikit-learn"):
        digits_split(0)


# How many OOD examples train, validate and test: reported of the released code, which agrees with the paper's shares.
PUBLISHED = {
    "textures": (5_640, 0.7, (2_763, 1_184, 1_693)),
    "lsun": (10_000, 0.7, (4_900, 2_100, 3_000)),
    "300k": (300_000, 0.99, (287_000, 10_000, 3_000)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name):
    count, share, expected = PUBLISHED[name]
    split = paper_split(50_000, 10_000, count, seed=10, ood_share=share, holdout_from_test=True)
    assert (len(split.wild_ood), len(split.validation_ood), len(split.test_ood)) == expected
    assert (len(split.labelled), len(split.wild_id), len(split.holdout), len(split.test_id)) == (
        25_000,
        17_500,
        3_000,
        7_000,
    )


def released(rng, count, first):
    """One draw of the released code: an order of a set, or of a part of one, cut in two."""
    order = np.arange(count)
    rng.shuffle(order)
    return order[:first], order[first:]


@pytest.mark.parametrize("ood", [5_640, (7_000, 2_000)])
def test_published_parts_are_those_of_the_released_order_of_draws(ood):
    rng = np.random.default_rng(10)
    labelled, aux_id = released(rng, 50_000, 25_000)
    if isinstance(ood, int):
        aux_ood, test_ood = released(rng, ood, 3_947)
    else:  # a wild set that is not the test set: nothing is drawn
        aux_ood, test_ood = np.arange(7_000), np.arange(2_000)
    valid_id, test_id = released(rng, 10_000, 3_000)
    valid_aux_id, train_aux_id = released(rng, 25_000, 7_500)
    valid_aux_ood, train_aux_ood = released(rng, len(aux_ood), int(0.3 * len(aux_ood)))
    split = paper_split(50_000, 10_000, ood, seed=10, holdout_from_test=True)
    expected = {
        "labelled": labelled,
        "wild_id": aux_id[train_aux_id],
        "validation_id": aux_id[valid_aux_id],
        "holdout": valid_id,
        "test_id": test_id,
        "wild_ood": aux_ood[train_aux_ood],
        "validation_ood": aux_ood[valid_aux_ood],
        "test_ood": test_ood,
    }
    for name, part in expected.items():
        assert np.array_equal(getattr(split, name), part), name


@pytest.mark.parametrize("holdout_from_test", [True, False])
@pytest.mark.parametrize("ood", [1_000, (1_000, 300)])
@pytest.mark.parametrize("seed", [0, 1])
def test_parts_of_a_set_are_disjoint_and_complete(ood, seed, holdout_from_test):
    split = paper_split(2_000, 400, ood, seed, holdout_from_test=holdout_from_test)
    assert sorted(np.concatenate([split.labelled, split.wild_id, split.validation_id])) == list(range(2_000))
    test = [split.test_id, *([split.holdout] if holdout_from_test else [])]
    assert sorted(np.concatenate(test)) == list(range(400))
    assert holdout_from_test or np.array_equal(split.holdout, split.validation_id)
    unknown = [split.wild_ood, split.validation_ood, *([split.test_ood] if isinstance(ood, int) else [])]
    assert sorted(np.concatenate(unknown)) == list(range(1_000))


def test_official_parts_are_kept():
    split = paper_split(2_000, 400, (500, 200), seed=0)
    assert np.array_equal(split.test_ood, np.arange(200))
    assert len(split.wild_ood) + len(split.validation_ood) == 500


def test_the_holdout_is_not_of_the_test_set_unless_published():
    honest = paper_split(2_000, 400, 1_000, seed=0)
    assert len(honest.test_id) == 400
    assert honest.holdout.max() >= 400


def test_same_seed_same_split_and_another_seed_another():
    first, again, other = (paper_split(2_000, 400, 1_000, seed).record() for seed in (0, 0, 1))
    assert first == again
    assert all(first[name]["hash"] != other[name]["hash"] for name in ("labelled", "wild_id", "wild_ood", "test_ood"))


def test_too_few_examples_are_refused():
    with pytest.raises(InputError, match="leave none for validation_ood"):
        paper_split(100, 10, 3, seed=0)

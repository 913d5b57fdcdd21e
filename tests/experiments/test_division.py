from dataclasses import replace

import numpy as np
import pytest
import torch

from wildood.data.validation import all_labels, labelled_source, unlabelled_source
from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.plan import image_shape, known_counts, sizes_of
from wildood.experiments.split import divide


def rows(part):
    """The examples of a part, as bytes each."""
    source = unlabelled_source(part[0] if isinstance(part, tuple) else part, "part")
    return {example.numpy().tobytes() for example in source.gather(torch.arange(len(source)))[0]}


@pytest.mark.parametrize("start", ["labelled", "all"])
def test_parts_of_an_experiment_have_no_example_in_common(small, small_root, start):
    parts = divide(replace(small, start=start), small_root)
    known = [rows(part) for part in (parts.labelled, parts.wild.id, parts.holdout, parts.test_id)]
    unknown = [rows(part) for part in (parts.wild.ood, parts.validation_ood, *parts.tests.values())]
    for group in (known, unknown):
        assert len(set().union(*group)) == sum(map(len, group))


def test_holdout_is_of_the_test_set_where_the_starting_classifier_has_seen_the_training_set(small, small_root):
    with np.load(small_root / "known.npz") as file:
        test = {image.tobytes() for image in file["test_images"]}
    for change in ({"start": "all"}, {"start": "weights/a.safetensors"}, {"protocol": "as_published"}):
        assert rows(divide(replace(small, **change), small_root).holdout) < test
    honest = divide(small, small_root)
    assert not rows(honest.holdout) & test
    assert len(rows(honest.test_id)) == 200


def test_labels_stay_with_their_images(small, small_root):
    parts = divide(small, small_root)
    for part in (parts.labelled, parts.holdout, parts.test_id):
        source = labelled_source(part, "part")
        brightness = source.gather(torch.arange(len(source)))[0].float().mean((1, 2, 3))
        assert ((brightness > 128).long() == all_labels(source)).all()


def test_a_set_that_was_not_in_the_wild_is_tested_whole_and_the_wild_one_in_its_test_part(small, small_root):
    parts = divide(replace(small, test=("grey.npz", "white.npz")), small_root)
    assert {name: len(test) for name, test in parts.tests.items()} == {"grey.npz": 60, "white.npz": 150}


def test_without_wild_data_each_set_is_tested_in_the_part_that_runs_with_it_are_tested_on(small, small_root):
    alone = divide(Experiment("known.npz", ("grey.npz", "white.npz"), method="energy", start="all"), small_root)
    assert alone.wild is None
    assert {name: len(test) for name, test in alone.tests.items()} == {"grey.npz": 60, "white.npz": 45}
    assert rows(alone.tests["grey.npz"]) == rows(divide(replace(small, start="all"), small_root).tests["grey.npz"])


def test_seed_decides_the_split_and_the_record_says_which(small, small_root):
    first, again, other = (divide(replace(small, seed=seed), small_root) for seed in (0, 0, 1))
    assert first.record == again.record
    assert first.record["grey.npz"]["labelled"]["hash"] != other.record["grey.npz"]["labelled"]["hash"]


@pytest.mark.parametrize("tests", [("grey.npz",), ("grey.npz", "white.npz")])
@pytest.mark.parametrize("start", ["labelled", "all"])
def test_sizes_are_those_of_the_parts(small, small_root, tests, start):
    experiment = replace(small, test=tests, start=start)
    parts, sizes = divide(experiment, small_root), sizes_of(experiment, small_root)
    tested = len(parts.test_id) + sum(map(len, parts.tests.values()))
    found = (
        len(parts.labelled),
        len(parts.wild.id),
        len(parts.wild.ood),
        len(parts.holdout),
        tested,
        len(parts.validation_ood),
    )
    assert tuple(sizes) == found


def test_sizes_of_digits_are_those_of_the_parts():
    experiment = Experiment("digits", ("digits",), "digits", 0.1)
    parts, sizes = divide(experiment), sizes_of(experiment)
    assert sizes.labelled == len(parts.labelled[0])
    assert sizes.test == len(parts.test_id[0]) + len(parts.tests["digits"])


def test_official_counts_are_known_without_the_files():
    counts = known_counts(Experiment("cifar100", ("svhn", "300k"), method="energy"))
    assert (counts.id_train, counts.id_test, counts.ood) == (50_000, 10_000, {"svhn": (73_257, 26_032), "300k": 300_000})


def test_300k_random_images_give_99_percent_to_training():
    sizes = sizes_of(Experiment("cifar10", ("300k",), "300k", 0.1, start="all"))
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
        divide(replace(small, **change), small_root)
    assert "\n" not in str(refused.value)


def test_a_file_without_the_array_is_told_before_anything_runs(small, small_root):
    with pytest.raises(InputError, match="holds no array 'train_images'"):
        sizes_of(replace(small, id="grey.npz"), small_root)


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
        sizes_of(replace(small, **change), small_root)


def test_the_shape_of_images_is_known_without_opening_them(small, small_root):
    assert image_shape(small, small_root) == (8, 8, 3)
    assert image_shape(Experiment("cifar10", ("svhn",), method="energy")) == (32, 32, 3)

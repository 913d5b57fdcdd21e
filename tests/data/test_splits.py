"""The paper's protocol: its counts, nothing in two parts, and nothing of the test set in the holdout."""

import numpy as np
import pytest

from wildood import InputError
from wildood.data.splits import paper_split

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

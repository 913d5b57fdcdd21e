"""The data of a fit is split so that a promise is made on unseen examples; what cannot be checked, the promise says."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

import wildood
from wildood.data import sources
from wildood.data.fingerprint import ExampleHashes
from wildood.data.wild import WildMixture, as_wild
from wildood.detect.split import SplitHoldout, split_for_fit, split_wild
from wildood.errors import InputError


class Standardised(TensorDataset):
    """Holds raw values, gives standardised ones."""

    def __getitem__(self, index):
        x, *labels = super().__getitem__(index)
        return x / 8, *labels


class Pairs(Dataset):
    def __init__(self, x, y, noise=0.0):
        self.x, self.y, self.noise = x, y, noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + self.noise * np.random.default_rng().normal(size=2).astype(np.float32), int(self.y[index])


class Masked(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.ma.masked_array(np.array([1.0, 2.0], np.float32), mask=[True, False])


class Zeros(np.ndarray):
    def __getitem__(self, index):
        return np.zeros_like(np.asarray(self)[index])


class Ones(torch.Tensor):
    def __getitem__(self, index):
        return torch.ones(2)


@pytest.fixture
def fit(toy, trained, schedule):
    def call(labelled=toy.labelled, wild=toy.wild, holdout=toy.holdout, **settings):
        return wildood.fit(trained(), labelled, wild, holdout, schedule=schedule, verbose=False, **settings)

    return call


def test_a_subclass_of_a_tensor_dataset_is_read_by_its_own_items(fit, toy):
    def raw(x):
        return torch.tensor(x) * 8

    made = fit(
        Standardised(raw(toy.labelled[0]), torch.tensor(toy.labelled[1])),
        Standardised(raw(toy.wild)),
        Standardised(raw(toy.holdout[0]), torch.tensor(toy.holdout[1])),
    )
    assert np.array_equal(made.score(toy.test[0]), fit().score(toy.test[0]))
    assert np.array_equal(made.score(Standardised(raw(toy.unknown))), made.score(toy.unknown))


@pytest.mark.parametrize(
    "subclass", [np.ma.masked_invalid, lambda x: x.view(Zeros), lambda x: torch.tensor(x).as_subclass(Ones)]
)
def test_a_subclass_of_an_array_with_items_of_its_own_is_refused(toy, woods, subclass):
    with pytest.raises(wildood.InputError, match="whose items may differ from its memory: give a plain array"):
        woods.score(subclass(toy.unknown))


def test_a_masked_example_of_a_dataset_is_refused(toy, woods):
    with pytest.raises(wildood.InputError, match=r"example 0 is a MaskedArray.*x\.filled"):
        woods.score(Masked())


def test_a_subset_of_labelled_is_no_holdout(fit, toy):
    whole = Pairs(*toy.labelled, noise=0.01)  # other values at each reading
    with pytest.raises(wildood.InputError, match=r"80 of the 80 holdout examples are in labelled, too \(the same items"):
        fit(whole, holdout=Subset(whole, range(0, 160, 2)), allow_duplicates=True)


def test_a_dataset_with_rows_of_labelled_is_no_holdout(fit, toy):
    x, y = toy.labelled
    with pytest.raises(wildood.InputError, match=r"80 of the 80 holdout examples are in labelled, too: .*allow_duplicates"):
        fit(Pairs(x, y), holdout=Pairs(x[::2], y[::2]))


def test_the_halves_of_one_dataset_are_labelled_and_holdout(fit, toy):
    x, y = (np.concatenate(parts) for parts in zip(toy.labelled, toy.holdout, strict=True))
    whole = Pairs(x, y)
    assert fit(Subset(whole, range(160)), holdout=Subset(whole, range(160, 280))).promise.caveat == ""


def test_a_promise_says_that_augmented_data_could_not_be_compared(fit, toy, tmp_path):
    detector = fit(Pairs(*toy.labelled, noise=0.01))
    assert detector.promise.caveat == "whether they are in labelled could not be checked (values differ at each reading)"
    assert str(wildood.load(detector.save(tmp_path)).promise).endswith(f"; {detector.promise.caveat}")


def repeating(toy, seed, count):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 40, count)
    return toy.labelled[0][rows], toy.labelled[1][rows]


def test_rows_that_repeat_by_nature_are_a_holdout_and_the_promise_says_so(fit, toy):
    detector = fit(repeating(toy, 0, 400), holdout=repeating(toy, 1, 200))
    assert "only 40 of them are distinct: the promise holds only if all were drawn independently" in detector.promise.caveat
    assert (
        "200 of the 200 holdout examples are equal to examples of labelled: the promise holds only if"
        in detector.promise.caveat
    )
    assert detector.promise.unseen


def test_equal_rows_are_allowed_by_an_explicit_word(fit, toy):
    holdout = tuple(np.concatenate([rows[:30], more]) for rows, more in zip(toy.labelled, toy.holdout, strict=True))
    with pytest.raises(wildood.InputError, match="30 of the 150 holdout examples are in labelled, too"):
        fit(toy.labelled, holdout=holdout)
    detector = fit(toy.labelled, holdout=holdout, allow_duplicates=True)
    assert detector.promise.caveat.startswith("30 of the 150 holdout examples are equal to examples of labelled")


def test_calibration_on_other_examples_says_that_nobody_checked_them(woods, toy):
    assert woods.calibrate(toy.test).promise.caveat == "whether they were used in training could not be checked"
    assert woods.calibrate(alpha=0.1).promise.caveat == "whether they were used in training could not be checked"
    assert woods.calibrate(toy.test, unseen=False).promise.caveat == ""


def test_the_half_of_the_holdout_that_chooses_the_epoch_does_not_set_the_threshold(toy, schedule):
    x, y = toy.holdout
    parts = split_for_fit(toy.labelled, toy.wild, (x[:101], y[:101]), schedule, 0.05, None, "best", seed=0)
    selection, threshold = set(parts.selection.indices.tolist()), set(parts.threshold.indices.tolist())
    assert not selection & threshold
    assert len(selection | threshold) == 101
    assert parts.with_selection(0.05, None, 0, instead="nothing") is parts


def test_wild_data_set_aside_is_not_trained_on(toy, schedule):
    parts = split_for_fit(toy.labelled, toy.wild, toy.holdout, schedule, 0.05, None, "best", seed=0)
    kept, aside = set(parts.wild.source.indices.tolist()), set(parts.wild_aside.indices.tolist())
    assert (len(kept), len(aside), len(kept | aside)) == (50, 50, 100)


def test_each_source_is_hashed_once(toy, trained, schedule, monkeypatch):
    """For the fingerprints of a fit with and without labels, and for all overlaps."""
    memory, hashed = sources.memory_of, ExampleHashes._hash
    fingerprinted, compared = [], []
    monkeypatch.setattr(sources, "memory_of", lambda block: fingerprinted.append(block.shape) or memory(block))
    monkeypatch.setattr(ExampleHashes, "_hash", lambda self, dtype: compared.append(len(self.source)) or hashed(self, dtype))
    wildood.fit(trained(), toy.labelled, toy.wild, toy.holdout, schedule=schedule, verbose=False)
    assert sorted(fingerprinted) == [(100, 2), (120,), (120, 2), (160,), (160, 2)]
    assert sorted(compared) == [100, 120, 160]


@pytest.mark.parametrize(
    ("count", "keep", "aside"),
    [(300, "best", 150), (900, "best", 450), (4000, "best", 1000), (20_000, "best", 2000), (900, "last", 90)],
)
def test_a_tenth_of_wild_data_is_set_aside_and_more_where_few_would_choose(count, keep, aside):
    kept, held = split_wild(as_wild(np.zeros((count, 2))), keep, seed=0)
    assert (len(kept.pools[0]), len(held)) == (count - aside, aside)


def test_of_a_mixture_as_much_is_set_aside_as_it_can_draw():
    mixture = WildMixture(id=np.zeros((900, 2)), ood=np.ones((400, 2)), pi=0.1)
    kept, held = split_wild(mixture, "best", seed=0)
    assert [len(pool) for pool in kept.pools] == [450, 200]
    assert 450 <= len(held) <= 550


def test_few_wild_examples_that_choose_the_epoch_are_told_of(toy, trained, schedule, caplog):
    wildood.fit(trained(), toy.labelled, toy.wild, toy.holdout, schedule=schedule, verbose=False)
    assert "only" not in caplog.text
    wildood.fit(trained(), toy.labelled, toy.wild[:8], toy.holdout, schedule=schedule, verbose=False)
    assert "only 4 wild examples choose the epoch" in caplog.text


def test_wild_data_with_few_distinct_examples_is_told_of_and_copies_of_one_are_refused(toy, trained, schedule, caplog):
    rows = np.repeat(toy.wild[-30:], 4, axis=0)
    detector = wildood.fit(trained(), toy.labelled, rows, toy.holdout, schedule=schedule, verbose=False)
    (warning,) = [text for text in detector.warnings if text.startswith("only 30 of 120 wild examples are distinct")]
    assert [record.message for record in caplog.records].count(warning) == 1
    with pytest.raises(wildood.InputError, match="the 120 wild examples are all equal: give traffic"):
        wildood.fit(trained(), toy.labelled, np.repeat(rows[:1], 120, axis=0), toy.holdout, schedule=schedule)


def test_a_class_that_only_the_holdout_has_is_told_of(toy, schedule):
    x, y = toy.labelled
    parts = split_for_fit((x[y > 0], y[y > 0]), toy.wild, toy.holdout, schedule, 0.05, None, "best", seed=0)
    assert parts.missing_classes == (
        "class 0 is in the holdout but not in labelled: training takes its examples for unknown"
    )
    without = toy.holdout[0][toy.holdout[1] < 2], toy.holdout[1][toy.holdout[1] < 2]
    parts = split_for_fit((x[y > 0], y[y > 0]), toy.wild, without, schedule, 0.05, None, "best", seed=0)
    first, second = parts.missing_classes.split("; ")
    assert (first[:10], second[:10]) == ("class 2 is", "class 0 is")


def test_a_holdout_that_is_split_already_is_not_split_again(toy, trained, schedule):
    x, y = toy.holdout
    source = sources.ArraySource(x, y)
    numbers = np.random.default_rng(0).permutation(len(y))
    selection, threshold = (torch.from_numpy(each) for each in np.split(numbers[:-7], [40]))
    halves = SplitHoldout(source, selection, threshold)
    data = split_for_fit(toy.labelled, toy.wild, halves, schedule, 0.05, None, "best", 0)
    assert data.selection.indices is selection
    assert data.threshold.indices is threshold
    detector = wildood.fit(trained(), toy.labelled, toy.wild, halves, schedule=schedule, verbose=False)
    assert np.array_equal(detector.holdout_scores, detector.score(np.asarray(x)[threshold]))
    assert (detector.promise.unseen, detector.promise.examples) == (True, len(threshold))


@pytest.mark.parametrize("count", [18, 102])
def test_both_parts_of_a_split_holdout_must_be_large_enough(toy, schedule, count):
    selection, threshold = torch.arange(120).tensor_split([count])
    halves = SplitHoldout(sources.ArraySource(*toy.holdout), selection, threshold)
    with pytest.raises(InputError, match="the holdout has 18 examples"):
        split_for_fit(toy.labelled, toy.wild, halves, schedule, 0.05, None, "best", 0)

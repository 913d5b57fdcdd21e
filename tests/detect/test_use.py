"""What a detector was made from cannot promise anything about fresh data, in whatever form it is given again."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import wildood
from wildood import InputError
from wildood.data.fingerprint import role_of
from wildood.data.sources import ArraySource, DatasetSource


def as_file(x, y, place):
    np.savez(place / "again.npz", x=x, y=y)
    return wildood.open_images(place / "again.npz", cache=place)


def as_unlabelled_file(x, y, place):
    np.save(place / "again.npy", x)
    return wildood.open_images(place / "again.npy", cache=place)


FORMS = {
    "pair": lambda x, y, _: (x, y),
    "x": lambda x, y, _: x,
    "tensors": lambda x, y, _: (torch.tensor(x), torch.tensor(y)),
    "dataset": lambda x, y, _: TensorDataset(torch.tensor(x), torch.tensor(y)),
    "file": as_file,
    "file without labels": as_unlabelled_file,
}


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


@pytest.fixture(params=["made", "loaded", "made from files"])
def detector(request, chosen, tmp_path, toy, trained, schedule):
    if request.param == "made from files":
        data = [as_file(*pair, tmp_path) for pair in (toy.labelled, toy.holdout)]
        return wildood.fit(trained(), data[0], toy.wild, data[1], schedule=schedule, verbose=False)
    return chosen if request.param == "made" else wildood.load(chosen.save(tmp_path / "saved"))


def test_what_a_fit_was_given_is_refused(detector, toy, form, tmp_path):
    before = detector.threshold, detector.promise
    wild = toy.wild, np.zeros(len(toy.wild), np.int64)
    for name, (x, y) in (("labelled", toy.labelled), ("wild", wild)):
        with pytest.raises(InputError, match=f"these examples were the detector's {name} data, so they promise nothing"):
            detector.calibrate(form(x, y, tmp_path), 0.1)
    with pytest.raises(InputError, match="half of this holdout chose the epoch"):
        detector.calibrate(form(*toy.holdout, tmp_path), 0.1)
    assert (detector.threshold, detector.promise) == before


def test_without_a_promise_it_may_set_the_threshold(woods, toy, form, tmp_path):
    for x, y in (toy.labelled, toy.holdout):
        assert woods.calibrate(form(x, y, tmp_path), 0.1, unseen=False).promise.unseen is False


def test_other_examples_promise(detector, toy, form, tmp_path):
    assert detector.calibrate(form(*toy.test, tmp_path), 0.1).promise.unseen
    assert detector.calibrate(form(*toy.test, tmp_path), 0.2).promise.alpha == 0.2  # what set a threshold may do so again
    x, y = toy.labelled
    assert detector.calibrate((x[1:], y[1:])).promise.unseen  # a part cannot be noticed: the guide says so


def test_a_holdout_that_chose_nothing_may_set_the_threshold_again(trained, toy, schedule):
    last = wildood.fit(trained(), toy.labelled, toy.wild, toy.holdout, schedule=schedule, keep="last", verbose=False)
    assert last.calibrate(toy.holdout, 0.1).promise.unseen
    with pytest.raises(InputError, match="labelled data"):
        last.calibrate(toy.labelled)


def test_both_pools_of_a_mixture_are_refused(trained, toy, schedule):
    mixture = wildood.WildMixture(id=toy.wild, ood=toy.unknown, pi=0.2)
    detector = wildood.fit(trained(), toy.labelled, mixture, toy.holdout, schedule=schedule, verbose=False)
    for pool in (toy.wild, toy.unknown):
        with pytest.raises(InputError, match="wild data"):
            detector.calibrate(pool)


def test_what_a_score_was_fitted_or_chosen_on_is_refused(trained, toy, form, tmp_path):
    given = {"labelled": toy.labelled, "wild": toy.wild, "ood": toy.unknown}
    detector = wildood.posthoc(trained(), wildood.Odin(None), **given, holdout=toy.holdout, alpha=0.1)
    for name, (x, y) in {name: each if isinstance(each, tuple) else (each, None) for name, each in given.items()}.items():
        labels = np.zeros(len(x), np.int64) if y is None else y
        with pytest.raises(InputError, match=f"{name} data"):
            detector.calibrate(form(x, labels, tmp_path), 0.1)
    with pytest.raises(InputError, match="half of this holdout chose"):
        detector.calibrate(form(*toy.holdout, tmp_path), 0.1)


class Random(Dataset):
    """Other examples at each reading."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index >= 40:
            raise IndexError
        return self.rng.normal(size=2).astype("float32"), index % 2


def test_datasets_of_one_type_and_length_are_not_taken_for_each_other():
    first, second = (DatasetSource(Random(seed), labelled=True, name="x") for seed in (0, 1))
    assert first.fingerprint() == second.fingerprint()
    assert role_of({"data": {"labelled": first.fingerprint()}}, second) == ""


def test_the_whole_of_which_a_part_was_used_is_recognised(toy):
    x = ArraySource(toy.test[0])
    assert role_of({"data": {"wild": f"{x.fingerprint()}/0a1b+other at pi = 0.1"}}, x) == "wild"
    assert role_of({"data": {"wild": f"other/{x.fingerprint()}"}}, x) == ""


def test_the_share_of_unknowns_in_what_a_fit_was_given_is_refused(detector, toy, form, tmp_path):
    """As `wildood inspect` does, in whatever form it comes."""
    wild = toy.wild, np.zeros(len(toy.wild), np.int64)
    for name, (x, y) in (("labelled", toy.labelled), ("wild", wild)):
        given = form(x, y, tmp_path)
        with pytest.raises(
            InputError, match=f"these examples were the detector's {name} data, so they are no sample .*give later traffic"
        ):
            detector.unknown_share(x if isinstance(given, tuple) else given)


def test_the_share_of_unknowns_is_that_of_the_scores_of_fresh_traffic(detector, toy):
    traffic = np.concatenate([toy.test[0], toy.unknown])
    found = detector.unknown_share(traffic, confidence=0.9)
    assert found == wildood.unknown_share(detector.holdout_scores, detector.score(traffic), confidence=0.9)
    assert found.bound > 0.05


def test_the_share_of_unknowns_needs_a_holdout_that_is_unseen(toy, trained):
    seen = wildood.posthoc(trained(), wildood.EnergyScore(), labelled=toy.labelled)
    with pytest.raises(InputError, match=r"fresh ID data scores higher: call detector\.calibrate\(holdout\)"):
        seen.unknown_share(toy.test[0])
    assert seen.calibrate(toy.holdout, by_class=False).unknown_share(toy.test[0]).holdout == 120

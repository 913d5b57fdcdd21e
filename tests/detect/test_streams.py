"""Generators and IterableDatasets in the place of arrays: the same detector, the same scores."""

import logging

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import wildood
from wildood.errors import CheckpointError, InputError


class Rows(IterableDataset):
    def __init__(self, x):
        self.x = x

    def __iter__(self):
        return iter(self.x)


def pairs(x, y):
    return zip(x, y, strict=True)


@pytest.fixture
def settings(schedule):
    return {"schedule": schedule, "keep": "last", "verbose": False}


def test_streams_train_to_the_bits_of_their_arrays(toy, trained, settings, fits):
    streams = pairs(*toy.labelled), Rows(toy.wild), pairs(*toy.holdout)
    detector = wildood.fit(trained(), *streams, **settings)
    assert np.array_equal(detector.score(toy.test[0]), fits["woods"].score(toy.test[0]))
    assert detector.record["data"] == fits["woods"].record["data"]


@pytest.mark.parametrize(
    "make", [iter, Rows, lambda x: DataLoader(Rows(x), batch_size=7), lambda x: DataLoader(Rows(x), batch_size=None)]
)
def test_scores_of_a_stream_are_those_of_all_its_examples_in_order(toy, woods, make):
    x = np.concatenate([toy.test[0], toy.unknown, toy.test[0]])  # more than one batch
    assert np.array_equal(woods.score(make(x)), woods.score(x))
    assert np.array_equal(woods.predict(make(x)), woods.predict(x))
    assert np.array_equal(woods.classify(make(x)), woods.classify(x))
    assert np.array_equal(woods.predict_proba(make(x)), woods.predict_proba(x))
    assert np.array_equal(woods.p_value(make(x)), woods.p_value(x))


def test_an_example_far_into_a_stream_is_named_by_its_number(toy, woods):
    x = np.concatenate([toy.test[0], toy.test[0] * np.nan])
    with pytest.raises(InputError, match="x: example 300 holds NaN or infinity"):
        woods.score(iter(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: iter([]), "x is a stream that gave no example: give a new one"),
        (
            lambda x: iter([x, x]),
            r"x: an example has shape \(300, 2\), expected \(2,\) \(a batch\? give its examples one by",
        ),
    ],
)
def test_streams_that_cannot_be_scored_are_refused(toy, woods, make, message):
    with pytest.raises(InputError, match=message):
        woods.score(make(toy.test[0]))


def test_a_run_on_a_stream_goes_on_if_the_stream_gives_the_same_again(toy, trained, settings, tmp_path, caplog):
    data = toy.labelled, iter(toy.wild), toy.holdout
    settings |= {"run_dir": tmp_path / "run", "verbose": True}
    with caplog.at_level(logging.INFO, logger="wildood"):
        detector = wildood.fit(trained(), *data, **settings)
    assert "a run on a stream can be resumed only if the stream gives the same examples again" in caplog.messages
    again = wildood.fit(trained(), toy.labelled, iter(toy.wild), toy.holdout, **settings)
    assert np.array_equal(again.score(toy.unknown), detector.score(toy.unknown))
    with pytest.raises(CheckpointError, match=r"belongs to another run: .*wild"):
        wildood.fit(trained(), toy.labelled, iter(toy.wild[::-1]), toy.holdout, **settings)


def test_a_stream_of_fit_many_is_read_once(toy, trained, schedule):
    def fits(labelled, wild, holdout):
        methods = [wildood.Woods(), wildood.OutlierExposure()]
        return wildood.fit_many(
            trained(), labelled, wild, holdout, methods=methods, schedule=schedule, alpha=0.1, verbose=False
        )

    from_arrays = fits(toy.labelled, toy.wild, toy.holdout)
    from_streams = fits(pairs(*toy.labelled), iter(toy.wild), pairs(*toy.holdout))
    for name, detector in from_streams.detectors.items():
        assert np.array_equal(detector.score(toy.unknown), from_arrays.detectors[name].score(toy.unknown))


@pytest.mark.parametrize("score", [wildood.EnergyScore(), wildood.Mahalanobis(epsilon=0.0)])
def test_streams_of_a_post_hoc_score_are_read_once(toy, trained, score):
    from_arrays = wildood.posthoc(trained(), score, labelled=toy.labelled, holdout=toy.holdout)
    from_streams = wildood.posthoc(trained(), score, labelled=pairs(*toy.labelled), holdout=pairs(*toy.holdout))
    assert np.array_equal(from_streams.score(toy.unknown), from_arrays.score(toy.unknown))
    assert from_streams.threshold == from_arrays.threshold


def test_evaluation_inspection_and_calibration_take_streams(toy, woods):
    arrays = wildood.evaluate(woods, id=toy.test, ood=toy.unknown, resamples=10)
    streams = wildood.evaluate(woods, id=pairs(*toy.test), ood=iter(toy.unknown), resamples=10)
    assert streams.to_dict() == arrays.to_dict()
    assert wildood.inspect(woods, iter(toy.unknown)).to_dict() == wildood.inspect(woods, toy.unknown).to_dict()
    threshold = woods.calibrate(toy.test).threshold
    assert woods.calibrate(iter(toy.test[0])).threshold == threshold


class Noisy(Dataset):
    """Items that differ at each reading."""

    def __init__(self, x, y=None):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = torch.from_numpy(self.x[index].copy()) + 0.1 * torch.randn(2)
        return x if self.y is None else (x, int(self.y[index]))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_what_workers_draw_follows_from_the_seed(toy, trained, settings, workers):
    def scores(seed):
        loaders = DataLoader(Noisy(*toy.labelled), num_workers=workers), DataLoader(Noisy(toy.wild), num_workers=workers)
        return wildood.fit(trained(), *loaders, toy.holdout, seed=seed, **settings).score(toy.unknown)

    assert np.array_equal(scores(0), scores(0))
    assert not np.array_equal(scores(0), scores(1))


def test_workers_that_are_read_ahead_train_to_the_bits_of_arrays(toy, trained, settings, fits):
    class Pairs(Noisy):
        def __getitem__(self, index):
            return torch.from_numpy(self.x[index].copy()), int(self.y[index])

    loaders = DataLoader(Pairs(*toy.labelled), num_workers=2), toy.wild, DataLoader(Pairs(*toy.holdout), num_workers=2)
    detector = wildood.fit(trained(), *loaders, **settings)
    assert np.array_equal(detector.score(toy.unknown), fits["woods"].score(toy.unknown))

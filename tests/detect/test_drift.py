"""Known data of today that the classifier scores otherwise than labelled data, and fresh examples."""

import logging

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from sklearn.decomposition import PCA
from torch import nn

import wildood
from wildood.detect.drift import Drift
from wildood.detect.split import split_for_fit

SHORT = wildood.Schedule(steps=2, batch=32, lr=1e-9)  # trains nothing
SCALE = torch.tensor([3.0, -3.0])


class Sure(nn.Module):
    """A classifier that is as sure as its input is long."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(torch.stack([SCALE, -SCALE]))

    def forward(self, x):
        return self.layer(x)


def known(count, seed, size=1.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count)
    x = np.where(y[:, None] == 0, [1.0, -1.0], [-1.0, 1.0]) * size + 0.2 * rng.normal(size=(count, 2))
    return x.astype(np.float32), y


def habitat(size, holdout=900):
    """Known data of today is so much as large as labelled data."""
    unknown = np.random.default_rng(9).normal(size=(60, 2)).astype(np.float32) + np.float32([2, 2])
    wild = np.concatenate([known(540, 1, size)[0], unknown])
    return {"labelled": known(800, 0), "wild": wild, "holdout": known(holdout, 2, size), "verbose": False}


def fit(**settings):
    return wildood.fit(Sure(), schedule=SHORT, **settings)


def test_where_known_data_has_changed_a_third_of_the_holdout_trains_and_fit_says_so(caplog):
    with caplog.at_level(logging.INFO, logger="wildood"):
        detector = fit(**habitat(0.7) | {"verbose": True})
    assert detector.record["drift"]["found"]
    assert detector.promise.examples == 300
    assert "known data has changed: labelled and the holdout have different features" in caplog.text
    assert "known examples of today as fresh= (--fresh) would help" in caplog.text


def test_a_small_holdout_is_tested_but_does_not_train(caplog):
    with caplog.at_level(logging.INFO, logger="wildood"):
        detector = fit(**habitat(0.7) | {"holdout": known(300, 2, 0.7), "verbose": True})
    assert detector.record["drift"]["found"]
    assert detector.promise.examples == 150
    assert "The holdout is too small to train on a part of it: give known examples of today as fresh=" in caplog.text


def test_a_holdout_that_is_not_like_traffic_does_not_train():
    """The classifier is surer of the wild data than of the holdout: known traffic is like labelled data."""
    detector = fit(**habitat(1.0) | {"holdout": known(900, 2, 0.7)})
    assert not detector.record["drift"]["found"]
    assert detector.record["drift"]["like_labelled"]
    assert detector.record["drift"]["p_value"] < 1e-6
    assert any("surer than of the holdout" in warning for warning in detector.warnings)


def test_where_it_has_not_changed_the_third_chooses(caplog):
    with caplog.at_level(logging.INFO, logger="wildood"):
        detector = fit(**habitat(1.0) | {"verbose": True})
    assert not detector.record["drift"]["found"]
    assert detector.record["drift"]["examples"] == 600
    assert detector.promise.examples == 300
    assert "known data has changed" not in caplog.text


def test_the_test_is_that_of_kolmogorov_and_smirnov_on_the_leading_directions_of_the_features():
    data = habitat(1.0)
    fresh = known(150, 5, 0.97)
    drift = fit(**data, fresh=fresh).record["drift"]
    x = data["labelled"][0].astype(np.float64)  # the classifier is one layer: its features are its input
    directions = PCA().fit(x).components_
    each = [ks_2samp(x @ direction, fresh[0] @ direction, method="asymp").pvalue for direction in directions]
    expected = min(1.0, 2 * min(each))
    found = {"found": bool(expected < 0.01), "like_labelled": False}
    assert drift == {"p_value": pytest.approx(expected, rel=1e-3), "examples": 150, **found}


def test_a_classifier_that_is_surer_of_labelled_data_with_the_same_features_finds_no_drift():
    """As one that has memorised them: its logits are larger there, and its features are not."""

    class Memory(Sure):
        def forward(self, x):
            return self.layer(x[:, :2]) * (1 + x[:, 2:])

    def with_memory(data, remembered):
        x, y = data
        return np.concatenate([x, np.full((len(x), 1), remembered, np.float32)], axis=1), y

    data = habitat(1.0)
    labelled, holdout = with_memory(data["labelled"], 1.0), with_memory(data["holdout"], 0.0)
    wild, _ = with_memory((data["wild"], None), 0.0)
    detector = wildood.fit(Memory(), labelled, wild, holdout, schedule=SHORT, verbose=False)
    assert not detector.record["drift"]["found"]
    assert detector.score(labelled[0]).mean() < detector.score(holdout[0]).mean() - 1


def parts_of(count, **settings):
    data = habitat(1.0, count)
    sources = (data[name] for name in ("labelled", "wild", "holdout"))
    return split_for_fit(*sources, SHORT, 0.05, None, "best", 0, **settings)


def test_two_thirds_of_a_large_holdout_choose_and_half_of_these_can_become_fresh():
    parts = parts_of(600, from_holdout=True)
    assert (len(parts.selection), len(parts.threshold), parts.fresh, parts.may_train) == (400, 200, None, True)
    split = parts.with_fresh(seed=0)
    each = [split.fresh, split.selection, split.threshold]
    assert [len(part) for part in each] == [200, 200, 200]
    rows = [part.gather(torch.arange(200))[0].numpy() for part in each]
    assert len(np.unique(np.concatenate(rows), axis=0)) == 600
    assert not split.may_train


@pytest.mark.parametrize(("count", "settings"), [(599, {"from_holdout": True}), (600, {})])
def test_a_smaller_holdout_and_a_published_method_train_on_labelled_alone(count, settings):
    parts = parts_of(count, **settings)
    assert parts.fresh is None
    assert not parts.may_train
    assert abs(len(parts.selection) - len(parts.threshold)) <= 1


def test_fresh_examples_count_half_where_known_data_has_changed_and_else_by_their_number():
    parts = parts_of(300)._replace(fresh=parts_of(300).selection)  # 150 fresh, 800 labelled
    assert Drift(0.001, 150).fresh_share(parts) == 0.5
    assert Drift(0.5, 150).fresh_share(parts) == 150 / 950


def test_many_fresh_examples_without_classes_leave_half_of_a_batch_to_cross_entropy():
    x, y = known(1600, 5)
    many = parts_of(300, fresh=x), parts_of(300, fresh=(x, y))
    assert [Drift(0.5, 1600).fresh_share(parts) for parts in many] == [0.5, 1600 / 2400]


def test_fresh_examples_are_used_as_given_and_recorded():
    data, fresh = habitat(1.0, 400), known(100, 5)
    detector = fit(**data, fresh=fresh)
    assert "fresh" in detector.record["data"]
    assert detector.promise.examples == 200
    with pytest.raises(wildood.InputError, match="100 of the 400 holdout examples are in fresh, too"):
        fit(**data, fresh=data["holdout"][0][:100])
    with pytest.raises(wildood.InputError, match="fresh has shape"):
        fit(**data, fresh=np.zeros(3, np.float32))
    with pytest.raises(wildood.InputError, match="fresh: a label is 2, but the model has 2 classes"):
        fit(**data, fresh=(fresh[0], fresh[1] + 1))
    with pytest.raises(wildood.InputError, match="fresh examples are for methods that train on wild data"):
        fit(**data | {"wild": None}, fresh=fresh, method=wildood.Godin(epsilon=0.0))


@pytest.mark.parametrize("frozen", [False, True])
def test_classes_of_fresh_examples_serve_cross_entropy(frozen):
    """Fresh examples with the wrong classes make the classifier less sure of the right ones; without classes they do not."""
    data, (x, y) = habitat(1.0, 200), known(400, 5)
    how = {"schedule": wildood.Schedule(steps=30, batch=32, lr=0.1), "keep": "last", "frozen": frozen}
    wrong, without = (
        wildood.fit(Sure(), **data, fresh=fresh, method=wildood.OutlierExposure(), **how) for fresh in ((x, 1 - y), x)
    )
    right = [float(detector.predict_proba(x)[np.arange(400), y].mean()) for detector in (wrong, without)]
    assert right[0] < right[1] - 0.05

"""Choosing among detectors needs no OOD label, trains nothing, and leaves every promise as it was."""

import numpy as np
import pytest
import torch

import wildood
from wildood import CheckpointError, InputError
from wildood.models.small import MLP

METHODS = [wildood.Woods(), wildood.OutlierExposure(0.1), wildood.OutlierExposure(1.0)]
SHORT = wildood.Schedule(steps=6, batch=32)


@pytest.fixture(scope="module")
def parts():
    rng = np.random.default_rng(0)

    def known(count):
        y = rng.integers(0, 2, count)
        return (rng.normal(size=(count, 2)) + 6 * y[:, None]).astype("float32"), y

    unknown = rng.normal(size=(200, 2)).astype("float32") + np.float32([6, 0])
    return {"known": known, "unknown": unknown}


@pytest.fixture(scope="module")
def model(parts):
    torch.manual_seed(0)
    return wildood.pretrain(
        MLP(2, 2),
        parts["known"](400),
        schedule=wildood.Schedule.pretraining(epochs=20, augment=False),
        verbose=False,
    )


@pytest.fixture(scope="module")
def scores(model, parts):
    each = {"energy": wildood.EnergyScore(), "max-softmax": wildood.MaxSoftmax(), "max-logit": wildood.MaxLogit()}
    return {name: wildood.posthoc(model, score, holdout=parts["known"](200)) for name, score in each.items()}


def test_the_first_accepts_the_least_wild_data_at_its_own_threshold(scores, parts):
    holdout, wild = parts["known"](300), np.concatenate([parts["known"](400)[0], parts["unknown"]])
    ranking = wildood.select(scores, holdout, wild)

    def accepted(detector):
        known = np.sort(detector.score(holdout[0]))
        return np.mean(detector.score(wild) <= known[int(np.ceil(0.95 * 301)) - 1])

    expected = {name: accepted(detector) for name, detector in scores.items()}
    assert {place.name: place.wild_accepted for place in ranking.places} == pytest.approx(expected)
    assert [place.wild_accepted for place in ranking.places] == sorted(expected.values())
    assert ranking.places[0].accuracy > 0.9


def test_selecting_leaves_thresholds_and_promises_alone(scores, parts):
    before = {name: (detector.threshold, detector.promise) for name, detector in scores.items()}
    wildood.select(list(scores.values()), parts["known"](100), parts["unknown"])
    assert before == {name: (detector.threshold, detector.promise) for name, detector in scores.items()}


def test_a_less_accurate_candidate_comes_last(scores, model, parts):
    torch.manual_seed(1)
    broken = wildood.posthoc(MLP(2, 2), wildood.EnergyScore(), holdout=parts["known"](100))
    ranking = wildood.select(scores | {"broken": broken}, parts["known"](200), parts["unknown"])
    assert ranking.places[-1].name == "broken"
    assert not ranking.places[-1].eligible


@pytest.mark.parametrize(
    ("candidates", "message"), [([], "no candidate"), (["energy"], "candidate 0 is a str: give detectors")]
)
def test_what_cannot_be_ranked_is_refused(candidates, message, parts):
    with pytest.raises(InputError, match=message):
        wildood.select(candidates, parts["known"](100), parts["unknown"])


def test_many_fits_are_those_of_fit_and_the_best_is_one_of_them(model, parts, tmp_path):
    data = {"labelled": parts["known"](200), "holdout": parts["known"](200)}
    data["wild"] = np.concatenate([parts["known"](200)[0], parts["unknown"]])
    made = wildood.fit_many(model, **data, methods=METHODS, schedule=SHORT, run_dir=tmp_path, verbose=False)
    assert list(made.detectors) == ["Woods", "OutlierExposure-weight=0.1", "OutlierExposure-weight=1.0"]
    assert made.best is made.detectors[made.ranking.places[0].name]
    assert made.best.promise.unseen
    assert made.ranking.holdout == 67  # a third; of the others one half sets the thresholds
    assert made.best.promise.examples == 66
    assert {path.name for path in tmp_path.iterdir()} == {*made.detectors, "run.json"}
    whole = r"a part of this holdout chose the epoch"
    with pytest.raises(InputError, match=whole):
        made.best.calibrate(data["holdout"])
    with pytest.raises(InputError, match="these examples were the detector's wild data"):
        made.best.calibrate(data["wild"])


def test_the_directory_of_other_methods_is_refused(model, parts, tmp_path):
    data = {"labelled": parts["known"](200), "holdout": parts["known"](100), "wild": parts["unknown"]}
    settings = {"schedule": SHORT, "verbose": False}
    wildood.fit_many(model, **data, methods=METHODS[:2], run_dir=tmp_path / "two", **settings)
    before = {path: path.read_bytes() for path in (tmp_path / "two").rglob("*.*") if path.is_file()}
    for methods in (METHODS[:1], METHODS):
        with pytest.raises(CheckpointError, match="belongs to another run: its methods is OutlierExposure, Woods, this"):
            wildood.fit_many(model, **data, methods=methods, run_dir=tmp_path / "two", **settings)
    assert before == {path: path.read_bytes() for path in (tmp_path / "two").rglob("*.*") if path.is_file()}
    again = wildood.fit_many(model, **data, methods=METHODS[1::-1], run_dir=tmp_path / "two", **settings)
    assert set(again.detectors) == {"OutlierExposure", "Woods"}
    wildood.fit(model, **data, run_dir=tmp_path / "one", **settings)
    with pytest.raises(CheckpointError, match="one belongs to another run, of a single method: give another directory"):
        wildood.fit_many(model, **data, methods=METHODS[:2], run_dir=tmp_path / "one", **settings)
    with pytest.raises(CheckpointError, match="two belongs to another run: its methods is"):
        wildood.fit(model, **data, run_dir=tmp_path / "two", **settings)


@pytest.mark.parametrize(("confidence", "needed", "in_all"), [(None, 19, 57), (0.95, 59, 177)])
def test_a_holdout_whose_thirds_are_too_small_is_refused_with_the_number_needed(model, parts, confidence, needed, in_all):
    told = f"needs {needed} in each: give {in_all} in all, or a larger alpha"
    data = {"labelled": parts["known"](200), "wild": parts["unknown"]}
    settings = {"methods": METHODS[:1], "confidence": confidence, "schedule": SHORT, "verbose": False}
    with pytest.raises(InputError, match=rf"holdout has {in_all - 1} examples, of which a third ranks, .*{told}"):
        wildood.fit_many(model, **data, holdout=parts["known"](in_all - 1), **settings)
    assert wildood.fit_many(model, **data, holdout=parts["known"](in_all), **settings).best.promise.examples == needed


MISTAKES = {
    "no holdout": ({"holdout": None}, r"give holdout=\(x, y\) \(--holdout\)"),
    "not a list": ({"methods": wildood.Woods()}, "no list of methods"),
    "none": ({"methods": []}, "no list of methods"),
    "twice": ({"methods": [wildood.WoodsAlt(), wildood.Woods(), wildood.Woods()]}, "Woods twice"),
    "a class": ({"methods": [wildood.Woods]}, "give methods such as"),
    "two alphas": ({"methods": [wildood.Woods(alpha=0.1), wildood.Woods()]}, "different alphas, 0.05 to 0.1"),
    "keep": ({"keep": "last"}, r"leave out keep= \(--keep\)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_before_training(mistake, model, parts):
    changed, message = MISTAKES[mistake]
    data = {"labelled": parts["known"](200), "wild": parts["unknown"], "holdout": parts["known"](100), "methods": METHODS}
    with pytest.raises(InputError, match=message):
        wildood.fit_many(model, **(data | changed), verbose=False)

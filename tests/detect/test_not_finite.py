"""An example whose score or logits overflow is unknown, to every score; a threshold is never set on one."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import wildood
from wildood.data.archives import ArrayShard
from wildood.detect.bulk import score_shard
from wildood.detect.detector import Detector, Example
from wildood.models.classifier import Classifier
from wildood.scores.score import Score
from wildood.scores.shipped import POSTHOC

HUGE = np.float32([[3e38, -3e38], [-3e38, 3e38], [3e38, 3e38], [-3e38, -3e38]])
SETTINGS = {
    wildood.Odin: {"epsilon": 0.01},
    wildood.Mahalanobis: {"epsilon": 0.01},
    wildood.Knn: {"k": 5},
    wildood.NnGuide: {"k": 5},
}
SCORES = [
    *(cls(**SETTINGS.get(cls, {})) for cls in POSTHOC),
    wildood.Ash(variant="s"),
    wildood.EnergyScore(temperature=10.0),
    wildood.Mahalanobis(epsilon=0.0),
]
METHODS = (wildood.Woods(), wildood.WoodsAlt(), wildood.OutlierExposure(), wildood.Godin(epsilon=0.01))


def name(made):
    return type(made).__name__ if not hasattr(made, "settings") else f"{type(made).__name__}{made.settings}"


@pytest.fixture(scope="module")
def strong(trained):
    """The trained classifier with a first layer that multiplies: inputs near the largest float overflow in it."""
    model = trained()
    with torch.no_grad():
        model.body[1].weight.mul_(10.0)
        model.body[1].bias.mul_(10.0)
        model.head.weight.div_(10.0)
    return model


@pytest.fixture(scope="module", params=[*SCORES, *METHODS], ids=name)
def detector(request, strong, toy):
    if isinstance(request.param, Score):
        return wildood.posthoc(strong, request.param, labelled=toy.labelled, holdout=toy.holdout)
    wild, schedule = toy.wild if request.param.uses_wild else None, wildood.Schedule(steps=2, batch=32, lr=1e-4)
    return wildood.fit(
        strong, toy.labelled, wild, toy.holdout, method=request.param, schedule=schedule, keep="last", verbose=False
    )


def energy():
    """E(x) = -log(e^a + e^b) of the two inputs themselves."""
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(3 * torch.eye(2))
    return Detector(Classifier(model).eval(), wildood.EnergyScore(), Example((2,), "float"))


def test_an_example_that_overflows_is_unknown_and_the_others_are_as_without_it(detector, toy):
    with torch.no_grad():
        logits = detector.classifier(torch.from_numpy(HUGE)).logits
    overflow = HUGE[~logits.amax(1).isfinite().numpy()]
    assert len(overflow) >= 2
    x = np.concatenate([toy.test[0][:3], overflow])
    ordinary = np.where(np.abs(x) > 1e38, np.float32(0), x)  # a batch of the same size, which rounds in the same way
    for say, expected in (
        ("score", np.inf),
        ("predict", wildood.UNKNOWN),
        ("p_value", 1 / (len(detector.holdout_scores) + 1)),
    ):
        found = getattr(detector, say)(x)
        assert np.array_equal(found[:3], getattr(detector, say)(ordinary)[:3])
        assert found[3:].tolist() == [expected] * len(overflow)
    scores, _ = detector.score_and_classify(x)
    assert np.array_equal(scores, detector.score(x))


def test_a_score_that_is_not_finite_is_never_accepted():
    detector = energy()
    scores, classes = np.array([-1.0, 1.0, np.nan, np.inf, -np.inf]), np.zeros(5, int)
    detector.threshold = 0.0
    assert detector.accepts(scores, classes).tolist() == [True, False, False, False, False]
    detector.threshold = np.inf
    assert detector.accepts(scores, classes).tolist() == [True, True, False, False, False]
    detector.class_thresholds = np.array([0.0, np.inf])
    assert detector.accepts(scores, classes + 1).tolist() == [True, True, False, False, False]


def test_a_logit_that_is_minus_infinity_is_a_class_that_is_ruled_out():
    class Masked(nn.Module):
        def forward(self, x):
            return torch.cat([x, torch.full((len(x), 1), -torch.inf)], 1)

    detector = Detector(Classifier(Masked()).eval(), wildood.MaxLogit(), Example((2,), "float"), threshold=0.0)
    assert detector.score(np.float32([[1.0, 2.0]])).tolist() == [-2.0]
    assert detector.predict(np.float32([[1.0, 2.0]])).tolist() == [1]


REFUSED = r"^2 of 40 holdout examples have no finite score: drop those with very large values, or look at what the model"


@pytest.mark.parametrize("by_class", [False, True])
def test_a_holdout_with_scores_that_are_not_finite_is_refused(by_class):
    detector = energy()
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    x[[3, 8]] = HUGE[:2]
    with pytest.raises(wildood.InputError, match=REFUSED) as caught:
        detector.calibrate(x, 0.1, by_class=by_class)
    assert "\n" not in str(caught.value)
    assert np.isnan(detector.threshold)
    assert detector.promise is detector.holdout_scores is None
    with pytest.raises(wildood.InputError, match=REFUSED):
        wildood.posthoc(detector.classifier.model, wildood.MaxLogit(), holdout=x, alpha=0.1, by_class=by_class)


def test_a_setting_is_not_chosen_by_scores_that_are_not_finite():
    x = np.random.default_rng(0).normal(size=(80, 2)).astype(np.float32)
    x[40:] = HUGE[0]
    with pytest.raises(wildood.InputError, match=r"of 40 holdout examples have no finite score"):
        wildood.posthoc(energy().classifier.model, wildood.Odin(), holdout=x, alpha=0.1)


def strict(text):
    """JSON as the standard has it: no Infinity, no NaN."""

    def refuse(constant):
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def test_lines_and_records_hold_an_infinite_score_as_text():
    detector = energy().calibrate(np.random.default_rng(0).normal(size=(99, 2)).astype(np.float32))
    x = np.concatenate([HUGE[:1], np.zeros((1, 2), np.float32)])
    shard = ArrayShard(0, len(x), rows=x)
    first, second = map(strict, score_shard(detector, shard, "jsonl").text.splitlines())
    assert (first["score"], first["decision"], type(second["score"])) == ("inf", "unknown", float)
    assert score_shard(detector, shard, "csv").text.splitlines()[1] == "0,inf,unknown,0"
    found = wildood.inspect(detector, x, top=2)
    assert strict(json.dumps(found.to_dict()))["most_ood"][0] | {"class": 0} == {
        "example": 0, "number": 0, "why": "highest score", "score": "inf", "p_value": 0.01, "decision": "unknown", "class": 0
    }  # fmt: skip
    assert ">inf<" in found.page()


def test_an_evaluation_counts_examples_that_overflow_as_caught():
    detector = energy().calibrate(np.random.default_rng(0).normal(size=(99, 2)).astype(np.float32))
    found = wildood.evaluate(detector, np.zeros((5, 2), np.float32), HUGE[:3], resamples=10)
    assert (found.ood[0].caught.value, found.ood[0].auroc.value) == (1.0, 1.0)
    strict(json.dumps(found.to_dict(), allow_nan=False))

"""SAL: the closed form against autograd and numpy, the filter, the learning stages."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wildood
from wildood.data.sources import ArraySource
from wildood.methods.objective import Batch
from wildood.methods.separate import Separate, sal_distances
from wildood.models.classifier import Classifier
from wildood.models.features import FeatureTap
from wildood.models.small import MLP
from wildood.train.monitor import measure_start

CENTRES = np.array([[5.0, 0, 0, 0], [0, 5.0, 0, 0], [0, 0, 5.0, 0]])
SETTINGS = {"schedule": wildood.Schedule(steps=40, batch=32), "verbose": False}


def known(count, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    return (CENTRES[y] + rng.normal(size=(count, 4))).astype("float32"), y


def unknown(count, seed):
    return (np.array([2.0, 2, 2, 6]) + np.random.default_rng(seed).normal(size=(count, 4))).astype("float32")


WILD = np.concatenate([known(270, 2)[0], unknown(30, 3)])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    x, y = (torch.from_numpy(each) for each in known(400, 1))
    optimiser = torch.optim.SGD(made.parameters(), 0.2)
    for _ in range(60):
        optimiser.zero_grad()
        F.cross_entropy(made(x), y).backward()
        optimiser.step()
    return made


def classifier_of(model):
    return Classifier(model, tap=FeatureTap("2", side="input"))


def row_gradient(model, x, label):
    """Row `label` of the gradient of cross-entropy with respect to the last weight, by autograd."""
    loss = F.cross_entropy(model(torch.from_numpy(x)[None]), torch.tensor([label]))
    return torch.autograd.grad(loss, model[2].weight)[0][label].numpy()


def test_distances_and_threshold_are_those_of_autograd_and_a_singular_value_decomposition(model):
    x, y = known(60, 4)
    predicted = model(torch.from_numpy(WILD)).argmax(1).numpy()
    of_labelled = np.stack([row_gradient(model, *pair) for pair in zip(x, y.tolist(), strict=True)])
    means = np.stack([of_labelled[y == label].mean(0) for label in range(3)])
    differences = np.stack([row_gradient(model, *pair) for pair in zip(WILD, predicted.tolist(), strict=True)])
    differences -= means[predicted]
    directions = np.stack([np.linalg.svd(differences[predicted == label])[2][0] for label in range(3)])
    expected = np.abs(np.sum(differences * directions[predicted], 1))
    usual = np.sort(np.abs(np.sum((of_labelled - means[y]) * directions[y], 1)))
    threshold, found = sal_distances(classifier_of(model), ArraySource(x, y), ArraySource(WILD), classes=3)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-5)
    assert threshold == pytest.approx(usual[56], rel=1e-3)  # 57 of 60 are at or below it


def test_the_filter_keeps_the_unknown_and_few_of_the_known(model):
    start = measure_start(classifier_of(model), ArraySource(*known(400, 1)), seed=0)
    kept = Separate().kept(classifier_of(model), start, ArraySource(WILD)).indices.numpy()
    assert np.mean(kept >= 270) > 0.5
    assert np.sum(kept >= 270) > 20


def test_the_loss_is_cross_entropy_and_the_weighted_logistic_loss_of_a_linear_head(model):
    classifier, (x, y) = classifier_of(model), (torch.from_numpy(each) for each in known(8, 5))
    objective = Separate(weight=3.0).objective(classifier, measure_start(classifier, ArraySource(x, y), seed=0))
    wild = torch.from_numpy(WILD[-8:])
    (layer,) = objective.score.head.layers
    logits = [layer(model[:2](each))[:, 0] for each in (x, wild)]
    logistic = torch.cat([torch.log1p(logits[0].exp()), torch.log1p((-logits[1]).exp())]).mean()
    loss, constraints = objective(Batch(x, y, wild))
    assert loss.item() == pytest.approx((F.cross_entropy(model(x), y) + 3 * logistic).item(), rel=1e-5)
    assert constraints == {}


@pytest.mark.parametrize(("learner", "score"), [("logistic", "HeadScore"), ("woods", "EnergyScore")])
def test_fit_trains_on_what_the_filter_keeps_and_the_detector_is_saved(learner, score, tmp_path):
    torch.manual_seed(0)
    start, data = MLP(4, 3, hidden=(16,)), (known(400, 1), WILD, known(200, 6))
    detector = wildood.fit(start, *data, method=Separate(learner=learner), keep="last", **SETTINGS)
    derived = detector.record["derived"]
    assert 0 < derived["kept_wild"] < derived["wild"] < len(WILD)
    assert type(detector.scorer).__name__ == score
    detector.save(tmp_path / "d")
    np.testing.assert_array_equal(wildood.load(tmp_path / "d").score(WILD), detector.score(WILD))


def test_wild_data_like_labelled_without_anything_kept_is_refused(model):
    x, y = known(200, 1)
    start = measure_start(classifier_of(model), ArraySource(x, y), seed=0)
    surest = x[model(torch.from_numpy(x)).softmax(1).amax(1).argsort(descending=True)[:3].numpy()]
    with pytest.raises(wildood.InputError, match="the filter keeps none of 3 wild examples"):
        Separate().kept(classifier_of(model), start, ArraySource(surest))


@pytest.mark.parametrize("settings", [{"filter": "none"}, {"learner": "sgd"}, {"weight": 0.0}, {"alpha": 1.0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(wildood.InputError, match=f"Separate: {next(iter(settings))}"):
        Separate(**settings)


def test_woods_has_no_weight_of_the_logistic_loss():
    with pytest.raises(wildood.InputError, match="are for learner='logistic'"):
        Separate(learner="woods", weight=1.0)

"""The other methods against their equations, and through `fit`."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wildood
from wildood.data.sources import ArraySource
from wildood.methods.godin import GodinObjective
from wildood.methods.objective import Batch, Start
from wildood.models.classifier import Classifier
from wildood.models.features import FeatureTap
from wildood.models.heads import DeConfHead
from wildood.models.small import MLP

LABELLED = ArraySource(np.zeros((4, 5), np.float32), np.arange(4))
SHORT = wildood.Schedule(epochs=1, batch=32)
METHODS = [wildood.OutlierExposure(), wildood.EnergyMargin(), wildood.EnergyLogistic()]


def start() -> Start:
    sums = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 3 + 10
    return Start(cross_entropy=0.25, accuracy=0.9, logsumexp=sums, classes=5, features=5, seed=0, labelled=LABELLED)


def batch() -> Batch:
    rng = torch.Generator().manual_seed(1)
    return Batch(torch.randn(8, 5, generator=rng), torch.arange(8) % 5, torch.randn(8, 5, generator=rng) * 3)


def terms(method, given=None):
    return method.objective(Classifier(nn.Identity()), start())(given or batch())


def test_outlier_exposure_is_the_cross_entropy_to_the_uniform_distribution():
    drawn = batch()
    uniform = torch.full((8, 5), 1 / 5)
    expected = F.cross_entropy(drawn.labelled, drawn.labels) + 0.7 * F.cross_entropy(drawn.wild, uniform)
    loss, constraints = terms(wildood.OutlierExposure(weight=0.7))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert constraints == {}


def test_energy_margin_is_the_squared_hinges_of_liu_et_al():
    drawn = batch()
    known, wild = (-torch.log(torch.exp(part.double()).sum(1)) for part in (drawn.labelled, drawn.wild))
    hinges = (known + 2.0).clamp(min=0).pow(2).mean() + (-1.0 - wild).clamp(min=0).pow(2).mean()
    expected = F.cross_entropy(drawn.labelled, drawn.labels) + 0.1 * hinges
    loss, _ = terms(wildood.EnergyMargin(margin_in=-2.0, margin_out=-1.0))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_margins_come_from_the_starting_energies_unless_given():
    energies = -start().logsumexp.double().numpy()
    found = wildood.EnergyMargin().margins_from(start())
    assert found == pytest.approx((energies.mean(), np.quantile(energies, 0.95)))
    assert wildood.EnergyMargin(margin_in=-23, margin_out=-5).margins_from(start()) == (-23, -5)


def test_energy_logistic_is_binary_cross_entropy_with_the_released_signs():
    """The released code: logit w S + b of being ID, with w > 0; ID is 1 and wild 0."""
    drawn = batch()
    objective = wildood.EnergyLogistic(weight=2.0).objective(Classifier(nn.Identity()), start())
    w, b = -objective.watch()["w"], -objective.watch()["b"]
    assert w > 0
    sums = torch.logsumexp(torch.cat([drawn.labelled, drawn.wild]), 1)
    target = torch.tensor([1.0] * 8 + [0.0] * 8)
    expected = F.cross_entropy(drawn.labelled, drawn.labels) + 2.0 * F.binary_cross_entropy_with_logits(w * sums + b, target)
    assert objective(drawn).loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_energy_logistic_starts_where_woods_does_and_does_not_decay_w_and_b():
    logistic, woods = (
        m.objective(Classifier(nn.Linear(5, 5)), start()) for m in (wildood.EnergyLogistic(), wildood.Woods())
    )
    assert logistic.watch() == woods.watch()
    groups = logistic.optimiser(wildood.Schedule()).param_groups
    assert [group["weight_decay"] for group in groups] == [5e-4, 0.0]
    assert {id(p) for p in groups[1]["params"]} == {id(p) for p in logistic.logit.parameters()}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_id_and_wild_go_through_the_model_in_one_pass(method):
    calls = []

    class Counting(nn.Module):
        def forward(self, x):
            calls.append(len(x))
            return x

    method.objective(Classifier(Counting()), start())(batch())
    assert calls == [16]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: wildood.OutlierExposure(weight=0), "OutlierExposure: weight is 0"),
        (lambda: wildood.EnergyMargin(weight=-1), "EnergyMargin: weight is -1"),
        (lambda: wildood.EnergyLogistic(weight="x"), "EnergyLogistic: weight is 'x'"),
        (lambda: wildood.EnergyMargin(margin_in=-23.0), "give both margins"),
        (lambda: wildood.EnergyMargin(margin_in=-5.0, margin_out=-23.0), "exchange them"),
        (lambda: wildood.OutlierExposure(alpha=2), "alpha is 2"),
        (lambda: wildood.Godin(epsilon=-0.1), "epsilon is -0.1"),
    ],
)
def test_wrong_settings_are_refused(build, message):
    with pytest.raises(wildood.InputError, match=message):
        build()


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)

    def known(count):
        y = rng.integers(0, 2, count)
        return (rng.normal(size=(count, 4)) + 5 * np.eye(4)[y]).astype("float32"), y

    ood = (rng.normal(size=(400, 4)) - [0, 0, 5, 5]).astype("float32")
    wild = np.concatenate([known(540)[0], ood[:60]])
    torch.manual_seed(0)
    schedule = wildood.Schedule(epochs=10, batch=32, lr=0.05)
    model = wildood.pretrain(MLP(4, 2, hidden=(16, 8)), known(300), schedule=schedule, verbose=False)
    return {"model": model, "labelled": known(400), "holdout": known(200), "wild": wild}, known(300), ood[60:]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_every_method_trains_in_the_one_loop_and_rejects_what_was_unknown(method, data, tmp_path):
    given, test, ood = data
    detector = wildood.fit(**given, method=method, run_dir=tmp_path / "run", verbose=False)
    assert np.mean(detector.predict(ood) == wildood.UNKNOWN) > 0.9
    assert np.mean(detector.predict(test[0]) == wildood.UNKNOWN) < 0.12
    assert "loss" in detector.history[-1]
    assert "acceptance" in detector.history[-1]
    again = wildood.load(detector.save(tmp_path / "saved"))
    np.testing.assert_array_equal(again.score(ood), detector.score(ood))


def godin(features=5, classes=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, features), nn.ReLU(), nn.Linear(features, classes))
    classifier = Classifier(model, tap=FeatureTap("2", "input"))
    about = Start(1.0, 0.5, torch.zeros(10), classes=classes, features=features, seed=0, labelled=LABELLED)
    return wildood.Godin().objective(classifier, about)


def test_godin_divides_cosines_by_a_learned_confidence():
    objective = godin()
    head = objective.classifier.head
    x = torch.randn(6, 4)
    outputs = objective.classifier.eval()(x)
    features, directions = outputs.features, head.directions
    h = torch.stack([F.cosine_similarity(features, row[None], eps=1e-8) for row in directions], dim=1)
    linear, norm, _ = head.confidence
    z = F.linear(features, linear.weight, linear.bias)
    z = (z - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(outputs.logits, h / torch.sigmoid(z), rtol=1e-4, atol=1e-5)
    score = objective.score.with_settings(epsilon=0.0)
    torch.testing.assert_close(score(outputs), -h.max(1).values, rtol=1e-4, atol=1e-5)
    loss = objective(Batch(x, torch.tensor([0, 1, 2, 0, 1, 2]))).loss
    objective.train()
    assert loss.ndim == 0


def test_godin_decays_everything_but_the_directions():
    objective = godin()
    groups = objective.optimiser(wildood.Schedule.pretraining()).param_groups
    assert [group["weight_decay"] for group in groups] == [5e-4, 0.0]
    assert [id(parameter) for parameter in groups[1]["params"]] == [id(objective.classifier.head.directions)]
    decayed = {id(parameter) for parameter in groups[0]["params"]}
    assert {id(parameter) for parameter in objective.classifier.head.confidence.parameters()} <= decayed


def test_godins_score_shares_its_directions_with_the_head():
    objective = godin()
    assert isinstance(objective, GodinObjective)
    assert objective.score.directions is objective.classifier.head.directions


def test_godin_needs_no_wild_data_and_chooses_epsilon_on_id_data(data, tmp_path):
    given, test, ood = data
    only_id = {name: value for name, value in given.items() if name != "wild"}
    schedule = wildood.Schedule(epochs=12, batch=32, lr=0.05)
    detector = wildood.fit(**only_id, method=wildood.Godin(), schedule=schedule, verbose=False)
    chosen = detector.record["chosen"]
    assert chosen["by"] == "mean score of ID"
    assert [row["epsilon"] for row in chosen["tried"]] == [0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08]
    best = min(chosen["tried"], key=lambda row: row["criterion"])
    assert detector.scorer.epsilon == best["epsilon"]
    assert np.mean(detector.classify(test[0]) == test[1]) > 0.95
    assert isinstance(detector.classifier.head, DeConfHead)
    again = wildood.load(detector.save(tmp_path))
    np.testing.assert_array_equal(again.score(ood), detector.score(ood))
    np.testing.assert_array_equal(again.classify(ood), detector.classify(ood))
    np.testing.assert_array_equal(again.predict_proba(ood), detector.predict_proba(ood))


def test_godin_given_wild_data_chooses_by_it_and_does_not_train_on_it(data, caplog):
    given, _, _ = data
    schedule = wildood.Schedule(epochs=2, batch=32, lr=0.05)
    detector = wildood.fit(**given, method=wildood.Godin(), schedule=schedule, verbose=False)
    assert not caplog.messages
    assert detector.record["chosen"]["by"] == "wild acceptance"
    assert detector.record["kept_epoch"] == 2
    assert "acceptance" not in detector.history[-1]


def test_godin_with_the_last_epoch_has_nothing_to_choose_epsilon_by(data):
    given, _, _ = data
    with pytest.raises(wildood.InputError, match="no part of the holdout to choose epsilon by: give epsilon"):
        wildood.fit(**given, method=wildood.Godin(), schedule=SHORT, keep="last", verbose=False)


def test_other_methods_need_wild_data(data):
    given, _, _ = data
    with pytest.raises(wildood.InputError, match="this method trains on wild data: give wild=x"):
        wildood.fit(given["model"], given["labelled"], holdout=given["holdout"], verbose=False)

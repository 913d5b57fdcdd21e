import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from wildood import InputError, Schedule, Woods, WoodsAlt
from wildood.data.sources import ArraySource
from wildood.methods.distillation import Distillation
from wildood.methods.objective import Batch, Start
from wildood.methods.woods import EnergyLogit
from wildood.models.classifier import Classifier, Outputs
from wildood.models.features import FeatureTap

LABELLED = ArraySource(np.zeros((4, 5), np.float32), np.arange(4))


def start(seed: int = 0, spread: float = 3.0) -> Start:
    sums = torch.randn(1000, generator=torch.Generator().manual_seed(seed)) * spread + 10
    return Start(cross_entropy=0.25, accuracy=0.9, logsumexp=sums, classes=5, features=5, seed=seed, labelled=LABELLED)


def batch(seed: int = 0) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    return Batch(torch.randn(8, 5, generator=rng), torch.arange(8) % 5, torch.randn(8, 5, generator=rng) * 3)


def test_loss_and_constraints_are_the_equations_of_the_paper():
    objective = Woods(alpha=0.1, false_alarm_loss="sigmoid").objective(Classifier(nn.Identity()), start())
    w, b = objective.watch()["w"], objective.watch()["b"]
    drawn = batch()
    loss, constraints = objective(drawn)

    def minus_energy(logits):
        return torch.log(torch.exp(logits.double()).sum(1))

    expected = (1 / (1 + torch.exp(w * minus_energy(drawn.wild) + b))).mean()
    false_alarm = (1 / (1 + torch.exp(-w * minus_energy(drawn.labelled) - b))).mean() - 0.1
    picked = torch.softmax(drawn.labelled.double(), 1)[torch.arange(8), drawn.labels]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert constraints["false_alarm"].item() == pytest.approx(false_alarm.item(), rel=1e-5)
    assert constraints["classification"].item() == pytest.approx(-picked.log().mean().item() - 2 * 0.25, rel=1e-5)


def test_the_logistic_loss_of_false_alarms_gives_up_no_example():
    methods = [Woods(alpha=0.1), Woods(alpha=0.1, false_alarm_loss="sigmoid")]
    logistic, sigmoid = (method.objective(Classifier(nn.Identity()), start()) for method in methods)
    logits = torch.tensor([[-1000.0, -1000.0]], requires_grad=True)  # far on the side of OOD
    z = logistic.logit(logits).item()
    values = [each.constraints(Outputs(logits), torch.tensor([0]))["false_alarm"] for each in (logistic, sigmoid)]
    assert values[0].item() == pytest.approx(math.log1p(math.exp(-z)) + z - 0.1)
    assert values[1].item() == pytest.approx(1 - 0.1)
    slopes = [torch.autograd.grad(value, logits)[0].sum().item() for value in values]
    assert slopes[0] == pytest.approx(logistic.watch()["w"], rel=1e-4)
    assert slopes[1] == 0


def test_the_margin_moves_the_bend_of_wild_data_as_in_scone():
    beginning = start()
    objective = Woods(margin=2.5).objective(Classifier(nn.Identity()), beginning)
    w, b = (objective.watch()[name] for name in "wb")
    drawn = batch()
    sums, eta = drawn.wild.double().exp().sum(1).log(), -2.5 * beginning.logsumexp.double().std()
    loss, constraints = objective(drawn)
    assert loss.item() == pytest.approx((1 / (1 + torch.exp(w * (sums - eta) + b))).mean().item(), rel=1e-5)
    without = Woods().objective(Classifier(nn.Identity()), beginning)(drawn)
    assert {name: c.item() for name, c in constraints.items()} == {name: c.item() for name, c in without.constraints.items()}


def test_a_margin_divides_the_push_on_surely_known_examples():
    beginning, known = start(), torch.full((1, 5), 25.0, requires_grad=True)
    pushes = []
    for margin in (0.0, 2.0):
        loss, _ = Woods(margin=margin).objective(Classifier(nn.Identity()), beginning)(batch()._replace(wild=known))
        pushes.append(torch.autograd.grad(loss, known)[0].sum().item())
    assert pushes[0] / pushes[1] == pytest.approx(math.exp(2), rel=1e-2)


def test_without_a_margin_every_bit_is_that_of_woods():
    objective, drawn = Woods(distillation=0.0).objective(Classifier(nn.Linear(5, 5)), start()), batch()
    loss, _ = objective(drawn)
    plain = torch.sigmoid(-objective.logit(objective.outputs(drawn)[1].logits)).mean()
    parameters = [each for each in objective.parameters() if each.requires_grad]
    found, expected = (torch.autograd.grad(each, parameters) for each in (loss, plain))
    assert torch.equal(loss, plain)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_one_forward_pass_sees_labelled_and_wild_together():
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            seen.append(len(x))
            return x

    objective = Woods().objective(Classifier(Spy()), start())
    objective(batch())
    assert seen == [16]
    objective.distillation = Distillation(objective.classifier, weight=1.0)
    objective(batch())
    assert seen == [16, 16, 8]  # the wild half once more, through the starting classifier


@given(st.floats(0.01, 1.0), st.floats(0, 3), st.integers(0, 1000))
def test_identity_of_the_wild_objective_and_the_constraint(pi, multiplier, seed):
    """E_wild σ(-z) + λ E_in σ(z) = π E_out σ(-z) + (λ - (1 - π)) E_in σ(z) + (1 - π): below 1 - π it pushes ID out."""
    rng = torch.Generator().manual_seed(seed)
    z_in, z_out = torch.randn(50, generator=rng, dtype=torch.float64), torch.randn(50, generator=rng, dtype=torch.float64)
    wild = (1 - pi) * torch.sigmoid(-z_in).mean() + pi * torch.sigmoid(-z_out).mean()
    left = wild + multiplier * torch.sigmoid(z_in).mean()
    right = pi * torch.sigmoid(-z_out).mean() + (multiplier - (1 - pi)) * torch.sigmoid(z_in).mean() + (1 - pi)
    assert left.item() == pytest.approx(right.item(), abs=1e-12)


def test_slope_is_negative_for_a_hundred_seeds_and_after_any_step():
    for seed in range(100):
        objective = Woods().objective(Classifier(nn.Identity()), start(seed, spread=0.01 + seed))
        assert objective.logit.w.item() < 0
        with torch.no_grad():
            objective.logit.rho.sub_(10.0)
        assert objective.logit.w.item() < 0


def test_the_bend_starts_at_the_five_percent_quantile():
    sums = start().logsumexp
    logit = EnergyLogit.from_start("quantile", start(), 0.05)
    assert logit.w.item() == pytest.approx(-1 / sums.std().item(), rel=1e-5)
    assert logit.bias.item() / -logit.w.item() == pytest.approx(sums.sort().values[49].item(), rel=1e-5)


@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e6])
def test_start_is_finite_for_degenerate_energies(spread):
    sums = torch.full((100,), 5.0) + spread * torch.linspace(-1, 1, 100)
    logit = EnergyLogit.from_start("quantile", start()._replace(logsumexp=sums), 0.05)
    assert math.isfinite(logit.w.item())
    assert logit.w.item() < 0
    assert math.isfinite(logit.bias.item())


def test_logit_that_starts_at_the_constraint_meets_it():
    sums = start().logsumexp.double()
    logit = EnergyLogit.from_start("constraint", start(), 0.1)
    assert logit.w.item() == pytest.approx(-2 / sums.std().item(), rel=1e-5)
    assert torch.sigmoid(logit.w.item() * sums + logit.bias.item()).mean().item() == pytest.approx(0.1, rel=1e-3)


def test_algorithm_1_is_the_released_code_with_the_sign_of_w_and_two_multipliers():
    ours, released = Woods.algorithm1(), Woods.as_published()
    different = {name for name in vars(ours) if getattr(ours, name) != getattr(released, name)}
    assert different == {"logit_start", "shared_multiplier"}
    for seed in range(20):
        drawn, signed = (method.objective(Classifier(nn.Identity()), start(seed)).watch() for method in (ours, released))
        assert drawn["w"] == pytest.approx(-abs(signed["w"]), rel=1e-5)
        assert drawn["b"] == signed["b"]


def test_w_and_b_have_no_weight_decay_but_as_published_they_do():
    ours = Woods().objective(Classifier(nn.Linear(5, 5)), start())
    theirs = Woods.as_published().objective(Classifier(nn.Linear(5, 5)), start())
    assert {id(parameter) for parameter in ours.without_decay()} == {id(parameter) for parameter in ours.logit.parameters()}
    assert theirs.without_decay() == []


def test_as_published_draws_w_of_either_sign():
    signs = {Woods.as_published().objective(Classifier(nn.Identity()), start(seed)).watch()["w"] > 0 for seed in range(20)}
    assert signs == {True, False}


def test_as_published_presets_hold_what_the_released_code_does():
    for method in (Woods.as_published(), WoodsAlt.as_published()):
        assert (method.gamma, method.mu2, method.tol, method.alpha) == (1.5, 1.0, 0.05, 0.05)
        assert set(method.duals().multipliers.values()) == {0}
        assert set(method.duals().penalties.values()) == {1}
        assert method.duals().shared_multiplier
        assert method.duals().ascent == "gradient"
        assert method.duals().penalty_cap is None
        assert method.schedule() == Schedule.as_published("stationary")


def test_woods_alt_is_the_hinge_of_a_head_with_300_hidden_units():
    classifier = Classifier(nn.Sequential(nn.Identity(), nn.Linear(5, 5)), tap=FeatureTap("1", side="input"))
    objective = WoodsAlt(alpha=0.2, tau=1.0, head_start="random").objective(classifier, start())
    drawn = batch()
    loss, constraints = objective(drawn)
    first, _, last = objective.score.head.layers

    def g(x):
        return (F.relu(x @ first.weight.T + first.bias) @ last.weight.T + last.bias).squeeze(1)

    assert first.weight.shape == (300, 5)
    assert last.weight.shape == (1, 300)
    assert loss.item() == pytest.approx(torch.clamp(1 - g(drawn.wild), min=0).mean().item(), rel=1e-5)
    expected = torch.clamp(1 + g(drawn.labelled), min=0).mean().item() - 0.2
    assert constraints["false_alarm"].item() == pytest.approx(expected, rel=1e-5)
    cross_entropy = F.cross_entropy(classifier.model(drawn.labelled), drawn.labels).item()
    assert constraints["classification"].item() == pytest.approx(cross_entropy - 1.0, rel=1e-5)


def test_woods_alt_starts_from_the_energy():
    classifier = Classifier(nn.Sequential(nn.Identity(), nn.Linear(5, 5)), tap=FeatureTap("1", side="input"))
    beginning = start()
    score = WoodsAlt().objective(classifier, beginning).score
    sums, spread = beginning.logsumexp.double(), beginning.logsumexp.double().std()
    outputs = classifier(batch().wild)
    expected = (torch.quantile(sums, 0.05, interpolation="lower") - outputs.logits.double().logsumexp(1)) / spread
    torch.testing.assert_close(score(outputs).double(), expected, rtol=1e-3, atol=1e-2)
    assert bool(score.head.layers[0].weight.any())  # or nothing would be learned


def test_woods_alt_has_no_loss_of_false_alarms_to_choose():
    with pytest.raises(InputError, match="leave out false_alarm_loss"):
        WoodsAlt(false_alarm_loss="sigmoid")


def test_woods_alt_draws_its_head_from_the_seed_and_leaves_the_global_generator_alone():
    classifier = Classifier(nn.Sequential(nn.Identity(), nn.Linear(5, 5)), tap=FeatureTap("1", side="input"))
    before = torch.get_rng_state()
    heads = [WoodsAlt().objective(classifier, start(seed)).score.head.layers[0].weight for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": 1.0}, "alpha"),
        ({"tau": 0.0}, "tau"),
        ({"mu2": 0.0}, "mu2"),
        ({"tol": -0.1}, "tol"),
        ({"gamma": 0.9}, "gamma"),
        ({"lambda1": -0.1}, "lambda1"),
        ({"logit_start": "zero"}, "logit_start"),
        ({"margin": -1.0}, "margin"),
        ({"distillation": -1.0}, "distillation"),
        ({"precondition": "all"}, "precondition"),
        ({"dual_ascent": "none"}, "dual_ascent"),
        ({"penalty_cap": 0.0}, "penalty_cap"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Woods(**settings)


@pytest.mark.parametrize(
    "settings", [{"precondition": "shared"}, {"logit_start": "random"}, {"decay_logit": True}, {"margin": 1.0}]
)
def test_woods_alt_refuses_what_its_head_cannot_have(settings):
    with pytest.raises(InputError, match="WoodsAlt"):
        WoodsAlt(**settings)

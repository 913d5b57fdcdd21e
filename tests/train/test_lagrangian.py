import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wildood.methods.objective import Duals, Terms
from wildood.train.lagrangian import AugmentedLagrangian, psi

finite = st.floats(-3, 3, allow_subnormal=False)


def two_branches(c: float, multiplier: float, penalty: float) -> float:
    """ψ as the paper writes it."""
    if penalty * c + multiplier >= 0:
        return c * multiplier + penalty / 2 * c**2
    return -(multiplier**2) / (2 * penalty)


def double(value: float, *, grad: bool = False) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=grad)


@given(finite, st.floats(0, 3), st.floats(0.1, 50))
def test_psi_equals_its_two_branches(c, multiplier, penalty):
    value = psi(double(c), double(multiplier), penalty).item()
    assert math.isclose(value, two_branches(c, multiplier, penalty), rel_tol=1e-9, abs_tol=1e-9)


@given(finite, st.floats(0, 3), st.floats(0.1, 50))
def test_psi_has_the_gradient_of_finite_differences(c, multiplier, penalty):
    u, v = double(c, grad=True), double(multiplier, grad=True)
    psi(u, v, penalty).backward()
    h = 1e-6
    by_c = (two_branches(c + h, multiplier, penalty) - two_branches(c - h, multiplier, penalty)) / (2 * h)
    by_multiplier = (two_branches(c, multiplier + h, penalty) - two_branches(c, multiplier - h, penalty)) / (2 * h)
    assert math.isclose(u.grad.item(), by_c, rel_tol=1e-4, abs_tol=1e-4)
    assert math.isclose(v.grad.item(), by_multiplier, rel_tol=1e-4, abs_tol=1e-4)


def test_psi_is_continuous_where_its_branches_meet():
    multiplier, penalty = 0.7, 2.0
    edge = -multiplier / penalty
    values = [psi(double(edge + shift), double(multiplier), penalty).item() for shift in (-1e-9, 0, 1e-9)]
    assert max(values) - min(values) < 1e-15


def lagrangian(**changes) -> AugmentedLagrangian:
    duals = {"multipliers": {"a": 0.5, "b": 0.5}, "penalties": {"a": 1.0, "b": 2.0}, "rate": 0.1, "growth": 1.5}
    return AugmentedLagrangian(Duals(**duals | changes))


def test_value_is_the_loss_plus_psi_of_each_constraint():
    terms = Terms(torch.tensor(1.0), {"a": torch.tensor(0.2), "b": torch.tensor(-3.0)})
    assert lagrangian()(terms).item() == pytest.approx(1 + two_branches(0.2, 0.5, 1.0) + two_branches(-3.0, 0.5, 2.0))


def test_multipliers_do_not_alias():
    duals = lagrangian()
    duals.ascend({"a": 1.0, "b": -1.0})
    assert duals.multipliers["a"].item() == pytest.approx(0.6)
    assert duals.multipliers["b"].item() == pytest.approx(0.4)
    assert duals.multipliers["a"].data_ptr() != duals.multipliers["b"].data_ptr()


def test_multipliers_never_become_negative():
    duals = lagrangian(rate=2.0)
    for _ in range(3):
        duals.ascend({"a": 0.3, "b": -1.0})
    assert duals.multipliers["a"].item() == pytest.approx(0.5 + 3 * 0.6)
    assert duals.multipliers["b"].item() == 0


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=20), st.floats(0.01, 3))
@settings(max_examples=50)
def test_projected_ascent_is_the_recursion_on_paper(values, rate):
    duals = lagrangian(multipliers={"a": 0.5}, penalties={"a": 1.0}, rate=rate)
    expected = 0.5
    for value in values:
        duals.ascend({"a": value})
        expected = max(0.0, expected + rate * value)
    assert duals.multipliers["a"].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_penalty_grows_only_above_tol_and_up_to_its_cap():
    duals = lagrangian(tol=0.05, penalty_cap=2.5)
    duals.grow({"a": 0.06, "b": 0.05})
    assert duals.penalties == {"a": 1.5, "b": 2.0}
    duals.grow({"a": 0.06, "b": 0.06})
    duals.grow({"a": 0.06, "b": 0.06})
    assert duals.penalties == {"a": 2.5, "b": 2.5}


def test_one_multiplier_is_shared_between_the_constraints():
    duals = lagrangian(shared_multiplier=True, ascent="gradient", rate=1.0, multipliers={"a": 0.0, "b": 0.0})
    duals.ascend({"a": 0.3, "b": -0.1})  # beta_b c_b + lambda = 0.1 >= 0: the second step is along c, too
    assert duals.multipliers["a"] is duals.multipliers["b"]
    assert duals.multipliers["a"].item() == pytest.approx(0.2)


def test_gradient_ascent_oscillates_where_the_released_code_does():
    duals = lagrangian(ascent="gradient", rate=2.0, multipliers={"a": 0.3}, penalties={"a": 1.0})
    seen = []
    for _ in range(4):
        duals.ascend({"a": -5.0})
        seen.append(round(duals.multipliers["a"].item(), 4))
    assert seen == [-0.3, 0.3, -0.3, 0.3]


def test_state_survives_a_round_trip():
    first, second = lagrangian(), lagrangian()
    first.ascend({"a": 1.0, "b": 0.5})
    first.grow({"a": 1.0, "b": 0.0})
    second.load_state_dict(first.state_dict())
    assert second.watch() == first.watch()
    assert first.watch() == pytest.approx({"lambda_a": 0.6, "lambda_b": 0.55, "beta_a": 1.5, "beta_b": 2.0})

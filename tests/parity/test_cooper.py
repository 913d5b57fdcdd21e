"""The augmented Lagrangian against cooper-optim, an independent implementation."""

import cooper
import pytest
import torch
from cooper.formulations import AugmentedLagrangian as CooperLagrangian
from cooper.multipliers import DenseMultiplier
from cooper.penalty_coefficients import DensePenaltyCoefficient

from wildood.methods.objective import Duals, Terms
from wildood.train.lagrangian import AugmentedLagrangian

RATE, PENALTY, START = 0.2, 1.5, 0.4


class Toy(cooper.ConstrainedMinimizationProblem):
    """minimise |x - (2, 1)|² subject to x_0 + x_1 <= 1."""

    def __init__(self) -> None:
        super().__init__()
        self.constraint = cooper.Constraint(
            constraint_type=cooper.ConstraintType.INEQUALITY,
            formulation_type=CooperLagrangian,
            multiplier=DenseMultiplier(init=torch.tensor([START])),
            penalty_coefficient=DensePenaltyCoefficient(init=torch.tensor([PENALTY])),
        )

    def compute_cmp_state(self, x: torch.Tensor) -> cooper.CMPState:
        state = cooper.ConstraintState(violation=constraint(x).unsqueeze(0))
        return cooper.CMPState(loss=loss(x), observed_constraints={self.constraint: state})


def loss(x: torch.Tensor) -> torch.Tensor:
    return ((x - torch.tensor([2.0, 1.0])) ** 2).sum()


def constraint(x: torch.Tensor) -> torch.Tensor:
    return x.sum() - 1


def test_value_and_gradient_equal_coopers_for_satisfied_and_violated_constraints():
    for start in ([0.0, 0.0], [2.0, 1.0], [-4.0, 1.0], [0.3, 0.4]):
        x = torch.tensor(start, requires_grad=True)
        problem = Toy()
        primal = problem.compute_cmp_state(x).compute_primal_lagrangian().lagrangian
        ours = AugmentedLagrangian(Duals(multipliers={"c": START}, penalties={"c": PENALTY}))
        value = ours(Terms(loss(x), {"c": constraint(x)}))
        (theirs,) = torch.autograd.grad(primal, x)
        (mine,) = torch.autograd.grad(value, x)
        assert value.item() == pytest.approx(primal.item(), rel=1e-6)
        assert torch.allclose(mine, theirs, rtol=1e-6)


def test_many_steps_of_descent_and_ascent_follow_coopers():
    theirs = torch.tensor([3.0, 3.0], requires_grad=True)
    problem = Toy()
    optimiser = cooper.optim.SimultaneousOptimizer(
        cmp=problem,
        primal_optimizers=torch.optim.SGD([theirs], lr=0.05),
        dual_optimizers=torch.optim.SGD(problem.dual_parameters(), lr=RATE, maximize=True),
    )
    mine = torch.tensor([3.0, 3.0], requires_grad=True)
    descent = torch.optim.SGD([mine], lr=0.05)
    ours = AugmentedLagrangian(Duals(multipliers={"c": START}, penalties={"c": PENALTY}, rate=RATE))
    for _ in range(150):
        optimiser.roll(compute_cmp_state_kwargs={"x": theirs})
        c = constraint(mine)
        descent.zero_grad()
        ours(Terms(loss(mine), {"c": c})).backward()
        descent.step()
        ours.ascend({"c": c.detach()})
        assert torch.allclose(mine, theirs, atol=1e-5)
        assert ours.multipliers["c"].item() == pytest.approx(problem.constraint.multiplier.weight.item(), abs=1e-5)
    assert constraint(mine).item() == pytest.approx(0, abs=0.02)

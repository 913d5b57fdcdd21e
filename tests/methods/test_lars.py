"""LARS against its formula, worked by hand, and through the loop's checkpoints."""

import math

import pytest
import torch
from torch import nn

from wildood import Schedule
from wildood.data.files import dump_state, load_state
from wildood.methods.csi import Lars
from wildood.methods.objective import CrossEntropyObjective
from wildood.models.classifier import Classifier

DECAY, LR, MOMENTUM = 0.1, 0.5, 0.9


def step(optimiser, weight, gradient):
    weight.grad = torch.tensor(gradient)
    optimiser.step()


def adapted_by_hand(weight, gradient):
    length, slope = math.hypot(*weight), math.hypot(*gradient)
    rate = 0.001 * length / (slope + DECAY * length + 1e-8)
    return [rate * (g + DECAY * w) for w, g in zip(weight, gradient, strict=True)]


def test_two_steps_are_what_the_formula_says_by_hand():
    # |w| = 5, |g| = 1, g + 0.1 w = (0.9, 1.2): times 0.001 * 5 / (1 + 0.5) it is (0.003, 0.004).
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimiser = Lars([{"params": [weight]}], lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    step(optimiser, weight, [0.6, 0.8])
    assert weight.tolist() == pytest.approx([3 - LR * 0.003, 4 - LR * 0.004], abs=1e-6)
    # The second: the momentum of the first, and no look ahead.
    before = weight.tolist()
    step(optimiser, weight, [2.0, -1.0])
    moved = [MOMENTUM * old + new for old, new in zip([0.003, 0.004], adapted_by_hand(before, [2.0, -1.0]), strict=True)]
    assert weight.tolist() == pytest.approx([w - LR * m for w, m in zip(before, moved, strict=True)], abs=1e-6)


@pytest.mark.parametrize(
    ("weight", "gradient", "after"),
    [
        ([0.0, 0.0], [1.0, -2.0], [-0.5, 1.0]),  # a bias that starts at zero moves as by SGD
        ([3.0, 4.0], [0.0, 0.0], [3.0 - 0.5 * 0.3, 4.0 - 0.5 * 0.4]),  # and a gradient of zero leaves the decay as it is
    ],
)
def test_where_the_weight_or_its_gradient_is_zero_nothing_is_scaled(weight, gradient, after):
    parameter = nn.Parameter(torch.tensor(weight))
    step(Lars([{"params": [parameter]}], lr=LR, momentum=MOMENTUM, weight_decay=DECAY), parameter, gradient)
    assert parameter.tolist() == pytest.approx(after, abs=1e-6)


def test_parameters_without_a_gradient_stay_as_they_are():
    moved, left = (nn.Parameter(torch.ones(2)) for _ in range(2))
    optimiser = Lars([{"params": [moved, left]}], lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    step(optimiser, moved, [1.0, 1.0])
    assert left.tolist() == [1.0, 1.0]
    assert moved[0] < 1


def test_what_a_checkpoint_holds_goes_on_with_the_same_bits():
    gradients = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))

    def start(values):
        weight = nn.Parameter(values.clone())
        return weight, Lars([{"params": [weight]}], lr=LR, momentum=MOMENTUM, weight_decay=DECAY)

    weight, optimiser = start(torch.tensor([1.0, -2.0, 3.0]))
    for gradient in gradients[:2]:
        step(optimiser, weight, gradient.tolist())
    saved, values = load_state(dump_state(optimiser.state_dict())), weight.detach().clone()
    again, resumed = start(values)
    resumed.load_state_dict(saved)
    for gradient in gradients[2:]:
        step(optimiser, weight, gradient.tolist())
        step(resumed, again, gradient.tolist())
    assert torch.equal(weight, again)
    assert not torch.equal(weight, values)


def test_an_objective_chooses_its_optimiser_and_lars_spares_what_must_not_decay():
    class Choosy(CrossEntropyObjective):
        def optimiser(self, schedule):
            return Lars(self.parameter_groups(), schedule.lr, schedule.momentum, schedule.weight_decay)

        def without_decay(self):
            return [self.classifier.model.bias]

    network, schedule = nn.Linear(2, 3), Schedule(steps=1, weight_decay=0.25)
    found = Choosy(Classifier(network)).optimiser(schedule)
    assert type(found) is Lars
    assert [(group["decay"], group["weight_decay"], group["nesterov"]) for group in found.param_groups] == [
        (0.25, 0.0, False),
        (0.0, 0.0, False),
    ]
    assert found.param_groups[1]["params"][0] is network.bias
    plain = CrossEntropyObjective(Classifier(network)).optimiser(schedule)
    assert type(plain) is torch.optim.SGD
    assert plain.param_groups[0]["nesterov"]


def test_a_schedule_without_momentum_is_plain_sgd():
    network = nn.Linear(2, 3)
    (group,) = CrossEntropyObjective(Classifier(network)).optimiser(Schedule(steps=1, momentum=0.0)).param_groups
    assert (group["momentum"], group["nesterov"]) == (0.0, False)

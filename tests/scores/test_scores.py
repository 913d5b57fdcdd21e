import pytest
import torch

from wildood import EnergyScore, MaxSoftmax
from wildood.models.classifier import Outputs
from wildood.scores.head import HeadScore

LOGITS = torch.tensor([[1.0, 2.0, -1.0], [0.0, 0.0, 0.0], [800.0, 0.0, 0.0]], dtype=torch.float64)


def test_energy_is_minus_the_log_of_the_sum_of_exponentials_and_does_not_overflow():
    scores = EnergyScore()(Outputs(LOGITS))
    expected = [-torch.exp(LOGITS[row]).sum().log().item() for row in (0, 1)]
    assert scores.tolist() == pytest.approx([*expected, -800.0])


def test_max_softmax_is_minus_the_largest_probability():
    exponentials = torch.exp(LOGITS[:2])
    assert MaxSoftmax()(Outputs(LOGITS[:2])).tolist() == pytest.approx(
        (-exponentials.max(1).values / exponentials.sum(1)).tolist()
    )


@pytest.mark.parametrize("score", [EnergyScore(), MaxSoftmax()])
def test_a_sure_example_scores_lower_than_an_unsure_one(score):
    sure, unsure = score(Outputs(torch.tensor([[9.0, 0.0], [0.2, 0.0]]))).tolist()
    assert sure < unsure


def test_head_score_needs_features():
    with pytest.raises(ValueError, match="features"):
        HeadScore(features=4)(Outputs(torch.zeros(1, 2)))

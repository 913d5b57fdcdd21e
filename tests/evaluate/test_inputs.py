"""Scores come as arrays, lists or tensors of any kind; what cannot be read is refused in one line."""

import numpy as np
import pytest
import torch

from wildood.errors import InputError
from wildood.evaluate.intervals import resample
from wildood.evaluate.metrics import accuracy, all_metrics, auroc, fpr_at_tpr, rejection_rate, roc_curve
from wildood.evaluate.mixture import fpr_by_share, share_p_value, unknown_share
from wildood.evaluate.ranking import Candidate, rank_candidates
from wildood.evaluate.thresholds import conformal_threshold, p_values, thresholds_by_class

SCORES = torch.arange(40).remainder(7) / 4  # which bfloat16 holds exactly
RIGHT = np.ones(40, dtype=bool)
TENSORS = {
    "bfloat16": SCORES.bfloat16(),
    "float16": SCORES.half(),
    "with a gradient": SCORES.clone().requires_grad_(),
    "bfloat16 with a gradient": SCORES.bfloat16().requires_grad_(),
}
FUNCTIONS = {
    "all_metrics": lambda scores: all_metrics(scores, scores),
    "fpr_at_tpr": lambda scores: fpr_at_tpr(scores, scores),
    "auroc": lambda scores: auroc(scores, scores),
    "roc_curve": lambda scores: np.stack(roc_curve(scores, scores)).tolist(),
    "rejection_rate": lambda scores: rejection_rate(scores, 0.5),
    "unknown_share": lambda scores: unknown_share(scores, scores),
    "share_p_value": lambda scores: share_p_value(scores, scores, 0.1),
    "fpr_by_share": lambda scores: str(fpr_by_share(scores, scores, 0.5, [0.1, 1.0])),
    "conformal_threshold": lambda scores: conformal_threshold(scores, 0.1),
    "thresholds_by_class": lambda scores: thresholds_by_class(scores, np.zeros(40, int), 1, 0.1).tolist(),
    "p_values": lambda scores: p_values(scores, scores).tolist(),
    "resample": lambda scores: resample(scores, [scores], resamples=3).auroc.tolist(),
    "rank_candidates": lambda scores: rank_candidates([Candidate("a", scores, scores, RIGHT)]).places,
}
EVERY = pytest.mark.parametrize("name", FUNCTIONS)


@EVERY
@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.filterwarnings("error")
def test_tensors_of_every_kind_are_read_as_the_same_numbers(name, kind):
    assert FUNCTIONS[name](TENSORS[kind]) == FUNCTIONS[name](SCORES.double().numpy())


@EVERY
@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (["high"] * 40, "dtype <U4: give real numbers"),
        ({"scores": 1}, "dtype object: give real numbers"),
        (np.arange(40).astype("datetime64[s]"), "dtype datetime64"),
        (np.full(40, 1j), "dtype complex128: give real numbers"),
        ([[1.0], [1.0, 2.0]], "do not make rows of equal length"),
        (list(SCORES.clone().requires_grad_()), "cannot be read as an array: give a numpy array, or one dense tensor"),
        (SCORES.to_sparse(), "cannot be read as an array: give a numpy array, or one dense tensor"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused_in_one_line(name, scores, message):
    with pytest.raises(InputError, match=message) as refused:
        FUNCTIONS[name](scores)
    assert "\n" not in str(refused.value)


@pytest.mark.filterwarnings("error")
def test_thresholds_shares_and_classes_may_be_tensors_too():
    scores, threshold = SCORES.numpy(), torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True)
    assert rejection_rate(scores, threshold) == rejection_rate(scores, 0.5)
    shares = torch.tensor([0.5, 1.0], requires_grad=True)
    assert str(fpr_by_share(scores, scores, threshold, shares)) == str(fpr_by_share(scores, scores, 0.5, [0.5, 1.0]))
    assert accuracy(torch.tensor([0, 1]), torch.tensor([0.0, 2.0], requires_grad=True)) == 0.5
    assert len(thresholds_by_class(scores, torch.zeros(40, dtype=torch.long), 1, 0.1)) == 1
    assert rank_candidates([Candidate("a", scores, scores, torch.ones(40, dtype=torch.bool))]).places[0].accuracy == 1


@pytest.mark.parametrize("threshold", ["0.5", None, [0.5, 1.0], {"t": 1}])
def test_a_threshold_that_is_no_number_is_refused(threshold):
    with pytest.raises(InputError, match=f"the threshold is a {type(threshold).__name__}: give a number"):
        rejection_rate(SCORES.numpy(), threshold)
    with pytest.raises(InputError, match=f"the threshold is a {type(threshold).__name__}: give a number"):
        fpr_by_share(SCORES.numpy(), SCORES.numpy(), threshold, 0.1)


def test_of_many_shares_the_first_wrong_one_is_named_in_one_line():
    with pytest.raises(InputError, match=r"^share is 0: give values of pi above 0 and at most 1$"):
        fpr_by_share(SCORES.numpy(), SCORES.numpy(), 0.5, np.linspace(0, 1, 500))

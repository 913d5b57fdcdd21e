"""ODIN: its temperature and epsilon are chosen together, by wild data; it steps in any mode of torch."""

import numpy as np
import pytest
import torch
from torch import nn

import wildood
from wildood.models.classifier import Classifier


def chosen_by_wild(separable, score):
    return wildood.posthoc(separable.model, score, holdout=separable.holdout, wild=separable.wild)


def test_odin_tries_every_temperature_with_every_epsilon_and_keeps_the_pair_that_accepts_the_least_wild_data(separable):
    detector = chosen_by_wild(separable, wildood.Odin(temperature=None))
    tried = detector.record["chosen"]["tried"]
    grid = [(t, e) for t in (1.0, 10.0, 100.0, 1000.0) for e in wildood.Odin.grid["epsilon"]]
    assert [(row["temperature"], row["epsilon"]) for row in tried] == grid
    best = min(tried, key=lambda row: row["criterion"])
    assert detector.record["settings"] == {"temperature": best["temperature"], "epsilon": best["epsilon"]}
    assert (detector.scorer.temperature, detector.scorer.epsilon) == (best["temperature"], best["epsilon"])
    fixed = chosen_by_wild(separable, wildood.Odin(best["temperature"], best["epsilon"]))
    np.testing.assert_array_equal(detector.score(separable.ood), fixed.score(separable.ood))


@pytest.mark.parametrize("epsilon", [None, 0.0])
def test_odins_temperature_cannot_be_chosen_on_id_data_alone(separable, epsilon):
    with pytest.raises(wildood.InputError, match="Odin: temperature cannot be chosen on ID data alone"):
        wildood.posthoc(separable.model, wildood.Odin(None, epsilon), holdout=separable.holdout)


def test_a_temperature_that_nobody_chose_is_refused():
    with pytest.raises(wildood.InputError, match="temperature is None: give a number, or let `posthoc` choose it"):
        wildood.Odin(temperature=None, epsilon=0.1).of(Classifier(nn.Linear(6, 3)), torch.zeros(1, 6))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_odin_steps_whatever_mode_the_caller_is_in(separable, mode):
    detector = wildood.posthoc(separable.model, wildood.Odin(epsilon=0.1), holdout=separable.holdout)
    with mode():
        found = detector.score(separable.ood)
    np.testing.assert_array_equal(found, detector.score(separable.ood))

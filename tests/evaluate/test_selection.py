import numpy as np
import pytest

from wildood.evaluate.selection import Candidate, best_candidate, wild_acceptance


def test_wild_acceptance_is_the_mixture_of_tpr_and_fpr():
    rng = np.random.default_rng(0)
    is_ood = rng.random(200_000) < 0.3
    scores = np.where(is_ood, rng.normal(2, 1, 200_000), rng.normal(0, 1, 200_000))
    expected = 0.7 * np.mean(scores[~is_ood] <= 1) + 0.3 * np.mean(scores[is_ood] <= 1)
    assert wild_acceptance(scores, 1.0) == pytest.approx(expected, abs=0.002)


def test_a_clearly_smaller_acceptance_wins_over_a_later_epoch():
    candidates = [Candidate(0.9, 0.95), Candidate(0.9, 0.80), Candidate(0.9, 0.90)]
    assert best_candidate(candidates, id_examples=5000, wild_examples=5000) == 1


def test_among_epochs_that_cannot_be_told_apart_the_longest_trained_is_kept():
    candidates = [Candidate(0.9, 0.95), Candidate(0.9, 0.85), Candidate(0.9, 0.86), Candidate(0.9, 0.87)]
    assert best_candidate(candidates, id_examples=5000, wild_examples=2500) == 2  # two standard errors are 0.014
    assert best_candidate(candidates, id_examples=5000, wild_examples=40) == 3
    assert best_candidate(candidates, id_examples=5000, wild_examples=100_000) == 1


def test_an_epoch_that_lost_more_than_a_point_of_accuracy_is_never_kept():
    candidates = [Candidate(0.90, 0.95), Candidate(0.893, 0.85), Candidate(0.85, 0.50)]
    assert best_candidate(candidates, id_examples=5000, wild_examples=5000) == 1


def test_the_start_is_kept_when_every_epoch_lost_accuracy():
    candidates = [Candidate(1.0, 0.95), Candidate(0.9, 0.2), Candidate(0.8, 0.1)]
    assert best_candidate(candidates, id_examples=1000, wild_examples=1000) == 0


def test_one_more_row_either_becomes_the_best_or_leaves_it_as_it_is():
    """The loop stores only the best weights so far, so the best must never move back to an epoch in between."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        rows = [Candidate(rng.uniform(0.85, 0.9), rng.uniform(0.8, 0.95)) for _ in range(30)]
        kept = 0
        for count in range(2, 31):
            best = best_candidate(rows[:count], id_examples=200, wild_examples=200)
            assert best in {kept, count - 1}
            kept = best

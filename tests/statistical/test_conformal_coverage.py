"""The promised false-alarm rate holds over many draws of the holdout, and only if nothing was chosen on its scores."""

import numpy as np
import pytest

from wildood.evaluate.thresholds import conformal_threshold

DRAWS = 4000


def thresholds(holdouts, alpha):
    """One threshold per row of scores."""
    return np.array([conformal_threshold(holdout, alpha) for holdout in holdouts])


def mean_and_error(rates):
    """The marginal rate and its standard error over draws of the holdout."""
    return rates.mean(), rates.std(ddof=1) / np.sqrt(len(rates))


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("n", [19, 50, 200])
def test_promise_holds_and_is_tight_for_continuous_scores(n, alpha):
    # A fresh uniform score exceeds t with probability 1 - t: no fresh examples need to be drawn.
    rates = 1 - thresholds(np.random.default_rng(n).random((DRAWS, n)), alpha)
    rate, error = mean_and_error(rates)
    assert rate <= alpha + 3 * error
    assert rate >= alpha - 1 / (n + 1) - 3 * error


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("n", [19, 50, 200])
@pytest.mark.parametrize(
    "shares", [(0.5, 0.3, 0.2), (0.9, 0.06, 0.04), (0.25, 0.25, 0.25, 0.25), (0.6, 0.3, 0.05, 0.03, 0.02)]
)
def test_promise_holds_for_heavily_tied_scores(shares, n, alpha):
    holdouts = np.random.default_rng(n).choice(len(shares), size=(DRAWS, n), p=shares)
    above = 1 - np.cumsum(shares)  # P(score > level)
    rate, error = mean_and_error(above[thresholds(holdouts, alpha).astype(int)])
    assert rate <= alpha + 3 * error


def test_promise_holds_for_fresh_examples_whatever_the_distribution():
    rng = np.random.default_rng(0)
    scores = rng.standard_t(df=2, size=(DRAWS, 51))
    scores[:, rng.random(51) < 0.3] *= 10  # not identically distributed, so the fresh one is drawn among them
    scores = rng.permuted(scores, axis=1)
    alarms = scores[:, 50] > thresholds(scores[:, :50], alpha=0.1)
    rate, error = mean_and_error(alarms)
    assert rate <= 0.1 + 3 * error
    assert rate >= 0.1 - 1 / 51 - 3 * error


def test_choosing_a_score_on_the_holdout_breaks_the_promise_unless_half_is_kept_apart():
    """Twenty equally good score functions; the one whose threshold accepts least of the wild data is deployed.

    Lowest acceptance favours the candidate whose threshold came out too low by chance, and such a threshold rejects
    too many fresh ID examples as well.
    """
    draws, candidates, n, alpha = 1000, 20, 100, 0.1
    rng = np.random.default_rng(0)
    holdouts = rng.random((draws, candidates, n))  # uniform on ID: the false-alarm rate of a threshold t is 1 - t
    wild = rng.random((draws, candidates, 200))
    wild[..., :100] **= 0.25  # half of the wild examples are OOD, and score higher

    def least_wild_accepted(at):
        accepted = (wild <= at[..., None]).mean(axis=-1)
        return accepted.argmin(axis=1)

    def for_each_candidate(scores):
        return thresholds(scores.reshape(draws * candidates, -1), alpha).reshape(draws, candidates)

    every_draw = np.arange(draws)
    same = for_each_candidate(holdouts)
    rate, error = mean_and_error(1 - same[every_draw, least_wild_accepted(same)])
    assert rate - 3 * error > 1.2 * alpha

    choosing, calibrating = (for_each_candidate(half) for half in np.split(holdouts, 2, axis=-1))
    chosen = least_wild_accepted(choosing)
    rate, error = mean_and_error(1 - calibrating[every_draw, chosen])
    assert rate <= alpha + 3 * error
    assert rate >= alpha - 1 / (n // 2 + 1) - 3 * error
    # The split is what matters, not the choice: at the thresholds it was chosen by, the same candidate breaks it too.
    rate, error = mean_and_error(1 - choosing[every_draw, chosen])
    assert rate - 3 * error > 1.2 * alpha

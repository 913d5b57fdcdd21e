"""A holdout with the same share of each class keeps the promise, also where the scores of classes differ the most."""

import numpy as np
import pytest

from wildood.detect.estimator import stratified_sample
from wildood.evaluate.thresholds import conformal_threshold

ALPHA, EXAMPLES, HOLDOUT, DRAWS = 0.05, 500, 100, 10_000


def false_alarms(rng, rare, aside):
    """The false-alarm rate of a threshold on a holdout, if all scores of the rare class are above all others."""
    codes = (rng.random(EXAMPLES) < rare).astype(int)
    scores = rng.random(EXAMPLES) + codes
    threshold = conformal_threshold(scores[aside(codes)], ALPHA)
    return (1 - rare) * np.clip(1 - threshold, 0, 1) + rare * np.clip(2 - threshold, 0, 1)


def rounded_by_class(codes):
    """What is no random draw of the sizes: the share of each class, rounded to the nearest."""
    rare = round(HOLDOUT * codes.mean())
    return np.concatenate([np.flatnonzero(codes == 1)[:rare], np.flatnonzero(codes == 0)[: HOLDOUT - rare]])


@pytest.mark.parametrize("rare", [0.002, 0.004, 0.03, 0.043, 0.05, 0.057, 0.1, 0.5])
def test_the_promise_holds_whatever_the_share_of_a_class(rare):
    rng = np.random.default_rng(0)
    seeds = iter(range(DRAWS))
    rates = [false_alarms(rng, rare, lambda codes: stratified_sample(codes, HOLDOUT, next(seeds))) for _ in range(DRAWS)]
    error = np.std(rates) / np.sqrt(DRAWS)
    assert np.mean(rates) <= ALPHA + 3 * error
    assert np.mean(rates) >= ALPHA - 1 / (HOLDOUT + 1) - 3 * error


def test_shares_that_are_rounded_to_the_nearest_can_break_it():
    rng = np.random.default_rng(0)
    known_shares = np.repeat([0, 1], [478, 22])  # 4.4 % of the examples: 4 of 100
    rates = []
    for _ in range(DRAWS):
        scores = rng.random(EXAMPLES) + known_shares
        threshold = conformal_threshold(scores[rounded_by_class(known_shares)], ALPHA)
        rates.append(0.956 * np.clip(1 - threshold, 0, 1) + 0.044 * np.clip(2 - threshold, 0, 1))
    assert np.mean(rates) > ALPHA + 3 * np.std(rates) / np.sqrt(DRAWS)

"""The bound on the share of unknowns that are caught keeps its confidence: also after a simulated calibration."""

import numpy as np
import pytest
from scipy import stats

from wildood.evaluate.binomial import lower_limit
from wildood.evaluate.intervals import FEWEST_UNKNOWN, CaughtBound
from wildood.evaluate.thresholds import conformal_threshold
from wildood.habitat.judged import is_evidence

DRAWS = 4000
ROWS, SHARE = 3000, 0.1  # of traffic; of unknowns in it


@pytest.mark.parametrize("examples", [FEWEST_UNKNOWN, 25, 80, 300])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.8, 0.97])
def test_the_bound_exceeds_the_share_with_exactly_the_probability_on_paper(assert_at_most, assert_rate, examples, share):
    counts = np.random.default_rng(examples).binomial(examples, share, DRAWS)
    broken = [CaughtBound.of((int(count), examples)).least > share for count in counts]
    assert_at_most(broken, 0.05)
    first = next(count for count in range(examples + 2) if count > examples or lower_limit(count, examples, 0.05) > share)
    assert_rate(broken, stats.binom.sf(first - 1, examples, share))


def simulated_draw(rng, judged_by_score):
    """Whether the bound exceeds the share that the champion catches, after a comparison and a calibration: all simulated.

    Scores are Gaussian. Two detectors are equally good, and the one that accepts less of the traffic without evidence
    becomes the champion. The threshold is set by known evidence. Judged are all unknown ones of the evidence, or as many
    with the highest scores.
    """
    unknown = rng.random(ROWS) < SHARE
    scores = rng.normal(size=(2, ROWS)) + 2.0 * unknown
    evidence = is_evidence(rng.integers(10**9) + np.arange(ROWS))
    first = [conformal_threshold(each[evidence & ~unknown], 0.05) for each in scores]
    champion = int(np.argmin([np.mean(each[~evidence] <= one) for each, one in zip(scores, first, strict=True)]))
    own, threshold = scores[champion], first[champion]
    judged = own[evidence & unknown]
    if judged_by_score:
        judged = np.sort(own[unknown])[-len(judged) :]
    bound = CaughtBound.of(judged > threshold)
    return bound.least is not None and bound.least > stats.norm.sf(threshold - 2.0)


@pytest.mark.slow
def test_the_bound_holds_after_a_simulated_comparison_and_calibration(assert_at_most):
    rng = np.random.default_rng(0)
    assert_at_most([simulated_draw(rng, judged_by_score=False) for _ in range(2000)], 0.05)


def test_examples_that_are_chosen_by_their_scores_break_the_bound():
    """What the random sample is for."""
    rng = np.random.default_rng(1)
    assert np.mean([simulated_draw(rng, judged_by_score=True) for _ in range(100)]) > 0.8

"""A challenger that is no better is seldom shown to be, however often it is compared while traffic goes on."""

import numpy as np
import pytest

from wildood.evaluate.selection import compare_acceptance

pytestmark = pytest.mark.slow
LOOKS = (300, 450, 675, 1000, 1500)  # later rows


def shown(rng, *, gain):
    """Whether one of the looks shows it. Both detectors see the same examples, each with an error of its own."""
    id_count, most = 200, LOOKS[-1]
    unknown = rng.random(most) < 0.1
    base = [rng.normal(size=id_count), rng.normal(size=most) + 1.5 * unknown]
    champion, challenger = ([each + 0.5 * rng.normal(size=len(each)) for each in base] for _ in range(2))
    challenger[1] += gain * unknown
    for look, rows in enumerate(LOOKS, 1):
        start, trained = ((known, wild[:rows]) for known, wild in (champion, challenger))
        if compare_acceptance(start, trained, alpha=0.05).is_shown(0.95, candidates=look * (look + 1)):
            return True
    return False


def test_equal_detectors_are_seldom_promoted(assert_at_most):
    rng = np.random.default_rng(0)
    assert_at_most([shown(rng, gain=0.0) for _ in range(600)], 0.05)


def test_a_better_one_is_promoted():
    rng = np.random.default_rng(1)
    assert np.mean([shown(rng, gain=3.0) for _ in range(60)]) > 0.85

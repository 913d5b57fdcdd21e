"""When a count over many draws is a surprise: one place decides it for all tests of a stated probability."""

import numpy as np
import pytest
from scipy import stats

SURPRISE = 1e-3  # the probability of what is called one; seeds are fixed, so that a test that passes goes on passing


def _at_most(events, rate):
    count, draws = int(np.sum(events)), len(events)
    assert stats.binom.sf(count - 1, draws, rate) > SURPRISE, f"{count} of {draws}, more than {rate} allows"


def _exactly(events, rate):
    _at_most(events, rate)
    count, draws = int(np.sum(events)), len(events)
    assert stats.binom.cdf(count, draws, rate) > SURPRISE, f"{count} of {draws}, fewer than {rate} makes"


@pytest.fixture(scope="session")
def assert_at_most():
    """So many events are no surprise if each has at most this probability."""
    return _at_most


@pytest.fixture(scope="session")
def assert_rate():
    """So many events are no surprise, and so few neither, if each has this probability."""
    return _exactly

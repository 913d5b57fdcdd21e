"""A year of daily looks at a habitat's traffic, simulated: how often known traffic alarms, and how soon unknowns are found.

Scores are N(0, 1) for known and N(3, 1) for unknown traffic, and every year draws a holdout of its own. "naive" asks every
day whether the day's p-value of `unknown_share` is at most 5 %.

    python benchmarks/habitat_looks.py                 # about six minutes
"""

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from wildood.evaluate.mixture import share_p_value
from wildood.habitat.sequential import SequentialTest, log_evidence

SHIFT = 3.0
Floats = npt.NDArray[np.float64]


def draw_counts(
    rng: np.random.Generator, test: SequentialTest, n: int, rows: int, shares: Floats, years: int, shift: float = SHIFT
) -> Floats:
    """The rows above each threshold, (looks, years, thresholds), for the share of unknowns of each look.

    A holdout is drawn by its order statistics, which are uniform for the share of known data below them.
    """
    above = np.asarray(test.thresholds)  # `test` is that of the scores 0, ..., n - 1: a threshold is its own rank
    below = np.sort(rng.random((years, n)), axis=1)[:, above.astype(int)]
    of_unknown = norm.sf(norm.ppf(below) - shift)
    counts = np.empty((len(shares), years, len(above)))
    for look, share in enumerate(shares):
        exceeding = (1 - share) * (1 - below) + share * of_unknown
        edges = np.concatenate([np.ones((years, 1)), exceeding, np.zeros((years, 1))], axis=1)
        cells = np.maximum(edges[:, :-1] - edges[:, 1:], 0.0)
        drawn = rng.multinomial(rows, cells / cells.sum(1, keepdims=True))
        counts[look] = np.cumsum(drawn[:, ::-1], axis=1)[:, ::-1][:, 1:]
    return counts


def simulate(n: int, rows: int, shares: Floats, years: int, error: float = 0.05, seed: int = 0) -> npt.NDArray[Any]:
    """The look that found unknowns in each year, from 0; -1 where none did."""
    test = SequentialTest.of(np.arange(n), error)
    counts = draw_counts(np.random.default_rng(seed), test, n, rows, shares, years)
    found = log_evidence(counts, np.full(len(shares), float(rows)), test.limits) >= np.log(2 / error)
    return np.where(found.any(0), found.argmax(0), -1)


def naive(n: int, rows: int, looks: int, years: int, seed: int = 0) -> float:
    """The share of years without unknowns in which some daily p-value is at most 5 %."""
    rng, alarms = np.random.default_rng(seed), 0
    for _ in range(years):
        holdout = rng.normal(size=n)
        alarms += any(share_p_value(holdout, rng.normal(size=rows)) <= 0.05 for _ in range(looks))
    return alarms / years


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--years", type=int, default=2000)
    parser.add_argument("--naive-years", type=int, default=40)
    options = parser.parse_args()
    print("holdout  rows/day  years that alarm without unknowns (naive daily test)")
    for n in (200, 1000, 4000):
        for rows in (50, 500):
            rate = np.mean(simulate(n, rows, np.zeros(365), options.years) >= 0)
            print(f"{n:7} {rows:9}  {100 * rate:.2f} % ({100 * naive(n, rows, 365, options.naive_years):.0f} %)", flush=True)
    print("holdout  rows/day  unknowns from day 100 on  found within the year  median day of the finding")
    for n in (200, 1000, 4000):
        for rows in (50, 500):
            for share in (0.01, 0.05):
                shares = np.where(np.arange(365) < 100, 0.0, share)
                days = simulate(n, rows, shares, options.years // 4) - 99.0
                days = np.where(days < 1, np.inf, days)
                line = f"{n:7} {rows:9}  {100 * share:22.0f} %  {100 * np.mean(np.isfinite(days)):18.0f} %"
                print(f"{line}  {np.median(days):.0f}", flush=True)


if __name__ == "__main__":
    main()

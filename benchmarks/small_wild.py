"""How often little wild data shows that training helped: with half of it set aside, and if all of it could be.

Run: python benchmarks/small_wild.py [--draws 200]

Simulated scores. Known ones are normal before and after training, with a correlation of 0.7. Unknown ones lie 1.5 above them
before training and 3 after it. "All" is the most that cross-fitting could reach: a detector that one half has trained scores
the other half.
"""

import argparse

import numpy as np

from wildood.detect.assessment import training_helped
from wildood.evaluate.metrics import Floats
from wildood.evaluate.mixture import share_p_value
from wildood.evaluate.selection import Comparison, compare_acceptance

ALPHA, BEFORE, AFTER, CORRELATION = 0.05, 1.5, 3.0, 0.7


def draw(count: int, share: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """The scores of so many examples before and after training, of which a share is unknown."""
    unknown = rng.random(count) < share
    first, second = rng.normal(size=(2, count))
    after = CORRELATION * first + np.sqrt(1 - CORRELATION**2) * second
    return first + BEFORE * unknown, after + AFTER * unknown


def comparison(aside: int, holdout: int, share: float, rng: np.random.Generator) -> Comparison:
    """What `fit` finds on so many wild and ID examples."""
    known, wild = draw(holdout, 0.0, rng), draw(aside, share, rng)
    found = compare_acceptance((known[0], wild[0]), (known[1], wild[1]), ALPHA)
    unknown = share_p_value(known[1], wild[1])
    return Comparison(found.start, found.trained, found.error, found.wild, found.tail, unknown)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200)
    draws = parser.parse_args().draws
    rng = np.random.default_rng(0)
    print("| holdout that chooses | pi | wild | shown, half aside | shown, all | share of wild data in the squared error |")
    print("|---|---|---|---|---|---|")
    for holdout in (100, 500):
        for share in (0.1, 0.3):
            for wild in (100, 200, 500):
                half, whole = ([comparison(aside, holdout, share, rng) for _ in range(draws)] for aside in (wild // 2, wild))
                shown = [100 * np.mean([training_helped(each) for each in several]) for several in (half, whole)]
                # With a very large holdout, only the wild data is left in the error.
                of_wild = np.mean([comparison(wild // 2, 20_000, share, rng).error ** 2 for _ in range(draws // 4)])
                part = of_wild / np.mean([each.error**2 for each in half])
                print(
                    f"| {holdout} | {share} | {wild} | {shown[0]:.0f} % | {shown[1]:.0f} % | {100 * part:.0f} % |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

"""The demo's comparison on digits, on the validation part unless told otherwise. Run: python benchmarks/digits.py."""

import argparse
import time
from functools import partial

from wildood.experiments.comparison import outcomes, summary
from wildood.experiments.digits import digits
from wildood.experiments.pool import using_threads


def main() -> None:
    """Mean and standard error over seeds, one line for each method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--seeds", type=int, nargs="+", default=None)
    arguments = parser.parse_args()
    seeds = arguments.seeds or list(range(5) if arguments.part == "test" else range(100, 108))
    began = time.perf_counter()
    results = []
    with using_threads(1):
        for outcome in outcomes(seeds, partial(digits, part=arguments.part)):
            results.append((outcome.method, outcome.metrics))
            if outcome.detector.history:
                epochs = len(outcome.detector.history) - 1
                print(outcome.seed, outcome.method, "kept", outcome.detector.record["kept_epoch"], "of", epochs)
    print(f"digits, {arguments.part} part, seeds {seeds}, {time.perf_counter() - began:.0f} s; mean ± standard error, %")
    for method, metrics in summary(results).items():
        columns = [f"{name} {100 * mean:6.2f} ± {100 * error:.2f}" for name, (mean, error) in metrics.items()]
        print(f"{method:12s}", "   ".join(columns))


if __name__ == "__main__":
    main()

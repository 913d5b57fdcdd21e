"""The demo's runs on digits, on the validation part unless told otherwise. Run: python benchmarks/digits.py."""

import argparse
import tempfile
import time
from pathlib import Path

from wildood.experiments.grids import demo_grid
from wildood.experiments.pool import using_threads
from wildood.experiments.run import perform
from wildood.experiments.split import digits_split
from wildood.experiments.tables import demo_summary


def main() -> None:
    """Mean and standard error over seeds, one line for each method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--seeds", type=int, nargs="+", default=None)
    arguments = parser.parse_args()
    seeds = arguments.seeds or list(range(5) if arguments.part == "test" else range(100, 108))
    began = time.perf_counter()
    results = []
    with using_threads(1), tempfile.TemporaryDirectory() as runs:
        for experiment in (each for seed in seeds for each in demo_grid(seed)):
            outcome = perform(experiment, Path(runs), split=digits_split(experiment.seed, arguments.part))
            results.append(outcome.result)
            if outcome.detector.history:
                epochs = len(outcome.detector.history) - 1
                print(experiment.seed, experiment.method, "kept", outcome.detector.record["kept_epoch"], "of", epochs)
    print(f"digits, {arguments.part} part, seeds {seeds}, {time.perf_counter() - began:.0f} s; mean ± standard error, %")
    for method, metrics in demo_summary(results).items():
        columns = [f"{name} {100 * mean:6.2f} ± {100 * error:.2f}" for name, (mean, error) in metrics.items()]
        print(f"{method:12s}", "   ".join(columns))


if __name__ == "__main__":
    main()

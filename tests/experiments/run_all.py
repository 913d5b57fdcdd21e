"""Run experiments on two workers: python run_all.py RUNS ROOT EXPERIMENT.toml ... For tests that kill the process."""

import signal
import sys
from pathlib import Path

from wildood.experiments.experiment import Experiment
from wildood.experiments.pool import run_all
from wildood.experiments.store import RunStore

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background inherit that it is ignored
    runs, root, *files = sys.argv[1:]
    experiments = [Experiment.from_toml(Path(file).read_text()) for file in files]
    run_all(experiments, RunStore(Path(runs)), root, workers=2, on_end=lambda ended: None)

"""A network-intrusion classifier learns to say "unknown" to attacks that it has never seen (the NSL-KDD tables).

Ten types of connections are known. 22,544 connections of a later day hold others, too: a part of that day is the traffic.
*Same day*: labelled data is of that day as well. *Next day*: it is of the day before, so that known data has drifted.

    pip install pandas
    python examples/nsl_kdd.py --data-root ../shared/data --seed 0

DATA_ROOT holds `nsl_kdd_train20.csv.gz` and `nsl_kdd_test.csv.gz`, as published (Tavallaee et al. 2009), without a header.
"""

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

import wildood
from wildood.evaluate.metrics import fpr_at_tpr, rejection_rate
from wildood.models.small import MLP

COLUMNS = """
duration protocol_type service flag src_bytes dst_bytes land wrong_fragment urgent hot num_failed_logins logged_in
num_compromised root_shell su_attempted num_root num_file_creations num_shells num_access_files num_outbound_cmds
is_host_login is_guest_login count srv_count serror_rate srv_serror_rate rerror_rate srv_rerror_rate same_srv_rate
diff_srv_rate srv_diff_host_rate dst_host_count dst_host_srv_count dst_host_same_srv_rate dst_host_diff_srv_rate
dst_host_same_src_port_rate dst_host_srv_diff_host_rate dst_host_serror_rate dst_host_srv_serror_rate
dst_host_rerror_rate dst_host_srv_rerror_rate type difficulty
"""
KNOWN = 100  # rows of a type in the training file, at least, that make it known


class Parts(NamedTuple):
    """What `fit` is given, and what nothing has seen."""

    labelled: Any
    wild: Any
    holdout: Any
    test: Any
    unknown: Any


def split(before: Any, day: Any, seed: int, *, same_day: bool) -> Parts:
    """The parts that the seed draws of the known and the unknown rows of a day."""
    counts = before["type"].value_counts()
    known_types = counts.index[counts >= KNOWN]
    day = day.sample(frac=1, random_state=seed)
    is_known = day["type"].isin(known_types)
    known, unknown = day[is_known], day[~is_known]
    sizes = (7000, 1500, 4000, 800) if same_day else (0, 2000, 6000, 1500)
    labelled, holdout, known_traffic, test = np.split(range(len(known)), np.cumsum(sizes[:3]))
    traffic = pd.concat([known.iloc[known_traffic], unknown.iloc[: sizes[3]]])
    rows = known.iloc[labelled] if same_day else before[before["type"].isin(known_types)]
    return Parts(rows, traffic, known.iloc[holdout], known.iloc[test], unknown.iloc[sizes[3] :])


def report(name: str, detector: wildood.Detector, parts: Parts, spec: wildood.TableSpec) -> None:
    """One line of what a detector does on test data."""
    scores, classes = detector.score_and_classify(parts.test)
    unknown = detector.score(parts.unknown)
    right = float((classes == spec.labels(parts.test)).mean())
    caught, alarms = (rejection_rate(each, detector.threshold) for each in (unknown, scores))
    print(f"  {name:8}{100 * fpr_at_tpr(scores, unknown):6.1f}{100 * caught:9.1f}{100 * alarms:15.1f}{100 * right:11.1f}")


def main() -> None:
    """Both problems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    files = [options.data_root / f"nsl_kdd_{name}.csv.gz" for name in ("train20", "test")]
    before, day = (pd.read_csv(file, names=COLUMNS.split()) for file in files)
    for name, same_day in (("same day", True), ("next day", False)):
        parts = split(before, day, options.seed, same_day=same_day)
        spec = wildood.TableSpec.fit(parts.labelled, label="type", ignore=["difficulty"])
        torch.manual_seed(options.seed)
        start = MLP(spec.width, len(spec.classes), hidden=(256, 128))
        schedule = wildood.Schedule.pretraining(epochs=20, augment=False)
        settings = {"input": spec, "seed": options.seed, "verbose": False}
        model = wildood.pretrain(start, parts.labelled, schedule=schedule, **settings)
        energy = wildood.posthoc(model, wildood.EnergyScore(), holdout=parts.holdout, input=spec)
        started = time.perf_counter()
        detector = wildood.fit(model, parts.labelled, parts.wild, parts.holdout, **settings)
        seconds = time.perf_counter() - started
        print(f"{name}: {len(parts.labelled)} labelled rows, {spec.width} inputs; fit took {seconds:.0f} s")
        print("  %        FPR95   caught   false alarms   accuracy")
        report("energy", energy, parts, spec)
        report("fit", detector, parts, spec)


if __name__ == "__main__":
    main()

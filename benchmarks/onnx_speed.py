"""Answers of an exported ONNX file under ONNX Runtime beside those of the detector, by turns in one run.

Run: OMP_WAIT_POLICY=passive python benchmarks/onnx_speed.py --threads 2
(passive: torch's threads sleep while they wait, as those of ONNX Runtime are told to here)
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime  # type: ignore[import-untyped]
import torch
from cifar10 import SPEC

import wildood
from wildood.models.resnet import ResNet20
from wildood.models.small import MLP

ROUNDS = 7
SECONDS = 0.2  # at least, of each measurement
BATCHES = (1, 32, 512)
BANK = 10_000  # neighbours
NAMES = ["class", "score", "known", "p_value"]
Examples = npt.NDArray[Any]


def detectors() -> Iterator[tuple[str, wildood.Detector, Examples]]:
    """Names, detectors and examples. Weights are random: speed does not depend on them."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (BANK, 32, 32, 3), dtype=np.uint8)
    rows = rng.normal(size=(BANK, 64)).astype("float32")
    resnet, mlp = ResNet20(), MLP(64, 10)
    holdout: dict[str, Any] = {"holdout": images[:500], "input": SPEC}
    labels = rng.integers(0, 10, BANK)
    yield "ResNet-20, pixels, energy", wildood.posthoc(resnet, wildood.EnergyScore(), **holdout), images
    knn = wildood.posthoc(resnet, wildood.Knn(k=50), labelled=(images[500:], labels[500:]), **holdout)
    yield f"ResNet-20, pixels, KNN among {BANK - 500:,}", knn, images
    yield "MLP, 64 features, energy", wildood.posthoc(mlp, wildood.EnergyScore(), holdout=rows[:500]), rows
    knn = wildood.posthoc(mlp, wildood.Knn(k=50), labelled=(rows[500:], labels[500:]), holdout=rows[:500])
    yield f"MLP, 64 features, KNN among {BANK - 500:,}", knn, rows


def session_of(path: Path, threads: int) -> Any:
    """The file under ONNX Runtime on as many threads, which sleep while the other side works."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def seconds(task: Callable[[], object]) -> float:
    """Of one call, the mean over as many as take some time."""
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        task()
        calls += 1
    return (time.perf_counter() - began) / calls


def main() -> None:
    """A table: for each detector and batch, milliseconds of both and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    threads: int = parser.parse_args().threads
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    print("| detector | batch | `predict`, ms, fastest round | ONNX Runtime | ONNX / `predict`, median (range) |")
    print("|---|---:|---:|---:|---:|")
    with TemporaryDirectory() as place:
        for name, detector, examples in detectors():
            session = session_of(detector.export(Path(place) / "model.onnx", examples=examples[:64]), threads)
            for size in BATCHES:
                batch = examples[:size]
                classes = session.run(NAMES, {"x": batch})[0]
                agree = float(np.mean(classes == detector.predict(batch)))
                if agree < 0.99:
                    raise SystemExit(f"{name}: the file agrees on {agree:.3f} of {size}")
                found = [
                    (seconds(lambda: detector.predict(batch)), seconds(lambda: session.run(NAMES, {"x": batch})))  # noqa: B023
                    for _ in range(ROUNDS)
                ]
                ours, theirs = 1000 * np.min(found, axis=0)
                ratios = [other / own for own, other in found]
                low, high = min(ratios), max(ratios)
                print(
                    f"| {name} | {size} | {ours:.3g} | {theirs:.3g} | {np.median(ratios):.2f} ({low:.2f} to {high:.2f}) |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

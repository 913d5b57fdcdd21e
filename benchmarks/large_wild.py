"""Wild data four times larger than the memory a process may have: what memory training takes, and whether it waits.

Each case is a process of its own with RLIMIT_DATA; it trains a ResNet-20 with `Woods()` on a memory-mapped wild source, by
turns with batches from the source and with one batch that stays in memory.

Run: python benchmarks/large_wild.py --place /tmp/large-wild
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

from wildood import InputSpec, Woods
from wildood.data.folders import open_images
from wildood.data.validation import labelled_source
from wildood.data.wild import WildPool
from wildood.methods.objective import Batch
from wildood.methods.schedule import Schedule
from wildood.models.classifier import copy_classifier
from wildood.models.resnet import ResNet20
from wildood.train.distributed import OneProcess
from wildood.train.loop import Training
from wildood.train.monitor import measure_start

ALLOWED = 1200 * 1024 * 1024  # bytes of private memory
IMAGE = (32, 32, 3)
BLOCKS, STEPS = 12, 5  # of each kind, by turns


def write_source(path: Path, count: int) -> None:
    """Random images as one `.npy` file, written block by block."""
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (count, *IMAGE))
    rng = np.random.default_rng(0)
    for start in range(0, count, 50_000):
        array[start : start + 50_000] = rng.integers(0, 256, array[start : start + 50_000].shape, dtype=np.uint8)
    array.flush()


def private_memory() -> int:
    """RssAnon in bytes: what the process holds for itself; pages of mapped files are not in it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])


class _Resident:
    """The same batch again and again."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def draw(self) -> Batch:
        return self.batch


def train(path: Path) -> None:
    """In the process with little memory: train by turns on the source and on one batch, and print what it took."""
    resource.setrlimit(resource.RLIMIT_DATA, (ALLOWED, ALLOWED))
    rng = np.random.default_rng(1)
    known = labelled_source((rng.integers(0, 256, (2_000, *IMAGE), dtype=np.uint8), rng.integers(0, 10, 2_000)), "labelled")
    spec = InputSpec(mean=(0.5,) * 3, std=(0.25,) * 3)
    classifier, _ = copy_classifier(ResNet20(), known, spec, None, uses_features=False)
    objective = Woods().objective(classifier, measure_start(classifier, known, seed=0))
    wild, _ = WildPool(open_images(path)).set_aside(0.1, seed=0)
    training = Training(objective, known, wild, Schedule(steps=10_000), seed=0)
    training.strategy = OneProcess(objective)
    resident = training.batches.draw()
    seconds: dict[str, list[float]] = {"source": [], "resident": []}
    with training.batches as from_source, path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # from the disk, not from what was just written
        for block in range(BLOCKS):
            for kind, batches in (("source", from_source), ("resident", _Resident(resident))):
                training.batches = batches  # type: ignore[assignment]
                began = time.perf_counter()
                for _ in range(STEPS):
                    training.step()
                if block:  # the first is for warming up
                    seconds[kind].append(time.perf_counter() - began)
    ratio = median(resident / source for source, resident in zip(seconds["source"], seconds["resident"], strict=True))
    print(json.dumps({"private": private_memory(), "ratio": ratio, "images": len(wild.pools[0])}))


def main() -> None:
    """Both cases, side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", type=Path, required=True, help="a directory with 5 GB to spare")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train)
        return
    arguments.place.mkdir(parents=True)
    try:
        found = {}
        for name, size in (("small", ALLOWED // 100), ("large", 4 * ALLOWED)):
            path = arguments.place / f"{name}.npy"
            write_source(path, size // int(np.prod(IMAGE)))
            command = [sys.executable, __file__, "--place", str(arguments.place), "--train", str(path)]
            found[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: S603
            print(
                f"{name}: {path.stat().st_size / 1e9:.2f} GB, of which {found[name]['images']} images train; private memory "
                f"{found[name]['private'] / 1e6:.0f} MB; speed over that of one batch in memory: {found[name]['ratio']:.3f}"
            )
        grown = (found["large"]["private"] - found["small"]["private"]) / 1e6
        print(f"private memory grows by {grown:.0f} MB; allowed were {ALLOWED / 1e6:.0f} MB")
    finally:
        shutil.rmtree(arguments.place)


if __name__ == "__main__":
    main()

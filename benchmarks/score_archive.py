"""`wildood score` over a small archive and a large one: the memory it takes, and how much of its time is the model's.

Each case of memory is a process of its own, which prints the peak of its resident memory. The speed is that of the whole
command, over that of the bare model on the same examples in memory, by turns.

Run: python benchmarks/score_archive.py --place /tmp/score-archive
"""

import argparse
import shutil
import subprocess
import sys
import time
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

import wildood
from wildood import EnergyScore, InputSpec
from wildood.cli.main import main as wildood_main
from wildood.data.sources import ArraySource
from wildood.models.classifier import evaluating, forward_all
from wildood.models.resnet import ResNet20
from wildood.models.small import SmallCNN

ONE = 4096  # examples: a whole shard
TIMES = {"array": 100, "pictures": 10}
SIDE = 16
ROUNDS = 5
SPEC = InputSpec(mean=(0.5,) * 3, std=(0.25,) * 3)


def write_examples(place: Path, kind: str, count: int) -> Path:
    """Random images as an .npy file, written block by block, or as a folder of PNG files."""
    rng, path = np.random.default_rng(0), place / f"{kind}-{count}"
    if kind == "array":
        path = path.with_suffix(".npy")
        array = np.lib.format.open_memmap(path, "w+", np.uint8, (count, SIDE, SIDE, 3))
        for start in range(0, count, ONE):
            array[start : start + ONE] = rng.integers(0, 256, array[start : start + ONE].shape, dtype=np.uint8)
        array.flush()
        return path
    for number in range(count):
        (path / str(number // 1000)).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path / str(number // 1000) / f"{number}.png")
    return path


def peak_memory(detector: Path, examples: Path) -> int:
    """The peak of the resident memory of a process that scores, in bytes; mapped files are in it."""
    command = [sys.executable, __file__, "--place", str(detector), "--score", str(examples)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: S603


def score(detector: Path, examples: Path) -> None:
    """What `wildood score` does, quietly."""
    with redirect_stderr(StringIO()):
        code = wildood_main(["score", str(detector), str(examples), "--out", f"{detector}-answers.csv"])
    if code:
        raise SystemExit(code)


def relative_speed(place: Path) -> list[float]:
    """Examples per second of the command over those of the bare model, in each round."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2048, 32, 32, 3), dtype=np.uint8)
    np.save(place / "x.npy", x)
    detector = wildood.posthoc(ResNet20(), EnergyScore(), holdout=x[:200], input=SPEC)
    detector.save(place / "resnet20")
    ratios = []
    for number in range(ROUNDS + 1):
        began = time.perf_counter()
        with evaluating(detector.classifier):
            for _ in forward_all(detector.classifier, ArraySource(x)):
                pass
        bare = time.perf_counter() - began
        began = time.perf_counter()
        score(place / "resnet20", place / "x.npy")
        if number:  # the first is for warming up
            ratios.append(bare / (time.perf_counter() - began))
    return ratios


def main() -> None:
    """Memory of both kinds, then speed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", type=Path, required=True, help="a new directory, with 0.5 GB to spare")
    parser.add_argument("--score", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.score:
        score(arguments.place, arguments.score)
        status = Path("/proc/self/status").read_text().splitlines()  # getrusage would begin with the parent's peak
        print(1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1]))
        return
    arguments.place.mkdir(parents=True)
    try:
        model = SmallCNN(channels=3, classes=10, size=SIDE, width=8, hidden=32)
        known = np.random.default_rng(1).integers(0, 256, (200, SIDE, SIDE, 3), dtype=np.uint8)
        detector = wildood.posthoc(model, EnergyScore(), holdout=known, input=SPEC).save(arguments.place / "small")
        for kind, times in TIMES.items():
            peaks = [peak_memory(detector, write_examples(arguments.place, kind, ONE * n)) for n in (1, times)]
            said = " and ".join(f"{peak / 1e6:.0f} MB" for peak in peaks)
            print(f"{kind}: peak memory for {ONE} and {ONE * times} examples: {said}; ratio {peaks[1] / peaks[0]:.3f}")
        ratios = relative_speed(arguments.place)
        print(
            f"ResNet-20: examples/s of score over those of the bare model: {median(ratios):.2f} ({min(ratios):.2f} to "
            f"{max(ratios):.2f})"
        )
    finally:
        shutil.rmtree(arguments.place)


if __name__ == "__main__":
    main()

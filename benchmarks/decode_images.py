"""What decoding a folder of pictures into the cache costs beside Pillow alone, side by side in one run.

Run: python benchmarks/decode_images.py
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from wildood.data.folders import open_images

COUNT, SIZE, ROUNDS = 1000, 64, 5
THREADS = os.cpu_count() or 1


def make_pictures(folder: Path) -> list[Path]:
    """Smooth pictures of about 256 x 256 pixels, in ten classes."""
    rng = np.random.default_rng(0)
    paths = []
    for number in range(COUNT):
        small = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        width, height = (int(side) for side in rng.integers(192, 321, 2))
        paths.append(folder / f"class{number % 10}" / f"{number}.jpg")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        small.resize((width, height), Image.Resampling.BICUBIC).save(paths[-1], quality=90)
    return paths


def bare(paths: list[Path]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Open, load, convert, resize and crop into an array, and nothing else."""
    array = np.empty((len(paths), SIZE, SIZE, 3), np.uint8)

    def decode(place: int) -> None:
        with Image.open(paths[place]) as image:
            picture = image.convert("RGB")
        shorter = min(picture.size)
        width, height = (SIZE * side // shorter for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        left, top = round((width - SIZE) / 2), round((height - SIZE) / 2)
        array[place] = np.asarray(picture.crop((left, top, left + SIZE, top + SIZE)))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(decode, range(len(paths))))
    return array


def seconds(task: Callable[[], object]) -> float:
    """How long a task takes."""
    began = time.perf_counter()
    task()
    return time.perf_counter() - began


def main() -> None:
    """Alternate between the two, then open what is decoded once more."""
    with tempfile.TemporaryDirectory() as place:
        folder, cache = Path(place) / "pictures", Path(place) / "cache"
        paths = make_pictures(folder)
        order = sorted(paths, key=lambda path: path.parts)

        def ours() -> None:
            open_images(folder, SIZE, cache=cache, workers=THREADS)

        ratios = []
        for _ in range(ROUNDS):
            shutil.rmtree(cache, ignore_errors=True)
            alone, built = seconds(lambda: bare(order)), seconds(ours)
            ratios.append(alone / built)
            print(f"Pillow alone {COUNT / alone:6.0f} images/s, open_images {COUNT / built:6.0f} images/s", flush=True)
        same = np.array_equal(bare(order), open_images(folder, SIZE, cache=cache).examples)
        low, median, high = np.quantile(ratios, [0.1, 0.5, 0.9])
        print(f"{COUNT} pictures, {THREADS} threads, the same pixels: {same}")
        print(f"speed of open_images over that of Pillow alone: {median:.3f}  ({low:.3f} to {high:.3f}, goal 0.9)")
        print(f"opened again: {seconds(ours) * 1000:.0f} ms")


if __name__ == "__main__":
    main()

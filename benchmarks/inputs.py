"""What an input costs `fit`: the same examples as arrays, as a dict, and as datasets whose items take 2 ms to read.

Run: python benchmarks/inputs.py [--examples 5000] [--steps 400] [--rounds 3] [--only dict dataset]

In each round, every input is fitted once beside the arrays, so that whatever else the machine does slows all.
"""

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import wildood
from wildood.models.small import MLP

FEATURES, CLASSES, SLOW = 128, 10, 0.002
Parts = tuple[tuple[np.ndarray, np.ndarray], np.ndarray, tuple[np.ndarray, np.ndarray]]  # labelled, wild, holdout


class Named(nn.Module):
    """The same network, called with names."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.network(pixels)
        return logits


class Slow(Dataset[Any]):
    """Items that take a while to read, as a file on a network or a decoder does; with noise, they differ each time."""

    def __init__(self, x: np.ndarray, y: np.ndarray | None = None, noise: float = 0.0) -> None:
        self.x, self.y, self.noise = x, y, noise
        self.reads = 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        time.sleep(SLOW)
        self.reads += 1
        x = torch.from_numpy(self.x[index])
        x = x + self.noise * torch.randn(x.shape) if self.noise else x
        return x if self.y is None else (x, int(self.y[index]))


def examples(count: int) -> Parts:
    """Normal features in ten classes; a tenth of the wild ones is of none."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, FEATURES)).astype(np.float32)

    def known(number: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, CLASSES, number)
        return centres[y] + rng.normal(size=(number, FEATURES)).astype(np.float32), y

    unknown = 3 * rng.normal(size=(count // 10, FEATURES)).astype(np.float32)
    return known(count), np.concatenate([known(count - len(unknown))[0], unknown]), known(count // 5)


def slow(parts: Parts, workers: int = 0, noise: float = 0.0) -> tuple[Any, Any, Any]:
    """All three as datasets of slow items, or loaders of them."""
    (x, y), wild, (x_holdout, y_holdout) = parts
    datasets = Slow(x, y, noise), Slow(wild, None, noise), Slow(x_holdout, y_holdout)
    if not workers:
        return datasets
    labelled, traffic, holdout = (DataLoader(each, num_workers=workers) for each in datasets)
    return labelled, traffic, holdout


def as_dict(parts: Parts) -> tuple[Any, Any, Any]:
    """The same arrays under a name."""
    (x, y), wild, (x_holdout, y_holdout) = parts
    return ({"pixels": x}, y), {"pixels": wild}, ({"pixels": x_holdout}, y_holdout)


INPUTS: dict[str, Callable[[Parts], tuple[Any, Any, Any]]] = {
    "arrays": lambda parts: parts,
    "dict": as_dict,
    "dataset": slow,
    "loader": lambda parts: slow(parts, workers=2),
    "noise": lambda parts: slow(parts, noise=0.1),
    "noise-loader": lambda parts: slow(parts, workers=2, noise=0.1),
}
TITLES = {
    "arrays": "arrays",
    "dict": "a dict of arrays",
    "dataset": "a dataset of slow items",
    "loader": "a loader of it, 2 workers",
    "noise": "slow items that differ each time",
    "noise-loader": "a loader of it, 2 workers",
}


def seconds(name: str, parts: Parts, steps: int) -> tuple[float, float]:
    """How long a whole `fit` takes: by the clock, and of this process on the CPU."""
    torch.manual_seed(0)
    network = MLP(FEATURES, CLASSES)
    model = Named(network) if name == "dict" else network
    data = INPUTS[name](parts)
    began, began_cpu = time.perf_counter(), time.process_time()
    wildood.fit(model, *data, schedule=wildood.Schedule(steps=steps), verbose=False)
    return time.perf_counter() - began, time.process_time() - began_cpu


def main() -> None:
    """One line for each input: its time, and its times over those of the arrays in the same round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(INPUTS), default=list(INPUTS)[:4])
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # those of so short a training
    parts = examples(arguments.examples)
    names = ["arrays", *(name for name in arguments.only if name != "arrays")]
    seconds("arrays", parts, 10)  # what is imported or compiled once
    rounds = [{name: seconds(name, parts, arguments.steps) for name in names} for _ in range(arguments.rounds)]
    for name in names:
        clock, cpu = ([each[name][kind] / each["arrays"][kind] for each in rounds] for kind in (0, 1))
        print(
            f"{TITLES[name]:34s} {statistics.median(each[name][0] for each in rounds):7.2f} s"
            f"   {statistics.median(clock):6.3f} of arrays ({min(clock):.3f} to {max(clock):.3f})"
            f"   on the CPU {statistics.median(cpu):6.3f} ({min(cpu):.3f} to {max(cpu):.3f})",
            flush=True,
        )


if __name__ == "__main__":
    main()

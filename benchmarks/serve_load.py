"""`wildood serve` under load on loopback: requests per second, latency, and memory, without a habitat and with one.

The server is a process of its own with a ResNet-20 for pictures of 32 x 32 pixels; this process sends binary tensors. Its
throughput is given over that of the bare model, in batches of the server's size, measured by turns in this process.

Run: python benchmarks/serve_load.py --requests 200000
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
import torch

import wildood
from wildood import EnergyScore, InputSpec
from wildood.models.classifier import Classifier, evaluating
from wildood.models.resnet import ResNet20

CLIENTS = (1, 8, 64)
BATCH = 64
SPEC = InputSpec(mean=(0.5,) * 3, std=(0.25,) * 3)
PICTURES = np.random.default_rng(0).integers(0, 256, (256, 32, 32, 3), dtype=np.uint8)


class Load:
    """Clients of one server, all in this process, each with a connection of its own."""

    def __init__(self, port: int, examples: int) -> None:
        self.port, self.examples = port, examples
        self.seconds: list[float] = []  # of each request
        self.errors = 0
        size = examples * PICTURES[0].nbytes
        tensor = {"name": "x", "shape": [examples, 32, 32, 3], "datatype": "UINT8", "parameters": {"binary_data_size": size}}
        header = json.dumps({"inputs": [tensor]}).encode()
        lines = f"Host: localhost\r\nContent-Length: {len(header) + size}\r\nInference-Header-Content-Length: {len(header)}"
        self._head = f"POST /v2/models/wildood/infer HTTP/1.1\r\n{lines}\r\n\r\n".encode() + header

    async def ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        """Send one request and read its answer."""
        places = np.arange(number, number + self.examples) % len(PICTURES)
        began = time.perf_counter()
        writer.write(self._head + PICTURES[places].tobytes())
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
        self.seconds.append(time.perf_counter() - began)
        self.errors += not head.startswith(b"HTTP/1.1 200")

    async def closed(self, until: float, most: int) -> None:
        """One client that asks again as soon as it has its answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        while time.perf_counter() < until and len(self.seconds) < most:
            await self.ask(reader, writer, len(self.seconds))
        writer.close()

    async def paced(self, rate: float, until: float) -> None:
        """So many requests per second, whenever the answers come."""
        connections = [await asyncio.open_connection("127.0.0.1", self.port) for _ in range(32)]
        free = asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()
        for each in connections:
            free.put_nowait(each)
        draws, tasks, due = np.random.default_rng(0), set(), time.perf_counter()

        async def ask_once() -> None:
            pair = await free.get()
            await self.ask(*pair, len(self.seconds))
            free.put_nowait(pair)

        while due < until:
            due += draws.exponential(1 / rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.add(asyncio.create_task(ask_once()))
        await asyncio.gather(*tasks)
        for _, writer in connections:
            writer.close()


def loaded(port: int, clients: int, seconds: float, examples: int = 1, requests: int = sys.maxsize) -> tuple[Load, float]:
    """A load of so many clients, and its examples per second."""
    load = Load(port, examples)

    async def run() -> None:
        until = time.perf_counter() + seconds
        await asyncio.gather(*(load.closed(until, requests) for _ in range(clients)))

    began = time.perf_counter()
    asyncio.run(run())
    return load, len(load.seconds) * examples / (time.perf_counter() - began)


def bare_speed(classifier: Classifier, size: int, seconds: float) -> float:
    """Examples per second of the model alone, in batches of one size."""
    batch, count, began = torch.from_numpy(PICTURES[:size]), 0, time.perf_counter()
    with evaluating(classifier):
        while time.perf_counter() < began + seconds:
            classifier(batch)
            count += size
    return count / (time.perf_counter() - began)


@contextmanager
def server(detector: Path, *words: str) -> Iterator[tuple[int, int]]:
    """The port and the process id of a server."""
    command = [sys.executable, "-m", "wildood", "serve", str(detector), "--port", "0", "--batch", str(BATCH), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own command
        try:
            line = process.stdout.readline() if process.stdout else ""
            yield int(line.partition("http://127.0.0.1:")[2].split()[0]), process.pid
        finally:
            process.terminate()


def cpu_seconds(process: int) -> float:
    """The CPU time that a process has used: on a busy machine, it says more than throughput does."""
    values = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: int) -> float:
    """The resident memory of a process, in MB."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024


def measure(name: str, detector: Path, classifier: Classifier, arguments: argparse.Namespace, *words: str) -> None:
    """All measurements of one way to serve."""
    seconds = arguments.seconds
    with server(detector, *words) as (port, process):
        loaded(port, 8, 2.0)  # warm
        for clients in CLIENTS:
            load, speed = loaded(port, clients, seconds)
            median_ms, p99 = 1000 * np.quantile(load.seconds, [0.5, 0.99])
            print(f"{name}: {clients} clients: {speed:.0f} requests/s, median {median_ms:.1f} ms, p99 {p99:.1f} ms, "
                  f"{load.errors} errors")  # fmt: skip
        for clients, examples in ((64, 1), (8, 16)):
            ratios, spent, spent_bare = [], [], []
            for _ in range(arguments.rounds):
                began = time.process_time()
                bare = bare_speed(classifier, BATCH, seconds / 2)
                spent_bare.append((time.process_time() - began) / (bare * seconds / 2))
                began = cpu_seconds(process)
                load, speed = loaded(port, clients, seconds, examples)
                spent.append((cpu_seconds(process) - began) / (len(load.seconds) * examples))
                ratios.append(speed / bare)
            throughput = f"{median(ratios):.2f} of the bare model ({min(ratios):.2f} to {max(ratios):.2f})"
            cpu = f"CPU per example {1000 * median(spent):.2f} ms, of the bare model {1000 * median(spent_bare):.2f} ms"
            print(f"{name}: {clients} clients with {examples} examples each: {throughput}; {cpu}")
        rate = 0.2 * bare_speed(classifier, BATCH, seconds / 2)
        load = Load(port, 1)
        asyncio.run(load.paced(rate, time.perf_counter() + 2 * seconds))
        alone = 1000 / bare_speed(classifier, 1, seconds / 2)
        p99 = 1000 * float(np.quantile(load.seconds, 0.99))
        print(f"{name}: at {rate:.0f} requests/s (20 % load): p99 {p99:.1f} ms, {p99 - alone:.1f} ms more than the model on "
              f"one example; {load.errors} errors")  # fmt: skip
        sizes = [memory(process)]
        for _ in range(4):
            loaded(port, 16, sys.maxsize, requests=arguments.requests // 4)
            sizes.append(memory(process))
        print(f"{name}: memory over {arguments.requests:,} requests, MB: {', '.join(f'{size:.0f}' for size in sizes)}")


def main() -> None:
    """Without a habitat, then with one that records every example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000, help="over which memory is measured")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="of the throughput")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    detector = wildood.posthoc(ResNet20(), EnergyScore(), holdout=PICTURES, input=SPEC)
    with tempfile.TemporaryDirectory() as place:
        saved = detector.save(Path(place) / "detector")
        measure("collecting off", saved, detector.classifier, arguments)
        measure("collecting on", saved, detector.classifier, arguments, "--habitat", f"{place}/h", "--sample", "1")


if __name__ == "__main__":
    main()

"""A year of a habitat in minutes: digits are served, 7s appear, the camera changes, and the detector follows.

Run: python examples/habitat_digits.py [--habitat DIRECTORY] [--weeks 52] [--seed 0] [--port 0]

A classifier knows the digits 0 to 6. It is served on loopback, and asked 200 times a day. From week 3 on, one scan in
ten is a 7. In week 6 a new camera comes: all scans are blurred and have less contrast. Once a week somebody answers the
list of `review` (the truth, here), and does what `status` says next: review more, calibrate, refresh, compare, promote. The
clock is simulated, everything else is real: the server, the store, the fits. With --port, the page can be watched
meanwhile.

The table at the end counts all scans of each period: how many 7s were answered "unknown", and how many known digits.
"""

import argparse
import json
import logging
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import numpy.typing as npt
import torch
import uvicorn
from scipy.ndimage import affine_transform, gaussian_filter
from sklearn.datasets import load_digits

import wildood
from wildood.data.inputs import InputSpec
from wildood.habitat.champion import Follower
from wildood.habitat.collecting import Collector
from wildood.habitat.habitat import Habitat, Settings
from wildood.habitat.metrics import Metrics
from wildood.habitat.recorder import Recorder
from wildood.habitat.server import Service, Serving, build_app
from wildood.models.small import SmallCNN

DAY, WEEK = 86_400.0, 7 * 86_400.0
PER_DAY = 200
SEVENS = 0.1  # of the scans, once they have appeared
REVIEWED = 48  # answers of a person each week, if nothing asks for more
SCHEDULE = wildood.Schedule(steps=300)  # of each refresh
Array = npt.NDArray[Any]


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class World:
    """What the camera sees: no two scans are equal, and the truth is known of each.

    Args:
        seed: of all draws.
        sevens_from: the week in which 7s appear.
        camera_from: the week in which the camera changes.
    """

    def __init__(self, seed: int, sevens_from: int = 3, camera_from: int = 6) -> None:
        self.sevens_from, self.camera_from = sevens_from, camera_from
        images, labels = load_digits(return_X_y=True)
        self.rng = np.random.default_rng(seed)
        order = np.random.default_rng(0).permutation(len(labels))
        images, labels = images.reshape(-1, 8, 8)[order] * (255 / 16), labels[order].astype(np.int64)
        known = labels < 7
        x, y = images[known], labels[known]
        self.labelled = self._scans(x[:450], y[:450], np.repeat(np.arange(450), 4))
        self.known, self.sevens = (x[450:], y[450:]), images[labels == 7]
        # Holdout and traffic are scans of the same digits: independent draws from one distribution, as the promise asks for.
        self.holdout = self._scans(*self.known, self.rng.integers(len(x) - 450, size=2000))
        self.truth: dict[bytes, int | None] = {}

    def _scans(self, images: Array, labels: Array, which: Array) -> tuple[Array, Array]:
        return np.stack([self.scan(images[number]) for number in which]), labels[which]

    def scan(self, image: Array, *, new_camera: bool = False) -> Array:
        """A scan of a digit: turned and moved a little, with noise."""
        angle = self.rng.normal(0, 0.1)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) / self.rng.uniform(0.92, 1.08)
        centre = np.full(2, 3.5)
        scanned = affine_transform(image, turn, centre - turn @ centre + self.rng.normal(0, 0.25, 2), order=1)
        if new_camera:
            scanned = 40 + 0.6 * gaussian_filter(scanned, 0.5)
        noisy: Array = np.clip(scanned + self.rng.normal(0, 6, scanned.shape), 0, 255)
        return noisy.astype(np.uint8)[..., None]

    def regime(self, week: int) -> int:
        """How many of the two changes have come."""
        return (week >= self.sevens_from) + (week >= self.camera_from)

    def day(self, week: int) -> tuple[Array, list[int | None]]:
        """The scans of a day, and what they are: None for a 7."""
        scans, truth = [], []
        for _ in range(PER_DAY):
            is_seven = week >= self.sevens_from and self.rng.random() < SEVENS
            number = int(self.rng.integers(len(self.sevens if is_seven else self.known[0])))
            image = self.sevens[number] if is_seven else self.known[0][number]
            scans.append(self.scan(image, new_camera=week >= self.camera_from))
            truth.append(None if is_seven else int(self.known[1][number]))
            self.truth[scans[-1].tobytes()] = truth[-1]
        return np.stack(scans), truth


def first_detector(world: World, seed: int) -> wildood.Detector:
    """A classifier of the digits 0 to 6, with the energy as its score: what a deployment begins with."""
    torch.manual_seed(seed)
    x, y = world.labelled
    spec, model = InputSpec(mean=(0.5,), std=(0.25,)), SmallCNN(7)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    for _ in range(12):
        for rows in torch.split(torch.randperm(len(x)), 64):
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(spec(torch.from_numpy(x)[rows])), torch.from_numpy(y)[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return wildood.posthoc(model.eval(), wildood.EnergyScore(), holdout=world.holdout, input=spec)


@contextmanager
def served(habitat: Habitat, port: int) -> Iterator[str]:
    """The habitat's champion on loopback, as `wildood serve` does it; gives the address."""
    serving, metrics = Serving(), Metrics()
    follower = Follower(
        lambda: habitat.champion, habitat.detector, limits=serving.limits, metrics=metrics, batch=serving.batch, poll=0.05
    )
    collector = Collector(Recorder(habitat.store, habitat.settings), metrics)
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(build_app(Service(follower, serving, metrics, collector)), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def ask(address: str, scans: Array) -> dict[str, Any]:
    """What the server says of some scans."""
    body = json.dumps(scans.tolist()).encode()
    with urlopen(Request(f"{address}/predict", body, {"Content-Type": "application/json"})) as answer:  # noqa: S310 - loopback
        found: dict[str, Any] = json.load(answer)
    return found


def answering(address: str) -> str:
    """The id of the detector that answers."""
    with urlopen(f"{address}/v2/models/wildood") as answer:  # noqa: S310 - loopback
        (version,) = json.load(answer)["versions"]
    return str(version)


@dataclass
class Period:
    """A number of weeks with one detector."""

    weeks: list[int]
    detector: str
    sevens: int = 0
    caught: int = 0
    known: int = 0
    rejected: int = 0

    def row(self) -> str:
        """A row of the table."""
        caught = f"{100 * self.caught / self.sevens:.1f}" if self.sevens else ""
        weeks = f"{self.weeks[0]} to {self.weeks[-1]}"
        return f"| {weeks} | {self.detector} | {self.sevens} | {caught} | {100 * self.rejected / self.known:.1f} |"


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for what the server does in the background."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)


def main() -> None:
    """Live through the year, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--habitat", type=Path, help="a new directory; by default a temporary one")
    parser.add_argument("--weeks", type=int, default=52)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sevens-from", type=int, default=3, metavar="WEEK")
    parser.add_argument("--camera-from", type=int, default=6, metavar="WEEK")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("wildood").addHandler(logging.NullHandler())  # `refresh` returns its warnings, too
    world = World(arguments.seed, arguments.sevens_from, arguments.camera_from)
    with tempfile.TemporaryDirectory() as temporary:
        place = arguments.habitat or Path(temporary) / "habitat"
        live(place, world, weeks=arguments.weeks, seed=arguments.seed, port=arguments.port)


def live(place: Path, world: World, *, weeks: int, seed: int, port: int = 0) -> list[Period]:
    """A year of a habitat; gives its periods."""
    began, clock = time.perf_counter(), Clock()
    settings = Settings(flush_seconds=0.2, retain=8 * WEEK)
    habitat = Habitat.create(place, first_detector(world, seed), settings, clock=clock)
    periods: list[Period] = []
    with served(habitat, port) as address:
        print(f"served at {address}")
        for week in range(1, weeks + 1):
            live_week(habitat, world, address, week, periods)
            for line in tend(habitat, world):
                print(f"week {week}: {line}", flush=True)
            champion = habitat.champion
            until(lambda: answering(address) == champion)  # noqa: B023 - it is called at once
    print(f"\n| weeks | detector | 7s | caught % | false alarms % |\n|{'---|' * 5}")
    for period in periods:
        print(period.row())
    spent, answers = time.perf_counter() - began, len(habitat.store.judged())
    print(f"\n{weeks} weeks in {spent:.0f} s; {answers:,} of {weeks * 7 * PER_DAY:,} scans were judged")
    return periods


def live_week(habitat: Habitat, world: World, address: str, week: int, periods: list[Period]) -> None:
    """Send a week of scans, and count what is answered."""
    assert isinstance(habitat.clock, Clock)  # noqa: S101 - this file made it
    is_new = not periods or periods[-1].detector != habitat.champion
    if is_new or world.regime(periods[-1].weeks[-1]) != world.regime(week):
        periods.append(Period([], habitat.champion))
    period = periods[-1]
    period.weeks.append(week)
    for day in range(7):
        habitat.clock.now = (week - 1) * WEEK + day * DAY + DAY / 2
        scans, truth = world.day(week)
        unknown = [label is None for label in truth]
        rejected = [not known for known in ask(address, scans)["known"]]
        period.sevens += sum(unknown)
        period.known += len(unknown) - sum(unknown)
        period.caught += sum(one and other for one, other in zip(unknown, rejected, strict=True))
        period.rejected += sum(other and not one for one, other in zip(unknown, rejected, strict=True))
    habitat.clock.now = week * WEEK
    seen = week * 7 * PER_DAY
    until(lambda: int(habitat.store.windows().seen.sum()) >= seen)  # all is recorded


def tend(habitat: Habitat, world: World) -> Iterator[str]:
    """What a person does once a week: answer the list, then what `status` says next. Gives what happened."""
    habitat.sweep()  # before the list, so that the server does not remove what is on it
    answer(habitat, world, REVIEWED)
    for _ in range(6):
        status = habitat.status()
        action = status.next.partition(":")[0]
        if action == "review":
            asked = status.calibration.missing if status.calibration.why else status.missing
            count = answer(habitat, world, max(asked, REVIEWED), only_random=True)
            if not count:
                return
            yield f"{status.next} -> {count} answered"
        elif action == "calibrate":
            calibrated = habitat.calibrate(who="ann")
            yield f"{status.next} -> {calibrated.champion} answers"
        elif action == "refresh":
            refreshed = habitat.refresh(world.labelled, world.holdout, schedule=SCHEDULE, verbose=False)
            yield f"{status.next} -> {refreshed.challenger}" + ("" if refreshed.helped else " (training did not help)")
        elif action == "compare":
            yield f"{status.next} -> {habitat.compare(world.holdout).says}"
        elif action == "promote":
            promotion = habitat.promote(who="ann", why=status.next)
            yield f"{status.next} -> {promotion.detector} answers"
        else:
            return


def answer(habitat: Habitat, world: World, count: int, *, only_random: bool = False) -> int:
    """Answer a list of `review`, or its random sample, with the truth; gives how many answers there were."""
    items = habitat.review(top=2 * count).random[:count] if only_random else habitat.review(top=count).items
    if not items:
        return 0
    scans = habitat.store.source([each.answer for each in items]).gather(torch.arange(len(items)))[0]
    truth = [world.truth[np.asarray(scan).tobytes()] for scan in scans]
    return habitat.review(dict(zip([each.answer for each in items], truth, strict=True)), who="ann").recorded


if __name__ == "__main__":
    main()

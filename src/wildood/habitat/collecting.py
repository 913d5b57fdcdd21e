"""What the server does with its answers afterwards: it hands them to the recorder, and some also to the challenger."""

import logging
import queue
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from wildood.data.structures import Raw, map_structure
from wildood.errors import printable
from wildood.habitat.answers import Answers
from wildood.habitat.batching import Job
from wildood.habitat.champion import Served
from wildood.habitat.metrics import Metrics
from wildood.habitat.protocol import Decisions
from wildood.habitat.recorder import Recorder

_LOGGER = logging.getLogger("wildood")
BEHIND = 4  # batches that wait for the challenger at most


@dataclass(frozen=True)
class Tag:
    """What the batcher carries along with a request's examples: its id, and whether it may be recorded."""

    id: str
    is_collected: bool


class _Batch(NamedTuple):
    challenger: Served
    examples: Raw
    answers: dict[str, Any]


class Collector:
    """Hands answered batches to the recorder; a share of them is scored by the challenger first.

    The challenger runs in a thread of its own, after the clients have their answers. Where it is behind, the batch is
    recorded without it.
    """

    def __init__(self, recorder: Recorder, metrics: Metrics, *, shadow: float = 0.0) -> None:
        self.recorder, self.share, self._metrics = recorder, shadow, metrics
        metrics.collected = lambda: recorder.counters
        self._behind: queue.Queue[_Batch | None] = queue.Queue(BEHIND)
        self._draws = random.Random()  # noqa: S311 - which batches are scored twice is no secret
        self._thread = threading.Thread(target=self._work, name="wildood shadow", daemon=True)
        self._thread.start()

    def take(
        self, served: Served, challenger: Served | None, examples: Raw, decisions: Decisions, jobs: Sequence[Job[Served]]
    ) -> None:
        """Record a batch, but for the requests that must not be."""
        tags = [(job.tag, job.count) for job in jobs if isinstance(job.tag, Tag)]
        requests = np.repeat([tag.id for tag, _ in tags], [count for _, count in tags])
        chosen = np.repeat([tag.is_collected for tag, _ in tags], [count for _, count in tags])
        for is_collected in (True, False):
            which = np.flatnonzero(chosen == is_collected)
            if not len(which):
                continue
            some = examples if len(which) == len(chosen) else _some(examples, which)
            answers = {"request": requests[which].tolist(), "detector": served.id, **decisions.at(which)._asdict()}
            if not is_collected:  # counted, and forgotten
                self.recorder.offer(Answers(**answers), None, collect=False)
            elif not self._shadowed(challenger, some, answers):
                self.recorder.offer(Answers(**answers), some)

    def _shadowed(self, challenger: Served | None, examples: Raw, answers: dict[str, Any]) -> bool:
        """Whether the challenger will score a batch, after which it is recorded."""
        if challenger is None or self._draws.random() >= self.share:
            return False
        try:
            self._behind.put_nowait(_Batch(challenger, examples, answers))
        except queue.Full:
            self._metrics.shadow.labels("dropped").inc()
            return False
        return True

    def close(self) -> None:
        """Score and record what waits, and end the threads."""
        self._behind.put(None)
        self._thread.join()
        self.recorder.close()

    def _work(self) -> None:
        while (batch := self._behind.get()) is not None:
            shadow: dict[str, Any] = {}
            try:
                decisions = batch.challenger.decide(batch.examples)
                shadow = {"shadow": batch.challenger.id, "shadow_score": decisions.score, "shadow_known": decisions.known}
                self._metrics.shadow.labels("scored").inc()
            except Exception as error:  # noqa: BLE001 - whatever a user's model raises
                self._metrics.shadow.labels("failed").inc()
                _LOGGER.warning("challenger %s fails: %s", batch.challenger.id, printable(error))
            self.recorder.offer(Answers(**batch.answers, **shadow), batch.examples)


def _some(examples: Raw, which: npt.NDArray[np.intp]) -> Raw:
    """Some examples of a batch."""
    places = torch.from_numpy(which)
    some: Raw = map_structure(lambda part: part[places], examples)
    return some

"""Dynamic batching: requests wait a few milliseconds for others, and one thread runs the model on them together."""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from wildood.data.structures import Raw, batch_length, concatenate, tensors_of


class QueueFullError(Exception):
    """So many examples wait that no more are taken."""


class ClosedError(Exception):
    """The server stops: nothing new is taken."""


class Result(Protocol):
    """What the model says of a batch, which can be divided among its requests."""

    def part(self, first: int, count: int) -> "Result":
        """What it says of some consecutive examples."""
        ...


Model = TypeVar("Model")
ResultT = TypeVar("ResultT", bound=Result)


@dataclass(eq=False)
class Job(Generic[Model]):
    """The examples of one request, and the future that gets its result."""

    model: Model
    examples: Raw
    future: "asyncio.Future[tuple[Model, Result]]"
    tag: object = None  # what the caller wants to know of it when it is done
    is_probe: bool = False
    count: int = 0
    shapes: tuple[object, ...] = ()
    arrived: float = field(default_factory=perf_counter)

    def __post_init__(self) -> None:
        self.count = batch_length(self.examples)
        own = id(self) if self.is_probe else None  # no other job is like a probe
        self.shapes = (id(self.model), own, *((tensor.shape[1:], tensor.dtype) for tensor in tensors_of(self.examples)))


class Batcher(Generic[Model, ResultT]):
    """Collects jobs into batches for one worker thread.

    A batch holds jobs for one model with examples of one shape, in the order in which they came. It begins when `size`
    examples are there, or when its first job has waited for `wait` seconds. A job that is larger than `size` is a batch of
    its own.

    Args:
        run: the model on a batch, in the worker thread.
        done: told of each batch after its requests have their results, in the same thread; it must be quick.
        size: examples of a batch.
        wait: seconds.
        queue: examples that may wait; more are refused.
    """

    def __init__(
        self,
        run: Callable[[Model, Raw], ResultT],
        done: Callable[[Model, Raw, ResultT, list[Job[Model]]], None] = lambda *_: None,
        *,
        size: int = 64,
        wait: float = 0.002,
        queue: int = 1024,
    ) -> None:
        self._run, self._done = run, done
        self.size, self.wait, self.queue = size, wait, queue
        self.waiting = 0  # examples
        self._jobs: deque[Job[Model]] = deque()
        self._alike: Counter[tuple[object, ...]] = Counter()  # examples that wait, by shape
        self._changed = threading.Condition()
        self._closed = False
        self._idle = False
        self._thread = threading.Thread(target=self._work, name="wildood model", daemon=True)
        self._thread.start()

    async def submit(self, model: Model, examples: Raw, tag: object = None) -> tuple[ResultT, float]:
        """The result for some examples, and the seconds that they waited for the model."""
        (result,) = await self.submit_all(model, [(examples, tag)])
        return result

    async def submit_all(self, model: Model, parts: Sequence[tuple[Raw, object]]) -> list[tuple[ResultT, float]]:
        """The same for several, each with its tag: all of them are taken, or none."""
        loop = asyncio.get_running_loop()
        return await self._submitted([Job(model, examples, loop.create_future(), tag) for examples, tag in parts])

    async def probe(self, model: Model, examples: Raw) -> ResultT:
        """The result for examples that nobody has sent: they are a batch of their own, of which `done` is not told."""
        job = Job(model, examples, asyncio.get_running_loop().create_future(), is_probe=True)
        return (await self._submitted([job]))[0][0]

    async def _submitted(self, jobs: list[Job[Model]]) -> list[tuple[ResultT, float]]:
        count = sum(job.count for job in jobs)
        with self._changed:
            if self._closed:
                raise ClosedError
            if self.waiting + count > self.queue and self.waiting:
                raise QueueFullError
            self.waiting += count
            for job in jobs:
                self._jobs.append(job)
                self._alike[job.shapes] += job.count
            if self._idle or self._alike[self._jobs[0].shapes] >= self.size:
                self._changed.notify()
        if len(jobs) > 1:
            done, _ = await asyncio.wait([job.future for job in jobs])
            errors = [error for each in done if (error := each.exception()) is not None]  # of all: asyncio logs what is left
            if errors:
                raise errors[0]
        results: list[tuple[ResultT, float]] = [await job.future for job in jobs]  # type: ignore[misc]
        return results

    def close(self) -> None:
        """Take nothing new, answer what waits, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while (jobs := self._next()) is not None:
            self._answer([job for job in jobs if not job.future.cancelled()])

    def _next(self) -> list[Job[Model]] | None:
        """The next batch; None when the batcher is closed and nothing waits."""
        with self._changed:
            self._idle = True
            while not self._jobs:
                if self._closed:
                    return None
                self._changed.wait()
            self._idle = False
            first = self._jobs[0]
            while not self._closed and self._alike[first.shapes] < self.size:
                left = first.arrived + self.wait - perf_counter()
                if left <= 0 or not self._changed.wait(left):
                    break
            return self._taken(first.shapes)

    def _taken(self, shapes: tuple[object, ...]) -> list[Job[Model]]:
        """The first jobs of these shapes, as many as a batch holds."""
        taken: list[Job[Model]] = []
        others: deque[Job[Model]] = deque()
        room = self.size
        while self._jobs and room > 0:
            job = self._jobs.popleft()
            if job.shapes == shapes and (job.count <= room or not taken):
                taken.append(job)
                room -= job.count
            else:
                others.append(job)
                room = 0 if job.shapes == shapes else room  # a later one must not overtake it
        self._jobs = others + self._jobs
        count = sum(job.count for job in taken)
        self.waiting -= count
        self._alike[shapes] -= count
        if not self._alike[shapes]:
            del self._alike[shapes]
        return taken

    def _answer(self, jobs: list[Job[Model]]) -> None:
        """Run a batch. If it fails, its jobs are run one by one, so that one request cannot spoil another."""
        if not jobs:
            return
        started = perf_counter()
        model, batch = jobs[0].model, jobs[0].examples
        try:
            if len(jobs) > 1:
                batch = concatenate([job.examples for job in jobs])
            result = self._run(model, batch)
        except Exception as error:  # noqa: BLE001 - whatever a user's model raises
            if len(jobs) > 1:
                for job in jobs:
                    self._answer([job])
            else:
                _finish(jobs, [error])
            return
        parts, first = [], 0
        for job in jobs:
            parts.append((result.part(first, job.count), started - job.arrived))
            first += job.count
        _finish(jobs, parts)
        if not jobs[0].is_probe:
            self._done(model, batch, result, jobs)


def _finish(jobs: list[Job[Model]], results: Sequence[object]) -> None:
    """Give each future its result, or its exception, in the thread of its event loop."""

    def tell() -> None:
        for job, result in zip(jobs, results, strict=True):
            if job.future.done():  # cancelled
                continue
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)  # type: ignore[arg-type]

    loop = jobs[0].future.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(tell)

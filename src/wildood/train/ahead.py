"""The next batch, read from the disk while the last one is trained on."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from wildood.methods.objective import Batch


class Ahead:
    """Batches drawn one ahead in a thread, in the same order as without it.

    Attributes:
        state: where the draws were before the batch that is drawn ahead: what a resumed run goes on from.

    >>> numbers = iter(range(5))
    >>> with Ahead(lambda: next(numbers), dict) as ahead:
    ...     ahead.take(), ahead.take()
    (0, 1)
    """

    def __init__(self, draw: Callable[[], Batch], state: Callable[[], dict[str, Any]]) -> None:
        self._draw, self._state = draw, state
        self._pool = ThreadPoolExecutor(1)
        self._next: Future[Batch] | None = None
        self.state = state()

    def take(self) -> Batch:
        """The batch that was drawn ahead; the next one is begun."""
        batch = (self._next or self._pool.submit(self._draw)).result()
        self.state = self._state()
        self._next = self._pool.submit(self._draw)
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

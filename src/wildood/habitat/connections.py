"""Connections of the server: one whose client is too slow is closed, so that such clients cannot take all of them."""

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

ARRIVAL: Final = 35.0  # seconds after which a header, and then a body, must be there; the app gives up on a body earlier
READING: Final = 30.0  # seconds that a client may leave an answer unread that is larger than the buffers
DRAIN: Final = 15.0  # seconds for both once the server ends; later, uvicorn cancels requests, and logs that as errors


class Connection(H11Protocol):
    """uvicorn's, which itself limits only how long a connection may be idle after an answer."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._arriving: asyncio.TimerHandle | None = None
        self._of: RequestResponseCycle | None = None  # the request whose body, or after which a header, is waited for
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first header."""
        super().connection_made(transport)
        self._watch()

    def handle_events(self) -> None:
        """After each part of a request, wait for the next one, or no longer."""
        super().handle_events()
        self._watch()

    def _watch(self) -> None:
        is_incomplete = self.conn.their_state in {h11.IDLE, h11.SEND_BODY}
        if self._arriving is not None and not (is_incomplete and self._of is self.cycle):
            self._arriving.cancel()
            self._arriving = None
        if is_incomplete and self._arriving is None:
            self._of, self._arriving = self.cycle, self.loop.call_later(ARRIVAL, self.transport.abort)

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self._unread = self.loop.call_later(READING, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._end_unread()

    def shutdown(self) -> None:
        """The server ends: answer what is there, and wait a little for the rest."""
        super().shutdown()
        self.loop.call_later(DRAIN, self._give_up)

    def _give_up(self) -> None:
        if self._arriving is not None or self._unread is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        super().connection_lost(exc)
        self._end_unread()
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _end_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

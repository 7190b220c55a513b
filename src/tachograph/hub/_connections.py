"""The hub's connections: bounded in number and in time, so that a client that sends nothing keeps no other one out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tachograph.recording.log import LogOnce
from tachograph.runs import descriptor_limit

CloseReason = Literal["silent", "slow", "deaf", "crowded"]

_REASONS: dict[CloseReason, str] = {
    "silent": "it sent nothing",
    "slow": "its request took too long",
    "deaf": "it did not read the response",
    "crowded": "too many are open",
}


class ClientTimeouts(NamedTuple):
    """Seconds that a client may take; beyond them the hub closes its connection.

    Attributes:
        first_byte: from the connection to its first byte.
        headers: from a request's first byte to its last header.
        body: from there to the request's end: longer than the receiver's limit, which answers with an error.
        answer: without any progress of an answer.
    """

    first_byte: float = 10.0
    headers: float = 10.0
    body: float = 40.0
    answer: float = 30.0


class Connections:
    """The connections of a server, on the event loop's thread.

    They may use five eighths of the process's descriptors; the rest is for files.

    Args:
        count_closed: called with the reason for which a connection was closed.
        timeouts: limits for slow clients.

    Attributes:
        timeouts: the same.
        most: how many may be open.
        waiting: those without a request under way, the one that has waited longest first.
    """

    def __init__(self, count_closed: Callable[[CloseReason], None], timeouts: ClientTimeouts | None) -> None:
        self.timeouts = timeouts or ClientTimeouts()
        self.most = descriptor_limit() * 5 // 8
        self.waiting: dict[Connection, None] = {}
        self._count_closed = count_closed
        self._log_once = LogOnce()

    def protocol(self) -> type[H11Protocol]:
        """Return the class of the connections, for uvicorn."""
        return type("Connection", (Connection,), {"among": self})

    def close(self, connection: Connection, reason: CloseReason) -> None:
        """Close a connection now, count it, and log the first one of each reason."""
        self.waiting.pop(connection, None)
        connection.connections.discard(connection)
        connection.transport.abort()
        self._count_closed(reason)
        self._log_once(
            reason,
            "the hub closed a connection: %s (further warnings are suppressed; see "
            "tachograph_hub_connections_closed_total on /metrics)",
            _REASONS[reason],
        )


class Connection(H11Protocol):
    """A connection that is closed when its client takes too long; see :class:`ClientTimeouts`.

    Attributes:
        among: the server's connections.
    """

    among: Connections

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request; if too many connections are open, close the one that has waited longest."""
        super().connection_made(transport)
        self._phase: Literal["idle", "headers", "body", "received"] = "idle"
        timeouts = self.among.timeouts
        self._deadline: asyncio.TimerHandle | None = self._close_after(timeouts.first_byte, "silent")
        self._unread: asyncio.TimerHandle | None = None
        self.among.waiting[self] = None
        if len(self.connections) > self.among.most:
            self.among.close(next(iter(self.among.waiting)), "crowded")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        for timer in (self._deadline, self._unread):
            if timer is not None:
                timer.cancel()
        self.among.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        between_requests = self.conn.their_state is h11.IDLE
        super().data_received(data)
        self._enter_phase(has_begun=between_requests)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._enter_phase(has_begun=False)

    def _enter_phase(self, *, has_begun: bool) -> None:
        """Set the deadline of the request's current phase; ``has_begun`` if bytes of the next request have arrived."""
        if self.transport.is_closing():
            return
        if self.cycle is not None:
            if not self.cycle.response_complete:
                self.among.waiting.pop(self, None)
            else:
                self.among.waiting.setdefault(self)
        before = self._phase
        if self.conn.their_state is h11.SEND_BODY:
            self._phase = "body"
        elif self.conn.their_state is h11.IDLE:
            self._phase = "headers" if has_begun else "idle"
        else:
            self._phase = "received"
        if self._phase == before:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._phase == "headers":
            self._deadline = self._close_after(self.among.timeouts.headers, "slow")
        elif self._phase == "body":
            self._deadline = self._close_after(self.among.timeouts.body, "slow")

    def _close_after(self, seconds: float, reason: CloseReason) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, self.among.close, self, reason)

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request; if an answer has begun, or is one to HEAD, the connection ends as it is."""
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.close()

    def pause_writing(self) -> None:
        """Wait for the client to read what it was sent."""
        super().pause_writing()
        self._unread = self._close_unless_read(self.transport.get_write_buffer_size())

    def _close_unless_read(self, size: int) -> asyncio.TimerHandle:
        def check() -> None:
            left = self.transport.get_write_buffer_size()
            if left < size:
                self._unread = self._close_unless_read(left)
            else:
                self.among.close(self, "deaf")

        return self.loop.call_later(self.among.timeouts.answer, check)

    def resume_writing(self) -> None:
        """Go on writing."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

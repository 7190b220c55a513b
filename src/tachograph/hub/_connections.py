"""Connections of the hub, bounded in number and time: a client that sends nothing keeps no other one out."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tachograph.recording.log import LogOnce
from tachograph.runs.open_stores import limit

Why = Literal["silent", "slow", "deaf", "crowded"]

_SAID: dict[Why, str] = {
    "silent": "it sent nothing",
    "slow": "its request took too long",
    "deaf": "it did not read the response",
    "crowded": "too many are open, or too many from one address",
}
_NETWORK = 64  # bits of an IPv6 address: the network of one subscriber (RFC 6177)


class ClientTimeouts(NamedTuple):
    """Seconds that a client may take; beyond them its connection is closed.

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


class _Address:
    """The connections of one client address, in the order in which their waits began."""

    __slots__ = ("busy", "idle", "silent")

    def __init__(self) -> None:
        self.silent: dict[Connection, None] = {}  # without any request yet
        self.idle: dict[Connection, None] = {}
        self.busy: dict[Connection, None] = {}

    def count(self) -> int:
        return len(self.silent) + len(self.idle) + len(self.busy)

    def leave(self, connection: Connection) -> bool:
        """Forget a connection; False where it is none of these."""
        found = False
        for some in (self.silent, self.idle, self.busy):
            if connection in some:
                del some[connection]
                found = True
        return found


class Connections:
    """The connections of a server, on the event loop's thread.

    One address may have at most half as many as there are descriptors, all addresses together five eighths: the rest
    is for files. If there are too many, the one that has waited longest without a request is closed; those that
    never sent one come first.

    Args:
        count: called with the reason for which a connection was closed.
        patience: limits for slow clients.
        descriptors: the most that there may be; None for the limit of this process.
    """

    def __init__(
        self, count: Callable[[Why], None], patience: ClientTimeouts | None = None, *, descriptors: int | None = None
    ) -> None:
        there_are = limit() if descriptors is None else descriptors
        self.patience = patience or ClientTimeouts()
        self._most, self._most_of_one = there_are * 5 // 8, there_are // 2
        self._count = count
        self._total = 0
        self._addresses: dict[str, _Address] = {}
        self._log_once = LogOnce()

    def protocol(self) -> type[H11Protocol]:
        """Return the class of the connections, for uvicorn."""
        return type("Connection", (Connection,), {"among": self})

    def opened(self, connection: Connection, address: str) -> None:
        """Add a connection; another one may have to be closed for it."""
        of = self._addresses.setdefault(address, _Address())
        crowd = of if of.count() >= self._most_of_one else None
        if self._total >= self._most and crowd is None:
            crowd = max(self._addresses.values(), key=_Address.count)
        longest = next(iter(crowd.silent or crowd.idle), connection) if crowd is not None else None
        of.silent[connection] = None
        self._total += 1
        if longest is not None:
            self.close(longest, "crowded")

    def moved(self, connection: Connection, address: str, *, busy: bool) -> None:
        """Note that a connection has a request, or waits for the next one."""
        of = self._addresses.get(address)
        if of is not None and of.leave(connection):
            (of.busy if busy else of.idle)[connection] = None

    def closed(self, connection: Connection, address: str) -> None:
        """Forget a connection."""
        of = self._addresses.get(address)
        if of is not None and of.leave(connection):
            self._total -= 1
            if not of.count():
                del self._addresses[address]

    def close(self, connection: Connection, why: Why) -> None:
        """Close a connection now; this is counted, and the first time logged."""
        connection.transport.abort()
        self.closed(connection, connection.address)
        self._count(why)
        self._log_once(
            why,
            "the hub closed a connection: %s (further warnings are suppressed; see "
            "tachograph_hub_connections_closed_total on /metrics)",
            _SAID[why],
        )


class Connection(H11Protocol):
    """A connection that is closed where its client takes too long; see :class:`ClientTimeouts`.

    Attributes:
        among: the server's connections.
        address: of its client, see :func:`_address`.
    """

    among: Connections

    def connection_made(self, transport: Any) -> None:
        """Register the connection."""
        super().connection_made(transport)
        self.address = _address(self.client)
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._phase: Literal["silent", "idle", "headers", "body", "received"] = "silent"
        self._deadline = self.loop.call_later(self.among.patience.first_byte, self.among.close, self, "silent")
        self.among.opened(self, self.address)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        for timer in (self._deadline, self._stall):
            if timer is not None:
                timer.cancel()
        self.among.closed(self, self.address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take received bytes."""
        super().data_received(data)
        self._look()

    def send_400_response(self, msg: str) -> None:
        """Answer a body that is none; where an answer has begun, or is one to HEAD, the connection ends as it is."""
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.close()

    def on_response_complete(self) -> None:
        """Go on to the next request."""
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        """Look at the phase of the request, and set a new deadline where it has changed."""
        if self.transport.is_closing():
            return
        before, theirs = self._phase, self.conn.their_state
        if theirs is h11.SEND_BODY:
            self._phase = "body"
        elif theirs is not h11.IDLE:
            self._phase = "received"
        else:
            self._phase = "headers" if self.conn.trailing_data[0] else "idle"
        waits = self.cycle is None or self.cycle.response_complete
        if self.cycle is not None:
            self.among.moved(self, self.address, busy=not waits)
        if self._phase == before:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._phase in ("headers", "body"):
            patience = self.among.patience
            seconds = patience.headers if self._phase == "headers" else patience.body
            self._deadline = self.loop.call_later(seconds, self.among.close, self, "slow")

    def pause_writing(self) -> None:
        """Wait for the client to take the bytes that it was sent."""
        super().pause_writing()
        self._wait_for(self.transport.get_write_buffer_size())

    def _wait_for(self, left: int) -> None:
        self._stall = self.loop.call_later(self.among.patience.answer, self._taken, left)

    def _taken(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._wait_for(left)
        else:
            self.among.close(self, "deaf")

    def resume_writing(self) -> None:
        """Go on writing."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        super().resume_writing()


def _address(client: tuple[str, int] | None) -> str:
    """Return a client's address for counting: for IPv6 the network, in which a client may have any address."""
    if client is None or ":" not in client[0]:
        return "" if client is None else client[0]
    network = ipaddress.ip_network(f"{client[0].partition('%')[0]}/{_NETWORK}", strict=False)
    return str(network.network_address)

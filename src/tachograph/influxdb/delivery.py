"""One delivery: some events as lines, and what the server made of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from tachograph.influxdb.line import Line, line
from tachograph.influxdb.parcel import Parcel, packed, unpacked
from tachograph.influxdb.server import BadLines
from tachograph.journal import LogEvent
from tachograph.outbox import Retry
from tachograph.own_metrics import Reason

_PACE_EVERY = 8

_log = logging.getLogger("tachograph.influxdb")


class Write(Protocol):
    """Writes a body; see :meth:`tachograph.influxdb.server.Server.write`."""

    def __call__(self, body: bytes, timeout: float) -> int:
        """Write."""


class Lost(NamedTuple):
    """So many were lost, and why."""

    points: int
    reason: Reason
    why: str


class Item(NamedTuple):
    """An event, the attributes of the process that logged it, and its line."""

    event: LogEvent
    resource: Mapping[str, Any]
    line: Line


class Delivery:
    """What became of some events.

    Attributes:
        left: what has to be sent again, as the server may take it later.
        again: why; None where nothing is left.
        tried: whether the server was asked.
        settled: how many points were written, or are lost.
        written: how many were written.
        lost: what was lost, whole points and single fields.
    """

    def __init__(self) -> None:
        self.left: list[Item] = []
        self.again: Retry | None = None
        self.settled = self.written = 0
        self.tried = False
        self.lost: list[Lost] = []

    @property
    def loses_points(self) -> bool:
        """Tell whether anything was lost that could have been written."""
        return any(lost.reason not in ("nonfinite", "empty") for lost in self.lost)

    def lose(self, count: int, reason: Reason, why: str) -> None:
        """Note that points were lost."""
        self.settled += count
        self.lost.append(Lost(count, reason, why))

    def prepare(self, events: Iterable[LogEvent], resource: Mapping[str, Any], pace: Callable[[], None]) -> list[Item]:
        """Return what is to be written; an event without anything to write is settled."""
        items: list[Item] = []
        for number, event in enumerate(events):
            if number % _PACE_EVERY == 0:
                pace()
            try:
                made = line(event, resource)
            except Exception as error:  # noqa: BLE001 - whatever one event holds, the others leave
                self.lose(1, "encoding", f"{event.name!r:.100}: {type(error).__name__}: {error}")
                continue
            if made is not None and made.text:
                items.append(Item(event, resource, made))
            elif made is not None:
                self._count_fields(made.nonfinite)
                self.lose(1, "empty", "a point has no field that can be written")
            else:
                self.settled += 1
        return items

    def send_parcels(
        self, parcels: list[Parcel], write: Write, timeout: Callable[[], float], pace: Callable[[], None]
    ) -> list[Parcel]:
        """Write what waited in memory, and return what has to be sent again; see :meth:`send`."""
        items = [item for parcel in parcels for item in self.prepare(unpacked(parcel), parcel.resource, pace)]
        self.send(items, write, timeout)
        if self.left and not self.settled:
            return parcels
        size, again = max(parcel.points for parcel in parcels), list[Parcel]()
        for _, some in groupby(self.left, key=lambda item: id(item.resource)):
            events, resources = zip(*((item.event, item.resource) for item in some), strict=True)
            again += packed(events, resources[0], parcels[0].since, lambda *_: None, size)
        return again

    def send(self, items: list[Item], write: Write, timeout: Callable[[], float]) -> None:
        """Write; where the server refuses some lines, the others are written without them.

        Args:
            items: what to write.
            write: writes a body.
            timeout: returns the seconds that the next attempt may take.
        """
        stack = [items] if items else []
        while stack:
            some = stack.pop()
            self.tried = True
            try:
                _written(some, write, timeout())
            except BadLines as bad:
                if bad.dropped is None and len(some) > 1:
                    half = len(some) // 2
                    stack += [some[half:], some[:half]]
                    continue
                lost = min(bad.dropped or 1, len(some))
                self.lose(lost, "rejected", str(bad))
                self._finish(some, len(some) - lost)
            except Retry as again:
                self.again = again
                self.left = [item for part in (some, *reversed(stack)) for item in part]
                return
            else:
                self._finish(some, len(some))

    def _finish(self, items: list[Item], written: int) -> None:
        self.settled += written
        self.written += written
        self._count_fields(sum(item.line.nonfinite for item in items))

    def _count_fields(self, nonfinite: int) -> None:
        if nonfinite:
            self.lost.append(Lost(nonfinite, "nonfinite", "a field is not finite: line protocol has no such number"))


def _written(items: list[Item], write: Write, timeout: float) -> None:
    body = b"\n".join([item.line.text for item in items])
    began = time.perf_counter()
    status = "failed"
    try:
        status = str(write(body, timeout))
    except BadLines:
        status = "refused"
        raise
    finally:
        if _log.isEnabledFor(logging.DEBUG):
            spent = (time.perf_counter() - began) * 1e3
            _log.debug("%d points, %d bytes, %.1f ms, status %s", len(items), len(body), spent, status)

"""A delivery: events as lines, in pieces, and what the server made of each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from tachograph.exporters.delivery import Retry
from tachograph.exporters.influxdb._line import line
from tachograph.exporters.influxdb.server import BadLines
from tachograph.recording.journal import LogEvent
from tachograph.recording.own_metrics import Reason

_PACE_EVERY = 8

_log = logging.getLogger("tachograph.influxdb")


class Write(Protocol):
    """Writes a body; see :meth:`tachograph.exporters.influxdb.server.Server.write`."""

    def __call__(self, body: bytes, timeout: float) -> int:
        """Write."""


class Lost(NamedTuple):
    """So many were lost, and why."""

    points: int
    reason: Reason
    why: str


class Item(NamedTuple):
    """An event on its way.

    Attributes:
        text: its line; empty where there is nothing to write.
        nonfinite: how many fields were left out because they are NaN or infinite.
        lost: why there is nothing to write, where it should have been written.
        points: how many it stands for.
    """

    text: bytes = b""
    nonfinite: int = 0
    lost: Lost | None = None
    points: int = 1


class Outcome(NamedTuple):
    """What became of a piece.

    Attributes:
        items: how many there were.
        points: how many they stand for: each was written, or is lost.
        written: how many were written.
        lost: what was lost, whole points and single fields.
    """

    items: int
    points: int
    written: int
    lost: list[Lost]

    @property
    def loses_points(self) -> bool:
        """Tell whether anything was lost that could have been written."""
        return any(lost.reason not in ("nonfinite", "empty") for lost in self.lost)


def prepared(events: Iterable[LogEvent], resource: Mapping[str, Any], pace: Callable[[], None]) -> list[Item]:
    """Return an item for each event."""
    items: list[Item] = []
    for number, event in enumerate(events):
        if number % _PACE_EVERY == 0:
            pace()
        try:
            made = line(event, resource)
        except Exception as error:  # noqa: BLE001 - whatever one event holds, the others leave
            items.append(Item(lost=Lost(1, "encoding", f"{event.name!r:.100}: {type(error).__name__}: {error}")))
            continue
        if made is None:
            items.append(Item())
        elif made.text:
            items.append(Item(made.text, made.nonfinite))
        else:
            empty = Lost(1, "empty", "a point has no field that can be written")
            items.append(Item(nonfinite=made.nonfinite, lost=empty))
    return items


class Delivery:
    """Items on their way to the server, the oldest first.

    What was settled is told after each piece, in order, so that nothing of it is ever sent again: neither where a later
    piece has to be, nor after the end of the process.

    Args:
        write: writes a body.
        allowance: returns the seconds that the next attempt may take; None where none may begin any more.
        settle: called after each piece.

    Attributes:
        again: why what is not settled has to be sent again; None where the server has not asked for it.
        tried: whether the server was asked.
    """

    def __init__(
        self, write: Write, allowance: Callable[[], float | None], settle: Callable[[Outcome], object]
    ) -> None:
        self._write, self._allowance, self._settle = write, allowance, settle
        self.again: Retry | None = None
        self.tried = False

    def send(self, items: list[Item]) -> None:
        """Write; where the server refuses some lines, the others are written without them."""
        stack = [items] if items else []
        while stack:
            piece = stack.pop()
            lines = [number for number, item in enumerate(piece) if item.text]
            refused = None
            if lines:
                allowed = self._allowance()
                if allowed is None:
                    return
                self.tried = True
                try:
                    _written(piece, len(lines), self._write, allowed)
                except BadLines as bad:
                    if bad.dropped is None and len(lines) > 1:
                        half = lines[len(lines) // 2]
                        stack += [piece[half:], piece[:half]]
                        continue
                    refused = Lost(min(bad.dropped or 1, len(lines)), "rejected", str(bad))
                except Retry as again:
                    self.again = again
                    return
            self._settle(_outcome(piece, len(lines), refused))


def _outcome(piece: list[Item], lines: int, refused: Lost | None) -> Outcome:
    lost = [item.lost for item in piece if item.lost is not None]
    if refused is not None:
        lost.append(refused)
    if nonfinite := sum(item.nonfinite for item in piece):
        lost.append(Lost(nonfinite, "nonfinite", "a field is not finite: line protocol has no such number"))
    points = sum(item.points for item in piece)
    return Outcome(len(piece), points, lines - (refused.points if refused else 0), lost)


def _written(piece: list[Item], lines: int, write: Write, timeout: float) -> None:
    body = b"\n".join([item.text for item in piece if item.text])
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
            _log.debug("%d points, %d bytes, %.1f ms, status %s", lines, len(body), spent, status)

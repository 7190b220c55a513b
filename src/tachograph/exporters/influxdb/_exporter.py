"""The InfluxDB destination: points as line protocol, of a pipeline or of any LoggerProvider."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult

from tachograph.exporters.batch import Batch
from tachograph.exporters.delivery import FIRST_BACK_OFF, Attempt, Clock, Ended, Request, Retry
from tachograph.exporters.delivery_queue import DISK_AGAIN, LIMIT_BYTES, LOOK_AGAIN, DeliveryQueue
from tachograph.exporters.influxdb._field_types import (
    INTEGER,
    DecidedLines,
    FieldTypes,
    LeftOut,
    split_by_hour,
    split_lines,
)
from tachograph.exporters.influxdb._line import METRIC, encoded
from tachograph.exporters.influxdb.old_spool import SUFFIX as OLD_SUFFIX
from tachograph.exporters.influxdb.old_spool import PointLines
from tachograph.exporters.influxdb.server import TIMEOUT, BadLines, FieldConflict, Server
from tachograph.exporters.spool import LIMIT as SPOOL_LIMIT
from tachograph.exporters.spool import Spool, spool_limit_of
from tachograph.identity.extra import install_command
from tachograph.identity.resource import file_safe
from tachograph.identity.resource import store as default_store
from tachograph.logger.influx_target import InfluxTarget
from tachograph.logger.point import EVENT_NAME, LoggerPoint
from tachograph.recording import registry as registries
from tachograph.recording.forking import at_fork
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.journal import LogEvent
from tachograph.recording.log import LogOnce
from tachograph.recording.registry import Registry

FLUSH_INTERVAL = 1.0
_SLICE = 64
_POINT_BYTES = 256  # as it waits: one with five tags and two fields takes 170
_TOGETHER = 32  # points in a request: one is encoded, and read back, without holding the interpreter for long
NAME = "influxdb"

_writes = logging.getLogger("tachograph.influxdb")

# A connection that was open at a fork is never touched in the child.
_left_to_the_parent: list[object] = []
_living: weakref.WeakSet[InfluxDB] = weakref.WeakSet()
_log_once = LogOnce()


class _Piece(NamedTuple):
    """Lines on their way.

    Attributes:
        lines: as they were encoded.
        heeded: the measurements and fields of which the server has said a type since; None while it has refused none.
    """

    lines: list[bytes]
    heeded: set[tuple[str, str]] | None


class InfluxDB:
    """Writes points to one InfluxDB, or to another server that takes its lines.

    If the server is away for longer, points wait on the disk, and leave in order once it is back; what a process
    could not deliver before its end, the next one of the same destination does. Only a line whose answer was lost is
    sent twice, and that is one point: InfluxDB overwrites what has the same measurement, tags and time.

    Args:
        target: where, and how much at a time.
        registry: where losses and durations are counted.
        store: the folder for files that outlive the process; by default TACHOGRAPH_STORE's.
        only: take the points of the loggers that name this target; else those of all loggers, but for one that writes
            to the same database itself, and those of Metrics.
        spool_limit: bytes on the disk; 0 for none. By default TACHOGRAPH_SPOOL_LIMIT, else 1 GiB.
        limit_bytes: bytes in memory; by default 64 MiB, and more where the target's queue needs it.
        flush_interval: seconds that a point waits for others to fill a write.
        first_back_off: seconds between the first two attempts.
        pace: called between slices of work; by default a :class:`tachograph.recording.gil_yield.GilYield`.
        look_again: seconds between looks for files that processes which have ended left.
        clock: seconds, monotonic.
        disk_again: seconds after which a disk that took no more is tried again.
        make_spool: makes the spool of a folder, as :class:`tachograph.exporters.spool.Spool`.
        make_server: makes the client of a target, as :class:`tachograph.exporters.influxdb.server.Server`.

    Attributes:
        spools: what was not delivered by the end waits on the disk.

    Raises:
        ModuleNotFoundError: the extra ``influxdb`` is not installed.
        ValueError: TACHOGRAPH_SPOOL_LIMIT is no number of bytes.
    """

    def __init__(
        self,
        target: InfluxTarget,
        registry: Registry,
        *,
        store: Path | None = None,
        only: bool = False,
        spool_limit: int | None = None,
        limit_bytes: int | None = None,
        flush_interval: float = FLUSH_INTERVAL,
        first_back_off: float = FIRST_BACK_OFF,
        pace: Callable[[], None] | None = None,
        look_again: float = LOOK_AGAIN,
        clock: Clock | None = None,
        disk_again: float = DISK_AGAIN,
        make_spool: Callable[..., Spool] = Spool,
        make_server: Callable[[InfluxTarget], Server] = Server,
    ) -> None:
        if find_spec("influxdb_client") is None:
            raise ModuleNotFoundError(f"InfluxDB needs its client: {install_command('influxdb')}")
        if not target.token:
            message = "%s: INFLUXDB_TOKEN is not set, so requests have no Authorization header"
            _log_once(target.place, message, target.url)
        self._target, self._only = target, only
        # A queue that is no longer than a write would drop points while it waits for that to be full.
        batch_size = min(target.batch_size, max(target.queue_size // 2, 1))
        self._together = min(_TOGETHER, batch_size, max(target.queue_size // 4, 1))
        self._pace = pace or GilYield()
        self._clock = clock or Clock()
        self._make_server = make_server
        self._server = make_server(target)
        self._types = FieldTypes(integers_as_floats=target.integers == "float")
        limit = spool_limit_of(os.environ) if spool_limit is None else spool_limit
        limit = SPOOL_LIMIT if limit is None else limit
        self.spools = limit > 0
        own_pace = pace or GilYield()

        def spool(lose: Callable[..., None]) -> Spool:
            formats = {OLD_SUFFIX: partial(PointLines, own_pace)}
            return make_spool(spool_folder(target, store), limit, lose, GilYield(), formats=formats)

        self._queue = DeliveryQueue(
            NAME,
            registry,
            self._deliver,
            spool=spool if limit else None,
            limit_bytes=limit_bytes or max(LIMIT_BYTES, target.queue_size * _POINT_BYTES),
            limit_items=target.queue_size,
            give_up_after=None,
            batch_items=batch_size,
            flush_interval=flush_interval,
            workers=target.concurrency,
            first_back_off=first_back_off,
            longest_attempt=TIMEOUT,
            rest=_rest,
            prepare=lambda: self._server.connect(),  # noqa: PLW0108 - it changes
            pace=own_pace,
            look_again=look_again,
            disk_again=disk_again,
            clock=self._clock,
        )
        self._process = os.getpid()
        _living.add(self)

    def __call__(self, batch: Batch) -> None:
        """Take the points of a batch; never waits for the server."""
        events = batch.events
        now = self._clock()
        for start in range(0, len(events), _SLICE):
            mine = [event for event in events[start : start + _SLICE] if self._takes(event)]
            if mine:
                lines, lost = encoded(mine, batch.resource, self._pace, self._types.learn)
                for each in lost:
                    self._queue.losses.lose(*each)
                for first in range(0, len(lines), self._together):
                    some = lines[first : first + self._together]
                    self._put(b"\n".join(some), len(some), now)

    def put(self, lines: bytes, items: int, *, since: float | None = None) -> None:
        """Take lines that are encoded already; never waits for the server.

        Args:
            lines: separated by line ends, without one at the end.
            items: how many.
            since: when they came; by default now.
        """
        self._types.learn_lines(split_lines(lines, items))
        self._put(lines, items, since)

    def _put(self, lines: bytes, items: int, since: float | None) -> None:
        self._queue.put(lines, len(lines), items=items, kind="lines", since=since)

    def _deliver(self, requests: Sequence[Request], attempt: Attempt) -> None:
        """Write lines; where the server refuses some, the others are written without them."""
        body = b"\n".join([request.payload for request in requests])
        lines = split_lines(body, sum([request.items for request in requests]))
        learned = all(request.own for request in requests)
        stack = [_Piece(lines, None)]
        while stack:
            piece = stack.pop()
            refused = piece.heeded is not None
            decided = self._types.decide(piece.lines, refused=refused, learned=learned, pace=self._pace)
            try:
                self._write(decided.lines, attempt)
            except BadLines as bad:
                pieces = self._mended(piece, decided.lines, bad)
                stack += reversed(pieces)
                if not pieces:
                    attempt.settled(len(piece.lines), lost=min(bad.dropped or 1, len(piece.lines)), why=str(bad))
            else:
                self._settle(decided, attempt)

    def _write(self, lines: Sequence[bytes], attempt: Attempt) -> None:
        body = b"\n".join(filter(None, lines))
        if not body:
            return
        began = time.perf_counter()
        status = "failed"
        try:
            status = str(attempt.call(self._server.write, body))
        except BadLines:
            status = "refused"
            raise
        except (Retry, Ended):
            raise
        except Exception as error:
            self._queue.losses.blame("bug", f"cannot deliver, a bug in tachograph: {type(error).__name__}: {error}")
            raise Retry(why=type(error).__name__) from error
        finally:
            if _writes.isEnabledFor(logging.DEBUG):
                spent = (time.perf_counter() - began) * 1e3
                _writes.debug("%d points, %d bytes, %.1f ms, status %s", len(lines), len(body), spent, status)

    def _mended(self, piece: _Piece, written: Sequence[bytes], bad: BadLines) -> list[_Piece]:
        """Return the pieces to write instead of one that was refused; none if nothing of it can be mended."""
        lines = piece.lines
        if isinstance(bad, FieldConflict):
            heeded = piece.heeded or set()
            hours = split_by_hour(lines)
            if len(hours) > 1:
                return [_Piece(hour, set()) for hour in hours]
            return [_Piece(lines, heeded)] if self._types.heed(written, bad, heeded) else []
        if bad.dropped is not None or len(lines) == 1:
            return []
        half = len(lines) // 2
        return [piece._replace(lines=lines[:half]), piece._replace(lines=lines[half:])]

    def _settle(self, decided: DecidedLines, attempt: Attempt) -> None:
        """Count values that no type fits: each as a point where it had no other field."""
        losses = self._queue.losses
        points = decided.lines.count(b"")
        values = len(decided.left_out) - points
        why = _reason(decided.left_out[0]) if decided.left_out else ""
        if values:
            losses.count(values, "field_type")
        attempt.settled(len(decided.lines), lost=points, why=why)
        if values:
            losses.say_lost("field_type", why)

    def _takes(self, event: LogEvent) -> bool:
        if event.name == METRIC:
            return not self._only
        if event.name != EVENT_NAME:
            return False
        to = event.attributes.to if isinstance(event.attributes, LoggerPoint) else None
        if not self._only:
            return to is None or to.place != self._target.place
        return to == self._target

    def flush(self, timeout: float) -> bool:
        """Deliver all points taken so far; True where all of them have arrived within ``timeout`` seconds."""
        return self._queue.flush(timeout)

    def retry_now(self, longest: float) -> None:
        """Make the next attempt now, even where the server has asked for time, and further ones soon."""
        self._queue.retry_now(longest)

    @property
    def delivered(self) -> int:
        """How much has arrived so far; it grows while the destination takes anything."""
        return self._queue.delivered

    @property
    def waiting(self) -> int:
        """Points that wait in memory."""
        return self._queue.waiting

    def is_loading(self) -> bool:
        """Tell whether the client is still being loaded, which takes a second on a slow machine."""
        return self._queue.is_loading()

    def close(self, timeout: float) -> None:
        """Deliver, and end, within ``timeout`` seconds; the rest then waits on the disk for the next process."""
        self._queue.close(timeout)

    def reset_in_child(self) -> None:
        """Forget everything, after a fork, unless that was done; the parent process delivers it."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        _left_to_the_parent.append(self._server)
        self._server = self._make_server(self._target)
        self._queue.reset_in_child()


def _reason(left_out: LeftOut) -> str:
    why = (
        f"field {left_out.field!r} of measurement {left_out.measurement!r} has the type {left_out.kind} in the "
        f"database until its next shard starts, so {left_out.value:.100} cannot be written"
    )
    if left_out.kind == INTEGER:
        why += '; integers="float" (INFLUXDB_INTEGERS=float) writes all numbers as floats'
    return why


def _rest(lines: bytes, done: int) -> bytes:
    return b"\n".join(split_lines(lines)[done:])


def spool_folder(target: InfluxTarget, store: Path | None = None) -> Path:
    """Return the folder in which points for a target wait; it need not exist."""
    host = urlsplit(target.url).netloc
    name = file_safe(f"influxdb-{host}-{target.org}-{target.database}")
    return (default_store(os.environ) if store is None else store) / "spool" / name


def _after_fork_in_child() -> None:
    for exporter in list(_living):
        exporter.reset_in_child()


at_fork("influxdb_exporters", in_child=_after_fork_in_child)


class InfluxDBLogExporter(LogRecordExporter):
    """Writes the log records that are points to InfluxDB; other records are left alone.

    It has a queue, threads and a spool of its own: put it behind a ``SimpleLogRecordProcessor`` or a
    ``BatchLogRecordProcessor``, it never waits.

    Args:
        target: where; by default as the ``INFLUXDB_*`` variables say.
        registry: where losses and durations are counted.
        store: the folder for files that outlive the process.

    Raises:
        ValueError: neither a target nor INFLUXDB_HOST is given.
        ModuleNotFoundError: the extra ``influxdb`` is not installed.
    """

    def __init__(
        self, target: InfluxTarget | None = None, *, registry: Registry | None = None, store: Path | None = None
    ) -> None:
        where = target or InfluxTarget.read(os.environ)
        if where is None:
            raise ValueError("INFLUXDB_HOST is not set: set it to the URL of InfluxDB")
        self._destination = InfluxDB(where, registry or registries.default, store=store)
        self._ended = False

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Take records."""
        if self._ended:
            return LogRecordExportResult.FAILURE
        events: dict[int, tuple[Mapping[str, Any], list[LogEvent]]] = {}
        for record in batch:
            attributes = record.resource.attributes
            events.setdefault(id(record.resource), (attributes, []))[1].append(_event(record))
        for resource, found in events.values():
            self._destination(Batch([], None, [], resource, time.time_ns(), found))
        return LogRecordExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 10_000) -> bool:
        """Deliver all points taken so far; False where that took too long."""
        return self._destination.flush(timeout_millis / 1e3)

    def shutdown(self) -> None:
        """Deliver, and end, within 1 s."""
        self._ended = True
        self._destination.close(1.0)


def _event(record: ReadableLogRecord) -> LogEvent:
    log = record.log_record
    told: Mapping[str, Any] = log.attributes or {}
    attributes = {key: value for key, value in told.items() if not key.startswith("tachograph.s")}
    observed = log.observed_timestamp or log.timestamp or 0
    context = (log.trace_id or 0, log.span_id or 0, int(log.trace_flags or 0))
    return LogEvent(log.event_name or "", log.timestamp or observed, observed, attributes, 0, *context, "")

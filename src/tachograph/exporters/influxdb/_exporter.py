"""The InfluxDB destination: points as line protocol, in the background."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from tachograph.exporters.batch import Batch
from tachograph.exporters.delivery_queue import LIMIT_BYTES
from tachograph.exporters.influxdb._backlog import Backlog
from tachograph.exporters.influxdb._courier import Courier
from tachograph.exporters.influxdb._disk import Disk
from tachograph.exporters.influxdb._line import METRIC
from tachograph.exporters.influxdb._losses import Losses
from tachograph.exporters.influxdb._parcel import EVENTS, packed
from tachograph.exporters.influxdb._patience import FIRST_BACK_OFF, Patience
from tachograph.exporters.influxdb._spool import Spool
from tachograph.exporters.influxdb.server import Server
from tachograph.exporters.spool_limit import spool_limit_of
from tachograph.identity.resource import file_safe
from tachograph.identity.resource import store as default_store
from tachograph.logger.influx_target import InfluxTarget
from tachograph.logger.point import EVENT_NAME, Point
from tachograph.recording.forking import at_fork
from tachograph.recording.journal import LogEvent
from tachograph.recording.own_metrics import Reason
from tachograph.recording.pace import Pace
from tachograph.recording.registry import Registry

FLUSH_INTERVAL = 1.0
_SLICE = 64
_POINT_BYTES = 256  # as it waits: one with five tags and two fields takes 170

_log = logging.getLogger("tachograph")

# A connection that was open at a fork is never touched in the child.
_left_to_the_parent: list[object] = []
_living: weakref.WeakSet[InfluxDB] = weakref.WeakSet()
_without_token: set[tuple[str, str, str]] = set()  # the places of which that was said


class InfluxDB:
    """Writes points to one InfluxDB, or to what takes its lines.

    Where the server is away for longer, points wait on the disk, and leave in order once it is back; what a process
    could not deliver before its end, the next one of the same destination does. Only a line whose answer was lost is
    sent twice, and that is one point: InfluxDB overwrites what has the same measurement, tags and time.

    Args:
        target: where, and how much at a time.
        registry: where losses and durations are counted.
        store: the folder for what outlives the process; by default TACHOGRAPH_STORE's.
        only: take the points of the loggers that name this target; else those of all loggers, but for one that writes
            to the same database itself, and those of Metrics.
        spool_limit: bytes on the disk; 0 for none. By default TACHOGRAPH_SPOOL_LIMIT, else 1 GiB.
        limit_bytes: bytes in memory; by default 64 MiB, and more where the target's queue needs it.
        flush_interval: seconds that a point waits for others to fill a write.
        first_back_off: seconds between the first two attempts.
        pace: called between slices of work; by default a :class:`tachograph.recording.pace.Pace`.
        clock: seconds, monotonic.

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if find_spec("influxdb_client") is None:
            raise ModuleNotFoundError("InfluxDB needs its client: pip install 'tachograph[influxdb]'")
        if not target.token and target.place not in _without_token:
            _without_token.add(target.place)
            _log.warning("%s: no token (INFLUXDB_TOKEN) was given, so no Authorization header is sent", target.url)
        self._target, self._only = target, only
        # A queue that is no longer than a write would drop points while it waits for that to be full.
        self._batch_size = min(target.batch_size, max(target.queue_size // 2, 1))
        self._parcel = min(EVENTS, self._batch_size, max(target.queue_size // 4, 1))
        self._limit_bytes = limit_bytes or max(LIMIT_BYTES, target.queue_size * _POINT_BYTES)
        self._pace = pace or Pace()
        self._clock = clock
        self._losses = Losses(registry)
        limit = spool_limit_of(os.environ) if spool_limit is None else spool_limit
        disk = None
        if limit:
            spool = Spool(spool_folder(target, store), limit, self._lose_kept, Pace())
            disk = Disk(spool, self._losses, pace or Pace(), clock)
        self._courier = Courier(
            Server(target),
            disk,
            self._backlog(),
            self._losses,
            Patience(self._losses, first_back_off),
            batch_size=self._batch_size,
            concurrency=target.concurrency,
            flush_interval=flush_interval,
            pace=pace or Pace(),
            clock=clock,
        )
        self._process = os.getpid()
        _living.add(self)

    def _backlog(self) -> Backlog:
        return Backlog(self._target.queue_size, self._limit_bytes)

    def __call__(self, batch: Batch) -> None:
        """Take the points of a batch; never waits for the server."""
        events = batch.events
        now = self._clock()
        for start in range(0, len(events), _SLICE):
            mine = [event for event in events[start : start + _SLICE] if self._takes(event)]
            if mine:
                self._courier.put(packed(mine, batch.resource, now, self._lose, self._parcel))
            self._pace()

    def _takes(self, event: LogEvent) -> bool:
        if event.name == METRIC:
            return not self._only
        if event.name != EVENT_NAME:
            return False
        to = event.attributes.to if isinstance(event.attributes, Point) else None
        if not self._only:
            return to is None or to.place != self._target.place
        return to == self._target

    def flush(self, timeout: float) -> bool:
        """Deliver what was taken so far; True where all of it has arrived within ``timeout`` seconds."""
        return self._courier.flush(timeout)

    @property
    def delivered(self) -> int:
        """How much has arrived so far; it grows while the destination takes anything."""
        return self._courier.delivered

    def is_loading(self) -> bool:
        """Tell whether the client is still being loaded, which takes a second on a slow machine."""
        return self._courier.is_loading()

    def close(self, timeout: float) -> None:
        """Deliver, and end, within ``timeout`` seconds; what is left then waits on the disk for the next process."""
        self._courier.close(timeout)

    def reset_in_child(self) -> None:
        """Forget everything, after a fork, unless that was done; the parent process delivers it."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        _left_to_the_parent.append(self._courier.reset_in_child(Server(self._target), self._backlog()))

    def _lose(self, count: int, why: str) -> None:
        self._losses.count(count, "encoding", why)

    def _lose_kept(self, count: int, reason: Reason, own: bool) -> None:
        self._courier.lose_kept(count, reason, own)


def spool_folder(target: InfluxTarget, store: Path | None = None) -> Path:
    """Return the folder in which points for a target wait; it need not exist."""
    host = urlsplit(target.url).netloc
    name = file_safe(f"influxdb-{host}-{target.org}-{target.database}")
    return (default_store(os.environ) if store is None else store) / "spool" / name


def _after_fork_in_child() -> None:
    for exporter in list(_living):
        exporter.reset_in_child()


at_fork("influxdb_exporters", in_child=_after_fork_in_child)

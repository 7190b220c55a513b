"""Databases of this process's loggers, and the delivery to them."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from tachograph.logger.influx_target import InfluxTarget
from tachograph.recording import journal as journals
from tachograph.recording.forking import at_fork
from tachograph.recording.journal import Journal, Raw
from tachograph.recording.log import log
from tachograph.recording.own_metrics import DROPPED, OWN_GROUP
from tachograph.recording.registry import Registry
from tachograph.recording.wishes import wishes

targets: dict[InfluxTarget, int] = wishes.targets


class _Changing:
    lock = threading.RLock()


def acquire(wanted: InfluxTarget) -> InfluxTarget | None:
    """Deliver to a database, with or without a ``start()``.

    Returns:
        The target as the first logger of this database asked for it; None where nothing writes there, which is logged.
    """
    pipeline = wishes.wanted()
    with _Changing.lock:
        target = next((known for known in targets if known.place == wanted.place), wanted)
        targets[target] = targets.get(target, 0) + 1
        journals.default.pin(True)
    if target != wanted:
        message = "%s: another logger already writes to this database, using its settings for this logger as well: %r"
        log.warning(message, target.url, target)
    if pipeline is not None and pipeline.write(target):
        return target
    _leave(target)
    _unpin()
    return None


def release(target: InfluxTarget, timeout: float) -> None:
    """Deliver to a database no longer, after its last points, where no other logger writes to it."""
    if not _leave(target):
        return
    if wishes.fulfils is not None:
        wishes.fulfils.release(target, timeout)
    _unpin()


def _leave(target: InfluxTarget) -> bool:
    """Take one logger off; True where it was the last one of the database."""
    with _Changing.lock:
        left = targets[target] = targets.get(target, 1) - 1
        if left <= 0:
            del targets[target]
    return left <= 0


def _unpin() -> None:
    with _Changing.lock:
        journals.default.pin(bool(targets))


class Unreachable:
    """A journal for points whose database cannot be written to: they go everywhere else, and are counted."""

    taking: deque[Raw] | None = None  # each goes through append()
    half = 0

    def __init__(self, journal: Journal, registry: Registry) -> None:
        self._journal = journal
        self._count = registry.group(OWN_GROUP).own(DROPPED).bind(reason="not_installed", destination="influxdb")

    def append(self, *event: Any, **ids: Any) -> None:
        """Log one event; see :class:`tachograph.recording.journal.Append`."""
        self._count(1)
        self._journal.append(*event, **ids)

    def make_room(self, wanted: int) -> None:
        """Make room in the journal behind this one."""
        self._journal.make_room(wanted)


def flush(timeout: float) -> bool:
    """Deliver all logged points, within ``timeout`` seconds; False where some still wait."""
    return wishes.fulfils.flush(timeout) if wishes.fulfils is not None else not len(journals.default)


def _after_fork_in_child() -> None:
    _Changing.lock = threading.RLock()


at_fork("logger_targets", in_child=_after_fork_in_child)

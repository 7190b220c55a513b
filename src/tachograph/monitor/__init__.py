"""Drop-in replacement for ``torch.monitor``: change the import, and programs run as before. It does not need torch.

The exporters of :func:`tachograph.start` receive each event as a log record, and each :class:`Stat` as gauges and a
histogram in the group ``torch.monitor``.

Other packages of Tachograph also use ``event``, ``stat``, ``stat_window``, ``stat_series`` and ``wait_counter``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tachograph.monitor import _event_log as event_log
from tachograph.monitor._event_log import EventHandlerHandle
from tachograph.monitor.event import Event, data_value_t
from tachograph.monitor.stat import Stat
from tachograph.monitor.stat_window import STAT_EVENT, Aggregation
from tachograph.monitor.wait_counter import _WaitCounter, _WaitCounterTracker

__all__ = [
    "COUNT",
    "MAX",
    "MEAN",
    "MIN",
    "P50",
    "P90",
    "P99",
    "STAT_EVENT",
    "STDDEV",
    "SUM",
    "VALUE",
    "Aggregation",
    "Event",
    "EventHandlerHandle",
    "Stat",
    "TensorboardEventHandler",
    "_WaitCounter",
    "_WaitCounterTracker",
    "data_value_t",
    "log_event",
    "register_event_handler",
    "unregister_event_handler",
]

VALUE = Aggregation.VALUE
MEAN = Aggregation.MEAN
COUNT = Aggregation.COUNT
SUM = Aggregation.SUM
MAX = Aggregation.MAX
MIN = Aggregation.MIN
P50 = Aggregation.P50
P90 = Aggregation.P90
P99 = Aggregation.P99
STDDEV = Aggregation.STDDEV

log_event = event_log.default.log_event


def register_event_handler(callback: Callable[[Event], Any]) -> EventHandlerHandle:
    """Call ``callback`` with every event logged from now on, including those of Stats.

    Handlers run in the order of registration, in the thread that logs. For Stats this can be the thread that closes
    windows: a slow handler there delays later windows, but never ``add``. A handler never runs in two threads at once.

    Returns:
        A handle for :func:`unregister_event_handler`.

    Raises:
        TypeError: ``callback`` is not callable.
    """
    return event_log.default.register(callback)


def unregister_event_handler(handler: EventHandlerHandle) -> None:
    """Unregister a handler; it is not called anymore.

    This returns when no other thread is still running the handler; inside the handler itself, it returns at once.

    Raises:
        TypeError: the argument is not a handle of :func:`register_event_handler`.
        ValueError: the handle was unregistered before.
    """
    event_log.default.unregister(handler)


class TensorboardEventHandler:
    """An event handler that writes the events of Stats as scalars.

    Args:
        writer: a ``SummaryWriter``, or any object with an ``add_scalar`` method.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __call__(self, event: Event) -> None:
        """Write an event of a Stat; other events are ignored."""
        if event.name == STAT_EVENT:
            walltime = event.timestamp.timestamp()
            for key, value in event.data.items():
                self._writer.add_scalar(key, value, walltime=walltime)

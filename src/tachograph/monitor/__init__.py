"""Drop-in for ``torch.monitor``: change the import, and every program runs as before. Needs no torch.

Logged events also reach the exporters of :func:`tachograph.start`: each as a log record, each
:class:`Stat` as gauges and a histogram in the group ``torch.monitor``.

The names of ``torch.monitor`` are its face. Other rooms use ``event``, ``stat``, ``stat_window``,
``stat_series`` and ``wait_counter``.
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
    """Call ``callback`` with every event that is logged from now on, those of Stats included.

    Handlers run in the order of their registration, in the thread that logs; for Stats, that may be the one that closes
    windows, where a slow handler delays later windows, but never ``add``. No handler is ever in two threads at once.

    Returns:
        A handle for :func:`unregister_event_handler`.

    Raises:
        TypeError: it is not callable.
    """
    return event_log.default.register(callback)


def unregister_event_handler(handler: EventHandlerHandle) -> None:
    """Unregister a handler: it is not called any more.

    Returns when no other thread is still in it; called from inside that handler, at once.

    Raises:
        TypeError: it is no handle of :func:`register_event_handler`.
        ValueError: it was unregistered before.
    """
    event_log.default.unregister(handler)


class TensorboardEventHandler:
    """An event handler that writes the events of Stats as scalars.

    Args:
        writer: a ``SummaryWriter``, or any object with its ``add_scalar``.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __call__(self, event: Event) -> None:
        """Write an event of a Stat; other events are ignored."""
        if event.name == STAT_EVENT:
            walltime = event.timestamp.timestamp()
            for key, value in event.data.items():
                self._writer.add_scalar(key, value, walltime=walltime)

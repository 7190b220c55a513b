"""The stream of a metric group: the way of its points to a handler."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tachograph.elastic.handlers import Emits, MetricData, NullMetricHandler, forgets
from tachograph.identity.torch_compile import hide_calls
from tachograph.recording import registry
from tachograph.recording.instrument import Record, nothing
from tachograph.recording.interrupts import pass_on
from tachograph.recording.log import LogOnce
from tachograph.recording.naming import check_name

_log_once = LogOnce()


class _Unconfigured(NullMetricHandler):
    """The handler where none was configured: gets nothing, and silences nothing."""

    def __reduce__(self) -> str:
        """Return the name of the variable: there is one, also in a process that gets a stream from another."""
        return "unconfigured"


unconfigured: Emits = _Unconfigured()


class MetricStream:
    """A metric group with the handler that was configured when the stream was created."""

    def __init__(self, group_name: str, handler: Emits) -> None:
        self.group_name = group_name
        self.handler = handler

    def add_value(self, metric_name: str, metric_value: Any) -> None:
        """Record one point and pass it to the handler."""
        if silences(self.handler):
            return
        recorder(self.group_name, metric_name)(metric_value)
        hand_over(self, metric_name, metric_value)


def silences(handler: Emits) -> bool:
    """Tell whether an explicitly configured :class:`NullMetricHandler` asks for nothing to be recorded."""
    return handler is not unconfigured and forgets(handler)


def hand_over(stream: MetricStream, name: str, value: object) -> None:
    """Give one point to the stream's handler, and record it nowhere."""
    handler = stream.handler
    if handler is not unconfigured:
        guarded(handler.emit, MetricData(time.time(), stream.group_name, name, value))


@hide_calls
def guarded(call: Callable[..., object], *arguments: object) -> None:
    """Call into a handler; its exceptions are counted, and logged once for each kind of handler."""
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001 - the border to user code: a handler must not break training
        pass_on(error)
        registry.default.count_error("handler")
        where = getattr(call, "__qualname__", repr(call))
        message = (
            "metric handler %s raised: %r (further warnings are suppressed; see tachograph_errors_total on /metrics)"
        )
        _log_once(where, message, where, error, exc_info=error)


def recorder(group: str, name: str, attributes: Mapping[str, object] | None = None) -> Record:
    """Return the function that records a value under a name.

    Raises:
        TypeError: a name is not a string, or OpenTelemetry does not take the attributes.
        ValueError: a name is empty or too long.
    """
    check_name(name)
    check_name(group, "metric group")
    if not registry.default.enabled:
        return nothing
    instrument = registry.default.group_for(group, name).instrument(name)
    instrument.keep_curves(registry.default.curves)
    record: Record = instrument.series(attributes or {}).record
    return record

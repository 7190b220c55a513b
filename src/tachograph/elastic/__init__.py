"""Drop-in replacement for ``torch.distributed.elastic.metrics``: change the import, and programs run as before.

:func:`put_metric` and ``@prof`` record a value and call the handler of its group in the same thread. The exporters of
:func:`tachograph.start` export it as well. ``tachograph.elastic.api`` is this same module.

Other packages of Tachograph also use ``handlers``.
"""

from __future__ import annotations

import sys
import time
import types
from collections import UserDict
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from importlib import import_module
from typing import Any, cast

from tachograph.elastic._stream import MetricStream, guarded, hand_over, recorder, silences, unconfigured
from tachograph.elastic.handlers import (
    ConsoleMetricHandler,
    Emits,
    Exports,
    MetricData,
    MetricHandler,
    MetricsConfig,
    NullMetricHandler,
    check_handler,
)
from tachograph.profiling import prof, profile
from tachograph.profiling.probe import Tell, audience, metric_name, nobody, silence
from tachograph.recording import registry
from tachograph.recording.instrument import Record, nothing
from tachograph.recording.log import warn_deprecated
from tachograph.recording.naming import check_name
from tachograph.recording.wishes import wishes

__all__ = [
    "ConsoleMetricHandler",
    "ConsoleMetricsHandler",
    "MetricData",
    "MetricHandler",
    "MetricStream",
    "MetricsConfig",
    "NullMetricHandler",
    "NullMetricsHandler",
    "configure",
    "getStream",
    "get_elapsed_time_ms",
    "initialize_metrics",
    "prof",
    "profile",
    "publish_metric",
    "put_metric",
]

# As the documents misspell them.
ConsoleMetricsHandler = ConsoleMetricHandler
NullMetricsHandler = NullMetricHandler

_routes: dict[str, dict[str, Record]] = {}
_groups: set[str | None] = set()  # that put_metric and @prof have been asked for


def _decide_again() -> None:
    """Forget every route: a new dict, so that a route decided meanwhile in another thread goes into the old one."""
    global _routes  # noqa: PLW0603 - the hot path reads a module global: nothing is faster
    _routes = {}
    audience.changed()


class _HandlerMap(UserDict[str, Emits]):
    """Handlers by group; programs change it directly, with ``mock.patch.dict`` for one."""

    def __setitem__(self, group: str, handler: Emits) -> None:
        super().__setitem__(group, handler)
        _decide_again()

    def __delitem__(self, group: str) -> None:
        super().__delitem__(group)
        _decide_again()


_metrics_map: MutableMapping[str, Emits] = _HandlerMap()
_default_metrics_handler: Emits = unconfigured

exporters: dict[str | None, Exports] = wishes.exporters
"""Exporters given to :func:`configure`, by group (None: for all groups)."""


def configure(handler: Emits | Exports, group: str | None = None) -> None:
    """Send the points of a group to a handler, or its metrics to an exporter. Without a group, set the default.

    A handler receives every point, in addition to the exporters of :func:`tachograph.start`. An explicit
    :class:`NullMetricHandler` silences its group for every destination, including values recorded earlier and through
    :func:`tachograph.declare`. Without a group it silences every group of :func:`put_metric` and ``@prof`` that has no
    handler of its own. A later call for the same group replaces an earlier one.

    Args:
        handler: a :class:`MetricHandler`, any object with ``emit(metric_data)``, or a ``MetricExporter`` of the
            OpenTelemetry SDK. To an exporter, the group is exported in the background, with or without ``start()``.
        group: the metric group; the empty string is a group, too.

    Raises:
        TypeError: the handler is neither a handler nor an exporter, or the group is not a string.
    """
    global _default_metrics_handler  # noqa: PLW0603 - the original's state, which programs patch
    if group is not None:
        check_name(group, "metric group")
    takes_points = check_handler(handler)
    emits: Any = handler if takes_points else unconfigured
    if group is None:
        _default_metrics_handler = emits
    else:
        _metrics_map[group] = emits
    _decide_again()
    exporter: Any = None if takes_points else handler
    replaced = exporters.pop(group, None)
    if exporter is not None:
        exporters[group] = exporter  # it is delivered to without a start(), too
    if exporter is not replaced:
        pipeline = wishes.wanted() if exporter is not None else wishes.fulfils
        if pipeline is not None:
            pipeline.export(group)


def silenced(group: str) -> bool:
    """Tell whether a :class:`NullMetricHandler` was explicitly configured for the group, or for all without another."""
    return silences(_metrics_map.get(group, _default_metrics_handler))


def has_handler() -> bool:
    """Tell whether any handler was configured: it gets the points of its group."""
    handlers = (_default_metrics_handler, *_metrics_map.values())
    return any(handler is not unconfigured and not silences(handler) for handler in handlers)


def getStream(group: str) -> MetricStream:  # noqa: N802 - torchelastic's name
    """Return the stream of a group. Configuring another handler later does not change the stream."""
    return MetricStream(group, _metrics_map.get(group, _default_metrics_handler))


_unpatched = getStream


def _leaves_by_no_way(group: str) -> bool:
    """Tell the registry whether to keep a group from the exporters; the default handler is for the groups of ours."""
    handler = _metrics_map.get(group)
    if handler is None:
        return group in _groups and silences(_default_metrics_handler)
    return silences(handler)


def _listener(group: str | None) -> Tell:
    if len(_groups) < registry.MOST_NAMES:
        _groups.add(group)
    if getStream is not _unpatched or type(_metrics_map) is not _HandlerMap:
        return partial(_tell, group)
    stream = getStream(cast("str", group))
    if stream.handler is unconfigured:
        return nobody
    return silence if silences(stream.handler) else partial(hand_over, stream)


def _tell(group: str | None, name: str, value: object) -> None:
    """Give a point, recorded already, to the stream that a patched ``getStream`` returns."""
    stream = getStream(cast("str", group))
    if type(stream) is MetricStream:
        hand_over(stream, name, value)
    else:
        guarded(stream.add_value, name, value)


def put_metric(
    metric_name: str,
    metric_value: Any,
    metric_group: str = "torchelastic",
    *,
    attributes: Mapping[str, object] | None = None,
) -> None:
    """Record one value under a name.

    The name determines the instrument (``*.success`` a counter, durations a histogram, everything else a gauge) unless
    you declare it with :func:`tachograph.declare`. Values are numbers of Python or NumPy, or tensors of one element;
    anything else is dropped and counted.

    Args:
        metric_name: 1 to 1,024 characters.
        metric_value: the value; a handler receives it exactly as passed.
        metric_group: the metric group.
        attributes: distinguish series of the metric, at most 2,000 combinations. Do not use a number that counts up,
            such as a step. Handlers do not receive attributes.

    Raises:
        TypeError: a name is not a string, or OpenTelemetry does not allow the attributes.
        ValueError: a name is empty, too long or not valid Unicode.
    """
    if not attributes:
        try:
            record = _routes[metric_group][metric_name]
        except (KeyError, TypeError):  # not decided yet, or not a name at all
            pass
        else:
            record(metric_value)
            return
    _put(metric_name, metric_value, metric_group, attributes)


def _put(name: str, value: Any, group: str, attributes: Mapping[str, object] | None) -> None:
    check_name(name)
    check_name(group, "metric group")
    routes = _routes
    tell = _listener(group)
    if isinstance(tell, partial) and tell.func is _tell:
        stream = getStream(group)
        if type(stream) is not MetricStream:
            guarded(stream.add_value, name, value)
        elif not silences(stream.handler):
            recorder(group, name, attributes)(value)
            hand_over(stream, name, value)
        return
    record = nothing if tell is silence else recorder(group, name, attributes)
    route = record if tell is silence else _route(record, tell, name)
    if not attributes and record != registry.default.drop:  # very many names are not to pile up here, either
        routes.setdefault(group, {})[name] = route
    route(value)


def _route(record: Record, tell: Tell, name: str) -> Record:
    if tell is nobody:
        return record

    def record_and_tell(value: object) -> None:
        record(value)
        tell(name, value)

    return record_and_tell


def publish_metric(metric_group: str, metric_name: str, metric_value: Any) -> None:
    """Record one value. Deprecated: use :func:`put_metric`, which takes the name first."""
    warn_deprecated("publish_metric(group, name, value) is deprecated: use put_metric(name, value, group)")
    put_metric(metric_name, metric_value, metric_group)


def get_elapsed_time_ms(start_time_in_seconds: float) -> int:
    """Return the whole milliseconds since ``start_time_in_seconds``, a value of ``time.time()``."""
    return int((time.time() - start_time_in_seconds) * 1000)


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Do nothing, like the original, which torchrun calls without configuring anything."""


def _get_metric_name(fn: Any) -> str:
    return metric_name(fn)


def _name(fn: Any) -> str:
    """Return the name of a function's metrics by the global of this module, which programs patch."""
    return _get_metric_name(fn)


class _Patchable(types.ModuleType):
    """This module's class: an assignment to any attribute, as ``mock.patch`` makes, decides all routes again."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        _decide_again()

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        _decide_again()

    def __reduce__(self) -> tuple[Callable[[str], types.ModuleType], tuple[str]]:
        """Return how to import it: cloudpickle does not know a module of a class of its own."""
        return import_module, (self.__name__,)


registry.default.silence(_leaves_by_no_way)
audience.answered_by(_listener, name=_name)
sys.modules[__name__].__class__ = _Patchable
import_module(f"{__name__}.api")  # the submodule is this module, complete by now

"""torchelastic's events, as records of the journal and metrics of torchrun, and its metrics, as if put through ours.

Modules of torch bind ``record`` by name at their import, so replacing it comes too late. The names that ``record`` and
the like look up at each call are replaced instead, and get the event: every caller is covered, whether or not a handler
was asked for, and no frame of ours stands where torch looks for its caller.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, ModuleType
from typing import Any

from tachograph import elastic
from tachograph.instrumentation._given_providers import EVERYWHERE, Recording
from tachograph.profiling.probe import audience, error_type, silence
from tachograph.recording.instrument import FunctionCalls, Instrument, Record
from tachograph.recording.interrupts import pass_on
from tachograph.recording.log import LogOnce
from tachograph.recording.naming import check_name
from tachograph.recording.own_metrics import (
    PHASES,
    RESTARTS,
    TORCHELASTIC,
    WORKER_GROUP_STATE,
    WORKER_STATUS,
    WORKERS,
    OwnMetric,
)
from tachograph.recording.points import AttributeValue, attributes_key
from tachograph.recording.registry import Registry
from tachograph.recording.values import Number
from tachograph.recording.wrapping import wraps

STATE = "torchelastic.worker_group.state"


# WorkerState of torch.distributed.elastic.agent.server.api.
_STATES = frozenset({"unknown", "init", "healthy", "unhealthy", "stopped", "succeeded", "failed"})
STATUS = "torchelastic.worker.status"
WATCHDOG = "torchelastic.watchdog"
RENDEZVOUS = "torchelastic.rendezvous"
OTHER = "torchelastic.event"  # an event without a name
_LOOKED_UP = ("_get_or_create_logger", "get_logging_handler")
_log = logging.getLogger("tachograph")
# The arguments of construct_and_record_rdzv_event.
_RENDEZVOUS = frozenset(
    {"run_id", "message", "node_state", "name", "hostname", "pid", "master_endpoint", "local_id", "rank"}
)
# The methods that keep a rendezvous alive, every few seconds for as long as the job runs.
_HEARTBEATS = ("._keep_alive", "Executor.run")
_WORKERS = "workers."
_SUCCESS, _FAILURE, _DURATION = ".success", ".failure", ".duration.ms"
_PROFILED = (_SUCCESS, _FAILURE, _DURATION)


class TorchrunSeries:
    """The metrics of a torchrun agent; each has the worker group's ``role`` as an attribute.

    ``torchrun.restarts`` is a counter from 0 on. It leaves out restarts because of nodes that come or go, as torchrun
    itself does; ``function.calls`` of ``SimpleElasticAgent._restart_workers`` counts all. Each change of the group's
    state is an event ``torchelastic.worker_group.state``, besides.

    Args:
        recording: the registry and the journal.
    """

    def __init__(self, recording: Recording = EVERYWHERE) -> None:
        self.recording = recording
        self._lock = threading.Lock()
        self._records: dict[tuple[str, str], Record] = {}
        self._state: dict[str, str] = {}
        self._restarts: dict[str, int] = {}

    def point(self, role: str, name: str, value: object) -> None:
        """Take one of torchelastic's points, ``workers.<role>.<name>``."""
        if name in _STATES:
            self._enter(role, name)
            return
        record = self._records.get((role, name))
        if record is None:
            what = f"torchelastic's workers.<role>.{name}."
            other = OwnMetric(TORCHELASTIC, f"torchrun.{name}", "", "gauge", what)
            record = self._instrument(WORKERS.get(name, other)).bind(role=role)
            self._records[role, name] = record
        record(value)

    def _enter(self, role: str, state: str) -> None:
        before = self._state.get(role)
        if before == state:  # ten times a second
            return
        self._state[role] = state
        self.recording.journal.append(STATE, time.time_ns(), {"role": role, "state": state.upper()})
        instrument = self._instrument(WORKER_GROUP_STATE)
        instrument.record(1, {"role": role, "state": state})
        if before is not None:
            instrument.record(0, {"role": role, "state": before})

    def status(self, told: Mapping[str, AttributeValue]) -> None:
        """Take the attributes of one status event, of a worker or of the agent."""
        role, state = str(told.get("role", "")), str(told.get("state", ""))
        restarts = told.get("agent_restarts")
        if isinstance(restarts, int):
            self._restarted(role, restarts)
        seconds = told.get("duration_ms")
        if isinstance(seconds, int | float):
            self._took(role, state, seconds / 1000)
        if told.get("source") == "WORKER":
            self._instrument(WORKER_STATUS).record(1, {"role": role, "state": state})

    def _restarted(self, role: str, count: int) -> None:
        with self._lock:
            before = self._restarts.get(role, 0)
            self._restarts[role] = count
        # Fewer than before: the process has launched another job.
        self._instrument(RESTARTS).record(count - before if count >= before else count, {"role": role})

    def _took(self, role: str, state: str, seconds: Number) -> None:
        name = state.lower()
        what = f"Duration of torchrun's {name.replace('_', ' ')}."
        other = OwnMetric(TORCHELASTIC, f"torchrun.{name}.duration", "s", "histogram", what)
        self._instrument(PHASES.get(state, other)).record(seconds, {"role": role})

    def _instrument(self, metric: OwnMetric) -> Instrument:
        return self.recording.registry.group(TORCHELASTIC).own(metric)


class ElasticEvents:
    """Logs every event of the real torchelastic, until it is closed.

    ``torchelastic.worker.status`` (the state is an attribute), ``torchelastic.watchdog`` and
    ``torchelastic.rendezvous`` carry all of torchelastic's data as flat attributes; events of the program's own keep
    their name. The time is that of the call, as torchelastic leaves its own at 0. The heartbeats of a rendezvous are
    left out, unless the program has asked torch for its events.

    Args:
        events: the module ``torch.distributed.elastic.events``.
        series: gets the status of workers and agent, for the metrics; events go to its journal.
    """

    def __init__(self, events: ModuleType | Any, series: TorchrunSeries) -> None:
        self._events = events
        self._series = series
        self._registry, self._journal = series.recording
        self._log_once = LogOnce()
        self._closed = False
        self._replaced: list[tuple[str, Any, Any]] = []
        if not all(hasattr(events, name) for name in _LOOKED_UP):
            _log.warning("this version of torch is not supported: its elastic events are not recorded")
            return
        self._tap("_get_or_create_logger", self._recorded)
        self._tap("get_logging_handler", self._rendezvous)

    def _tap(self, name: str, hear: Any) -> None:
        original = getattr(self._events, name)

        @wraps(original)
        def heard(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            caller = sys._getframe(1)  # noqa: SLF001 - documented, and there is no other way to the caller
            if not self._closed and caller.f_globals is vars(self._events):
                self._guard(hear, caller, result)
            return result

        setattr(self._events, name, heard)
        self._replaced.append((name, original, heard))

    def _guard(self, hear: Any, caller: FrameType, result: Any) -> None:
        try:
            hear(caller.f_locals, caller.f_back, result)
        except Exception as error:  # noqa: BLE001 - the border to torch: it gets no error of ours
            pass_on(error)
            self._registry.count_error("torchelastic")
            message = (
                "could not record an event of torchelastic: %r (further warnings are suppressed; see "
                "tachograph_errors_total on /metrics)"
            )
            self._log_once("event", message, error)

    def _recorded(self, arguments: Mapping[str, Any], _caller: FrameType | None, _logger: logging.Logger) -> None:
        event = arguments.get("event")
        if event is None:
            return
        if hasattr(event, "node_state"):
            self._append(RENDEZVOUS, vars(event))
            return
        told = _flat({"source": getattr(event.source, "value", event.source), **event.metadata})
        if "watchdog_event" in told:
            name = WATCHDOG
        elif event.name.startswith(STATUS):
            name = STATUS
            self._series.status(told)
        else:
            name = event.name or OTHER
        at = event.timestamp * 1_000_000 if isinstance(event.timestamp, int) and event.timestamp > 0 else 0
        self._journal.append(name, at or time.time_ns(), told)

    def _rendezvous(self, arguments: Mapping[str, Any], caller: FrameType | None, handler: logging.Handler) -> None:
        """Log an event of the rendezvous that the program did not ask torch for; else torch itself makes an event."""
        if "node_state" not in arguments or not isinstance(handler, logging.NullHandler):
            return
        state = getattr(arguments["node_state"], "value", None)
        if state == "RUNNING" and str(arguments.get("name")).endswith(_HEARTBEATS):
            return
        told = {key: value for key, value in arguments.items() if key in _RENDEZVOUS}
        file = "no_file" if caller is None else os.path.basename(caller.f_code.co_filename)  # noqa: PTH119
        name = told.get("name") or ("" if caller is None else caller.f_code.co_name)
        told |= {"name": f"{file}:{name}", "pid": told.get("pid") or os.getpid()}
        if state == "FAILED":
            told["error_trace"] = traceback.format_exc()
        self._append(RENDEZVOUS, told)

    def _append(self, name: str, told: Mapping[str, Any]) -> None:
        kept = {key: value for key, value in told.items() if value != ""}
        self._journal.append(name, time.time_ns(), _flat(kept))

    def close(self) -> None:
        """Restore torchelastic."""
        self._closed = True
        for name, original, heard in self._replaced:
            if getattr(self._events, name) is heard:  # else the program has wrapped ours
                setattr(self._events, name, original)
        self._replaced.clear()


def _flat(told: Mapping[str, Any]) -> dict[str, AttributeValue]:
    """Return the data as attributes: those that are None left out, those in the JSON of ``metadata`` added."""
    return dict(_pairs({**_inner(told.get("metadata")), **told}))


def _pairs(told: Mapping[str, Any]) -> Iterator[tuple[str, AttributeValue]]:
    for key, given in told.items():
        if key == "metadata" and _inner(given):
            continue
        value = getattr(given, "value", given)  # of an enumeration
        if value is None or not key:
            continue
        try:
            ((_, attribute),) = attributes_key({key: value})
        except TypeError:
            attribute = str(value)
        yield key, attribute


def _inner(text: object) -> dict[str, Any]:
    """Return the mapping in a JSON text; of a list of one, as torchelastic writes by mistake, its element."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: value[0] if isinstance(value, list) and len(value) == 1 else value for key, value in found.items()}


class ElasticMetrics:
    """Records every point of the real torchelastic API, until it is closed.

    All its functions end in one method, which is wrapped: handlers stay as the program has configured them, and one
    that is configured later gets every point, as before.

    Points of its ``@prof`` and ``@profile`` become ``function.duration`` and ``function.calls``, torchrun's
    ``workers.<role>.*`` become ``torchrun.*``, and all others are recorded as by :func:`tachograph.put_metric`. An
    explicitly configured ``NullMetricHandler`` silences its group, as in :func:`tachograph.configure`.

    Args:
        api: the module ``torch.distributed.elastic.metrics.api``.
        series: takes torchrun's points; the others go to its registry.
    """

    def __init__(self, api: ModuleType | Any, series: TorchrunSeries) -> None:
        self._api = api
        self._series = series
        self._registry = series.recording.registry
        self._shared = self._registry is EVERYWHERE.registry  # with our own front door, its handlers and its silence
        self._default = api._default_metrics_handler  # noqa: SLF001 - the one that stands for "none configured"
        self._profiled = _Profiled(api, self._registry)
        self._log_once = LogOnce()
        self._closed = False
        self._stream: Any = api.MetricStream
        self._original = original = self._stream.add_value

        @wraps(original)
        def add_value(stream: Any, metric_name: str, metric_value: Any) -> Any:
            if not self._closed:
                caller = sys._getframe(1)  # noqa: SLF001 - documented, and there is no other way to the caller
                self._take(stream, metric_name, metric_value, caller)
            return original(stream, metric_name, metric_value)

        self._wrapper = self._stream.add_value = add_value

    def _take(self, stream: Any, name: str, value: Any, caller: FrameType) -> None:
        try:
            if self._silenced(stream.handler):
                return
            group = TORCHELASTIC if stream.group_name is None else stream.group_name
            if name.endswith(_PROFILED) and self._profiled.made(caller):
                tell = audience.listener(group) if self._shared else None
                if tell is not silence:
                    self._profiled.take(group, name, value)
                    if tell is not None:
                        tell(name, value)
            elif group == TORCHELASTIC and name.startswith(_WORKERS) and name.count(".") > 1:
                role, _, what = name[len(_WORKERS) :].rpartition(".")
                self._series.point(role, what, value)
            elif self._shared:
                elastic.put_metric(name, value, group)
            else:
                instrument = self._registry.group_for(group, name).instrument(name)
                instrument.keep_curves(self._registry.curves)
                instrument.record(value)
        except Exception as error:  # noqa: BLE001 - the border to the program: it gets no error of ours
            pass_on(error)
            self._registry.count_error("torchelastic")
            message = (
                "could not record a value of torchelastic: %r (further warnings are suppressed; see "
                "tachograph_errors_total on /metrics)"
            )
            self._log_once("point", message, error)

    def _silenced(self, handler: Any) -> bool:
        null = self._api.NullMetricHandler
        return handler is not self._default and isinstance(handler, null) and type(handler).emit is null.emit

    def close(self) -> None:
        """Restore torchelastic."""
        self._closed = True
        if self._stream.add_value is self._wrapper:  # else the program has wrapped ours
            self._stream.add_value = self._original


class _Profiled:
    """The points that the real ``@prof`` puts: ``X.success`` or ``X.failure``, then ``X.duration.ms``."""

    def __init__(self, api: ModuleType | Any, registry: Registry) -> None:
        self._registry = registry
        makers = [inspect.unwrap(getattr(api, name)) for name in ("prof", "profile") if hasattr(api, name)]
        self._bodies = frozenset(code for maker in makers for code in _nested(maker.__code__))
        # Frames between the function that puts a point and its caller: `publish_metric` is decorated itself.
        self._between = {api.put_metric.__code__: 1}
        publish = getattr(api, "publish_metric", None)
        if publish is not None:
            self._between[inspect.unwrap(publish).__code__] = 1 if inspect.unwrap(publish) is publish else 2
        self._calls: dict[tuple[str, str], FunctionCalls] = {}
        self._ended = threading.local()

    def made(self, frame: FrameType | None) -> bool:
        """Tell whether the function of this frame puts a point for a profiled function."""
        between = 0 if frame is None else self._between.get(frame.f_code, 0)
        for _ in range(between):
            frame = None if frame is None else frame.f_back
        return between > 0 and frame is not None and frame.f_code in self._bodies

    def take(self, group: str, name: str, value: float) -> None:
        """Take one such point; for a failure, called while its exception is handled."""
        if not name.endswith(_DURATION):
            error = sys.exc_info()[1] if name.endswith(_FAILURE) else None
            self._ended.last = group, name.rpartition(".")[0], None if error is None else error_type(error)
            return
        key = name.removesuffix(_DURATION)
        last, self._ended.last = getattr(self._ended, "last", None), None
        if last is not None and last[:2] == (group, key):
            failure = last[2]
        else:  # neither: a KeyboardInterrupt or the like, which torchelastic does not count as a failure
            error = sys.exc_info()[1]
            failure = None if error is None else error_type(error)
        calls = self._calls.get((group, key))
        if calls is None:
            calls = self._registry.group(group).function(check_name(key))
            self._calls[group, key] = calls
        into = calls.success if failure is None else calls.failure(failure)
        into.record(value / 1000)


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)

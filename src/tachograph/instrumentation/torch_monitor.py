"""The instrumentor of torch.monitor: events and Stats of the real one are exported like those of ours."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from tachograph.identity.environment import Setting, setting
from tachograph.identity.import_hooks import ImportHook
from tachograph.instrumentation._bridge import Bridge, BridgedStats
from tachograph.instrumentation._given_providers import given_providers
from tachograph.monitor.wait_counter import waited
from tachograph.recording import registry
from tachograph.recording.interrupts import pass_on
from tachograph.recording.own_metrics import TORCH_MONITOR, WAIT_ACTIVE, WAIT_CALLS, WAIT_TIME
from tachograph.recording.points import MetricPoints, NumberPoint
from tachograph.recording.registry import Registry
from tachograph.recording.wrapping import wraps


class WaitCounters:
    """Measures every ``torch.monitor._WaitCounter`` that is made from now on; see :func:`~.wait_counter.waited`.

    Args:
        monitor: the module ``torch.monitor``.
        into: the registry that records them.
    """

    def __init__(self, monitor: ModuleType | Any, into: Registry = registry.default) -> None:
        self._class: Any = getattr(monitor, "_WaitCounter", None)
        self._keys: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        if self._class is None:
            _log.warning("this version of torch has no WaitCounters: not measuring them")
            return
        self._init = init = self._class.__dict__["__init__"]
        self._guard = guard = self._class.__dict__["guard"]
        keys = self._keys

        @wraps(init)
        def remembering(counter: Any, key: str) -> None:
            init(counter, key)
            keys[counter] = key

        @wraps(guard)
        def measuring(counter: Any) -> Any:
            key = keys.get(counter)
            tracker = guard(counter)
            return tracker if key is None else _Wait(key, tracker, into)

        self._class.__init__ = remembering
        self._class.guard = measuring

    def close(self) -> None:
        """Restore the class."""
        if self._class is not None:
            self._class.__init__ = self._init
            self._class.guard = self._guard
            self._class = None


class WaitTotals:
    """torch's own totals of its WaitCounters, those of its C++ code, too: read in each collection, some microseconds.

    It patches nothing. torch has them for its debug server since 2.10; where they are missing there are none. A forked
    child reads none: another thread of the parent may have held their lock.

    Args:
        into: the registry that publishes them.
    """

    def __init__(self, into: Registry = registry.default) -> None:
        self._into, self._pid, self._start = into, os.getpid(), time.time_ns()
        self._known: dict[str, None] = {}
        self._read = _wait_counter_values()
        if self._read is not None:
            into.group(TORCH_MONITOR).sources.append(self.points)

    def close(self) -> None:
        """Publish them no more."""
        if self._read is not None:
            self._into.group(TORCH_MONITOR).sources.remove(self.points)
            self._read = None

    def points(self) -> Iterator[MetricPoints]:
        """Yield the totals: of 2,000 WaitCounters at most, others are counted."""
        read = self._read
        if read is None or os.getpid() != self._pid:
            return
        try:
            rows = [(name, told) for name, told in json.loads(read()).items() if self._is_kept(name)]
            found = [
                (metric, [NumberPoint((("name", name),), told[key] * unit, self._start) for name, told in rows])
                for metric, key, unit in _TOTALS
            ]
        except Exception as failure:  # noqa: BLE001 - the border to torch's private code
            pass_on(failure)
            self._into.count_error("torch.wait.calls")
            return
        yield from (MetricPoints(*metric[:5], points) for metric, points in found if points)

    def _is_kept(self, name: str) -> bool:
        if name not in self._known and len(self._known) >= _MOST_COUNTERS:
            self._into.count_dropped("cardinality", "registry")
            return False
        self._known[name] = None
        return True


def _wait_counter_values() -> Callable[[], str] | None:
    """Return a function that asks torch for its totals, as JSON; None where this torch has none.

    Source: torch/csrc/distributed/c10d/control_plane/WaitCounterHandler.cpp.
    """
    plane: Any = getattr(sys.modules.get("torch._C"), "_distributed_c10d", None)
    try:
        handler = plane._get_handler("wait_counter_values")  # noqa: SLF001 - there is no other way to them

        class Asked(plane._Request):  # type: ignore[misc] # noqa: SLF001
            def get_param(self, _name: str) -> str:
                return ""

        class Answer(plane._Response):  # type: ignore[misc] # noqa: SLF001
            content = ""

            def set_content(self, content: str, _kind: str) -> None:
                self.content = content

            def set_status(self, _status: int) -> None:
                """Take none."""
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None

    def read() -> str:
        answer = Answer()
        handler(Asked(), answer)
        return answer.content

    return read


class _Wait:
    """torch's own context manager, and a clock."""

    __slots__ = ("_into", "_key", "_since", "_tracker")

    def __init__(self, key: str, tracker: Any, into: Registry) -> None:
        self._key, self._into = key, into
        self._tracker = tracker
        self._since: float | None = None

    def __enter__(self) -> Any:
        entered = self._tracker.__enter__()
        self._since = time.perf_counter()
        return entered

    def __exit__(self, *error: object) -> Any:
        since, self._since = self._since, None
        if since is not None:
            try:
                waited(self._key, time.perf_counter() - since, self._into)
            except Exception as failure:  # noqa: BLE001 - the border to torch's own code
                pass_on(failure)
                self._into.count_error("torch.wait.duration")
        return self._tracker.__exit__(*error)


MODULE = "torch.monitor"
_MOST_COUNTERS = 2000
_TOTALS = (  # metric, key in torch's JSON, and its unit
    (WAIT_CALLS, "total_calls", 1),
    (WAIT_TIME, "total_time_us", 1e-6),
    (WAIT_ACTIVE, "active_count", 1),
)
VARIABLE = "TACHOGRAPH_WAIT_COUNTERS"

_log = logging.getLogger("tachograph")


class TorchMonitorInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Export the events and Stats of torch's own ``torch.monitor`` through the exporters of :func:`tachograph.start`.

    Events become log records; Stats also become the gauges and sums of :class:`tachograph.monitor.Stat`.
    ``opentelemetry-instrument`` loads this instrumentor. It does not import torch, but waits until the program does.
    Any number of threads may log: its handlers cannot cause the deadlock in torch.
    """

    _hook: ImportHook | None = None
    _bridge: Bridge | None = None
    _waits: WaitCounters | None = None
    _totals: WaitTotals | None = None
    _stats: BridgedStats | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the required packages; the early version lets the vendors' pre-releases pass."""
        return ("torch >= 2.0.0a0",)

    def _instrument(
        self,
        *,
        meter_provider: Any = None,
        logger_provider: Any = None,
        tracer_provider: Any = None,
        wait_counters: bool | None = None,
        **_ignored: Any,
    ) -> None:
        """Instrument ``torch.monitor``.

        Args:
            meter_provider: takes the metrics of Stats and WaitCounters; unset, the global one, and the destinations of
                ``start()``.
            logger_provider: takes the events; unset, likewise.
            tracer_provider: may be given, as to any instrumentor; torch.monitor has no spans.
            wait_counters: measure torch's WaitCounters, too, by ``name``: each wait of those that torch opens from
                Python (``torch.wait.duration``), and its own totals of all (``torch.wait.calls``, ``torch.wait.time``
                and ``torch.wait.active``). TACHOGRAPH_WAIT_COUNTERS is ``true`` or ``false``, which is the default.

        Raises:
            TypeError: ``wait_counters`` is no bool, or one of the others is no such provider.
        """
        if wait_counters is not None and not isinstance(wait_counters, bool):
            raise Setting("wait_counters=", wait_counters).wrong_type("a bool")
        measured = _from_environment() if wait_counters is None else wait_counters

        if not registry.default.enabled:
            return

        into, events = given_providers.recording(
            meter_provider=meter_provider, logger_provider=logger_provider, tracer_provider=tracer_provider
        )

        def begin(monitor: ModuleType) -> None:
            if measured:
                self._waits, self._totals = WaitCounters(monitor, into), WaitTotals(into)
            if into is not registry.default:
                self._bridge = Bridge(monitor, events, into, BridgedStats(into))
                return
            if self._stats is None:
                TorchMonitorInstrumentor._stats = BridgedStats(into)
            self._bridge = Bridge(monitor, events, into, self._stats)

        self._hook = ImportHook(MODULE, begin)

    def _uninstrument(self, **_ignored: Any) -> None:
        """End: torch.monitor is restored, and all events that were logged until now are recorded."""
        if self._hook is not None:
            self._hook.cancel()
        if self._waits is not None:
            self._waits.close()
        if self._totals is not None:
            self._totals.close()
        if self._bridge is not None:
            self._bridge.close()
        self._hook = self._waits = self._totals = self._bridge = None


def _from_environment() -> bool:
    given = setting(os.environ, "", None, VARIABLE)
    try:
        return given is not None and given.boolean()
    except ValueError as error:  # zero code: the job goes on
        _log.warning("%s; not measuring WaitCounters", error)
        return False

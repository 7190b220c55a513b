"""What is put through the real ``torch.distributed.elastic.metrics``, recorded as if it had been put through ours.

All its functions end in one method, which is wrapped: handlers stay as the program has configured them, and whoever
configures another one later gets every point, as before.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterator
from functools import wraps
from types import CodeType, FrameType, ModuleType
from typing import Any

from tachograph import elastic
from tachograph.instrumentation._given_providers import EVERYWHERE
from tachograph.instrumentation._torchelastic_events import TorchrunSeries
from tachograph.profiling.probe import audience, error_type, silence
from tachograph.recording.function_calls import FunctionCalls
from tachograph.recording.log import LogOnce
from tachograph.recording.naming import check_name
from tachograph.recording.own_metrics import TORCHELASTIC
from tachograph.recording.registry import Registry

_WORKERS = "workers."
_SUCCESS, _FAILURE, _DURATION = ".success", ".failure", ".duration.ms"
_PROFILED = (_SUCCESS, _FAILURE, _DURATION)


class ElasticMetrics:
    """Records every point of the real torchelastic API, until it is closed.

    What its ``@prof`` and ``@profile`` put becomes ``function.duration`` and ``function.calls``, torchrun's
    ``workers.<role>.*`` become ``torchrun.*``, and all else what :func:`tachograph.put_metric` makes of it. An
    explicitly configured ``NullMetricHandler`` silences its group, as in :func:`tachograph.configure`.

    Args:
        api: the module ``torch.distributed.elastic.metrics.api``.
        series: takes torchrun's points; the others are recorded where it records.
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
                self._registry.group(group).instrument(name).record(value)
        except Exception as error:  # noqa: BLE001 - the border to the program: whatever it puts, it gets no error
            self._registry.count_error("torchelastic")
            self._log_once("point", "a point of torchelastic cannot be recorded (further ones are counted): %r", error)

    def _silenced(self, handler: Any) -> bool:
        null = self._api.NullMetricHandler
        return handler is not self._default and isinstance(handler, null) and type(handler).emit is null.emit

    def close(self) -> None:
        """Leave torchelastic as it was."""
        self._closed = True
        if self._stream.add_value is self._wrapper:  # else somebody has wrapped ours
            self._stream.add_value = self._original


class _Profiled:
    """The points that the real ``@prof`` puts: ``X.success`` or ``X.failure``, then ``X.duration.ms``."""

    def __init__(self, api: ModuleType | Any, registry: Registry) -> None:
        self._registry = registry
        makers = [inspect.unwrap(getattr(api, name)) for name in ("prof", "profile") if hasattr(api, name)]
        self._bodies = frozenset(code for maker in makers for code in _nested(maker.__code__))
        # How many frames lie between what puts a point and who called it: `publish_metric` is decorated itself.
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
        """Take one such point; called while the exception that a failure is about is handled."""
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

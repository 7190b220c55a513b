"""Training telemetry on OpenTelemetry: record metrics, curves and events, and export them to Prometheus, OTLP or a hub.

Importing this package is cheap: each name is loaded when you first use it, and the OpenTelemetry SDK only by
:func:`start`.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tachograph.identity.torch_compile import hide_recording_functions
from tachograph.recording.pulse_source import pulse_source
from tachograph.recording.switch import switch
from tachograph.recording.wishes import wishes
from tachograph.version import __version__

if TYPE_CHECKING:
    from tachograph import elastic, logger, metric, monitor, otel, runs, testing
    from tachograph.elastic import configure, prof, put_metric
    from tachograph.logger import MetricsLogger
    from tachograph.metric import Metric, MetricGroup, MetricScale, config, log, progress, summary, task, workflow
    from tachograph.pipeline import shutdown, start
    from tachograph.recording.registry import declare

__all__ = [
    "Metric",
    "MetricGroup",
    "MetricScale",
    "MetricsLogger",
    "__version__",
    "config",
    "configure",
    "declare",
    "elastic",
    "log",
    "logger",
    "metric",
    "monitor",
    "otel",
    "prof",
    "progress",
    "put_metric",
    "runs",
    "shutdown",
    "start",
    "summary",
    "task",
    "testing",
    "workflow",
]

_MODULES = {"elastic", "logger", "metric", "monitor", "otel", "runs", "testing"}
_MODULE_OF_NAME = {
    "Metric": "metric",
    "MetricGroup": "metric",
    "MetricScale": "metric",
    "MetricsLogger": "logger",
    "config": "metric",
    "configure": "elastic",
    "declare": "recording.registry",
    "log": "metric",
    "prof": "elastic",
    "progress": "metric",
    "put_metric": "elastic",
    "shutdown": "pipeline",
    "start": "pipeline",
    "summary": "metric",
    "task": "metric",
    "workflow": "metric",
}

# Functions that return nothing, so that one which a signal handler calls while its module loads can be called later.
_POSTPONED = {"config", "configure", "log", "put_metric", "shutdown", "summary"}
_postponed: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []


def _watch() -> None:
    """Publish recorded values through the MeterProvider that the program has set, or sets later."""
    from tachograph.pipeline import watch

    watch(lambda: import_module("tachograph.pipeline.lifecycle").join())


hide_recording_functions()
switch.on_begin(_watch)
wishes.loaded_by(lambda: import_module("tachograph.pipeline.lifecycle"))
pulse_source.loaded_by(lambda: import_module("tachograph.diagnosis.pulse").Pulse())


def _at_last() -> None:
    """Deliver the values that exit handlers have recorded, or say that nothing does: registered first, called last."""
    was_interrupted = _was_interrupted()
    try:
        _deliver_last()
    finally:
        if was_interrupted:
            # CPython dies of SIGINT, so that a shell ends its loop, only if KeyboardInterrupt ended the last code that
            # it has compiled. Imports at the exit compile some: each named tuple, each dataclass.
            with contextlib.suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")  # noqa: S102 - compiled on purpose


def _was_interrupted() -> bool:
    """Tell whether Ctrl-C ends the program: CPython has printed its KeyboardInterrupt, which left the main module."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if type(error) is not KeyboardInterrupt or hasattr(sys, "ps1"):
        return False
    outermost = error.__traceback__
    return outermost is None or outermost.tb_frame.f_code.co_name in {"<module>", "_run_module_as_main"}


def _deliver_last() -> None:
    _call_postponed()
    lifecycle = sys.modules.get("tachograph.pipeline.lifecycle")
    if lifecycle is not None:
        lifecycle.at_last()
    elif "tachograph.recording.registry" in sys.modules:
        from tachograph.pipeline._unheard import say_undelivered

        say_undelivered()


def _at_last_of_worker() -> None:
    """Do the same in a child of multiprocessing, which may end without exit handlers."""
    if "tachograph.pipeline.lifecycle" not in sys.modules:  # else that has a handler of its own
        _at_last()


atexit.register(_at_last)
if "multiprocessing.util" in sys.modules:  # this may be such a child, which forgets its handlers before it works
    _util = sys.modules["multiprocessing.util"]
    _util.register_after_fork(switch, lambda _: _util.Finalize(None, _at_last_of_worker, exitpriority=0))


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tachograph.{name}")
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'tachograph' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"tachograph.{_MODULE_OF_NAME[name]}"), name)
    except (AttributeError, ImportError):
        if name in _POSTPONED and _is_loading():
            return partial(_postpone, name)
        raise
    globals()[name] = value
    _call_postponed()
    return value


def _is_loading() -> bool:
    """Tell whether a module of the package is being imported; here, by the code that a signal handler interrupts."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("tachograph.")]
    return any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in modules)


def _postpone(name: str, *arguments: Any, **keywords: Any) -> None:
    """Call a function of the package as soon as it is loaded."""
    if _is_loading():
        _postponed.append((name, arguments, keywords))
    else:
        getattr(sys.modules[__name__], name)(*arguments, **keywords)


def _call_postponed() -> None:
    calls = _postponed.copy()
    del _postponed[: len(calls)]
    for name, arguments, keywords in calls:
        getattr(sys.modules[__name__], name)(*arguments, **keywords)


def __dir__() -> list[str]:
    return sorted(__all__)  # only what users type, although importing a subpackage sets an attribute here

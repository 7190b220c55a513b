"""``start()`` and ``shutdown()``: the pipeline of the process, of which there is one."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from tachograph import elastic, registry
from tachograph.accumulators import switch
from tachograph.destinations import Route, given
from tachograph.elastic.handlers import Exports
from tachograph.identity.resource import is_helper, owner_mark
from tachograph.otlp.settings import SIGNALS, Signal
from tachograph.pipeline import EXIT_TIMEOUT, Pipeline
from tachograph.settings import read_settings

if TYPE_CHECKING:
    from tachograph.settings import Settings


class _Process:
    """What this process has running."""

    lock = threading.RLock()
    pipeline: Pipeline | None = None
    by_itself = False  # started by configure(exporter), so an explicit start() takes over

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}
        self.configured: dict[str | None, Route] = {}


_process = _Process()


def start(**settings: Any) -> Pipeline:
    """Deliver what this process records, in the background, until its end.

    Without arguments, and with no ``OTEL_*`` variable set, it serves ``/metrics`` for Prometheus on 127.0.0.1, port
    9464 plus the local rank (the next free one where that is taken; see ``metrics_url``), and nothing else. An OTLP
    endpoint, as argument or variable, adds OTLP for metrics, traces and logs. Arguments win over ``OTEL_*`` variables,
    which win over ``TACHOGRAPH_*`` ones.

    A program that has set up a meter provider of its own keeps it: everything recorded leaves through that one, and
    beside it only to the ``metrics`` that are named in this call. Events leave through its logger provider, unless
    ``logs`` are named in this call.

    Args:
        **settings: see :func:`tachograph.settings.read_settings`, which has them all: ``metrics``, ``traces``,
            ``logs``, ``endpoint``, ``protocol``, ``headers``, ``timeout``, ``compression``, ``interval``,
            ``service_name``, ``run_id``, ``resource``, ``resource_labels``, ``prometheus_host``, ``prometheus_port``,
            ``store``, ``jsonl``.

    Returns:
        The running pipeline, a context manager. Called again with the same settings, the same one. In a helper process
        of a rank (a data-loader worker, say), and with ``OTEL_SDK_DISABLED=true``, one that delivers nothing.

    Raises:
        ValueError: a wrong value; the message names where it was given and what is allowed.
        TypeError: an unknown argument, or one of a wrong type.
        RuntimeError: it runs already with other settings.
    """
    with _process.lock:
        asked = read_settings(os.environ, **settings)
        running = _process.pipeline
        if running is not None and running.running and _process.by_itself:
            running.shutdown()
        elif running is not None and running.running:
            if running.settings == asked:
                return running
            raise RuntimeError(
                f"tachograph runs already with other settings ({_differences(running.settings, asked)}): "
                "call tachograph.shutdown() before you start() it with these"
            )
        if asked.disabled:
            return Pipeline(asked, registry.default, idle=True)
        if is_helper(os.environ, os.getpid()):
            switch.on = False
            return Pipeline(asked, registry.default, idle=True)
        if not switch.on:
            registry.default.reset()
        mark = owner_mark(os.environ, os.getpid())
        if mark is not None:
            os.environ["TACHOGRAPH_OWNER"] = mark
        _process.arguments, _process.by_itself = settings, False
        _process.pipeline = pipeline = Pipeline(asked, registry.default, asked=_named(settings))
        for route in _process.configured.values():
            pipeline.attach(route)
        _deliver_configured(pipeline)
        _end_with_the_process()
        return pipeline


def _named(settings: dict[str, Any]) -> frozenset[Signal]:
    return frozenset(signal for signal in SIGNALS if settings.get(signal) is not None)


def _differences(running: Settings, asked: Settings) -> str:
    names = [name for name in running.__slots__ if getattr(running, name) != getattr(asked, name)]
    return ", ".join(f"{name}={getattr(running, name)!r:.60}, now {getattr(asked, name)!r:.60}" for name in names)


def shutdown(timeout: float = 5.0) -> None:
    """Deliver everything recorded so far and stop delivering, within ``timeout`` seconds; recording goes on in memory.

    Does nothing where nothing runs.
    """
    running = _process.pipeline
    if running is not None:
        running.shutdown(timeout)


def _deliver_configured(pipeline: Pipeline) -> None:
    for group, exporter in elastic.exporters.items():
        if group not in _process.configured:
            groups = None if group is None else {group}
            _process.configured[group] = given(exporter, registry.default, metrics=True, spans=False, groups=groups)
            pipeline.attach(_process.configured[group])


def _on_exporter(group: str | None, _exporter: Exports | None) -> None:
    """Deliver a group to the exporter that ``configure`` was given, with or without a ``start()`` before."""
    with _process.lock:
        pipeline = _process.pipeline
        replaced = _process.configured.pop(group, None)
        if replaced is not None:
            if pipeline is not None:
                pipeline.flush(EXIT_TIMEOUT)
                pipeline.detach(replaced)
            replaced.destination.close(EXIT_TIMEOUT)
        if pipeline is not None and pipeline.running:
            _deliver_configured(pipeline)
        elif elastic.exporters:
            start(metrics="none", traces="none", logs="none")
            _process.by_itself = True


elastic.on_exporter = _on_exporter


def _end_with_the_process() -> None:
    # Last registered, first called: before the exit of a provider that the program has made.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    if "multiprocessing.process" in sys.modules:
        from multiprocessing import parent_process, util

        if parent_process() is not None:  # such a child may end without atexit
            util.Finalize(None, _at_exit, exitpriority=1)


def _at_exit() -> None:
    deadline = time.monotonic() + EXIT_TIMEOUT
    if _process.pipeline is not None:
        _process.pipeline.shutdown(EXIT_TIMEOUT, exiting=True)
    for route in _process.configured.values():
        route.destination.close(max(deadline - time.monotonic(), 0.05))
    if _process.pipeline is not None:
        _process.pipeline.await_signal()


def _before_fork() -> None:
    if _process.pipeline is not None:
        _process.pipeline.before_fork()


def _after_fork_in_parent() -> None:
    if _process.pipeline is not None:
        _process.pipeline.after_fork_in_parent()


def _after_fork_in_child() -> None:
    _process.lock = threading.RLock()
    _process.configured = {}
    inherited, _process.pipeline = _process.pipeline, None
    if inherited is None or not inherited.running:
        return
    inherited.reset_in_child()
    if os.environ.get("TACHOGRAPH_HELPERS") == "1":
        start(**_process.arguments)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)

"""``start()`` and ``shutdown()``: the pipeline of the process, of which there is one."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tachograph import elastic, registry
from tachograph.ambient import Ambient
from tachograph.destinations import Route, given
from tachograph.elastic.handlers import Exports
from tachograph.guest import GuestFeed, pages_alike, served_alike
from tachograph.identity.resource import is_helper, owner_mark
from tachograph.logger import delivery
from tachograph.otlp.settings import SIGNALS, Signal
from tachograph.pipeline import EXIT_TIMEOUT, Pipeline
from tachograph.point_routes import PointRoutes
from tachograph.settings import read_settings
from tachograph.switch import switch

if TYPE_CHECKING:
    from tachograph.influx_target import InfluxTarget
    from tachograph.settings import Settings

_CLOSING = 0.05  # seconds that the end of a destination has at least
_ELASTIC = "torch.distributed.elastic.multiprocessing.api"

_log = logging.getLogger("tachograph")


class _Process:
    """What this process has running."""

    lock = threading.RLock()
    pipeline: Pipeline | None = None
    ambient: Ambient | None = None  # the same pipeline, where zero code has begun it
    begin: Callable[[], object] | None = None  # what began it, for a forked child
    by_itself = False  # started by configure(exporter), so an explicit start() takes over

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}
        self.configured: dict[str | None, Route] = {}
        self.points = PointRoutes(registry.default)


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

    Under zero code (``tachograph run``, ``opentelemetry-instrument``) a pipeline runs already: these destinations are
    added to it until the :meth:`~tachograph.Pipeline.shutdown` of what is returned, and a wrong value is a line in the
    log and a pipeline that delivers nothing.

    Raises:
        ValueError: a wrong value; the message names where it was given and what is allowed.
        TypeError: an unknown argument, or one of a wrong type.
        RuntimeError: it runs already with other settings.
    """
    with _process.lock:
        if _process.ambient is not None and _process.ambient.running:
            return _start_beside(_process.ambient, settings)
        asked = read_settings(os.environ, **settings)
        running = _process.pipeline
        if running is not None and running.running and _process.by_itself:
            running.shutdown(0)  # the next one takes its destinations over, and what they have to get
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
        _process.pipeline = pipeline = Pipeline(asked, registry.default, asked=_named(settings), on_ended=_go_on)
        for route in _process.configured.values():
            pipeline.attach(route)
        _deliver_configured(pipeline)
        _end_with_the_process()
        return pipeline


def begin(settings: Settings, *, waits: bool = False, directly: bool = True, again: Callable[[], object]) -> None:
    """Deliver what this process records though the program does not ask for it: zero code.

    Called once a process, in its main thread; see :class:`tachograph.ambient.Ambient` for the arguments.

    Args:
        settings: what it runs with.
        waits: whether it delivers nothing before RANK is there.
        directly: whether ``tachograph run`` itself started the process.
        again: called in a forked child that may become a rank.
    """
    with _process.lock:
        if not switch.on:
            registry.default.reset()
        _process.begin = again
        _process.pipeline = _process.ambient = Ambient(
            settings, registry.default, waits=waits, directly=directly, on_settled=_end_with_the_process
        )
        _process.points.attach_to(_process.ambient)
        _end_with_the_process()


def _start_beside(host: Ambient, settings: dict[str, Any]) -> Pipeline:
    """Return a pipeline with the destinations that are not there yet; it raises nothing."""
    host.wake()
    try:
        asked = read_settings(os.environ, **settings)
    except (ValueError, TypeError) as error:
        _log.warning("start() was not heeded, the program goes on without its destinations: %s", error)
        return Pipeline(read_settings({}), registry.default, idle=True)
    if asked.disabled:
        return Pipeline(asked, registry.default, idle=True)
    for guest in host.guests:
        if guest.running and guest.settings == asked:
            return guest
    paged = pages_alike(host.settings, asked) and host.metrics_url is not None
    wanted = replace(asked, metrics=tuple(name for name in asked.metrics if not (paged and name == "prometheus")))
    served = served_alike(host.settings, asked)
    guest = Pipeline(
        wanted, registry.default, asked=_named(settings), feed=GuestFeed(host, shared=bool(served)), served=served
    )
    if paged:
        guest.metrics_url = host.metrics_url
    host.guests = [*(other for other in host.guests if other.running), guest]
    return guest


def _named(settings: dict[str, Any]) -> frozenset[Signal]:
    return frozenset(signal for signal in SIGNALS if settings.get(signal) is not None)


def _differences(running: Settings, asked: Settings) -> str:
    names = [name for name in running.__slots__ if getattr(running, name) != getattr(asked, name)]
    return ", ".join(f"{name}={getattr(running, name)!r:.60}, now {getattr(asked, name)!r:.60}" for name in names)


def shutdown(timeout: float = 5.0) -> None:
    """Deliver everything recorded so far and stop delivering, within ``timeout`` seconds; recording goes on in memory.

    Where a ``start()`` is ended, what ``configure`` was given and what a ``MetricsLogger`` has of its own goes on.
    Does nothing where nothing runs. Under zero code it takes off only what the program has added by :func:`start`.
    """
    if _process.ambient is not None:
        for guest in _process.ambient.guests:
            guest.shutdown(timeout)
        return
    running = _process.pipeline
    if running is not None:
        running.shutdown(timeout)


def _deliver_configured(pipeline: Pipeline) -> None:
    for group, exporter in elastic.exporters.items():
        if group not in _process.configured:
            groups = None if group is None else {group}
            _process.configured[group] = given(exporter, registry.default, metrics=True, spans=False, groups=groups)
            pipeline.attach(_process.configured[group])
    _process.points.attach_to(pipeline)


def _on_exporter(group: str | None, _exporter: Exports | None) -> None:
    """Deliver a group to the exporter that ``configure`` was given."""
    with _process.lock:
        pipeline = _process.pipeline
        replaced = _process.configured.pop(group, None)
        if replaced is not None:
            if pipeline is not None:
                pipeline.flush(EXIT_TIMEOUT)
                pipeline.detach(replaced)
            replaced.destination.close(EXIT_TIMEOUT)
        if elastic.exporters:
            _deliver()


def _on_target(target: InfluxTarget) -> bool:
    with _process.lock:
        _deliver()
        return target not in _process.points.unreachable


def _deliver() -> None:
    """Deliver what was configured, with or without a ``start()`` before."""
    if _process.pipeline is not None and _process.pipeline.running:
        _deliver_configured(_process.pipeline)
    else:
        start(metrics="none", traces="none", logs="none")
        _process.by_itself = True


def _go_on() -> None:
    """Deliver what was configured by itself, after the end of what ``start()`` returned."""
    with _process.lock:
        if not _process.by_itself and (delivery.targets or elastic.exporters):
            _deliver()


elastic.on_exporter = _on_exporter
delivery.on_target = _on_target


def _end_with_the_process() -> None:
    # Last registered, first called: before the exit of a provider that the program has made.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    if "multiprocessing.process" in sys.modules:
        from multiprocessing import parent_process, util

        if parent_process() is not None:  # such a child may end without atexit
            util.Finalize(None, _at_exit, exitpriority=1)


def _at_exit() -> None:
    pipeline, timeout = _process.pipeline, EXIT_TIMEOUT
    running = pipeline is not None and pipeline.running
    if pipeline is not None:
        with _said("the last events"):
            timeout = pipeline.hand_on()
    deadline = time.monotonic() + timeout
    for guest in _process.ambient.guests if _process.ambient is not None else ():
        with _said("what start() has added"):
            guest.shutdown(EXIT_TIMEOUT / 2, exiting=True)
    if pipeline is not None:
        with _said("the rest"):
            pipeline.shutdown(max(deadline - time.monotonic(), EXIT_TIMEOUT / 4), exiting=True)
    if not running:  # else it has closed them
        for route in [*_process.configured.values(), *_process.points]:
            with _said("a destination"):
                route.destination.close(max(deadline - time.monotonic(), _CLOSING))
    if pipeline is not None:
        pipeline.await_signal()


@contextlib.contextmanager
def _said(what: str) -> Iterator[None]:
    """Keep an exception from the program's end, and from what is to be done after it."""
    try:
        yield
    except Exception:  # noqa: BLE001 - the border to every exporter
        registry.default.count_error("exit")
        _log.exception("%s could not be delivered at the end of the process", what)


def _before_fork() -> None:
    if _process.pipeline is not None:
        _process.pipeline.before_fork()


def _after_fork_in_parent() -> None:
    if _process.pipeline is not None:
        _process.pipeline.after_fork_in_parent()


def _after_fork_in_child() -> None:
    _process.lock = threading.RLock()
    for route in _process.configured.values():
        route.destination.reset_in_child()
    _process.configured = {}
    _process.points.reset_in_child()
    inherited, _process.pipeline = _process.pipeline, None
    ambient, _process.ambient = _process.ambient, None
    if inherited is None or not inherited.running:
        return
    inherited.reset_in_child()
    for guest in ambient.guests if ambient is not None else ():
        guest.reset_in_child()
    if ambient is not None:
        _begin_in_child()
    elif os.environ.get("TACHOGRAPH_HELPERS") == "1":
        start(**_process.arguments)


def _begin_in_child() -> None:
    """Begin again where the child may become a rank: torchelastic forks its workers if told so."""
    wanted = _ELASTIC in sys.modules or os.environ.get("TACHOGRAPH_HELPERS") == "1"
    if wanted and _process.begin is not None and not is_helper(os.environ, os.getpid()):
        _process.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)

"""``start()`` and ``shutdown()``: the pipeline of the process, of which there is one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tachograph.exporters.joined import foreign_provider
from tachograph.exporters.log_emitter import foreign_logger_provider
from tachograph.exporters.otlp.settings import SIGNALS, Signal
from tachograph.identity.resource import is_helper, owner_mark
from tachograph.pipeline._ambient import Ambient
from tachograph.pipeline._guest import GuestFeed, pages_alike, served_alike
from tachograph.pipeline._process_ends import end_with_the_process, is_ending
from tachograph.pipeline._providers import owns_meter_provider
from tachograph.pipeline.destinations import given
from tachograph.pipeline.own_process import process
from tachograph.pipeline.pipeline import EXIT_TIMEOUT, Pipeline
from tachograph.pipeline.settings import check_keywords, read_settings
from tachograph.recording import registry
from tachograph.recording.switch import switch
from tachograph.recording.wishes import wishes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tachograph.logger.influx_target import InfluxTarget
    from tachograph.pipeline.settings import Keywords, Settings

_BUSY_WAIT = 0.1

_log = logging.getLogger("tachograph")


def start(**settings: Unpack[Keywords]) -> Pipeline:
    """Deliver what this process records, in the background, until its end.

    Without arguments, and with no ``OTEL_*`` variable set, it serves ``/metrics`` for Prometheus on 127.0.0.1, port
    9464 plus the local rank (the next free one where that is taken; see ``metrics_url``), and nothing else. An OTLP
    endpoint, as argument or variable, adds OTLP for metrics, traces and logs. Arguments win over ``OTEL_*`` variables,
    which win over ``TACHOGRAPH_*`` ones.

    A program that has set up a meter provider of its own keeps it: everything recorded leaves through that one, and
    beside it only to the ``metrics`` that are named in this call. Events leave through its logger provider, unless
    ``logs`` are named in this call.

    Args:
        **settings: see :func:`tachograph.pipeline.settings.read_settings`, which has them all: ``metrics``, ``traces``,
            ``logs``, ``endpoint``, ``protocol``, ``headers``, ``timeout``, ``compression``, ``interval``,
            ``service_name``, ``run_id``, ``resource``, ``resource_labels``, ``prometheus_host``, ``prometheus_port``,
            ``prometheus_registry``, ``store``, ``jsonl``, ``set_global``, ``join``.

    Returns:
        The running pipeline, a context manager. Called again with the same settings, the same one: of several ``with``
        statements the last one out ends it, and none does where a ``start()`` has none. In a helper process
        of a rank (a data-loader worker, say), and with ``OTEL_SDK_DISABLED=true``, one that delivers nothing.

    Under zero code (``tachograph run``, ``opentelemetry-instrument``) a pipeline runs already: these destinations are
    added to it until the :meth:`~tachograph.Pipeline.shutdown` of what is returned, and a wrong value is a line in the
    log and a pipeline that delivers nothing.

    Raises:
        ValueError: a wrong value; the message names where it was given and what is allowed.
        TypeError: an unknown argument, or one of a wrong type.
        RuntimeError: it runs already with other settings.
    """
    with process.lock:
        if process.ambient is not None and process.ambient.running:
            return _start_beside(process.ambient, settings)
        check_keywords(settings)
        asked = read_settings(os.environ, **settings)
        switch.begin()  # where the program has a provider, something runs by itself from here on
        running = process.pipeline
        if running is not None and running.running and process.by_itself:
            running.shutdown(0)  # the next one takes its destinations over, and what they have to get
        elif running is not None and running.running:
            if running.settings != asked:
                raise RuntimeError(
                    f"tachograph runs already with other settings ({_differences(running.settings, asked)}): "
                    "call tachograph.shutdown() before you start() it with these"
                )
            if running.started_again():
                return running
            running.shutdown()  # waits for the thread that is ending it
        process.again, process.by_itself = partial(start, **settings), False
        return _run(asked, _named(settings))


def _run(settings: Settings, asked: frozenset[Signal]) -> Pipeline:
    if settings.disabled:
        return Pipeline(settings, registry.default, idle=True)
    if is_helper(os.environ, os.getpid()):
        switch.on = False
        return Pipeline(settings, registry.default, idle=True)
    if not switch.on:
        registry.default.reset()
    mark = owner_mark(os.environ, os.getpid())
    if mark is not None:
        os.environ["TACHOGRAPH_OWNER"] = mark
    process.pipeline = pipeline = Pipeline(
        settings, registry.default, asked=asked, unasked=process.by_itself, on_ended=_go_on
    )
    for route in process.configured.values():
        pipeline.attach(route)
    _deliver_configured(pipeline)
    end_with_the_process()
    return pipeline


def join() -> None:
    """Have what is recorded arrive in the MeterProvider that the program has set, where nobody has called ``start()``.

    After a :func:`shutdown` nothing is joined: the program has asked for an end.
    """
    # OpenTelemetry holds locks while it sets a provider, and a start() in another thread may wait for them. That one
    # looks for the provider at its next tick.
    if owns_meter_provider() or not switch.on or not process.lock.acquire(timeout=_BUSY_WAIT):
        return
    try:
        running = process.pipeline
        if running is not None:
            running.look_for_providers()
            end_with_the_process()  # before the end of the provider, which is newer
        elif not is_helper(os.environ, os.getpid()) and (foreign_provider(load=False) or foreign_logger_provider()):
            settings = _settings_by_itself()
            if settings.join:
                _run_by_itself(settings)
    finally:
        process.lock.release()


def _settings_by_itself() -> Settings:
    return read_settings(os.environ, metrics="none", traces="none", logs="none")


def _run_by_itself(settings: Settings | None = None) -> None:
    """Deliver to what needs no ``start()``: the program's own providers, and what was configured with a destination."""
    process.again, process.by_itself = _run_by_itself, True
    _run(settings or _settings_by_itself(), frozenset())


def begin(settings: Settings, *, waits: bool = False, directly: bool = True, again: Callable[[], object]) -> None:
    """Deliver what this process records though the program does not ask for it: zero code.

    Called once a process, in its main thread; see :class:`tachograph.pipeline._ambient.Ambient` for the arguments.

    Args:
        settings: what it runs with.
        waits: whether it delivers nothing before RANK is there.
        directly: whether ``tachograph run`` itself started the process.
        again: called in a forked child that may become a rank.
    """
    with process.lock:
        if not switch.on:
            registry.default.reset()
        switch.begin()
        process.begin = again
        process.pipeline = process.ambient = Ambient(
            settings, registry.default, waits=waits, directly=directly, on_settled=end_with_the_process
        )
        process.points.attach_to(process.ambient)
        end_with_the_process()


def _start_beside(host: Ambient, settings: Keywords) -> Pipeline:
    """Return a pipeline with the destinations that are not there yet; it raises nothing."""
    host.wake()
    try:
        check_keywords(settings)
        asked = read_settings(os.environ, **settings)
    except (ValueError, TypeError) as error:
        _log.warning("start() was not heeded, the program goes on without its destinations: %s", error)
        return Pipeline(read_settings({}), registry.default, idle=True)
    if asked.disabled:
        return Pipeline(asked, registry.default, idle=True)
    for guest in host.guests:
        if guest.running and guest.settings == asked and guest.started_again():
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


def _named(settings: Keywords) -> frozenset[Signal]:
    return frozenset(signal for signal in SIGNALS if settings.get(signal) is not None)


def _differences(running: Settings, asked: Settings) -> str:
    names = [name for name in running.__slots__ if getattr(running, name) != getattr(asked, name)]
    return ", ".join(f"{name}={getattr(running, name)!r:.60}, now {getattr(asked, name)!r:.60}" for name in names)


def shutdown(timeout: float | None = None) -> None:
    """Deliver everything recorded so far and stop delivering; recording goes on in memory.

    It takes no longer than the end of the process does, see :meth:`tachograph.Pipeline.shutdown`, and no longer than
    ``timeout`` seconds, where that is less.

    Where a ``start()`` is ended, what ``configure`` was given and what a ``MetricsLogger`` has of its own goes on.
    Does nothing where nothing runs. Under zero code it takes off only what the program has added by :func:`start`.
    """
    if process.ambient is not None:
        for guest in process.ambient.guests:
            guest.shutdown(timeout)
        return
    running = process.pipeline
    if running is not None:
        running.shutdown(timeout)


def _deliver_configured(pipeline: Pipeline) -> None:
    for group, exporter in wishes.exporters.items():
        if group not in process.configured:
            groups = None if group is None else {group}
            process.configured[group] = given(exporter, registry.default, metrics=True, spans=False, groups=groups)
            pipeline.attach(process.configured[group])
    process.points.attach_to(pipeline)


class _Deliveries:
    """Fulfils the wishes of the front doors."""

    def export(self, group: str | None) -> None:
        """Deliver a group to the exporter that ``configure`` was given, and no longer to the one before."""
        with process.lock:
            pipeline = process.pipeline
            replaced = process.configured.pop(group, None)
            if replaced is not None:
                if pipeline is not None:
                    pipeline.flush(EXIT_TIMEOUT)
                    pipeline.detach(replaced)
                replaced.destination.close(EXIT_TIMEOUT)
            if wishes.exporters:
                _deliver()

    def write(self, target: InfluxTarget) -> bool:
        """Deliver to the database of a logger; False where nothing here can write to it."""
        with process.lock:
            _deliver()
            return target not in process.points.unreachable

    def release(self, target: InfluxTarget, timeout: float) -> None:
        """Deliver to a database its last points, and no more."""
        process.points.release(target, timeout)

    def flush(self, timeout: float) -> bool:
        """Deliver what was logged; False where something still waits after ``timeout`` seconds."""
        return process.points.flush(timeout)


def _deliver() -> None:
    """Deliver what was configured, with or without a ``start()`` before."""
    switch.begin()
    if process.pipeline is not None and process.pipeline.running:
        _deliver_configured(process.pipeline)
    else:
        _run_by_itself()


def _go_on() -> None:
    """Deliver what was configured by itself, after the end of what ``start()`` returned; it raises nothing."""
    if is_ending():
        return  # what is left is delivered at the end
    with process.lock:
        if not process.by_itself and (wishes.targets or wishes.exporters):
            try:
                _deliver()
            except Exception:  # noqa: BLE001 - a variable that an argument had overridden: shutdown() is no place for it
                registry.default.count_error("start")
                _log.exception("what delivers by itself was not started again")


wishes.fulfilled_by(_Deliveries())

"""The life of the process's runtime: its start, and its end at the exit, at SIGTERM and at a fork.

:func:`start` begins a pipeline, and so do :func:`begin_ambient`, for zero code, and :func:`join`, for a program that
sets a provider of its own. At the exit everything recorded is delivered in two turns: before the exits of the
program's own providers, and after every other exit handler. At SIGTERM the pipeline delivers in the thread of
:mod:`tachograph.pipeline._sigterm`. A forked child leaves everything to its parent.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from tachograph.exporters.external_provider import external_meter_provider
from tachograph.exporters.log_emitter import external_logger_provider
from tachograph.exporters.otlp.settings import SIGNALS, Signal
from tachograph.identity.environment import text
from tachograph.identity.process_group import group_watch
from tachograph.identity.rank import RANK_VARIABLES, is_helper
from tachograph.pipeline._providers import owns_meter_provider
from tachograph.pipeline._runtime import Runtime, settings_by_itself
from tachograph.pipeline._unheard import Unheard, count_helper, say_undelivered
from tachograph.pipeline.destinations import CLOSING
from tachograph.pipeline.pipeline import EXIT_TIMEOUT, Pipeline
from tachograph.pipeline.settings import check_keywords, read_settings
from tachograph.recording import journal, registry
from tachograph.recording.forking import at_fork, helpers_record, unblock_signals
from tachograph.recording.switch import switch
from tachograph.recording.wishes import wishes

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from typing_extensions import Unpack

    from tachograph.pipeline.settings import Keywords, Settings
    from tachograph.recording.points import AttributeValue

_ELASTIC = "torch.distributed.elastic.multiprocessing.api"
_BUSY_WAIT = 0.1
_ROOM = 2**25  # bytes, of which none is touched: they take no memory

_log = logging.getLogger("tachograph")


def start(**settings: Unpack[Keywords]) -> Pipeline:
    """Export the values and events of this process in the background until it ends.

    Without arguments and without ``OTEL_*`` variables, this serves ``/metrics`` for Prometheus on 127.0.0.1, port 9464
    plus the local rank (or the next free port; see ``Pipeline.metrics_url``), and does nothing else. An OTLP endpoint,
    given as an argument or a variable, adds OTLP for metrics, traces and logs. Arguments win over ``OTEL_*`` variables,
    which win over ``TACHOGRAPH_*`` variables.

    If the program has set its own meter provider, Tachograph keeps it and exports all metrics through it, and
    additionally to the ``metrics`` exporters named in this call. Events go through the program's logger provider unless
    this call names ``logs`` exporters.

    Under zero code (``tachograph run``, ``opentelemetry-instrument``) a pipeline is already running. This call then
    adds its destinations to that pipeline until you call :meth:`~tachograph.pipeline.Pipeline.shutdown` on the result.
    A wrong value is logged instead of raised, and the result exports nothing.

    Args:
        **settings: the keyword arguments of :func:`tachograph.pipeline.settings.read_settings`: ``metrics``,
            ``traces``, ``logs``, ``endpoint``, ``protocol``, ``headers``, ``timeout``, ``compression``, ``interval``,
            ``service_name``, ``run_id``, ``resource``, ``resource_labels``, ``prometheus_host``, ``prometheus_port``,
            ``prometheus_registry``, ``store``, ``jsonl``, ``system_metrics``, ``set_global``, ``join``, ``hub``,
            ``tags``, ``notes``.

    Returns:
        The running pipeline, which is a context manager. A second call with the same settings returns the same
        pipeline. If several ``with`` statements use it, the last one to exit shuts it down, unless one ``start()`` was
        called without ``with``. In a helper process of a rank, such as a data loader worker, and with
        ``OTEL_SDK_DISABLED=true``, the pipeline exports nothing. A helper that joins a ``torch.distributed`` process
        group becomes a rank and exports from then on.

    Raises:
        ValueError: a value is wrong; the message names the argument or variable and the allowed values.
        TypeError: an argument is unknown or has the wrong type.
        RuntimeError: Tachograph is already running with other settings.
    """
    with runtime.lock:
        host = running_pipeline()
        if host is not None and runtime.ambient:
            host.wait_no_longer()
            try:
                check_keywords(settings)
                asked = read_settings(os.environ, **settings)
            except (ValueError, TypeError) as error:
                _log.warning("start() failed, continuing without telemetry export: %s", error)
                return Pipeline(read_settings({}), registry.default, idle=True)
            _describe(asked)
            return runtime.run_beside(host, asked, _named(settings))
        check_keywords(settings)
        asked = read_settings(os.environ, **settings)
        switch.begin()  # where the program has a provider, delivery begins from here on
        running = running_pipeline()
        if running is not None and runtime.by_itself:
            running.shutdown(0)  # the next one takes its destinations over, and all that waits for them
        elif running is not None:
            if running.settings != asked:
                raise RuntimeError(
                    f"tachograph is already running with other settings ({_differences(running.settings, asked)}): "
                    "call tachograph.shutdown() before calling start() with new settings"
                )
            if running.started_again():
                _describe(asked)
                return running
            running.shutdown()  # waits for the thread that is ending it
        runtime.by_itself = False
        started = runtime.run(asked, _named(settings), again=partial(start, **settings))
        _describe(asked)
        return started


def _describe(asked: Settings) -> None:
    """Log the tags and notes of the run, where it has been given some."""
    said: dict[str, AttributeValue] = {}
    if asked.tags:
        said["tags"] = asked.tags
    if asked.notes:
        said["notes"] = asked.notes
    if said:
        journal.default.append(journal.RUN, time.time_ns(), said)


def _named(settings: Keywords) -> frozenset[Signal]:
    return frozenset(signal for signal in SIGNALS if settings.get(signal) is not None)


def _differences(running: Settings, asked: Settings) -> str:
    names = [name for name in running.__slots__ if getattr(running, name) != getattr(asked, name)]
    return ", ".join(f"{name}={getattr(running, name)!r:.60}, now {getattr(asked, name)!r:.60}" for name in names)


def join() -> None:
    """Deliver into the MeterProvider that the program has set, where it has not called ``start()``.

    After a :func:`shutdown` nothing is joined: the program has asked for an end.
    """
    # OpenTelemetry holds locks while it sets a provider, and a start() in another thread may wait for them. That one
    # looks for the provider at its next tick.
    if owns_meter_provider() or not switch.on or not runtime.lock.acquire(timeout=_BUSY_WAIT):
        return
    try:
        if runtime.pipeline is not None:
            runtime.pipeline.look_for_providers()
            end_with_the_process()  # before the end of the provider, which is newer
        elif not is_helper(os.environ, os.getpid()) and (
            external_meter_provider(load=False) or external_logger_provider()
        ):
            settings = settings_by_itself()
            if settings.join:
                runtime.run_by_itself(settings)
    finally:
        runtime.lock.release()


def begin_ambient(
    settings: Settings,
    *,
    waits: bool = False,
    idles: bool = False,
    directly: bool = True,
    again: Callable[[], object],
) -> None:
    """Deliver the values and events of a program that does not ask for it: zero code.

    Called once a process, in its main thread.

    Args:
        settings: of the pipeline.
        waits: whether it delivers nothing before RANK is there: a process that may become a rank, or be a mere helper.
        idles: whether it delivers nothing before it has recorded something: a worker that may never get any work.
        directly: whether ``tachograph run`` itself started the process; see
            :class:`tachograph.pipeline._process_identity.AmbientIdentity`.
        again: called in a forked child that may become a rank.
    """
    with runtime.lock:
        runtime.run_ambient(settings, waits=waits, idles=idles, directly=directly, again=again)


def running_pipeline() -> Pipeline | None:
    """Return the pipeline of this process, where one delivers."""
    pipeline = runtime.pipeline
    return pipeline if pipeline is not None and pipeline.running else None


def shutdown(timeout: float | None = None) -> None:
    """Export everything recorded so far and stop exporting. Recording continues in memory.

    This takes no longer than ``timeout`` seconds, and no longer than
    :meth:`tachograph.pipeline.Pipeline.shutdown` takes without a timeout. It ends only what ``start()``
    began: exporters passed to ``configure`` and the databases of a ``MetricsLogger`` continue. Under zero code it
    removes only the destinations that :func:`start` added. It does nothing if no pipeline is running.
    """
    running = runtime.pipeline
    if running is None:
        return
    for pipeline in running.guests if runtime.ambient else [running]:
        pipeline.shutdown(timeout)


def end_with_the_process() -> None:
    """Register the delivery at the end of the process.

    Called again it comes first again: before the exit of a provider that the program has made meanwhile.
    """
    if is_ending():  # nothing that is registered now would be called
        return
    if _Exit.room is None:
        with contextlib.suppress(OSError):
            _Exit.room = mmap.mmap(-1, _ROOM, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Last registered, first called.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    spawned = "--multiprocessing-fork" in sys.orig_argv
    if spawned or "multiprocessing.util" in sys.modules:
        from multiprocessing import context, current_process, parent_process, util

        child = parent_process() is not None
        if child or spawned:  # such a child may end without atexit; and its exception is known only here
            util.Finalize(None, _in_worker, exitpriority=1)
        if child and sys.version_info >= (3, 13):
            _tell_of_exceptions(current_process())
        if not child and spawned:  # it has not begun yet: before CPython 3.11 it forgets this handler then
            util.register_after_fork(runtime, lambda _: end_with_the_process())
            if sys.version_info >= (3, 13):  # it has nothing to do after a fork, and calls its class's own instead
                context.SpawnProcess._after_fork = staticmethod(end_with_the_process)  # type: ignore[attr-defined]  # noqa: SLF001


def is_ending() -> bool:
    """Tell whether the interpreter ends: exit handlers run after the main thread's end."""
    return not threading.main_thread().is_alive()


def _joined() -> None:
    """Deliver as the rank that this process has become by joining a process group."""
    with runtime.lock:
        pipeline = running_pipeline()
        if pipeline is not None:
            pipeline.look_for_rank()
        elif runtime.waiting and runtime.again is not None:
            runtime.again()


def _at_exit() -> None:
    """Deliver everything recorded: the exits of the program's own providers, which collect once more, come later."""
    if _Exit.room is not None:
        _Exit.room.close()
        _Exit.room = None
    if runtime.waiting and text(os.environ, *RANK_VARIABLES) and not is_ending() and runtime.again is not None:
        with _guarded("data of a process that became a rank late"):
            runtime.again()
    pipeline, timeout = runtime.pipeline, EXIT_TIMEOUT
    if pipeline is not None:
        with _guarded("the final events"):
            timeout = pipeline.hand_on()
        began = time.monotonic()
        with _guarded("the final values"):
            pipeline.hand_over(timeout)
        timeout -= time.monotonic() - began
    _Exit.timeout = timeout


def at_last() -> None:
    """Deliver the records of exit handlers, and end.

    ``import tachograph`` registers it, so that it is called after every handler that is registered later; what is
    recorded after it is counted. Threads are there: since CPython 3.12 none could be started any more.
    """
    pipeline, deadline = runtime.pipeline, time.monotonic() + _Exit.timeout
    if pipeline is None:
        with _guarded("data recorded without start()"):
            count_helper() if runtime.waiting else say_undelivered()
        runtime.waiting = False
    running = pipeline is not None and pipeline.running
    takes_events = journal.default.kept
    if pipeline is not None:
        with _guarded("data of further start() calls"):
            pipeline.end_guests()
        with _guarded("the remaining data"):
            pipeline.shutdown(max(deadline - time.monotonic(), EXIT_TIMEOUT / 4), exiting=True)
    if not running:  # else it has closed them
        for route in runtime.configured():
            with _guarded("data queued for a destination"):
                route.destination.close(max(deadline - time.monotonic(), CLOSING))
    if pipeline is not None:
        pipeline.await_signal()
        if running and (pipeline.exports_metrics or takes_events):
            Unheard(registry.default if pipeline.exports_metrics else None, journal.default if takes_events else None)


class _Exit:
    """The exit of the process, and the seconds that destinations may still add to it.

    ``room`` is address space that is free by then, for a program that ends as it has no memory left: the traceback
    keeps all that it has, and there must be enough for the last collection, its requests and a thread.
    """

    timeout = EXIT_TIMEOUT
    room: mmap.mmap | None = None
    told_of: BaseProcess | None = None


def _in_worker() -> None:
    """End a child of multiprocessing, where no exit handlers are called."""
    _at_exit()
    at_last()


def _tell_of_exceptions(process: BaseProcess) -> None:
    """End a child of multiprocessing while its exception is on its way, as it does by itself before CPython 3.13.

    Since then its exit handlers are called when the exception has been printed and is gone.
    """
    if _Exit.told_of is process:
        return
    _Exit.told_of, run = process, process.run

    def told() -> None:
        try:
            run()
        except BaseException as error:
            _in_worker()
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next  # without this function
            raise

    process.run = told  # type: ignore[method-assign]


@contextlib.contextmanager
def _guarded(part: str) -> Iterator[None]:
    """Keep an exception from the program's end, and from the steps after it; it is counted and logged."""
    try:
        yield
    except Exception:  # noqa: BLE001 - the border to every exporter
        with contextlib.suppress(MemoryError):
            registry.default.count_error("exit")
        with contextlib.suppress(MemoryError):
            _log.exception("could not export %s at the end of the process", part)


def _before_fork() -> None:
    if runtime.pipeline is not None:
        runtime.pipeline.before_fork()


def _after_fork_in_parent() -> None:
    if runtime.pipeline is not None:
        runtime.pipeline.after_fork_in_parent()


def _after_fork_in_child() -> None:
    """Leave everything to the parent; begin again where the child records on its own account.

    Any other child keeps what it records, and begins once it has become a rank: a helper has no threads.
    """
    ambient, runtime.ambient = runtime.ambient, False
    if runtime.reset_in_child() is None or runtime.again is None:
        return
    exports = helpers_record()
    if ambient:  # torchelastic can be configured to fork its workers
        exports = (exports or _ELASTIC in sys.modules) and not is_helper(os.environ, os.getpid())
    if exports:
        unblock_signals()
        runtime.again()
    if runtime.pipeline is None:
        registry.default.reset()
        runtime.waiting = True
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # If multiprocessing has forked, it forgets now the handlers for the end of its child: see _bootstrap.
        util.register_after_fork(runtime, lambda _: end_with_the_process())


runtime = Runtime(registry.default, on_begun=end_with_the_process, is_ending=is_ending)
wishes.fulfilled_by(runtime)
group_watch.on_join.append(_joined)
at_fork("pipeline", before=_before_fork, in_parent=_after_fork_in_parent, in_child=_after_fork_in_child)

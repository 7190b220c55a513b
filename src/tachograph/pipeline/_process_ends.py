"""The end of the process, and its forks: what is delivered, what is left to the parent."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator

from tachograph.identity.resource import is_helper
from tachograph.pipeline._routes import CLOSING, LONGEST_EXIT
from tachograph.pipeline._unheard import Unheard
from tachograph.pipeline.own_process import process
from tachograph.pipeline.pipeline import EXIT_TIMEOUT
from tachograph.recording import journal, registry
from tachograph.recording.forking import at_fork

_ELASTIC = "torch.distributed.elastic.multiprocessing.api"

_log = logging.getLogger("tachograph")


def end_with_the_process() -> None:
    """See to it that what was recorded leaves at the end of the process.

    Called again it comes first again: before the exit of a provider that the program has made meanwhile.
    """
    if is_ending():  # nothing that is registered now would be called
        return
    # Last registered, first called.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    util = sys.modules.get("multiprocessing.util")  # a child of it has loaded that already
    if util is not None:
        from multiprocessing import parent_process

        if parent_process() is not None:  # such a child may end without atexit
            util.Finalize(None, _in_worker, exitpriority=1)


def is_ending() -> bool:
    """Tell whether the interpreter ends: what ``atexit`` calls runs after the main thread's end."""
    return not threading.main_thread().is_alive()


def _at_exit() -> None:
    """Deliver what there is: the exits of the program's own providers, which collect once more, are still to come."""
    pipeline, timeout = process.pipeline, EXIT_TIMEOUT
    if pipeline is not None:
        with _said("the last events"):
            timeout = pipeline.hand_on()
        began = time.monotonic()
        with _said("the last values"):
            pipeline.hand_over(timeout)
        timeout -= time.monotonic() - began
    _Exit.timeout = timeout


def at_last() -> None:
    """Deliver what exit handlers have recorded since, and end.

    ``import tachograph`` registers it, so that it is called after every handler that is registered later; what others
    record after it is counted. Threads are there: since CPython 3.12 none could be started any more.
    """
    pipeline, deadline = process.pipeline, time.monotonic() + _Exit.timeout
    running = pipeline is not None and pipeline.running
    takes_events = journal.default.kept
    last_moment = (pipeline.last_moment if pipeline is not None else None) or time.monotonic() + LONGEST_EXIT
    for guest in process.guests():
        with _said("what start() has added"):
            guest.last_moment = last_moment
            guest.shutdown(EXIT_TIMEOUT / 2, exiting=True)
    if pipeline is not None:
        with _said("the rest"):
            pipeline.shutdown(max(deadline - time.monotonic(), EXIT_TIMEOUT / 4), exiting=True)
    if not running:  # else it has closed them
        for route in process.by_themselves():
            with _said("a destination"):
                route.destination.close(max(deadline - time.monotonic(), CLOSING))
    if pipeline is not None:
        pipeline.await_signal()
        if running and (pipeline.exports_metrics or takes_events):
            Unheard(registry.default if pipeline.exports_metrics else None, journal.default if takes_events else None)


class _Exit:
    """The exit of the process: the seconds that are left of what destinations may add to it."""

    timeout = EXIT_TIMEOUT


def _in_worker() -> None:
    """End a child of multiprocessing, where no exit handlers are called."""
    _at_exit()
    at_last()


@contextlib.contextmanager
def _said(what: str) -> Iterator[None]:
    """Keep an exception from the program's end, and from what is to be done after it."""
    try:
        yield
    except Exception:  # noqa: BLE001 - the border to every exporter
        registry.default.count_error("exit")
        _log.exception("%s could not be delivered at the end of the process", what)


def _before_fork() -> None:
    if process.pipeline is not None:
        process.pipeline.before_fork()


def _after_fork_in_parent() -> None:
    if process.pipeline is not None:
        process.pipeline.after_fork_in_parent()


def _after_fork_in_child() -> None:
    process.lock = threading.RLock()
    for route in process.by_themselves():
        route.destination.reset_in_child()
    process.configured = {}
    process.points.forget()
    inherited, process.pipeline = process.pipeline, None
    guests, ambient, process.ambient = process.guests(), process.ambient, None
    if inherited is None or not inherited.running:
        return
    inherited.reset_in_child()
    for guest in guests:
        guest.reset_in_child()
    if ambient is not None:
        _begin_in_child()
    elif process.again is not None and os.environ.get("TACHOGRAPH_HELPERS") == "1":
        process.again()
    util = sys.modules.get("multiprocessing.util")
    if util is not None and process.pipeline is not None:
        # Where multiprocessing has forked, it forgets now what shall be called at the end of its child: see _bootstrap.
        util.register_after_fork(process, lambda _: end_with_the_process())


def _begin_in_child() -> None:
    """Begin again where the child may become a rank: torchelastic forks its workers if told so."""
    wanted = _ELASTIC in sys.modules or os.environ.get("TACHOGRAPH_HELPERS") == "1"
    if wanted and process.begin is not None and not is_helper(os.environ, os.getpid()):
        process.begin()


at_fork("pipeline", before=_before_fork, in_parent=_after_fork_in_parent, in_child=_after_fork_in_child)

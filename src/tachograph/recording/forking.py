"""Forks: the one hook of the process, which calls each part in the order that is written here.

A forked child has the parent's values, locks and queues, and none of its threads; its own values are counted anew.

Signals wait while a thread forks. Until the hooks have run, the child has its parent's signal handlers and its parent's
wake-up descriptor, so that a signal to the child would read as one to the parent.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, get_args

from tachograph.recording.log import log

HELPERS = "TACHOGRAPH_HELPERS"

Part = Literal[
    "registry",  # first: it says whether the child records at all
    "sigterm",  # before all that may start a thread: see unblock_signals()
    "process_group",
    "ids",
    "timer",  # before all that begins again in the child
    "journal",
    "event_log",
    "windows",
    "tasks",
    "config",
    "log",
    "hardware_calls",
    "hardware",
    "hardware_snapshot",
    "logger_targets",
    "loggers",
    "otlp_differences",
    "file_writer",  # before the queues that it serves
    "influxdb_client",
    "influxdb_exporters",
    "windowed_readers",
    "anatomy",
    "bridges",
    "bridged_values",
    "given_providers",
    "pipeline",  # last: it may begin anew in the child, with all that is above
]


def helpers_record(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the user asked helper processes, such as data-loader workers, to record.

    Other settings are read in ``identity``, which this package may not import. ``start()`` reports a wrong value.
    """
    return environ.get(HELPERS, "").strip().lower() in {"true", "1"}


def _nothing() -> None:
    """Do nothing."""


class _Hooks(NamedTuple):
    before: Callable[[], object]
    in_parent: Callable[[], object]
    in_child: Callable[[], object]


_hooks: dict[Part, _Hooks] = {}


def at_fork(
    part: Part,
    *,
    before: Callable[[], object] = _nothing,
    in_parent: Callable[[], object] = _nothing,
    in_child: Callable[[], object] = _nothing,
) -> None:
    """Have a part of the package called at each fork: before it in the last's turn first, after it in the first's.

    Args:
        part: its place in the order; a second call for it replaces the first.
        before: called in the parent, right before the fork.
        in_parent: called in the parent, right after it.
        in_child: called in the child, which has one thread.
    """
    _hooks[part] = _Hooks(before, in_parent, in_child)


def _parts() -> list[tuple[Part, _Hooks]]:
    return [(part, _hooks[part]) for part in get_args(Part) if part in _hooks]


def _called(part: Part, hook: Callable[[], object]) -> None:
    try:
        hook()
    except Exception:  # noqa: BLE001 - the border to a fork of the program's: the parts after this one have their turn
        log.exception("could not prepare %s for a fork", part)


class _Fork:
    """A fork of one thread, from the first hook before it to the last one after it.

    Attributes:
        mask: the signals that the thread had blocked before it.
        prepared: the parts whose hook after it is still to be called in the parent.
    """

    def __init__(self) -> None:
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self.prepared: list[tuple[Part, _Hooks]] = []


_forks: dict[int, _Fork] = {}  # under way, by thread
_FAULTS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
}  # blocked, they would kill without their handler


def _before() -> None:
    fork = _forks[threading.get_ident()] = _Fork()
    for part, hooks in reversed(_parts()):
        fork.prepared.append((part, hooks))
        _called(part, hooks.before)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)


def _in_parent() -> None:
    """Go on in the parent. Called twice: a Ctrl-C that comes during the fork interrupts the first hook after it."""
    fork = _forks.get(threading.get_ident())
    if fork is None:
        return
    while fork.prepared:
        part, hooks = fork.prepared.pop()
        _called(part, hooks.in_parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, fork.mask)
    del _forks[threading.get_ident()]


def _in_child() -> None:
    try:
        for part, hooks in _parts():
            _called(part, hooks.in_child)
    finally:
        try:
            unblock_signals()
        finally:
            _forks.clear()


def unblock_signals() -> None:
    """Give the child of a fork its signal mask back, before one of its hooks starts a thread that would inherit it."""
    fork = _forks.get(threading.get_ident())
    if fork is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, fork.mask)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
    os.register_at_fork(after_in_parent=_in_parent)

"""gevent and eventlet: programs in which nothing is delivered.

Their patches replace the threads, locks, clocks and sockets of the standard library, also in threads that run already:
those of Tachograph would hang, crash, or block every green thread of the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tachograph.identity.import_hooks import ImportHook
from tachograph.recording.wrapping import wraps

_NEEDED = frozenset({"_thread", "thread", "threading", "time", "queue", "select", "selectors", "socket", "ssl"})


def patched_by() -> str | None:
    """Return the library that has replaced threads or sockets; None in any other program."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and any(map(gevent.is_module_patched, _NEEDED)):
        return "gevent"
    eventlet = sys.modules.get("eventlet.patcher")
    return "eventlet" if eventlet is not None and _NEEDED & eventlet.already_patched.keys() else None


class PatchWatch:
    """Calls back right before gevent or eventlet replaces threads or sockets.

    Args:
        callback: called in the thread that patches, with the library's name.
    """

    def __init__(self, callback: Callable[[str], object]) -> None:
        self._callback = callback
        self._hooks = [
            ImportHook("gevent.events", self._watch_gevent),
            ImportHook("eventlet.patcher", self._watch_eventlet),
        ]

    def _watch_gevent(self, events: ModuleType) -> None:
        def notice(event: Any) -> None:
            if isinstance(event, events.GeventWillPatchModuleEvent) and event.module_name in _NEEDED:
                self._callback("gevent")

        events.subscribers.append(notice)

    def _watch_eventlet(self, patcher: Any) -> None:
        monkey_patch = patcher.monkey_patch

        @wraps(monkey_patch)
        def patch(**modules: bool) -> None:
            others = modules.get("all", True not in modules.values())
            if any(modules.get(name, others) for name in ("thread", "time", "select", "socket")):
                self._callback("eventlet")
            monkey_patch(**modules)

        patcher.monkey_patch = patch

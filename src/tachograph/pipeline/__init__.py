"""The pipeline: ``start()`` and ``shutdown()``, the runtime of this process, and its end.

Values and events pass from the registry and the journal to every destination, in the background.
:mod:`~tachograph.pipeline.lifecycle` starts that, and ends it at the exit, at SIGTERM and in a forked child; nothing
else does. The runtime has all that runs: one :class:`~tachograph.pipeline.pipeline.Pipeline`, made of the identity of
the process, a feed of events (:mod:`~tachograph.pipeline.event_feed`), the providers of OpenTelemetry and the routes to
its :mod:`~tachograph.pipeline.destinations`, as its :mod:`~tachograph.pipeline.settings` name them, and the collection
that passes from the ones to the others; and beside it the wishes of the front doors, and each ``start()`` under zero
code. :mod:`~tachograph.pipeline.hub_process` is the process of a hub, which ``tachograph run`` and
``start(hub=True)`` start. :mod:`~tachograph.pipeline.provider_watch` joins a provider that the program sets.

The names below are for other rooms. Each is loaded at its first use, as most of them need the OpenTelemetry SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tachograph.recording.lazy_names import load_name

if TYPE_CHECKING:
    from tachograph.pipeline.destinations import Destination, Route
    from tachograph.pipeline.event_feed import EventFeed
    from tachograph.pipeline.lifecycle import at_last, begin_ambient, join, running_pipeline, shutdown, start
    from tachograph.pipeline.pipeline import Pipeline
    from tachograph.pipeline.provider_watch import watch
    from tachograph.pipeline.settings import Settings, read_settings

__all__ = [
    "Destination",
    "EventFeed",
    "Pipeline",
    "Route",
    "Settings",
    "at_last",
    "begin_ambient",
    "join",
    "read_settings",
    "running_pipeline",
    "shutdown",
    "start",
    "watch",
]

# By the module that has them; each is loaded at its first use.
_NAMES = {
    "destinations": ("Destination", "Route"),
    "event_feed": ("EventFeed",),
    "lifecycle": ("at_last", "begin_ambient", "join", "running_pipeline", "shutdown", "start"),
    "pipeline": ("Pipeline",),
    "provider_watch": ("watch",),
    "settings": ("Settings", "read_settings"),
}


def __getattr__(name: str) -> Any:
    return load_name(__name__, _NAMES, name)

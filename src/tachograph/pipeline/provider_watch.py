"""The watch for a MeterProvider that the program sets, to deliver into it with or without a ``start()``.

It begins with the first metric group, and neither imports OpenTelemetry nor starts a thread. If the program imports
the API, an instrument without callbacks is created through the API's proxy. OpenTelemetry specification, "Metrics API",
"MeterProvider": instruments created before a provider was set work with that one later. Python's API makes the real
instrument inside ``set_meter_provider``, and asks for the callbacks then: that is the moment to join.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from tachograph.identity.import_hooks import ImportHook
from tachograph.recording import registry
from tachograph.recording.interrupts import pass_on
from tachograph.version import __version__

API = "opentelemetry.metrics"
_LOGS = "opentelemetry._logs._internal"
SCOPE = "tachograph.watch"  # a meter of its own: the SDK locks it while the instrument is made

_log = logging.getLogger("tachograph")


class _NoCallbacks(Sequence[Any]):
    """The callbacks of an observable instrument: none. ``asked`` is called when a provider asks for them."""

    def __init__(self, asked: Callable[[], object]) -> None:
        self._asked = asked

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: Any) -> Any:
        raise IndexError(index)

    def __iter__(self) -> Iterator[Any]:
        self._asked()
        return iter(())


def watch(on_provider: Callable[[], object]) -> None:
    """Call back when the program has a global MeterProvider: now, where it has set one already, or a LoggerProvider.

    Args:
        on_provider: called in the thread that sets it, inside ``set_meter_provider``; an exception is counted and said,
            and goes no farther.
    """

    def call() -> None:
        try:
            on_provider()
        except Exception as error:  # noqa: BLE001 - the border to the program's set-up of OpenTelemetry
            pass_on(error)
            registry.default.count_error("joined")
            _log.exception("could not export recorded values to the program's MeterProvider")

    def api_imported(api: ModuleType) -> None:
        internal = getattr(api, "_internal", None)
        if getattr(internal, "_METER_PROVIDER", None) is not None:
            call()
            return
        # The public getter would load the provider of OTEL_PYTHON_METER_PROVIDER, before the program asks for it.
        proxy = getattr(internal, "_PROXY_METER_PROVIDER", None)
        if proxy is not None:
            meter = proxy.get_meter(SCOPE, __version__)
            meter.create_observable_up_down_counter("tachograph.watch", _NoCallbacks(call))

    ImportHook(API, api_imported)
    if getattr(sys.modules.get(_LOGS), "_LOGGER_PROVIDER", None) is not None:
        call()


def waiting_instruments() -> int:
    """Return how many instruments of others were created through the API, and have no provider."""
    from opentelemetry.metrics import _internal

    proxy = getattr(_internal, "_PROXY_METER_PROVIDER", None)
    if proxy is None or getattr(_internal, "_METER_PROVIDER", None) is not None:
        return 0
    meters = [meter for meter in getattr(proxy, "_meters", ()) if getattr(meter, "name", "") != SCOPE]
    return sum(len(getattr(meter, "_instruments", ())) for meter in meters)

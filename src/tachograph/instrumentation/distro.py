"""The distro and the configurator for ``opentelemetry-instrument``; other installed ones still do their work.

Entry points of ``opentelemetry_distro`` and ``opentelemetry_configurator``. ``opentelemetry-instrument`` takes the
first of each that it finds; where another one is installed, ours hands over to it, so the order makes no difference.
Then zero code begins, and joins the providers that the other configurator, or the program, has made.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import EntryPoint, entry_points
from typing import Any

# Their modules switch their types off.
from opentelemetry.instrumentation.distro import BaseDistro  # type: ignore[attr-defined]

from tachograph.instrumentation._zero_code import begin, begun, loads_instrumentors
from tachograph.recording import registry

_OURS = "tachograph"

_log = logging.getLogger("tachograph")


class TachographDistro(BaseDistro):  # type: ignore[misc]
    """The distro: configures nothing by itself, and loads instrumentors as the other installed one does."""

    def __init__(self) -> None:
        other = _other("opentelemetry_distro", "OTEL_PYTHON_DISTRO")
        self._other: Any = None if other is None else other()

    def _configure(self, **kwargs: Any) -> None:
        if self._other is not None:
            self._other.configure(**kwargs)

    def load_instrumentor(self, entry_point: EntryPoint, **kwargs: Any) -> None:
        """Load an instrumentor, unless it is one of ours and zero code has loaded them."""
        if begun() and loads_instrumentors(os.environ) and entry_point.value.startswith("tachograph."):
            return
        if self._other is not None:
            self._other.load_instrumentor(entry_point, **kwargs)
        else:
            super().load_instrumentor(entry_point, **kwargs)


class TachographConfigurator:
    """The configurator: calls the other installed one, then begins zero code."""

    def configure(self, **kwargs: Any) -> None:
        """Configure; an error of ours is a line in the log."""
        other = _other("opentelemetry_configurator", "OTEL_PYTHON_CONFIGURATOR")
        if other is not None:
            other().configure(**kwargs)
        try:
            begin()
        except Exception as error:  # noqa: BLE001 - the border to the program: it starts, with telemetry or without
            registry.default.count_error("instrumentation")
            _log.warning("could not start telemetry, continuing without it: %r", error)


def _other(group: str, variable: str) -> Any:
    """Return another distribution's entry in this group; None where there is none, or ours was asked for."""
    if os.environ.get(variable):
        return None
    for entry_point in entry_points(group=group):
        if entry_point.name != _OURS:
            return entry_point.load()
    return None

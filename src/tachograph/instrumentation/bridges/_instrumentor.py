"""An instrumentor of a library that logs: OpenTelemetry's interface to a bridge."""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Collection
from functools import partial
from typing import Any, ClassVar, Protocol

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from tachograph.instrumentation._given_providers import given_providers
from tachograph.instrumentation.bridges._asked import asked_bridges
from tachograph.instrumentation.bridges._libraries import LIBRARIES
from tachograph.instrumentation.bridges._patches import Patches
from tachograph.instrumentation.bridges._values import BridgedValues, bridged_values
from tachograph.recording import registry

_LOADER = "opentelemetry.instrumentation.auto_instrumentation"


class Notes(Protocol):
    """The notes of a library, with a method for each name that its table patches."""

    def close(self) -> None:
        """End: no call is noted any more."""


class BridgeInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Records the values that a program logs with a library; the library's own files stay as they are.

    Values reach the given providers, else the global ones and the destinations of :func:`tachograph.start`; their
    curves our own hub alone, but for TACHOGRAPH_CURVES. It imports no library, but waits until the program does.
    """

    library: ClassVar[str]  # as in TACHOGRAPH_BRIDGES
    _patches: Patches | None = None
    _notes: Notes | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the required package; the early version lets the vendors' pre-releases pass."""
        return (f"{LIBRARIES[self.library].package} >= {LIBRARIES[self.library].oldest}a0",)

    @abstractmethod
    def notes(self, values: BridgedValues) -> Notes:
        """Return an object with the methods that the library's names are noted by."""

    def instrument(self, **kwargs: Any) -> None:
        """Instrument the library. Loaded by ``opentelemetry-instrument``, only where TACHOGRAPH_BRIDGES asks for it.

        Args:
            **kwargs: ``meter_provider``, which takes the values; ``logger_provider``, which takes the configuration
                and log records; ``tracer_provider`` may be given, as to any instrumentor. Unset: the global ones, and
                the destinations of ``start()``.

        Raises:
            TypeError: one of them is no such provider.
        """
        # That command loads every entry point, and skips the look at the package, which it has done itself.
        loaded = kwargs.get("skip_dep_check") and _LOADER in sys.modules and not kwargs.pop("chosen", False)
        if loaded and self.library not in asked_bridges(os.environ, "none"):
            return
        super().instrument(**kwargs)

    def _instrument(
        self, *, meter_provider: Any = None, logger_provider: Any = None, tracer_provider: Any = None, **_ignored: Any
    ) -> None:
        if not registry.default.enabled:
            return
        recording = given_providers.recording(
            meter_provider=meter_provider, logger_provider=logger_provider, tracer_provider=tracer_provider
        )
        values = bridged_values(recording)
        failed = partial(values.failed, self.library)
        self._notes = self.notes(values)
        self._patches = Patches(LIBRARIES[self.library], self._notes, failed)

    def _uninstrument(self, **_ignored: Any) -> None:
        """End: the library is restored; recorded values stay."""
        patches, self._patches, notes, self._notes = self._patches, None, self._notes, None
        if patches is not None and notes is not None:
            patches.close()
            notes.close()

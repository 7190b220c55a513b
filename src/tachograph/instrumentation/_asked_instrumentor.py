"""Instrumentors that ``opentelemetry-instrument``, which loads every entry point, begins only where it is asked to."""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from tachograph.instrumentation._given_providers import Recording, given_providers
from tachograph.recording import registry

_LOADER = "opentelemetry.instrumentation.auto_instrumentation"


class AskedInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Begins with the registry and the journal of the providers that it is given."""

    @abstractmethod
    def is_asked_for(self, environ: Mapping[str, str]) -> bool:
        """Tell whether the environment asks for it, under that command."""

    @abstractmethod
    def begin(self, recording: Recording) -> None:
        """Begin to record."""

    def instrument(self, **kwargs: Any) -> None:
        """Instrument the library. Loaded by ``opentelemetry-instrument``, only where the environment asks for it.

        Args:
            **kwargs: ``meter_provider``, which takes series and values; ``logger_provider``, which takes events, the
                configuration and log records; ``tracer_provider`` may be given, as to any instrumentor. Unset: the
                global ones, and the destinations of ``start()``.

        Raises:
            TypeError: one of them is no such provider.
        """
        # That command skips the look at the package, which it has done itself.
        loaded = kwargs.get("skip_dep_check") and _LOADER in sys.modules and not kwargs.pop("chosen", False)
        if not loaded or self.is_asked_for(os.environ):
            super().instrument(**kwargs)

    def _instrument(
        self, *, meter_provider: Any = None, logger_provider: Any = None, tracer_provider: Any = None, **_ignored: Any
    ) -> None:
        if registry.default.enabled:
            self.begin(
                given_providers.recording(
                    meter_provider=meter_provider, logger_provider=logger_provider, tracer_provider=tracer_provider
                )
            )

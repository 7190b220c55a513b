"""The instrumentor of torchelastic: torchrun's events and metrics of a job, and the workers' metrics in its API."""

from __future__ import annotations

from collections.abc import Collection
from types import ModuleType
from typing import Any

# Their module switches its types off.
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from tachograph.identity.import_hooks import ImportHook
from tachograph.instrumentation._given_providers import given_providers
from tachograph.instrumentation._torchelastic import ElasticEvents, ElasticMetrics, TorchrunSeries
from tachograph.recording import registry

METRICS = "torch.distributed.elastic.metrics.api"
EVENTS = "torch.distributed.elastic.events"


class TorchElasticInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Record the metrics and events of torch's own torchelastic.

    They go to the providers that you pass, otherwise to the global providers and the exporters of
    :func:`tachograph.start`. ``opentelemetry-instrument`` loads this instrumentor. It does not import torch, but waits
    until the program does. Handlers that the program configures, earlier or later, receive the same points as without
    it.
    """

    _hooks: tuple[ImportHook, ...] = ()
    _parts: tuple[ElasticMetrics | ElasticEvents, ...] = ()

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the required packages; the early version lets the vendors' pre-releases pass."""
        return ("torch >= 2.0.0a0",)

    def _instrument(
        self,
        *,
        meter_provider: Any = None,
        logger_provider: Any = None,
        tracer_provider: Any = None,
        **_ignored: Any,
    ) -> None:
        """Instrument torchelastic.

        Args:
            meter_provider: takes the metrics; unset, the global one, and the destinations of ``start()``.
            logger_provider: takes the events; unset, likewise.
            tracer_provider: may be given, as to any instrumentor; torchelastic has no spans.

        Raises:
            TypeError: one of them is no such provider.
        """
        if not registry.default.enabled:
            return
        recording = given_providers.recording(
            meter_provider=meter_provider, logger_provider=logger_provider, tracer_provider=tracer_provider
        )
        series = TorchrunSeries(recording)

        def metrics(api: ModuleType) -> None:
            self._parts = (*self._parts, ElasticMetrics(api, series))

        def events(package: ModuleType) -> None:
            self._parts = (*self._parts, ElasticEvents(package, series))

        self._hooks = ImportHook(METRICS, metrics), ImportHook(EVENTS, events)

    def _uninstrument(self, **_ignored: Any) -> None:
        """End: torchelastic is restored; recorded values stay."""
        for hook in self._hooks:
            hook.cancel()
        for part in self._parts:
            part.close()
        self._hooks = self._parts = ()

"""The instrumentor of torchelastic: what torchrun tells of a job, and what workers put through its API."""

from __future__ import annotations

from collections.abc import Collection
from types import ModuleType
from typing import Any

# Their module switches its types off.
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from tachograph import registry
from tachograph.instrumentation.hooks import ImportHook
from tachograph.instrumentation.torchelastic_events import ElasticEvents
from tachograph.instrumentation.torchelastic_metrics import ElasticMetrics
from tachograph.instrumentation.torchrun_series import TorchrunSeries

METRICS = "torch.distributed.elastic.metrics.api"
EVENTS = "torch.distributed.elastic.events"


class TorchElasticInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Sends the metrics and events of the real torchelastic to the exporters of :func:`tachograph.start`.

    ``opentelemetry-instrument`` loads it by its entry point. It imports no torch, but waits until the program does.
    Handlers that the program configures, before or after, get what they got without it.
    """

    _hooks: tuple[ImportHook, ...] = ()
    _parts: tuple[ElasticMetrics | ElasticEvents, ...] = ()

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return what has to be installed; the early version lets the vendors' pre-releases pass."""
        return ("torch >= 2.0.0a0",)

    def _instrument(self, **_ignored: Any) -> None:
        if not registry.default.enabled:
            return
        series = TorchrunSeries()

        def metrics(api: ModuleType) -> None:
            self._parts = (*self._parts, ElasticMetrics(api, series))

        def events(package: ModuleType) -> None:
            self._parts = (*self._parts, ElasticEvents(package, series))

        self._hooks = ImportHook(METRICS, metrics), ImportHook(EVENTS, events)

    def _uninstrument(self, **_ignored: Any) -> None:
        """End: torchelastic is as it was. What was recorded stays."""
        for hook in self._hooks:
            hook.cancel()
        for part in self._parts:
            part.close()
        self._hooks = self._parts = ()

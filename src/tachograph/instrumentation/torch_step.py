"""The instrumentor of training steps: their phases, throughput and memory, without a change to the program."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from tachograph.diagnosis.anatomy_series import AnatomyOfSteps
from tachograph.identity.environment import setting
from tachograph.instrumentation._given_providers import given_providers
from tachograph.recording import registry
from tachograph.recording.log import log

VARIABLE = "TACHOGRAPH_ANATOMY"
_LOADER = "opentelemetry.instrumentation.auto_instrumentation"


def asks_for_anatomy(environ: Mapping[str, str], *, default: bool) -> bool:
    """Tell whether TACHOGRAPH_ANATOMY, ``true`` or ``false``, asks for it; another value is a line in the log.

    Args:
        environ: has the variable.
        default: its value where it is not set.
    """
    given = setting(environ, "", None, VARIABLE)
    try:
        return given.boolean() if given else default
    except ValueError as error:
        log.warning("%s; the default is taken", error)
        return default


class TorchStepInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Records where each training step's time goes: ``dl.step.*``; see docs/anatomy.md.

    It imports no torch, but waits until the program does. No module gets a hook: ``torch.compile(fullgraph=True)``,
    pickles and copies stay as they are.
    """

    _steps: AnatomyOfSteps | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the required packages; the early version lets the vendors' pre-releases pass."""
        return ("torch >= 2.1.0a0",)

    def instrument(self, **kwargs: Any) -> None:
        """Instrument torch. Loaded by ``opentelemetry-instrument``, only where TACHOGRAPH_ANATOMY is ``true``.

        Args:
            **kwargs: ``meter_provider``, which takes the series; ``logger_provider``, which takes the events;
                ``tracer_provider`` may be given, as to any instrumentor. Unset: the global ones, and the destinations
                of ``start()``.

        Raises:
            TypeError: one of them is no such provider.
        """
        # That command loads every entry point, and skips the look at the package, which it has done itself.
        loaded = kwargs.get("skip_dep_check") and _LOADER in sys.modules and not kwargs.pop("chosen", False)
        if loaded and not asks_for_anatomy(os.environ, default=False):
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
        self._steps = AnatomyOfSteps(*recording)

    def _uninstrument(self, **_ignored: Any) -> None:
        """End: torch is restored; recorded steps stay."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()

"""The instrumentor of training steps: their phases, throughput and memory, without a change to the program."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tachograph.diagnosis import AnatomyOfSteps
from tachograph.identity.environment import setting
from tachograph.instrumentation._asked_instrumentor import AskedInstrumentor
from tachograph.instrumentation._given_providers import Recording
from tachograph.recording.log import log

VARIABLE = "TACHOGRAPH_ANATOMY"


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
        log.warning("%s; using the default", error)
        return default


class TorchStepInstrumentor(AskedInstrumentor):
    """Record where the time of each training step goes, as ``dl.step.*``; see docs/anatomy.md.

    It does not import torch, but waits until the program does. It adds no hooks to modules, so
    ``torch.compile(fullgraph=True)``, pickling and copying work as before.
    """

    _steps: AnatomyOfSteps | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the required packages; the early version lets the vendors' pre-releases pass."""
        return ("torch >= 2.1.0a0",)

    def is_asked_for(self, environ: Mapping[str, str]) -> bool:
        """Return whether TACHOGRAPH_ANATOMY is ``true``."""
        return asks_for_anatomy(environ, default=False)

    def begin(self, recording: Recording) -> None:
        """Instrument torch, now or when the program imports it."""
        self._steps = AnatomyOfSteps(*recording)

    def _uninstrument(self, **_ignored: Any) -> None:
        """End: torch is restored; recorded steps stay."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()

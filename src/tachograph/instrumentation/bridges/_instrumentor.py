"""An instrumentor of a library that logs: OpenTelemetry's interface to a bridge."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, ClassVar, Protocol

from tachograph.instrumentation._asked_instrumentor import AskedInstrumentor
from tachograph.instrumentation._given_providers import Recording
from tachograph.instrumentation.bridges._asked import asked_bridges
from tachograph.instrumentation.bridges._libraries import LIBRARIES
from tachograph.instrumentation.bridges._patches import Patches
from tachograph.instrumentation.bridges._values import BridgedValues, bridged_values


class Notes(Protocol):
    """The notes of a library, with a method for each name that its table patches."""

    def close(self) -> None:
        """End: no call is noted any more."""


class BridgeInstrumentor(AskedInstrumentor):
    """Record the values that a program logs with a library. The library's own files do not change.

    Values go to the providers that you pass, otherwise to the global providers and the destinations of
    :func:`tachograph.start`. Curves go to Tachograph hubs only, unless TACHOGRAPH_CURVES is ``all``. The instrumentor
    does not import the library, but waits until the program does.
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

    def is_asked_for(self, environ: Mapping[str, str]) -> bool:
        """Tell whether TACHOGRAPH_BRIDGES names the library."""
        return self.library in asked_bridges(environ, "none")

    def begin(self, recording: Recording) -> None:
        """Patch the library, now or once the program has imported it."""
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

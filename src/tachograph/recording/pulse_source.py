"""The source of pulses: reports, one a second, of where this process stands, for the hang doctor of a hub of ours.

The room ``diagnosis`` makes them and the pipeline sends them; neither knows the other. Its code is loaded where pulses
are wanted.
"""

from __future__ import annotations

from collections.abc import Callable

PULSE = "tachograph.pulse"  # an event, and the attribute that holds it

# Returns a pulse as JSON; None where the process has none to give.
Beat = Callable[[], str | None]


class PulseSource:
    """The maker of pulses of this process."""

    def __init__(self) -> None:
        self._load: Callable[[], Beat] | None = None

    def loaded_by(self, load: Callable[[], Beat]) -> None:
        """Have ``load`` called where pulses are wanted: it returns their maker."""
        self._load = load

    def begin(self) -> Beat | None:
        """Return a new maker of pulses; None in a program without one."""
        return None if self._load is None else self._load()


pulse_source = PulseSource()

"""The bridge from trackio: on this machine, and on Spaces."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tachograph.instrumentation.bridges._instrumentor import BridgeInstrumentor
from tachograph.instrumentation.bridges._nesting import calls
from tachograph.instrumentation.bridges._values import BridgedValues, ByObject, Origin
from tachograph.recording.values import is_readable

_LIBRARY = "trackio"
_OWN = "_"  # trackio's own keys of the configuration begin with it
_RESERVED = frozenset({"project", "run", "timestamp", "step", "time", "metrics"})  # trackio.utils.RESERVED_KEYS


class TrackioNotes:
    """The notes of trackio's ``Run``: each method has the arguments of the run's own.

    Args:
        values: where they go.
    """

    def __init__(self, values: BridgedValues) -> None:
        self._values = values
        self._origins: ByObject[Origin] = ByObject()

    def close(self) -> None:
        """Forget the runs."""
        self._origins.clear()

    def _origin(self, run: Any) -> Origin:
        found = self._origins.get(id(run))
        if found is None:
            found = self._origins.keep(run, self._values.origin(_LIBRARY, str(run.id), str(run.name)))
        return found

    def begin(self, run: Any, *_args: Any, **_kwargs: Any) -> None:
        """Take the configuration."""
        own = {key: value for key, value in run.config.items() if not str(key).startswith(_OWN)}
        if own:
            self._values.config(self._origin(run), own)

    def log(self, run: Any, metrics: Mapping[str, Any], step: Any = None) -> None:
        """Take the values of one call, under the names that trackio gives them; others than numbers are counted."""
        x = run._next_step - 1 if step is None else step  # noqa: SLF001 - the step that it has just given the call
        origin = self._origins.get(id(run)) or self._origin(run)
        take = self._values.scalar if calls.outermost is None else self._take_inside
        for key, value in metrics.items():
            if value.__class__ is not float and not is_readable(value):
                self._values.not_taken(_LIBRARY, type(value).__name__)
                continue
            tag = f"__{key}" if key in _RESERVED or key[:2] == "__" else key
            take(origin, tag, value, x, counted=step is None)

    def _take_inside(self, origin: Origin, tag: str, value: Any, x: Any, *, counted: bool) -> None:
        """Take a value inside of the call of another bridge, unless that records it."""
        record = partial(self._values.scalar, origin, tag, value, x, counted=counted)
        if not self._values.passed_over(_LIBRARY, tag, value, record):
            record()

    def log_system(self, _run: Any, *_args: Any, **_kwargs: Any) -> None:
        """Count values of the machine: they have no step, and ``--system-metrics`` records them."""
        self._values.not_taken(_LIBRARY, "system")

    def log_artifact(self, _run: Any, *_args: Any, **_kwargs: Any) -> None:
        """Count an artifact."""
        self._values.not_taken(_LIBRARY, "artifact")

    def alert(self, _run: Any, *_args: Any, **_kwargs: Any) -> None:
        """Count an alert."""
        self._values.not_taken(_LIBRARY, "alert")


class TrackioInstrumentor(BridgeInstrumentor):
    """Record the values of ``trackio.log`` over the step.

    The configuration becomes that of the run. A second run in the process becomes a group.
    """

    library = _LIBRARY

    def notes(self, values: BridgedValues) -> TrackioNotes:  # noqa: D102 - as the base class says
        return TrackioNotes(values)

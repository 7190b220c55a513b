"""The calls of a profiled function, as ``function.duration`` and ``function.calls``."""

from __future__ import annotations

from tachograph.recording.accumulators import Distribution
from tachograph.recording.instrument import FOLD_WAIT
from tachograph.recording.losses import Losses
from tachograph.recording.naming import default_boundaries
from tachograph.recording.points import Attributes, AttributeValue, HistogramPoint, NumberPoint, histogram_point


class FunctionCalls:
    """The calls of one profiled function: their durations, by outcome and by type of error.

    ``function.calls`` is counted from the same distributions that ``function.duration`` shows, so the two always agree.
    """

    __slots__ = ("_failures", "_limit", "attributes", "losses", "success")

    def __init__(self, attributes: Attributes, limit: int) -> None:
        self.attributes = attributes
        self._limit = limit
        self.losses = Losses("function.duration")
        self._failures: dict[str, Distribution] = {}
        self.success = self._distribution()

    def _distribution(self) -> Distribution:
        return Distribution(self.losses, default_boundaries("s"))

    def failure(self, error_type: str) -> Distribution:
        """Return the durations of the calls that ended in an exception of this type."""
        found = self._failures.get(error_type)
        if found is None:
            if len(self._failures) >= self._limit:
                error_type = "_OTHER"
            found = self._failures.setdefault(error_type, self._distribution())
        return found

    def distributions(self) -> list[tuple[str, Distribution]]:
        """Return the error type (empty for success) and the durations of each way to end."""
        return [("", self.success), *self._failures.items()]

    def points(self) -> tuple[list[HistogramPoint], list[NumberPoint]]:
        """Fold, then return the points of ``function.duration`` and of ``function.calls``."""
        durations: list[HistogramPoint] = []
        calls: list[NumberPoint] = []
        for part in (self.success, *self._failures.values()):
            part.fold(wait=FOLD_WAIT)
        failures = list(self._failures.items())
        for outcome, parts in (("success", [self.success]), ("failure", [part for _, part in failures])):
            point = histogram_point(_with(self.attributes, ("outcome", outcome)), parts)
            if point is not None:
                durations.append(point)
        if self.success.summary().count:
            attributes = _with(self.attributes, ("outcome", "success"))
            calls.append(NumberPoint(attributes, self.success.summary().count, self.success.start_unix_nano))
        for error_type, part in failures:
            if part.summary().count:
                attributes = _with(self.attributes, ("error.type", error_type), ("outcome", "failure"))
                calls.append(NumberPoint(attributes, part.summary().count, part.start_unix_nano))
        return durations, calls

    def reset(self) -> None:
        """Forget every call, as a forked child does."""
        self.losses.forget()
        for _, part in self.distributions():
            part.reset()


def _with(attributes: Attributes, *more: tuple[str, AttributeValue]) -> Attributes:
    return tuple(sorted((*attributes, *more)))

"""All routes of a pipeline: those that its settings name, and those that somebody has attached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from tachograph.pipeline.destinations import Queue, Route

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

    from tachograph.exporters.batch import Batch

PATIENCE = 0.5  # seconds for which a destination may take nothing at the end of the process
CLOSING = 0.05  # seconds that the end of any part has at least, whatever is left
LONGEST_EXIT = 10.0  # seconds that destinations may add to it which take what comes, but slowly


class Routes:
    """The routes of a pipeline.

    Attributes:
        own: those of its settings, which end with it; whoever has attached another one closes that, if the process
            goes on.
    """

    def __init__(self) -> None:
        self.own: list[Route] = []
        self._attached: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter([*self.own, *self._attached])

    def attach(self, route: Route) -> None:
        """Deliver to one more."""
        self._attached = [*self._attached, route]

    def detach(self, route: Route) -> None:
        """Deliver to an attached one no longer."""
        self._attached = [other for other in self._attached if other is not route]

    def feed(self, source: Callable[[MetricReader, float], Batch | None]) -> None:
        """Let the pipeline's own readers collect: :meth:`tachograph.exporters.reader_feed.ReaderFeed.open`."""
        for route in self.own:
            if route.reader is not None:
                route.reader.open(source)

    def flush(self, deadline: float) -> bool:
        """Deliver what the destinations have taken; True where all of it arrived before ``deadline``, monotonic."""
        for route in self:
            route.destination.flush(0)  # all of them hurry, not only the one that is waited for
        arrived = [route.destination.flush(max(0.0, deadline - time.monotonic())) for route in self]
        return all(arrived)

    def hand_on(self, export: Callable[[float], bool], longest: float = LONGEST_EXIT) -> bool:
        """Deliver what waits, while somebody takes it.

        Args:
            export: hands over what waits, within so many seconds; False where there was more.
            longest: seconds that it may take.

        Returns:
            False where nobody has taken anything for half a second, or it took too long.
        """
        end = time.monotonic() + longest
        for route in self:
            route.retry_now(longest)
        while time.monotonic() < end:
            before, deadline = self.delivered(), min(time.monotonic() + PATIENCE, end)
            handed_over = export(PATIENCE)
            if self.flush(deadline) and handed_over:
                return True
            # Where there is more to hand over, all of them may still get it.
            goes_on = self.goes_on(before) if handed_over else self.delivered() != before
            if not goes_on and not any(route.is_loading() for route in self):
                break
        return False

    def delivered(self) -> dict[int, int]:
        """Return how much has arrived so far, by the id of the queue that it waited in."""
        return {id(queue): queue.delivered for queue in self._queues()}

    def goes_on(self, before: Mapping[int, int]) -> bool:
        """Tell whether a receiver that has not got everything has taken some of it since :meth:`delivered`.

        One that has got everything says nothing of the others: it takes each further collection at once.
        """
        return any(queue.delivered > before.get(id(queue), 0) and not queue.flush(0) for queue in self._queues())

    def _queues(self) -> Iterator[Queue]:
        for route in self:
            yield from route.queues or (route.destination,)

    def close(self, deadline: float, *, exiting: bool) -> None:
        """End the pipeline's own before ``deadline``; at the process's end all."""
        for route in self if exiting else self.own:
            route.destination.close(max(deadline - time.monotonic(), CLOSING))

    def reset_in_child(self) -> None:
        """Leave everything to the parent process, after a fork."""
        for route in self:
            route.destination.reset_in_child()

"""The news of a run since the last look at its file."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from tachograph.runs.ending import described
from tachograph.runs.file import Look
from tachograph.runs.members import SECOND, members
from tachograph.runs.queries import read_newest_event_number
from tachograph.studio._api import Api, Unanswered, text
from tachograph.studio._arrivals import Heads
from tachograph.studio.charts import Drawn, curves
from tachograph.studio.charts import news as new_samples
from tachograph.studio.occurrences import events_for_a_browser
from tachograph.studio.overview import progress

_SELDOM = 5  # looks, one a second: a hub saves states and samples every five seconds
_LATE = 60 * SECOND  # nanoseconds that a sample may come later than others of the same time
_MOST_EVENTS = 5000  # in one look; further ones come with the next


class Message(NamedTuple):
    """A server-sent event; ``data`` is JSON."""

    event: str
    data: str


class News:
    """Looks at the file of one run again and again; not from two threads at once.

    Args:
        api: reads.
        run: its id.

    Attributes:
        heads: the last number of each curve, as of the last look.
        last_event: the number of the last event, the same.
        bars: the progress bars, the same.
    """

    def __init__(self, api: Api, run: str) -> None:
        self._api = api
        self._run = run
        self._arrivals = Heads()
        self.heads: dict[int, int] = {}
        self.last_event = 0
        self._looks = 0
        self._drawn: dict[int, Drawn] = {}
        self.bars: list[dict[str, Any]] = []
        self._line: dict[str, Any] = {}
        self._sampled: dict[int, int] = {}
        self._problem = ""

    def begin(self) -> None:
        """Look for the first time: the present state is not new.

        Raises:
            Unanswered: there is no such run, or it cannot be read.
        """
        with self._api.reading(self._run) as reading:
            self._arrivals.begin(reading)
            self.heads, self.last_event = self._arrivals.known, read_newest_event_number(reading.rows)
            self._drawn = {each.number: each for each in curves(reading)}
            self.bars = self._progress(reading)
            self._line = self._api.line_of(reading, self._run, members(reading))
            self._samples(reading, time.time_ns() - _LATE)

    def look(self) -> list[Message]:
        """Return messages about everything that is new."""
        self._looks += 1
        try:
            with self._api.reading(self._run) as reading:
                found = [
                    *self._points(reading),
                    *self._events(reading),
                    *self._standing(reading),
                ]
                if self._looks % _SELDOM == 0:
                    found += self._samples(reading, max(self._sampled.values(), default=0) - _LATE)
        except Unanswered as refused:
            found = [] if str(refused) == self._problem else [Message("problem", text({"error": str(refused)}))]
            self._problem = str(refused)
            return found
        self._problem = ""
        return found

    def _points(self, reading: Look) -> list[Message]:
        arrived = self._arrivals.arrived(reading)
        new = list(arrived.new)
        if new or self._looks % _SELDOM == 0:
            drawn = {each.number: each for each in curves(reading)}
            new += [
                number
                for number, each in drawn.items()
                if number in self._drawn and each.about != self._drawn[number].about
            ]
            self._drawn = drawn
        self.heads = self._arrivals.known
        found = []
        if arrived.curves or new or arrived.stale:
            said = {"curves": arrived.curves, "new": new, "stale": arrived.stale}
            found.append(Message("points", text(said)))
            bars = self._progress(reading)
            if bars != self.bars:
                self.bars = bars
                found.append(Message("progress", text({"progress": bars})))
        return found

    def _progress(self, reading: Look) -> list[dict[str, Any]]:
        return progress(reading, self._drawn.values())

    def _events(self, reading: Look) -> list[Message]:
        found, more = events_for_a_browser(reading, after=self.last_event, limit=_MOST_EVENTS)
        if not found:
            return []
        self.last_event = found[-1]["number"]
        return [Message("events", text({"events": found, "more": more}))]

    def _standing(self, reading: Look) -> list[Message]:
        found = members(reading)
        if self._looks % _SELDOM and described(self._api.ending_of(reading, found)) == self._line["ended"]:
            return []
        line = self._api.line_of(reading, self._run, found)
        before, self._line = self._line, line
        return [] if line == before else [Message("run", text(line))]

    def _samples(self, reading: Look, since: int) -> list[Message]:
        found = new_samples(reading, since, self._sampled)
        self._sampled.update((each["series"], each["time"][-1]) for each in found)
        return [Message("samples", text({"samples": found}))] if found else []

"""The Studio's API: what is asked for, read from the file of a run."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from http import HTTPStatus
from math import inf
from pathlib import Path
from typing import Any

from tachograph.runs.catalogue import in_use, located
from tachograph.runs.file import RunFile
from tachograph.runs.look import Look, look
from tachograph.runs.members import Member, State, members, state
from tachograph.runs.store import StoreError
from tachograph.studio._answer import Refused
from tachograph.studio._lines import lines
from tachograph.studio._question import Question
from tachograph.studio.charts import charts, curves
from tachograph.studio.functions import functions
from tachograph.studio.loops import progress
from tachograph.studio.occurrences import events
from tachograph.studio.overview import Overview, about
from tachograph.studio.series import samples, series

PAIRS = 2000
MOST_PAIRS = 20_000
MOST_SERIES = 500  # whose samples are asked for at once
MOST_EVENTS = 10_000


class Api:
    """Answers questions; each method may be called from several threads at once.

    Args:
        folder: the store.
        run: the hub's own.
        clock: nanoseconds since the epoch.
        abandoned: asked now and then whether to stop reading.
    """

    def __init__(self, folder: Path, run: str, clock: Callable[[], int], abandoned: Callable[[], bool]) -> None:
        self._folder = folder
        self._own = run
        self._clock = clock
        self._abandoned = abandoned
        self._overview = Overview(folder, clock, abandoned)

    def ask(self, question: Question) -> dict[str, Any]:
        """Return the answer.

        Raises:
            Refused: there is none; it says why.
            Abandoned: reading was to stop.
        """
        match question.path:
            case ["runs"]:
                return {"now": self._clock(), "run": self._own, "runs": self._overview.runs()}
            case ["runs", run]:
                return self._read(run, lambda reading: self._run(reading, run))
            case ["runs", run, ("curves" | "samples" | "events") as what]:
                return self._read(run, lambda reading: _ASKED[what](reading, question))
        raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here: see /api/runs")

    def _read(self, run: str, what: Callable[[Look], dict[str, Any]]) -> dict[str, Any]:
        with self.reading(run) as reading:
            found = what(reading)
            return {**found, **({"damage": list(reading.file.damage)} if reading.file.damage else {})}

    @contextlib.contextmanager
    def reading(self, run: str) -> Iterator[Look]:
        """Lend a look at a run's file.

        Raises:
            Refused: there is no such run, or it cannot be read at all.
        """
        try:
            with look(RunFile(located(run, self._folder)), self._abandoned) as reading:
                yield reading
        except LookupError as error:
            raise Refused(HTTPStatus.NOT_FOUND, str(error.args[0])) from error
        except StoreError as error:
            raise Refused(HTTPStatus.CONFLICT, f"the run {run!r:.200} cannot be read: {error.strerror}") from error
        except sqlite3.Error as error:
            raise Refused(HTTPStatus.CONFLICT, f"the run {run!r:.200} cannot be read: {error}") from error

    def line_of(self, reading: Look, run: str, found: list[Member]) -> dict[str, Any]:
        """Return what the list of runs says of one."""
        said = about(reading, run, found, self._clock(), written=in_use(reading.file.path))
        return {**said, "damage": list(reading.file.damage)}

    def state_of(self, reading: Look, found: list[Member]) -> State:
        """Return how a run stands now."""
        return state(found, self._clock(), written=in_use(reading.file.path))

    def _run(self, reading: Look, run: str) -> dict[str, Any]:
        now, found, drawn = self._clock(), members(reading), curves(reading)
        written = in_use(reading.file.path)
        listed = {
            "processes": [_process(each, now, written=written) for each in found],
            "charts": charts(reading, drawn),
            "progress": progress(reading, drawn),
            "series": series(reading),
            "functions": functions(reading),
        }
        return {"now": now, "run": self.line_of(reading, run, found), **listed}


def _process(each: Member, now: int, *, written: bool) -> dict[str, Any]:
    newest = each.newest
    named = {"instance": each.instance, "rank": each.rank, "role": each.role, "pid": newest.pid}
    times = {"starts": len(each.starts), "first": each.starts[0].first, "last": newest.last, "ended": newest.ended}
    host = str(each.resource.get("host.name", ""))
    return {**named, "host": host, **times, "lost": each.lost(now, written=written)}


def _curves(reading: Look, question: Question) -> dict[str, Any]:
    metric = question.text("metric")
    if not metric:
        raise Refused(HTTPStatus.BAD_REQUEST, "say which metric: ?metric=")
    pairs = question.whole("pairs", PAIRS, least=1, most=MOST_PAIRS)
    found = lines(
        reading,
        metric,
        group=question.text("group"),
        rank=question.rank(),
        low=question.number("low", -inf),
        high=question.number("high", inf),
        pairs=pairs,
    )
    return {"curves": found}


def _samples(reading: Look, question: Question) -> dict[str, Any]:
    return {"samples": samples(reading, question.wholes("series", most=MOST_SERIES))}


def _events(reading: Look, question: Question) -> dict[str, Any]:
    limit = question.whole("limit", 1000, least=1, most=MOST_EVENTS)
    found, more = events(reading, after=question.whole("after", 0), limit=limit, names=question.texts("name"))
    return {"events": found, "more": more}


_ASKED: dict[str, Callable[[Look, Question], dict[str, Any]]] = {
    "curves": _curves,
    "samples": _samples,
    "events": _events,
}

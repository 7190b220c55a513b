"""A run as a hub serves it."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, urlencode

from tachograph.cli.top.picture import KEPT, Json, Picture, Tail
from tachograph.cli.top.source import Asking, Away, HubRefused, StreamEvent, default_run

_EVERYTHING = 5.0  # seconds: so often a hub writes states down
_LOOK_BACK = 1000  # events
_MOST_SERIES = 500
_PATIENCE = 0.3  # seconds that are spent on the past between two messages
_FIRST = 1.5  # times the points that are kept are asked for, as x is rarely even
_NO_NUMBER = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_OF_A_BAR = ("count", "total", "rate", "eta")


class ServedRun:
    """A run that a hub serves.

    Args:
        asking: asks the hub.
        run: the run's id; None for the hub's own, or else the newest.
    """

    def __init__(self, asking: Asking, run: str | None) -> None:
        self.where = asking.url
        self._asking = asking
        self._wanted = run
        self._run = ""

    def fill(self, picture: Picture) -> None:
        """See :meth:`tachograph.cli.top.source.RunSource.fill`."""
        answer = self._begin(picture)
        self._ask_points_of(picture, answer, _bare(picture))

    def follow(self, picture: Picture, stop: threading.Event) -> None:
        """See :meth:`tachograph.cli.top.source.RunSource.follow`.

        A hub that is busy with a run is not asked for the past of a hundred metrics at once.
        """
        answer = self._begin(picture)
        wanted, behind = _bare(picture), set[int]()
        if answer["run"]["state"] != "running":
            self._ask_points_of(picture, answer, wanted)
        due = time.monotonic() + _EVERYTHING
        for told in self._asking.stream(self._path("/live")):
            if stop.is_set():
                return
            if told.name == "hello":  # most news of in between are followed by more: only the others are asked for
                behind |= self._met(picture, told.data)
            elif told.name == "points":
                behind -= {each["curve"] for each in told.data["curves"]}
                wanted |= {*told.data["new"], *told.data["stale"]}
                due = 0.0 if told.data["new"] else due
            self._take(picture, told)
            if time.monotonic() >= due:
                if self._wanted is None and self._chosen() != self._run:
                    return
                answer = self._ask_run(picture)
                wanted |= behind
                behind.clear()
                due = time.monotonic() + _EVERYTHING
            self._ask_points_of(picture, answer, wanted, patience=_PATIENCE if told.name else math.inf)

    def _begin(self, picture: Picture) -> Any:
        self._run = self._wanted or self._chosen()
        answer = self._ask_run(picture)
        with picture.lock:
            series = picture.wanted()
        for first in range(0, len(series), _MOST_SERIES):
            self._ask_samples(picture, series[first : first + _MOST_SERIES])
        self._ask_events(picture)
        return answer

    def _ask_run(self, picture: Picture) -> Any:
        answer = self._ask("")
        with picture.lock:
            picture.take_run({**answer, "progress": _bars(answer.get("progress", ()))})
        with contextlib.suppress(HubRefused):  # a hub of an earlier version has no answer
            faults = self._ask("/faults")["faults"]
            standing = self._ask("/doctor")["live"] or {}
            with picture.lock:
                picture.take_faults(faults)
                picture.take_hang(standing.get("open"))
        return answer

    def runs(self) -> list[Json]:
        """See :meth:`tachograph.cli.top.source.RunSource.runs`."""
        asking = self._asking.another()
        try:
            return list(asking.get("/api/runs")["runs"])
        finally:
            asking.close()

    def of(self, run: str) -> ServedRun:
        """See :meth:`tachograph.cli.top.source.RunSource.of`."""
        return ServedRun(self._asking.another(), run)

    def close(self) -> None:
        """See :meth:`tachograph.cli.top.source.RunSource.close`."""
        self._asking.close()

    @staticmethod
    def _take(picture: Picture, told: StreamEvent) -> None:
        data = told.data
        if told.name == "problem":
            raise Away(str(data["error"]))
        with picture.lock:
            if told.name == "points":
                for each in data["curves"]:
                    points = [(point[0], _value(point)) for point in each["points"]]
                    picture.take_points(each["curve"], points, branch=each["branch"], seq=each["seq"])
            elif told.name == "progress":
                picture.take_progress(_bars(data["progress"]))
            elif told.name == "events":
                picture.take_events(data["events"])
            elif told.name == "samples":
                picture.take_samples(data["samples"])
            elif told.name == "run":
                picture.take_about(data)

    def _met(self, picture: Picture, hello: Json) -> set[int]:
        """Return the curves of which points came between the answers and the stream; ask for such events."""
        with picture.lock:
            tails, last = picture.tails, picture.newest_event
            behind = {int(curve) for curve, head in hello["heads"].items() if head > _seq(tails.get(int(curve)))}
        if hello["events"] > last:
            self._ask_events_after(picture, max(last, hello["events"] - _LOOK_BACK))
        return behind

    def _ask_points_of(self, picture: Picture, answer: Json, wanted: set[int], *, patience: float = math.inf) -> None:
        """Ask for the newest points of curves, and strike these off, for so many seconds."""
        until = time.monotonic() + patience
        for chart in answer["charts"] if wanted else ():
            for metric in chart["metrics"]:
                curves = {each["curve"] for each in metric["curves"]}
                if time.monotonic() < until and not wanted.isdisjoint(curves):
                    wanted -= curves
                    if not metric["progress"]:
                        self._ask_points(picture, chart["group"], metric)

    def _chosen(self) -> str:
        answer = self._asking.get("/api/runs")
        runs = answer["runs"]
        if not runs:
            raise Away(f"the hub at {self.where} has not received any run yet")
        return default_run(runs, answer["run"])

    def _path(self, below: str, **query: Any) -> str:
        asked = f"?{urlencode(query, doseq=True)}" if query else ""
        return f"/api/runs/{quote(self._run, safe='')}{below}{asked}"

    def _ask(self, below: str, **query: Any) -> Any:
        return self._asking.get(self._path(below, **query))

    def _ask_points(self, picture: Picture, group: str, metric: Json) -> None:
        """Ask for the newest points of a metric: first for about as many as are kept, of all curves at once."""
        newest = _newest_curves(metric["curves"])
        low = min((_last_part(each) for each in newest), default=None)
        lines = self._ask_lines(group, metric, low)
        for curve in newest:
            number = curve["curve"]
            branches = [each for each in lines if each["curve"] == number]
            if not branches:
                continue
            line = max(branches, key=lambda each: each["branch"])
            points = _points(line)
            if not line["exact"] and points:  # the end may be an extreme, and not the last value
                found = self._ask_lines(group, metric, points[-1][0])
                exact = [each for each in found if each["curve"] == number and each["branch"] == line["branch"]]
                points[-1:] = _points(exact[0])[-1:] if exact else points[-1:]
            with picture.lock:
                picture.take_points(number, points[-KEPT:], branch=line["branch"], seq=line["seq"], anew=True)

    def _ask_lines(self, group: str, metric: Json, low: float | None) -> list[Any]:
        query = {"metric": metric["metric"], "group": group} | ({} if low is None else {"low": repr(low)})
        return list(self._ask("/curves", **query)["curves"])

    def _ask_samples(self, picture: Picture, numbers: list[int]) -> None:
        answer = self._ask("/samples", series=numbers, newest=1)
        with picture.lock:
            picture.take_samples(answer["samples"])

    def _ask_events(self, picture: Picture) -> None:
        """Ask for the last events. Their numbers grow, and which is the last one is found by halving."""
        low, high = 0, 1
        while self._ask("/events", after=high, limit=1)["events"]:
            low, high = high, high * 2
        while high - low > _LOOK_BACK // 2:
            middle = (low + high) // 2
            low, high = (middle, high) if self._ask("/events", after=middle, limit=1)["events"] else (low, middle)
        self._ask_events_after(picture, max(0, low - _LOOK_BACK // 2))

    def _ask_events_after(self, picture: Picture, number: int) -> None:
        answer = self._ask("/events", after=number, limit=2 * _LOOK_BACK)
        with picture.lock:
            picture.take_events(answer["events"])


def _seq(tail: Tail | None) -> int:
    return 0 if tail is None else tail.seq


def _bare(picture: Picture) -> set[int]:
    """Return the curves, but those of bars, of which no point is known."""
    with picture.lock:
        drawn = [curve["curve"] for _, metric, curve in picture.curves() if not metric["progress"]]
        return {number for number in drawn if not _seq(picture.tails.get(number))}


def _newest_curves(curves: Iterable[Json]) -> list[Json]:
    found: dict[int | None, Json] = {}
    for each in sorted(curves, key=lambda each: (each["start"], each["execution"], each["curve"])):
        if each["points"]:
            found[each["rank"]] = each
    return list(found.values())


def _last_part(curve: Json) -> float:
    """Return the x from which on about as many points come as are kept."""
    share = min(1.0, _FIRST * KEPT / curve["points"])
    return float(curve["x1"] * (1 - share) + curve["x0"] * share)


def _points(line: Json) -> list[tuple[float, float]]:
    finite = list(zip(line["x"], line["y"], strict=True))
    others = [(x, _NO_NUMBER[kind]) for x, kind in line["nonfinite"]]
    # A point whose interval has some that are not finite has these at its own x, and is later than they.
    return sorted(others + finite, key=lambda point: point[0]) if others else finite


def _bars(progress: Iterable[Json]) -> list[Json]:
    """Return bars with numbers for those that JSON spells out."""
    return [{**each, **{key: _number(each[key]) for key in _OF_A_BAR}} for each in progress]


def _number(value: Any) -> Any:
    return _NO_NUMBER.get(value, float("nan")) if isinstance(value, str) else value


def _value(point: Any) -> float:
    """Return the value of ``[x, y]``, or of ``[x, null, "NaN"]``."""
    if point[1] is not None:
        return float(point[1])
    return _NO_NUMBER.get(point[2], float("nan")) if len(point) > 2 else float("nan")  # noqa: PLR2004 - see above

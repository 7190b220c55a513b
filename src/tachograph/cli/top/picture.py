"""The picture of a run at this moment, from the answers of a hub's API or from the run's file."""

from __future__ import annotations

import base64
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from tachograph.recording.exponential import ExponentialHistogram
from tachograph.runs.buckets import HistogramValues
from tachograph.runs.spread import unpacked

KEPT = 64  # points, of which a sparkline shows as many as there is room for


class Tail:
    """The newest points of one curve, those of its newest branch last.

    Attributes:
        values: of the points, the newest last; NaN and infinities where they were recorded.
        x: of the newest point; None before there is one.
        branch: of the newest point.
        seq: the number of the newest record that is in it.
    """

    __slots__ = ("branch", "seq", "values", "x")

    def __init__(self) -> None:
        self.values: deque[float] = deque(maxlen=KEPT)
        self.x: float | None = None
        self.branch = self.seq = 0

    def clear(self) -> None:
        """Forget all points."""
        self.values.clear()
        self.x = None
        self.branch = self.seq = 0

    def add(self, points: Iterable[tuple[float, float]], *, branch: int, seq: int = 0) -> None:
        """Add points of a branch, x and value of each, in recording order; those of an older branch are none."""
        if branch < self.branch:
            return
        self.branch = branch
        if newest := list(points)[-KEPT:]:
            self.values.extend([value for _, value in newest])
            self.x = newest[-1][0]
        self.seq = max(self.seq, seq)

    @property
    def value(self) -> float | None:
        """The newest value; None before there is one."""
        return self.values[-1] if self.values else None


Json = Mapping[str, Any]

EVENTS = 200  # that are remembered
# Windows of Stats and points of a MetricsLogger are data: as events they would push everything else out of sight.
DATA = frozenset(
    {
        *("torch.monitor.Stat", "tachograph.point", "tachograph.points", "tachograph.metric"),
        *("tachograph.definition", "tachograph.steps"),
    }
)
_READINGS = 4  # between the first and the last of these points are counted for a rate
_NANO = 1_000_000_000
_TROUBLE = ("tachograph.errors", "tachograph.nonfinite", "tachograph.hub.failed")


class CurveLine(NamedTuple):
    """A metric in one rank: its newest curve there, which is that of the last start and task.

    Attributes:
        points: how many all of its curves in this rank have.
        rate: of these, those that came in a second lately; None where that is not known yet.
        tail: the newest points.
    """

    rank: int | None
    points: int
    rate: float | None
    tail: Tail


class MetricRow(NamedTuple):
    """A metric of a run, in all its ranks."""

    group: str
    metric: str
    units: str
    x_units: str
    lines: list[CurveLine]


class Picture:
    """A run as it is seen now. One thread fills it in, another one draws it: both hold :attr:`lock` meanwhile.

    Attributes:
        lock: see above.
        about: of the run, as in the API's list of runs; empty before it is known.
        trouble: in words, why it is not known, or no longer up to date; empty where all is well.
        refused: in words, why it never will be; empty where it may.
        version: goes up with each change.
        newest_event: the number of the last event that was taken.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.trouble = self.refused = ""
        self.version = 0
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: another run is shown from now on."""
        self.about: Json = {}
        self.hang: Json | None = None
        self.processes: list[Json] = []
        self.progress: list[Json] = []
        self.functions: list[Json] = []
        self.functions_together: list[Json] = []
        self.lost: list[Json] = []
        self.faults: list[Json] = []
        self.series: dict[int, Json] = {}
        self.samples: dict[int, tuple[float | None, float | None, str | None]] = {}
        self.events: deque[Json] = deque(maxlen=EVENTS)
        self.tails: dict[int, Tail] = {}
        self.damage: list[str] = []
        self._charts: list[Json] = []
        self._rows: list[MetricRow] | None = None
        self._readings: deque[tuple[int, dict[int, int]]] = deque(maxlen=_READINGS)
        self.newest_event = 0
        self.version += 1

    def take_run(self, answer: Json) -> None:
        """Take the API's description of a run; its source is there, then."""
        self.trouble = ""
        if self.about and answer["run"]["id"] != self.about["id"]:
            self.start_over()
        self.about = answer["run"]
        self.processes = list(answer.get("processes", ()))
        self.take_progress(answer.get("progress", ()))
        self.functions = list(answer.get("functions", ()))
        self.functions_together = list(answer.get("functions_together", ()))
        self.lost = list(answer.get("losses", ()))
        self.series = {each["series"]: each for each in answer.get("series", ())}
        self.damage = [*dict.fromkeys((*answer.get("damage", ()), *self.about.get("damage", ())))]
        self._charts = list(answer.get("charts", ()))
        self._rows = None
        curves = {each["curve"]: int(each["points"] or 0) for _, _, each in self.curves()}
        self._readings.append((int(answer["now"]), curves))
        self.version += 1

    def take_about(self, about: Json) -> None:
        """Take the run's entry in the API's list of runs."""
        self.about = about
        self.version += 1

    def take_faults(self, faults: Iterable[Json]) -> None:
        """Take the faults of the run, the most urgent first."""
        self.faults = list(faults)
        self.version += 1

    def take_hang(self, hang: Json | None) -> None:
        """Take the verdict on a job that stands still; None where it gets on."""
        self.hang = hang
        self.version += 1

    def take_progress(self, progress: Iterable[Json]) -> None:
        """Take how far the loops are."""
        self.progress = list(progress)
        self.version += 1

    def curves(self) -> Iterable[tuple[Json, Json, Json]]:
        """Yield each curve with its metric and its chart, as the API has them."""
        for chart in self._charts:
            for metric in chart["metrics"]:
                for curve in metric["curves"]:
                    yield chart, metric, curve

    def take_points(
        self, curve: int, points: Iterable[tuple[float, float]], *, branch: int, seq: int = 0, anew: bool = False
    ) -> None:
        """Take the newest points of a curve.

        Args:
            curve: its number.
            points: x and value of each, in recording order.
            branch: of these points.
            seq: the number of the last record that is in them.
            anew: forget those that were known.
        """
        tail = self._tail(curve)
        if anew:
            tail.clear()
        tail.add(points, branch=branch, seq=seq)
        self.version += 1

    def _tail(self, curve: int) -> Tail:
        found = self.tails.get(curve)
        if found is None:
            found = self.tails[curve] = Tail()
        return found

    def take_events(self, events: Iterable[Json]) -> None:
        """Take events; those that are known already change nothing."""
        for event in events:
            if event["number"] > self.newest_event:
                self.newest_event = event["number"]
                if event["name"] not in DATA:
                    self.events.append(event)
                    self.version += 1

    def take_samples(self, answer: Iterable[Json]) -> None:
        """Take samples of series: of each the newest; a histogram's as count, sum and spread of its last interval."""
        for each in answer:
            if not each["time"]:
                continue
            columns = (each["count"], each["total"]) if "count" in each else (each["value"], [None])
            self.samples[each["series"]] = (columns[0][-1], columns[1][-1], each.get("spread"))
            self.version += 1

    def rows(self) -> list[MetricRow]:
        """Return the metrics, chart by chart, but those that are drawn as bars."""
        if self._rows is None:
            self._rows = self._made_rows()
        return self._rows

    def _made_rows(self) -> list[MetricRow]:
        found = []
        for chart in self._charts:
            scales = {each["scale"]: each for each in chart["scales"]}
            for metric in chart["metrics"]:
                if metric["progress"] or not metric["curves"]:
                    continue
                units = scales.get(metric["scale"], {}).get("units") or ""
                lines = self._lines(metric["curves"])
                found.append(MetricRow(chart["group"], metric["metric"], units, chart["x"]["units"] or "", lines))
        return found

    def _lines(self, curves: Iterable[Json]) -> list[CurveLine]:
        by_rank: dict[int | None, list[Json]] = {}
        for each in curves:
            by_rank.setdefault(each["rank"], []).append(each)
        found = []
        for rank, some in sorted(by_rank.items(), key=lambda pair: (pair[0] is None, pair[0] or 0)):
            newest = max(some, key=lambda each: (each["start"], each["execution"], each["curve"]))
            points = sum(int(each["points"] or 0) for each in some)
            rate = self._rate([each["curve"] for each in some])
            found.append(CurveLine(rank, points, rate, self._tail(newest["curve"])))
        return found

    def _rate(self, curves: Iterable[int]) -> float | None:
        if len(self._readings) < 2:  # noqa: PLR2004 - a difference is between two
            return None
        (began, first), (ended, last) = self._readings[0], self._readings[-1]
        if ended <= began:
            return None
        if self.about["state"] != "running":
            return None
        more = sum(last.get(each, 0) - first.get(each, 0) for each in curves)
        return max(0, more) / ((ended - began) / _NANO)

    def wanted(self) -> list[int]:
        """Return the series whose samples are shown: troubles, and durations that are no function's."""
        return [number for number, each in self.series.items() if is_trouble(each) or is_duration(each)]

    def losses(self) -> list[tuple[str, str, int]]:
        """Return the points that are lost: reason, destination, and how many in all ranks; the most first."""
        return [(str(each["reason"]), str(each["destination"]), int(each["points"])) for each in self.lost]

    def troubles(self) -> list[tuple[str, str, float]]:
        """Return errors and values that are no numbers: name, attributes in words, and the count over all ranks."""
        found: dict[tuple[str, str], float] = {}
        for number, each in self.series.items():
            amount = self.samples.get(number, (None,))[0]
            if is_trouble(each) and amount:
                words = ", ".join(f"{key}: {value}" for key, value in sorted(each["attributes"].items()))
                key = each["name"].removeprefix("tachograph."), words
                found[key] = found.get(key, 0) + amount
        return sorted(((*key, amount) for key, amount in found.items()), key=lambda each: -each[2])

    def durations(self) -> dict[tuple[str, str, str], dict[int | None, HistogramValues]]:
        """Return, by scope, name and unit, the durations of each rank in its last interval; of steps each phase."""
        found: dict[tuple[str, str, str], dict[int | None, HistogramValues]] = {}
        for number, each in self.series.items():
            count, total, spread = self.samples.get(number, (None, None, None))
            if is_duration(each) and count and total is not None:
                values = HistogramValues(int(count), total, _spread(spread) if spread else None)
                ranks = found.setdefault((each["scope"], _phase(each) or each["name"], each["unit"]), {})
                rank = each["rank"]
                ranks[rank] = ranks[rank].plus(values) if rank in ranks else values
        return found


def _phase(each: Json) -> str:
    """Return the phase of steps that a series is of; empty for none. All phases together would say nothing."""
    phase = each["attributes"].get("dl.step.phase")
    return f"phase {phase}{', device' * ('.device.' in each['name'])}" if phase else ""


@lru_cache(maxsize=4096)
def _spread(text: str) -> ExponentialHistogram | None:
    try:
        return unpacked(base64.b64decode(text, validate=True))
    except ValueError:  # damaged: count and sum may be right
        return None


UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_OWN = "tachograph"
_FUNCTIONS = "function.duration"  # the API's functions have these already


def is_trouble(each: Json) -> bool:
    """Tell whether a series counts errors of Tachograph itself, or values that are no numbers."""
    return each["name"] in _TROUBLE


def is_duration(each: Json) -> bool:
    """Tell whether a series is a histogram of durations, but those of functions, which have a table of their own."""
    return (
        each["kind"] == "histogram" and each["unit"] in UNITS and each["name"] != _FUNCTIONS and each["scope"] != _OWN
    )

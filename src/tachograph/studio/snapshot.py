"""A run at one moment, typed: what the API answers about it, for readers that are not the page.

The page's overview and ``tachograph top`` show the same answers. A hub gives them over HTTP, and
:func:`answers_from_store` gives them without a server.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urlencode

from tachograph.runs import Loss
from tachograph.runs.newest_points import NewestPoints

Json = Mapping[str, Any]

TROUBLES = frozenset({"tachograph.errors", "tachograph.nonfinite", "tachograph.hub.failed"})
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}  # in seconds
_MOST_AT_ONCE = 500  # series or curves in one question
_OWN_SCOPE = "tachograph"
_FUNCTION_DURATION = "function.duration"  # a snapshot has its functions as rows of their own


Row = TypeVar("Row", bound=tuple[Any, ...])  # a NamedTuple


class Ask(Protocol):
    """Answers a question to the API: a path below ``/api`` and its query."""

    def __call__(self, path: str, **query: Any) -> Json:
        """Return the answer, a JSON object."""


class RunStatus(NamedTuple):
    """A run as the list of runs shows it.

    Attributes:
        state: ``running``, ``finished``, ``failed``, ``killed``, ``lost`` or ``unknown``.
        brief: the state in a few words.
        failure: how the run failed, in words; empty if it did not.
        started: nanoseconds since the epoch.
        last: when it was last heard of, the same.
    """

    id: str
    program: str
    state: str
    brief: str
    failure: str
    started: int
    last: int
    ranks: int
    processes: int
    restarts: int
    points: int


class ProcessStatus(NamedTuple):
    """A process of a run; ``lost`` if it fell silent before its end."""

    rank: int | None
    role: str
    lost: bool


class ProgressBar(NamedTuple):
    """A loop of one rank; numbers may be infinite or NaN, and are None where they are not known."""

    group: str
    metric: str
    task: str | None
    rank: int | None
    execution: int
    curve: int
    completed: float
    total: float | None
    rate: float | None
    eta: float | None
    done: bool


class CurveOfRank(NamedTuple):
    """A curve of a metric, of one start and one task of a rank, with its number in the file."""

    curve: int
    rank: int | None
    start: int
    execution: int
    points: int


class MetricOfRun(NamedTuple):
    """A metric in all ranks, with the units of its values and of its x."""

    group: str
    metric: str
    units: str
    x_units: str
    curves: list[CurveOfRank]


class FunctionTimes(NamedTuple):
    """The calls of a profiled function: seconds, failures by type of error.

    Attributes:
        error: the share by which a percentile may be off; None where no bound is known.
    """

    function: str
    rank: int | None
    role: str
    calls: int
    failures: Mapping[str, int]
    mean: float | None
    p50: float | None
    p99: float | None
    error: float | None


class LastSample(NamedTuple):
    """A series and its newest sample.

    Attributes:
        value: of a counter or gauge; of a histogram the number of values in its last interval.
        total: the sum of these values; None for other kinds.
        spread: these values as a packed exponential histogram in base64; None where there is none.
    """

    scope: str
    name: str
    unit: str
    attributes: Json
    rank: int | None
    value: float | None
    total: float | None
    spread: str | None


class RunFault(NamedTuple):
    """What went wrong in a run, in words; with its time, its rank and its x on the charts, if it has them."""

    kind: str
    title: str
    detail: str
    time: int | None
    rank: int | None
    x: float | None


class RunEvent(NamedTuple):
    """An event; its number grows with each event of the run."""

    number: int
    time: int
    name: str
    rank: int | None
    attributes: Json


class LiveHang(NamedTuple):
    """The verdict on a job that makes no progress; its grade is ``hang`` or ``late``."""

    grade: str
    text: str


@dataclass(frozen=True)
class RunSnapshot:
    """A run at one moment.

    Attributes:
        now: the moment, in nanoseconds since the epoch.
        run: state, times and counts of the run.
        hang: the verdict on a live job that makes no progress; None if it does, or if only the file is known.
        faults: what went wrong, the most urgent first.
        metrics: all metrics with points that are no progress bars, chart by chart.
        functions: calls of functions by rank; ``functions_together`` has the same over all ranks.
        samples: the newest sample of each series of errors and durations.
        damage: the parts of the file that cannot be read, in words.
    """

    now: int
    run: RunStatus
    processes: list[ProcessStatus]
    progress: list[ProgressBar]
    hang: LiveHang | None
    faults: list[RunFault]
    losses: list[Loss]
    metrics: list[MetricOfRun]
    functions: list[FunctionTimes]
    functions_together: list[FunctionTimes]
    samples: list[LastSample]
    damage: list[str]

    @classmethod
    def from_json(cls, overview: Json, faults: Json, hangs: Json, samples: Iterable[Json]) -> RunSnapshot:
        """Return the snapshot that the API's answers contain.

        Args:
            overview: ``/runs/RUN``.
            faults: ``/runs/RUN/faults``.
            hangs: ``/runs/RUN/doctor``.
            samples: those of ``/runs/RUN/samples``.

        Raises:
            LookupError: an answer is not of this version; also ``TypeError``, ``ValueError`` and ``AttributeError``.
        """
        run, live = overview["run"], hangs["live"] or {}
        ended = run["ended"]
        failure = ended["words"] if ended["failure"] else ""
        return cls(
            now=int(overview["now"]),
            run=_row(RunStatus, {**run, "brief": ended["brief"], "failure": failure}),
            processes=[_row(ProcessStatus, process) for process in overview["processes"]],
            progress=[_row(ProgressBar, _with_numbers(bar)) for bar in overview["progress"]],
            hang=_row(LiveHang, live["open"]) if live.get("open") else None,
            faults=[_row(RunFault, {**fault, "x": _x(fault["place"])}) for fault in faults["faults"]],
            losses=[_row(Loss, loss) for loss in overview["losses"]],
            metrics=[metric for chart in overview["charts"] for metric in _metrics(chart)],
            functions=[_row(FunctionTimes, function) for function in overview["functions"]],
            functions_together=[_row(FunctionTimes, function) for function in overview["functions_together"]],
            samples=list(_last_samples(overview["series"], samples)),
            damage=list(dict.fromkeys((*overview.get("damage", ()), *run["damage"], *faults.get("damage", ())))),
        )


class RunReader:
    """Reads one run by asking the API.

    Args:
        ask: answers a question.
        run: the run's id.
    """

    def __init__(self, ask: Ask, run: str) -> None:
        self.run = run
        self._ask = ask
        self._path = f"/runs/{quote(run, safe='')}"

    def read_snapshot(self) -> RunSnapshot:
        """Return the run as it is now.

        Raises:
            LookupError: see :meth:`RunSnapshot.from_json`; and what ``ask`` raises.
        """
        overview = self._ask(self._path)
        shown = [each["series"] for each in overview["series"] if each["name"] in TROUBLES or _is_duration(each)]
        samples = [
            sample
            for some in _parts(shown)
            for sample in self._ask(f"{self._path}/samples", series=some, newest=1)["samples"]
        ]
        faults, hangs = self._ask(f"{self._path}/faults"), self._ask(f"{self._path}/doctor")
        return RunSnapshot.from_json(overview, faults, hangs, samples)

    def read_newest_points(self, curves: Sequence[int], most: int) -> Iterator[NewestPoints]:
        """Yield up to ``most`` newest points of each of these curves that has any."""
        for some in _parts(curves):
            for points in self._ask(f"{self._path}/curves", curve=some, newest=most)["curves"]:
                yield _row(NewestPoints, {**points, "y": list(map(float, points["y"]))})

    def read_newest_events(self, after: int, most: int) -> list[RunEvent]:
        """Return up to ``most`` newest events whose numbers are above ``after``."""
        return [
            _row(RunEvent, event) for event in self._ask(f"{self._path}/events", after=after, newest=most)["events"]
        ]


def answers_from_store(folder: Path) -> Ask:
    """Return a function that answers questions about the runs in a folder, without a server.

    The function raises ``LookupError`` for an unknown run, and ``OSError`` for one that cannot be read.
    """
    from tachograph.studio._api import Api, Question, Unanswered  # slow to import, and only needed for stores

    api = Api(folder, "", time.time_ns, lambda: False)

    def ask(path: str, **query: Any) -> Json:
        scope = {"path": f"/api{path}", "query_string": urlencode(query, doseq=True).encode()}
        try:
            return api.ask(Question(scope))
        except Unanswered as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise LookupError(str(error)) from error
            raise OSError(str(error)) from error

    return ask


def _row(of: type[Row], data: Json) -> Row:
    """Return the fields of a row that an answer has, among others."""
    return of(**{name: data[name] for name in of.__annotations__})


def _with_numbers(bar: Json) -> Json:
    """Return a progress bar with numbers instead of the strings that stand for NaN and infinities in JSON."""
    numbers = {"completed": bar["count"], "total": bar["total"], "rate": bar["rate"], "eta": bar["eta"]}
    return {**bar, **{name: None if value is None else float(value) for name, value in numbers.items()}}


def _x(place: Json | None) -> float | None:
    return None if place is None else float(place["x"])


def _metrics(chart: Json) -> Iterator[MetricOfRun]:
    units = {scale["scale"]: scale["units"] or "" for scale in chart["scales"]}
    for metric in chart["metrics"]:
        if metric["curves"] and not metric["progress"]:
            curves = [_row(CurveOfRank, {**curve, "points": curve["points"] or 0}) for curve in metric["curves"]]
            x_units = chart["x"]["units"] or ""
            yield MetricOfRun(chart["group"], metric["metric"], units.get(metric["scale"], ""), x_units, curves)


def _last_samples(series: Iterable[Json], samples: Iterable[Json]) -> Iterator[LastSample]:
    by_series = {sample["series"]: sample for sample in samples if sample["time"]}
    for each in series:
        if sample := by_series.get(each["series"]):
            values = sample["count"] if "count" in sample else sample["value"]
            total = sample["total"][-1] if "count" in sample else None
            about = {**each, "value": values[-1], "total": total, "spread": sample.get("spread")}
            yield _row(LastSample, about)


def _is_duration(series: Json) -> bool:
    return (
        series["kind"] == "histogram"
        and series["unit"] in TIME_UNITS
        and series["name"] != _FUNCTION_DURATION
        and series["scope"] != _OWN_SCOPE
    )


def _parts(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield numbers in parts that one question may have."""
    for first in range(0, len(numbers), _MOST_AT_ONCE):
        yield numbers[first : first + _MOST_AT_ONCE]

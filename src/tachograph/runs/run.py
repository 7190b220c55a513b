"""One run, read back: its processes, metrics, points and events."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tachograph.recording.own_metrics import TORCH_MONITOR
from tachograph.recording.points import AttributeValue
from tachograph.runs._curve_points import CurvePoints
from tachograph.runs.blocks import Bucket, thin
from tachograph.runs.drawing import CurveDrawing, drawing, run_html
from tachograph.runs.ending import Ending, Failure, find_ending, read_failed_processes
from tachograph.runs.file import RunFile, look
from tachograph.runs.file_lock import is_in_use
from tachograph.runs.kept_calls import CallsOfFunction, read_kept_calls
from tachograph.runs.losses import Loss, read_losses
from tachograph.runs.members import (
    find_job_name,
    parse_object,
    parse_pairs,
    programs,
    rank_of,
    read_dictionary,
    read_display_name,
    read_members,
    read_notes,
    read_program,
    read_tags,
)
from tachograph.runs.queries import (
    EventRow,
    read_curve_extents,
    read_curves,
    read_definitions,
    read_events,
    read_series,
    read_starts,
    read_streams,
)
from tachograph.runs.recorded import (
    HEADER,
    Curve,
    CurveSummary,
    Point,
    Process,
    RecordedMetric,
    count_thinned_curves,
    metric_of,
    read_stat_units,
    row_of,
    stat_definition,
)
from tachograph.runs.recorded_series import (
    HEADERS,
    KINDS,
    Interval,
    Kind,
    Reading,
    RecordedSeries,
    SeriesKind,
    intervals_of,
    kinds_of,
    readings_of,
    rows_of,
    series_of,
)
from tachograph.runs.window import Drawing, Stretch, read_stretches

if TYPE_CHECKING:
    from tachograph.runs.recorded import StoredEvent


PAIRS = 2000
_DRAWING = Drawing(320)  # a stretch of a drawing is two pixels wide
_NANO = 1e9


class Run:
    """A recorded run. Reading a run that is being recorded returns everything received so far.

    Args:
        name: the id of the run.
        path: the path of its file.
        looking: write nothing, not even a recovery of the file after its hub was killed.

    Attributes:
        id: the id of the run.
        path: the path of its file.

    Raises:
        StoreError: the file is not a run, or was written by a newer version; an ``OSError``.
    """

    def __init__(self, name: str, path: Path, *, looking: bool = False) -> None:
        self.id = name
        self.path = path
        self._file = RunFile(path, looking=looking)
        self._points_of = CurvePoints(self._file)

    def __repr__(self) -> str:
        return f"<tachograph run {self.id!r}>"

    def _repr_html_(self) -> str:
        metrics = self.metrics()
        many = f"{len(metrics)}, {sum(metric.points for metric in metrics):,} points"
        about = {"run": self.id, "name": self.name, "state": self.ended.state, "tags": ", ".join(self.tags)}
        dictionaries = {"configuration": self.config, "results": self.summary}
        names = list(dict.fromkeys(metric.name for metric in metrics))
        return run_html({**about, "metrics": many}, dictionaries, names, self.plot)

    def plot(self, *names: str, compare: Iterable[Run] = (), rank: int | None = None) -> CurveDrawing:
        """Draw the curves of metrics as an SVG, which a notebook displays; this needs no other package.

        Args:
            names: the names of the metrics, which share one y-axis.
            compare: more runs whose curves of these metrics are drawn as well.
            rank: only draw curves of this rank.

        Raises:
            LookupError: there is no such metric, or it has no curve in this rank.
            TypeError: no metric is given.
        """
        if not names:
            raise TypeError('plot() needs the names of metrics, such as plot("loss")')
        runs = [(run.name or run.id, partial(run._read_stretches, rank=rank)) for run in (self, *compare)]  # noqa: SLF001 - a run, too
        return drawing(runs, names)

    def _read_stretches(self, name: str, *, rank: int | None) -> list[tuple[Curve, Stretch]]:
        curves = self.curves(name, rank=rank)
        with look(self._file) as reading:
            return [(curve, stretch) for curve in curves for stretch in read_stretches(reading, curve.number, _DRAWING)]

    @property
    def damage(self) -> Sequence[str]:
        """Descriptions of the damaged parts found so far; empty if there are none."""
        return self._file.damage

    def processes(self) -> list[Process]:
        """Return the processes, sorted by rank and start."""
        found: dict[str, Process] = {}
        for start in read_starts(self._file.rows):
            resource = parse_object(start.resource)
            before = found.get(start.instance)
            found[start.instance] = Process(
                start.instance,
                rank_of(resource),
                str(resource.get("dl.role", "")),
                start.pid,
                before.starts + 1 if before else 1,
                before.first_export if before else start.first_export,
                start.last_export,
                start.ended,
                resource,
            )
        return sorted(found.values(), key=lambda each: (each.rank is None, each.rank or 0, each.first_export))

    @property
    def config(self) -> dict[str, Any]:
        """The configuration given to :func:`tachograph.config`. If several ranks set a key, the lowest rank wins."""
        return read_dictionary(self._file.rows, "config")

    @property
    def summary(self) -> dict[str, Any]:
        """The results given to :func:`tachograph.summary`. If several ranks set a key, the lowest rank wins.

        The last and extreme values of curves are in :meth:`summaries`.
        """
        return read_dictionary(self._file.rows, "summary")

    @property
    def losses(self) -> list[Loss]:
        """The lost points by reason and destination, largest number first."""
        return read_losses(self._file.rows)

    @property
    def name(self) -> str:
        """The display name; empty if there is none. The id never changes."""
        return read_display_name(self._file.rows)

    @property
    def tags(self) -> list[str]:
        """The tags, sorted: from ``tachograph run --tag``, ``tachograph.start(tags=…)`` and later edits."""
        return read_tags(self._file.rows)

    @property
    def notes(self) -> str:
        """The newest notes; empty if there are none."""
        return read_notes(self._file.rows)

    @property
    def program(self) -> dict[str, AttributeValue]:
        """What the newest ``tachograph run`` of this run recorded about the program; may be empty.

        ``argv``, ``cwd``, ``host`` (a list if the run had several), ``python``, ``torch``, ``cuda``, ``git.commit``
        and ``git.dirty``, as far as known. Secrets are masked.
        """
        return read_program(self._file.rows)

    @property
    def program_name(self) -> str:
        """The name of the program, from its processes or its command; empty if it is not known."""
        return find_job_name(self._file.rows, self.processes())

    @property
    def programs(self) -> list[dict[str, AttributeValue]]:
        """What each ``tachograph run`` of this run recorded about the program, oldest first."""
        return programs(self._file.rows)

    @property
    def ended(self) -> Ending:
        """How the run ended: its state, exit code or signal, and the process that failed first.

        Raises:
            sqlite3.DatabaseError: the file can no longer be read.
        """
        with look(self._file) as reading:
            return find_ending(reading, read_members(reading), time.time_ns(), written=is_in_use(self.path))

    @property
    def failures(self) -> list[Failure]:
        """The processes that failed in the last attempt with their exceptions, in order of failure, launchers last.

        Raises:
            sqlite3.DatabaseError: the file can no longer be read.
        """
        with look(self._file) as reading:
            return read_failed_processes(reading, read_members(reading))

    @property
    def calls(self) -> list[CallsOfFunction]:
        """The slowest and the most recent failed calls of each profiled function, at most ten of each."""
        return read_kept_calls(self._file.rows)

    def curves(self, name: str | None = None, *, rank: int | None = None) -> list[Curve]:
        """Return the curves of one metric or of all, by metric, rank and start. A metric without points has none.

        Args:
            name: the metric, such as ``loss``; ``eval/loss`` selects the one of the group ``eval``.
            rank: only this rank.

        Raises:
            LookupError: there is no such metric, or it has no curve in this rank.
        """
        name, of_group = self._identity(name)
        found = []
        units = read_stat_units(self._file.rows)
        streams = self._streams()
        definitions = {
            (each.stream, each.execution, each.group, each.metric): each.about
            for each in read_definitions(self._file.rows)
        }
        for number, stream, execution, group, metric, attributes in read_curves(self._file.rows):
            if stream not in streams:  # the file is damaged
                continue
            stream_name, stream_rank = streams[stream]
            definition = parse_object(definitions.get((stream, execution, group, metric)))
            if group == TORCH_MONITOR and "." not in stream_name:
                definition = {**stat_definition(metric, units), **definition}
            found.append(
                Curve(metric, group, parse_pairs(attributes), stream_rank, execution, stream_name, definition, number)
            )
        found = [each for each in found if of_group in (None, each.group)]
        wanted = [each for each in found if name in (None, each.metric) and rank in (None, each.rank)]
        if not wanted and (name is not None or rank is not None):
            raise LookupError(self._missing("curve", name, rank, found))
        return sorted(wanted, key=lambda each: (each.metric, each.rank is None, each.rank or 0))

    def metrics(self) -> list[RecordedMetric]:
        """Return the metrics that have points, sorted by name and group."""
        curves: dict[tuple[str, str], list[Curve]] = {}
        for curve in self.curves():
            curves.setdefault((curve.metric, curve.group), []).append(curve)
        extents = read_curve_extents(self._file.rows)
        return [
            metric_of(name, each, [extents[one.number] for one in each if one.number in extents])
            for (name, _), each in curves.items()
        ]

    def summaries(self, name: str | None = None, *, rank: int | None = None) -> list[CurveSummary]:
        """Return the last, smallest and largest value of each curve that has points, with their x and time.

        This reads at most three blocks of points per curve.

        Raises:
            LookupError: there is no such metric, or it has no curve in this rank.
        """
        return self._points_of.summaries(self.curves(name, rank=rank))

    def definitions(self) -> list[Mapping[str, AttributeValue]]:
        """Return the latest definition of each metric, with its rank, for each task and each start of a process."""
        streams = self._streams()
        definitions = [each for each in read_definitions(self._file.rows) if each.stream in streams]
        definitions.sort(key=lambda each: (each.metric, each.stream, each.execution))
        return [
            {**parse_object(each.about), "rank": rank, "stream": stream, "time_unix_nano": each.time}  # type: ignore[dict-item]
            for each in definitions
            for stream, rank in [streams[each.stream]]
        ]

    def _streams(self) -> dict[int, tuple[str, int | None]]:
        """Return the name and the rank of each stream, by its number."""
        return {
            each.number: (each.name, rank_of(parse_object(each.resource))) for each in read_streams(self._file.rows)
        }

    def points(self, name: str | None = None, *, rank: int | None = None) -> Iterator[Point]:
        """Iterate over the points of one metric or of all, curve by curve in recording order.

        Only one block of points is in memory at a time. Each curve is read when the iteration reaches it.

        Args:
            name: the name of the metric.
            rank: only this rank.

        Raises:
            LookupError: there is no such metric, or it has no curve in this rank.
        """
        return self._points(self.curves(name, rank=rank))

    def _points(self, curves: Iterable[Curve]) -> Iterator[Point]:
        starts = self._run_starts()
        for curve in curves:
            named = curve.metric, curve.group, curve.attributes, curve.units, curve.rank, curve.execution
            start = starts.get(curve.stream.partition(".")[0], 0)  # packed points have a stream beside it
            for branch, sample in self._points_of.samples(curve):
                seq, time, x, value, more = sample
                if start and "elapsed" not in more:
                    more = {**more, "elapsed": (time - start) / _NANO}
                yield Point(*named, branch, x, time, value, more, curve.stream, seq)

    def _run_starts(self) -> dict[str, int]:
        """Return when the run began, in nanoseconds, as each stream says; those that say nothing are left out."""
        from google.protobuf.message import DecodeError

        from tachograph.runs.recorded import read_run_start

        found = {}
        first = "SELECT name, (SELECT record FROM event WHERE stream = stream.id ORDER BY seq LIMIT 1) FROM stream"
        for stream, record in self._file.rows(first):
            with contextlib.suppress(DecodeError):  # events() tells
                found[stream] = read_run_start(record or b"")
        return {stream: start for stream, start in found.items() if start}

    def thinned(
        self, name: str, *, pairs: int = PAIRS, rank: int | None = None
    ) -> list[tuple[Curve, int, list[Bucket]]]:
        """Return each branch of a metric's curves, reduced for a chart: curve, branch, and at most ``pairs`` buckets.

        Buckets have equal widths in x. Each has the smallest and largest finite value of its points and intervals.

        Raises:
            LookupError: there is no such metric, or it has no curve in this rank.
            ValueError: ``pairs`` is not above 0.
        """
        if pairs < 1:
            raise ValueError(f"pairs must be above 0: {pairs}")
        return [
            (curve, branch, thin(raw, pairs))
            for curve in self.curves(name, rank=rank)
            for branch, raw in sorted(self._points_of.raw(curve).items())
        ]

    def events(self, name: str | None = None) -> Iterator[StoredEvent]:
        """Iterate over the events of one name or of all, in order of arrival. Points of metrics are not events."""
        rows = read_events(self._file.rows, names=() if name is None else (name,))
        return filter(None, map(self._event, rows))

    def _event(self, row: EventRow) -> StoredEvent | None:
        from google.protobuf.message import DecodeError

        from tachograph.runs.recorded import decode_event

        try:
            return decode_event(row)
        except DecodeError as error:
            self._file.note(f"event {row.number}: {error}")
            return None

    @cached_property
    def ranks(self) -> Mapping[str, int | None]:
        """The rank of each stream, which is one start of a process."""
        return dict(self._streams().values())

    def series(
        self, name: str | None = None, *, rank: int | None = None, kind: SeriesKind | None = None
    ) -> list[RecordedSeries]:
        """Return counters, histograms, and gauges without a curve, sorted by name, kind and rank.

        Args:
            name: the name of the metric.
            rank: only this rank.
            kind: ``histogram``, ``counter`` or ``gauge``; None for all.

        Raises:
            LookupError: there is no such metric, or it has no such series in this rank.
        """
        name, group = self._identity(name)
        found = [each for each in series_of(self._file, name) if group in (None, each.group)]
        of_kind = [each for each in found if kind in (None, each.kind)]
        wanted = [each for each in of_kind if name in (None, each.name) and rank in (None, each.rank)]
        if not wanted and (name is not None or rank is not None):
            raise LookupError(self._missing(kind or "series", name, rank, of_kind))
        return wanted

    def intervals(self, name: str | None = None, *, rank: int | None = None) -> Iterator[Interval]:
        """Iterate over the intervals of one histogram or of all, about ten seconds each, series by series.

        Raises:
            LookupError: there is no such histogram, or not in this rank.
        """
        found = self.series(name, rank=rank, kind="histogram")
        return (interval for each in found for interval in intervals_of(self._file, each))

    def readings(self, name: str | None = None, *, rank: int | None = None) -> Iterator[Reading]:
        """Iterate over the samples of one counter or gauge or of all, series by series.

        Raises:
            LookupError: there is no such counter or gauge, or not in this rank.
        """
        found = [each for each in self.series(name, rank=rank) if each.kind != "histogram"]
        if not found and name is not None:
            raise LookupError(self._missing("counter", name, rank, found))
        return (reading for each in found for reading in readings_of(self._file, each))

    @property
    def curves_thinned(self) -> int:
        """The number of curves that were thinned to limit the file's size. Their extremes are still there."""
        return count_thinned_curves(self._file.rows)

    def kinds(self, name: str) -> list[Kind]:
        """Return the kinds of a metric, in this order: ``curve``, ``histogram``, ``counter``, ``gauge``."""
        metric, group = self._identity(name)
        series = [each for each in series_of(self._file, metric) if group in (None, each.group)]
        return [*(("curve",) if self._has_curve(metric or "", group) else ()), *kinds_of(series, metric or "")]

    def groups(self, metric: str) -> list[str]:
        """Return the groups in which a metric has a curve, or else another series, sorted by name."""
        curves = {curve.group for curve in read_curves(self._file.rows, metric) if curve.metric == metric}
        return sorted(curves or {each.group for each in series_of(self._file, metric)})

    def _identity(self, name: str | None) -> tuple[str | None, str | None]:
        """Return the metric and the group that a name stands for: ``loss``, or ``eval/loss`` for that of one group."""
        if name is None or "/" not in name or self._has(name, None):
            return name, None
        slashes = [place for place, letter in enumerate(name) if letter == "/"]
        for place in reversed(slashes):
            group, metric = name[:place], name[place + 1 :]
            if self._has(metric, group):
                return metric, group
        return name, None

    def _has(self, metric: str, group: str | None) -> bool:
        """Tell whether there is a curve or another series of a metric, in a group or in any."""
        series = read_series(self._file.rows, metric)
        return self._has_curve(metric, group) or any(group in (None, each.scope) for each in series)

    def _has_curve(self, metric: str, group: str | None) -> bool:
        curves = read_curves(self._file.rows, metric)
        return any(each.metric == metric and group in (None, each.group) for each in curves)

    def table(
        self, name: str | None = None, *, rank: int | None = None, kind: Kind | None = None
    ) -> tuple[Sequence[str], Iterator[list[Any]]]:
        """Return the columns and rows of one metric or of all, as they are exported.

        Args:
            name: the name of the metric; None for all of a kind.
            rank: only this rank.
            kind: ``curve``, ``histogram``, ``counter`` or ``gauge``; None for the first of these that the metric has,
                or for curves if no metric is given.

        Raises:
            LookupError: there is no such metric, or it has no data in this rank.
            ValueError: there is no such kind.
        """
        if kind not in (None, *KINDS):
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r:.100}")
        known: list[Kind] = [] if name is None or kind else self.kinds(name)
        wanted: Kind = kind if kind is not None else next(iter(known), "curve")
        if wanted == "curve":
            return HEADER, map(row_of, self.points(name, rank=rank))
        found = self.series(name, rank=rank, kind=wanted)
        return HEADERS[wanted], (line for each in found for line in rows_of(self._file, each))

    def to_pandas(self, name: str | None = None, *, rank: int | None = None, kind: Kind | None = None) -> Any:
        """Return the points of one metric or of all as a ``pandas.DataFrame``, one row per point of :meth:`points`.

        For a metric without a curve, the rows are the intervals of a histogram (time, count, sum, extremes and
        quantiles) or the samples of a counter (time, total and rate).

        Args:
            name: the name of the metric; None for all of a kind.
            rank: only this rank.
            kind: ``curve``, ``histogram``, ``counter`` or ``gauge``, if a metric has several of these.

        Raises:
            ImportError: pandas is not installed.
            LookupError: there is no such metric, or it has no data in this rank.
            ValueError: there is no such kind.
        """
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise ImportError("to_pandas() needs pandas: pip install pandas") from None
        columns, rows = self.table(name, rank=rank, kind=kind)
        frame = pandas.DataFrame(list(rows), columns=list(columns))
        return frame.assign(time=pandas.to_datetime(frame["time_unix_nano"], unit="ns", utc=True))

    def _missing(
        self, kind: str, name: str | None, rank: int | None, found: Sequence[Curve] | Sequence[RecordedSeries]
    ) -> str:
        """Return in words why nothing was found: ``found`` has all of the kind."""
        ranks: dict[str, set[str]] = {}
        for each in found:
            ranks.setdefault(each[0], set()).add(str(each.rank))
        if name is None or name in ranks:
            of_name = sorted(set[str]().union(*(ranks.values() if name is None else [ranks[name]])))
            return f"the run {self.id!r} has no points of rank {rank}; its ranks are {', '.join(of_name) or 'none'}"
        others = [each for each in self.kinds(name) if each != kind]
        if others:
            return f"the run {self.id!r} has {name!r} as a {others[0]}, not as a {kind}"
        names = sorted({*ranks, *(each.metric for each in self.curves()), *(each.name for each in self.series())})
        near = get_close_matches(name, names, n=1) or names[:5]
        hint = (
            f"did you mean {near[0]!r}?"
            if len(near) == 1
            else f"its metrics are {', '.join(map(repr, near)) or 'none'}"
        )
        return f"the run {self.id!r} has no metric {name!r}: {hint}"

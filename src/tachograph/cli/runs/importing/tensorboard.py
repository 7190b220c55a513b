"""TensorBoard's log folders as runs: each point once, with its own step and time.

A folder goes through a hub, file by file, with the clock of its events. Numbers in its streams follow from the places
in the files, so that the hub knows again what it has.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA

from tachograph.cli.runs.importing.log_folders import OF_HPARAMS, PART, LogFolder, Part
from tachograph.exporters.event_file import (
    FAILURE,
    HISTOGRAMS,
    HPARAMS,
    SCALARS,
    SUCCESS,
    EventFile,
    HParams,
    Unread,
    nanoseconds,
    numbers,
    spread,
)
from tachograph.exporters.otlp.logs import log_requests
from tachograph.exporters.otlp.values import add_attributes
from tachograph.hub.hub import Hub
from tachograph.metric import Dictionary
from tachograph.metric.execution import SCOPE
from tachograph.recording.exponential import histogram_of
from tachograph.recording.journal import CONFIG, SUMMARY, Journal, LogEvent, packed_event
from tachograph.recording.naming import group_and_name
from tachograph.recording.packed_points import PackedPoints
from tachograph.recording.points import Attributes, AttributeValue
from tachograph.recording.registry import Registry
from tachograph.runs.catalogue import points_in
from tachograph.runs.file import RunFile
from tachograph.runs.file_lock import in_use
from tachograph.runs.recorded import END
from tachograph.runs.store import path_of

IMPORTED = "tachograph.import"  # an event: the library that has recorded a start
MOST_TAGS = 16_384  # of a file
_FILE = re.compile(r"events\.out\.tfevents\.\d+\.(?P<host>[^.].*?)\.(?P<pid>\d{1,9})\.")
_POINTS, _ROWS = 65_536, 1024  # that are held: of all curves, and of one
_TOLD = 4096  # records between two reports of progress
_SECOND = 10**9
_SAMPLE = 10 * _SECOND
_ALWAYS = 1e9  # seconds
_WHOLE = 2**53

Report = Callable[[EventFile, int], object]  # told the file that is read, and the points of the run so far


class Imported(NamedTuple):
    """The result of one import.

    Attributes:
        run: its id.
        points: of all files.
        new: those of them that the store did not have.
        histograms: their number in all files.
        not_taken: the number of images, texts and the like, by kind.
        unread: the parts of files that could not be read, by path; without those that are all there.
    """

    run: str
    points: int
    new: int
    histograms: int
    not_taken: Counter[str]
    unread: dict[Path, Unread]


def imported(folder: LogFolder, store: Path, report: Report) -> Imported | None:
    """Import a run, or its news since the last time; None where nothing is written yet.

    Raises:
        BlockingIOError: another process writes the run.
        OSError: a file cannot be read.
        StoreError: the store cannot be written; an ``OSError``.
    """
    run = folder.run_id()
    if run is None:
        return None
    path = path_of(store, run)
    if path.exists() and in_use(path):
        raise BlockingIOError(f"another process is writing the run {run}; import it again when that process has ended")
    before = points_in(RunFile(path).rows) if path.exists() else 0
    total: Counter[str] = Counter()
    not_taken: Counter[str] = Counter()
    unread = {}
    for part in folder.parts:
        for restart, file in enumerate(part.files):
            events = EventFile(file)
            start = _Start(store, _resource(folder.name, run, part.name, file, restart), part, file, restart)
            try:
                for number, event in enumerate(events):
                    start.take(event)
                    if number % _TOLD == 0:
                        report(events, total["points"] + start.counted["points"])
                start.end()
            finally:
                start.close()
            total += start.counted
            not_taken += start.not_taken
            if any(events.unread):
                unread[file] = events.unread
    after = points_in(RunFile(path).rows) if path.exists() else 0
    return Imported(run, total["points"], after - before, total["histograms"], not_taken, unread)


def _resource(name: str, run: str, part: str, file: Path, restart: int) -> dict[str, AttributeValue]:
    """Return the attributes of the process that wrote a file: its files are its starts."""
    place, wrote = PART.fullmatch(part), _FILE.match(file.name)
    found: dict[str, AttributeValue] = {
        "service.name": name,
        "service.instance.id": f"{run}/{part}" if part else run,
        "dl.run.id": run,
        "dl.restart_count": restart,
    }
    if wrote is not None:
        found |= {"host.name": wrote["host"], "process.pid": int(wrote["pid"])}
    if place is not None and place["rank"]:
        found["dl.rank"] = int(place["rank"])
    elif place is not None:
        found["dl.role"] = "agent"
    return found


def _stream(part: Part, file: Path) -> str:
    named = "/".join(filter(None, (part.name, part.line)))
    return hashlib.blake2b(f"{named}/{file.name}".encode(errors="surrogateescape"), digest_size=8).hexdigest()


class _Curve:
    """Points of one tag that wait.

    Attributes:
        seq: the number of the first one that waits.
        last: x of the newest one.
        ours: Tachograph has written it, with the branch of each point that is not in the first one.
    """

    __slots__ = (
        *("attributes", "branch", "execution", "group", "last", "metric", "ours", "seq", "stream", "times", "units"),
        *("values", "x"),
    )

    def __init__(self, stream: str, branch: int, tag: str, value: Any) -> None:
        self.stream, self.branch, self.seq, self.last = stream, branch, 1, -math.inf
        self.group, self.metric = group_and_name(tag)
        self.attributes: Attributes = ()
        self.execution: int | None = None
        self.units = ""
        self.ours = False
        named = value.curve
        if named.metric:
            with contextlib.suppress(ValueError, TypeError):  # others may use the number of our field
                self.attributes = tuple((key, value) for key, value in json.loads(named.attributes or b"[]"))
                self.group, self.metric, self.units = map(_text, (named.group, named.metric, named.units))
                self.execution = named.execution if named.HasField("execution") else None
                self.branch, self.ours = 0, True
        self._begin()

    def _begin(self) -> None:
        self.times, self.x, self.values = array("q"), array("d"), array("d")

    def packed(self) -> Iterator[LogEvent]:
        """Yield the points that wait, if any, as one event; they wait no longer."""
        if self.times:
            named = (self.metric,), self.group, self.attributes, self.units, self.branch
            points = PackedPoints(*named, self.times, self.x, self.values, {}, self.execution)
            yield packed_event(points, self.seq, self.stream)
            self.seq += len(self.times)
            self._begin()


class _Start:
    """The events of one file on their way into a run.

    Args:
        store: the folder of all runs.
        resource: of the process that wrote the file.
        part: whose file it is; numbers of add_hparams() are results of the run, and make no curves.
        file: see above.
        restart: number of the files before it.

    Attributes:
        counted: points and histograms so far.
        not_taken: see :class:`Imported`.
    """

    def __init__(self, store: Path, resource: dict[str, AttributeValue], part: Part, file: Path, restart: int) -> None:
        self._store = store
        self._resource = resource
        self._part = part
        self._stream = _stream(part, file)
        self._restart = restart
        self._has_results = bool(OF_HPARAMS.fullmatch(part.name))
        # The hub knows again the histograms of a process's last eight starts: there may be more files.
        self._apart = {"service.instance.id": f"{resource['service.instance.id']}#{restart + 1}"} if restart else {}
        self.counted: Counter[str] = Counter()
        self.not_taken: Counter[str] = Counter()
        self._now = self._sampled = self._seq = self._waiting = 0
        self._hub: Hub | None = None
        self._events: list[LogEvent] = []
        self._curves: dict[str, _Curve] = {}
        self._plugins: dict[bytes, str] = {}  # of tags: it is told with the first value
        self._ends: dict[str, int] = {}  # of the last histogram of a tag, in nanoseconds
        registry = Registry(enabled=True)
        self._journal = Journal(registry)
        self._config = Dictionary(CONFIG, registry=registry, journal=self._journal)
        self._summary = Dictionary(SUMMARY, registry=registry, journal=self._journal)

    def take(self, event: Any) -> None:
        """Take an event of the file; the first one, of its version, is from when the file was made."""
        if event.file_version:
            return
        time = nanoseconds(event.wall_time, self._now)
        self._now = max(self._now, time)
        if event.graph_def or event.meta_graph_def:
            self.not_taken["graph"] += 1
        for value in event.summary.value:
            kind = self._kind(value)
            if kind == SCALARS:
                self._scalar(value, event.step, time)
            elif kind == HISTOGRAMS:
                self._histogram(value, time)
            elif kind == HPARAMS:
                self._hparams(value, time)
            else:
                self.not_taken[kind] += 1
        if self._waiting >= _POINTS:
            self._send()

    def _kind(self, value: Any) -> str:
        """Return the kind of a value: one of those that are taken, or the word for it."""
        tag, plugin = value.tag, _plugin(value)
        if plugin == HPARAMS:
            return HPARAMS
        known = self._plugins.get(tag)
        if known is None:
            if len(self._plugins) >= MOST_TAGS:
                return f"tag beyond {MOST_TAGS:,}"
            known = self._plugins[tag] = plugin
        if value.HasField("simple_value"):
            return SCALARS
        if value.HasField("histo"):
            return HISTOGRAMS
        for field in ("image", "audio"):
            if value.HasField(field):
                return field
        return known or "tensor"

    def _scalar(self, value: Any, step: int, time: int) -> None:
        found = [value.simple_value] if value.HasField("simple_value") else numbers(value.tensor)
        tag = _text(value.tag)
        if len(found) != 1:
            self.not_taken["tensor"] += 1
        elif self._has_results:
            self._summary.merge({tag: found[0]})
            self._keep(time)
        else:
            curve = self._curves.get(tag)
            if curve is None:
                named = hashlib.blake2b(value.tag, digest_size=6).hexdigest()
                stream = f"{self._stream}.{named}"
                curve = self._curves[tag] = _Curve(stream, self._restart, self._part.tag(tag), value)
            self._point(curve, value.point, found[0], float(step), time)

    def _point(self, curve: _Curve, exact: Any, number: float, x: float, time: int) -> None:
        """Take a point; ``exact`` has the digits that its event could not hold, where Tachograph has written it."""
        if exact.HasField("x") and math.isfinite(exact.x):
            x = exact.x
        if exact.HasField("time_unix_nano") and exact.time_unix_nano >= 0:
            time = exact.time_unix_nano
        branch = exact.branch if curve.ours else curve.branch + (x < curve.last)
        if branch != curve.branch:
            self._pack(curve)
            curve.branch = branch
        curve.last = x
        curve.times.append(time)
        curve.x.append(x)
        curve.values.append(exact.value if exact.HasField("value") else number)
        self._waiting += 1
        self.counted["points"] += 1
        if len(curve.times) >= _ROWS:
            self._pack(curve)

    def _pack(self, curve: _Curve) -> None:
        self._events += curve.packed()

    def _histogram(self, value: Any, time: int) -> None:
        counts, total, low, high = spread(value)
        self.counted["histograms"] += 1
        if not counts:
            return
        tag = _text(value.tag)
        start = self._ends.get(tag, 0)
        end = self._ends[tag] = max(time, start + 1)
        group, name = group_and_name(tag)
        request = ExportMetricsServiceRequest()
        of = request.resource_metrics.add()
        add_attributes(of.resource.attributes, (self._resource | self._apart).items())
        scope = of.scope_metrics.add()
        scope.scope.name = group or SCOPE
        metric = scope.metrics.add(name=name)
        metric.exponential_histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA
        found = histogram_of(counts)
        point = metric.exponential_histogram.data_points.add(
            start_time_unix_nano=start,
            time_unix_nano=end,
            count=found.total,
            sum=total,
            scale=found.scale,
            zero_count=found.zeros,
            min=low,
            max=high,
        )
        for side, buckets in ((point.positive, found.positive), (point.negative, found.negative)):
            side.offset = buckets.offset
            side.bucket_counts.extend(buckets.counts)
        hub = self._opened()
        if end >= self._sampled + _SAMPLE:  # the hub samples ten seconds: those before this one
            self._sampled = end
            hub.tick()
        rejected = hub.receive_metrics(request)
        if rejected.items:
            self.not_taken[f"histogram ({rejected.why})"] += 1

    def _hparams(self, value: Any, time: int) -> None:
        try:
            said = HParams.FromString(value.metadata.plugin_data.content)
        except DecodeError:
            self.not_taken["invalid hparams"] += 1
            return
        if said.HasField("session_start_info"):
            of = said.session_start_info
            self._config.merge({_text(each.key): _constant(each.value) for each in of.hparams})
            self._keep(nanoseconds(of.start_time_secs, time))
        elif said.session_end_info.status in (SUCCESS, FAILURE):
            of = said.session_end_info
            reason = "exit" if of.status == SUCCESS else "exception"
            self._tell(END, nanoseconds(of.end_time_secs, time), {"reason": reason})

    def _keep(self, time: int) -> None:
        """Keep the news of the configuration, or of the results."""
        for event in self._journal.drain():
            self._tell(event.name, time, event.attributes)

    def _tell(self, name: str, time: int, attributes: Any) -> None:
        """Add an event to those of the file's own stream."""
        self._opened()
        self._seq += 1
        self._events.append(LogEvent(name, time, time, attributes, self._seq, 0, 0, 0, self._stream))

    def _opened(self) -> Hub:
        """Return the hub, which begins with the first value; a file without one leaves nothing."""
        if self._hub is None:
            self._hub = Hub(
                self._store, run=str(self._resource["dl.run.id"]), clock=lambda: self._now, time_to_live=_ALWAYS
            )
            self._sampled = self._now
            self._tell(IMPORTED, self._now, {"library": "tensorboard", "run_start": self._now})
            self._send()
        return self._hub

    def _send(self) -> None:
        """Send everything that waits."""
        hub = self._opened()
        for curve in self._curves.values():
            self._pack(curve)
        events, self._events, self._waiting = self._events, [], 0
        for request, _ in log_requests(events, self._resource, self._lose, lambda: None):
            hub.receive_logs(request)

    def _lose(self, count: int, why: str) -> None:
        self.not_taken[f"event ({why})"] += count

    def end(self) -> None:
        """Send the rest."""
        if self._curves or self._events:
            self._send()

    def close(self) -> None:
        """Close the run's file; all that was sent is in it."""
        if self._hub is not None:
            self._hub.close()


def _text(found: bytes) -> str:
    return found.decode("utf-8", "backslashreplace")


def _plugin(value: Any) -> str:
    return _text(value.metadata.plugin_data.plugin_name)


def _constant(value: Any) -> str | int | float | bool:
    """Return the value of a hyperparameter; numbers are floats in the file, also those that were none."""
    if value.HasField("string_value"):
        return _text(value.string_value)
    if value.HasField("bool_value"):
        return bool(value.bool_value)
    number = value.number_value
    return int(number) if number.is_integer() and abs(number) < _WHOLE else float(number)

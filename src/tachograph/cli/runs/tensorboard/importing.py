"""Store log folders of TensorBoard as runs: each point once, with its own step and time.

A folder goes through a hub, file by file, with the time of its events as the hub's clock. The numbers of its streams
follow from the places of the points in the files, so the hub recognizes what it has stored before.
"""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_DELTA,
    ExponentialHistogramDataPoint,
)
from tensorboard.plugins.histogram.metadata import PLUGIN_NAME as HISTOGRAMS
from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
from tensorboard.plugins.hparams.metadata import PLUGIN_NAME as HPARAMS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.plugins.scalar.metadata import PLUGIN_NAME as SCALARS
from tensorboard.util.tensor_util import make_ndarray

from tachograph.cli.runs.tensorboard.event_files import (
    CurveIdentity,
    EventFile,
    ExactPoint,
    nanoseconds,
    read_own_fields,
)
from tachograph.cli.runs.tensorboard.folders import HPARAMS_FOLDER, PROCESS_FOLDER, LogFolder, Part
from tachograph.exporters.otlp.logs import log_requests
from tachograph.exporters.otlp.values import add_attributes
from tachograph.hub import Hub
from tachograph.metric import Dictionary
from tachograph.metric.execution import SCOPE
from tachograph.recording.exponential import ExponentialBuckets, histogram_of
from tachograph.recording.journal import CONFIG, SUMMARY, Journal, LogEvent, packed_event
from tachograph.recording.naming import group_and_name
from tachograph.recording.packed_points import PackedPoints
from tachograph.recording.points import AttributeValue
from tachograph.recording.registry import Registry
from tachograph.runs import END, RunFile, count_points, is_in_use, run_path

IMPORTED = "tachograph.import"  # an event that names the library whose file was imported
_FILE_NAME = re.compile(r"events\.out\.tfevents\.\d+\.(?P<host>[^.].*?)\.(?P<pid>\d{1,9})\.")
_MOST_PENDING = 65_536  # points of all curves
_REPORT_EVERY = 4096  # events
_SAMPLE_EVERY = 10 * 10**9  # nanoseconds between two samples of histograms
_LEAST_SIZE = 0.5  # of a bucket
_NEVER = 1e9  # seconds
_LARGEST_WHOLE = 2**53  # from here on, not every whole number is a float

ReportProgress = Callable[[EventFile, int], object]  # gets the file that is being read, and the points of the run


class Imported(NamedTuple):
    """The result of one import.

    Attributes:
        run: its id.
        points: of all files.
        new_points: those of them that the store did not have.
        histograms: their number in all files.
        skipped: the number of images, texts and the like, by kind.
        incomplete: the files whose end could not be read.
    """

    run: str
    points: int
    new_points: int
    histograms: int
    skipped: Counter[str]
    incomplete: list[EventFile]


def import_log_folder(folder: LogFolder, store: Path, report_progress: ReportProgress) -> Imported | None:
    """Import a run, or what is new since the last import; return None if nothing is written yet.

    Raises:
        BlockingIOError: another process is writing the run.
        OSError: a file cannot be read.
        StoreError: the store cannot be written; an ``OSError``.
    """
    run = folder.run_id()
    if run is None:
        return None
    path = run_path(store, run)
    if path.exists() and is_in_use(path):
        raise BlockingIOError(f"another process is writing the run {run}; import it again when that process has ended")
    points_before = _stored_points(path)
    counts: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    incomplete = []
    for part in folder.parts:
        for restart, file in enumerate(map(EventFile, part.files)):
            importer = _FileImporter(store, _resource(folder.name, run, part, restart), part, restart)
            try:
                for number, event in enumerate(file):
                    importer.add_event(event)
                    if number % _REPORT_EVERY == 0:
                        report_progress(file, counts["points"] + importer.counts["points"])
                importer.flush()
            finally:
                importer.close()
            counts += importer.counts
            skipped += importer.skipped
            if file.unread_bytes:
                incomplete.append(file)
    new_points = _stored_points(path) - points_before
    return Imported(run, counts["points"], new_points, counts["histograms"], skipped, incomplete)


def _stored_points(path: Path) -> int:
    return count_points(RunFile(path).rows) if path.exists() else 0


def _resource(program: str, run: str, part: Part, restart: int) -> dict[str, AttributeValue]:
    """Return the resource attributes of the process that wrote a file; each file is a start of the process."""
    resource: dict[str, AttributeValue] = {
        "service.name": program,
        "service.instance.id": f"{run}/{part.process}" if part.process else run,
        "dl.run.id": run,
        "dl.restart_count": restart,
    }
    if file_name := _FILE_NAME.match(part.files[restart].name):
        resource |= {"host.name": file_name["host"], "process.pid": int(file_name["pid"])}
    process = PROCESS_FOLDER.fullmatch(part.process)
    if process and process["rank"]:
        resource["dl.rank"] = int(process["rank"])
    elif process:
        resource["dl.role"] = "agent"
    return resource


class _Bucket(NamedTuple):
    """One bucket of a histogram; its size, the number of values, is a float in the file."""

    left: float
    right: float
    size: float

    @property
    def middle(self) -> float:
        return self.left / 2 + self.right / 2


class _Curve:
    """The curve of one tag, with the points that were not sent yet.

    Args:
        stream: the id of the points' stream.
        identity: of the curve.
        branch: the number of its first branch, for points without one of their own.
    """

    def __init__(self, stream: str, identity: CurveIdentity, branch: int) -> None:
        self._stream = stream
        self._identity = identity
        self._branch = branch
        self._last_x = -math.inf
        self._sent = 0  # points
        self._pending: list[ExactPoint] = []

    def add(self, scalar: float, step: float, time: int) -> None:
        """Add a point as TensorBoard stores it; a step that goes back begins a new branch."""
        self._branch += step < self._last_x
        self._last_x = step
        self._pending.append(ExactPoint(scalar, step, time, self._branch))

    def add_exact(self, point: ExactPoint) -> None:
        """Add a point as Tachograph exported it."""
        self._pending.append(point)

    def take_events(self) -> Iterator[LogEvent]:
        """Yield the pending points as one event for each branch."""
        group, metric, units, attributes, execution = self._identity
        for branch, points in groupby(self._pending, key=lambda point: point.branch):
            values, x, times, _ = zip(*points, strict=True)
            columns = array("q", times), array("d", x), array("d", values)
            packed = PackedPoints((metric,), group, attributes, units, branch, *columns, {}, execution)
            yield packed_event(packed, self._sent + 1, self._stream)
            self._sent += len(times)
        self._pending = []


class _FileImporter:
    """Sends the events of one file to a hub that writes the run.

    Args:
        store: the folder of all runs.
        resource: the attributes of the process that wrote the file.
        part: the part of the run that the file belongs to.
        restart: the place of the file among those of the part.

    Attributes:
        counts: of points and histograms so far.
        skipped: see :class:`Imported`.
    """

    def __init__(self, store: Path, resource: dict[str, AttributeValue], part: Part, restart: int) -> None:
        self._store = store
        self._resource = resource
        self._part = part
        self._restart = restart
        folder = "/".join(filter(None, (part.process, part.chart_line)))
        file = f"{folder}/{part.files[restart].name}"  # relative to the run's folder: that may be moved
        self._stream = hashlib.blake2b(file.encode(errors="surrogateescape"), digest_size=8).hexdigest()
        self.counts: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self._hub: Hub | None = None
        self._now = 0  # the time of the newest event
        self._events: list[LogEvent] = []
        self._event_number = 0
        self._curves: dict[str, _Curve] = {}
        self._plugins: dict[str, str] = {}  # by tag: only a tag's first value names its plugin
        self._histogram_ends: dict[str, int] = {}  # of the last histogram of each tag, in nanoseconds
        self._sampled_at = 0
        # The hub recognizes the histograms of a process's last eight starts, but there may be more files.
        instance = f"{resource['service.instance.id']}#{restart + 1}" if restart else resource["service.instance.id"]
        self._histogram_resource = {**resource, "service.instance.id": instance}
        registry = Registry(enabled=True)
        self._journal = Journal(registry)
        self._config = Dictionary(CONFIG, registry=registry, journal=self._journal)
        self._summary = Dictionary(SUMMARY, registry=registry, journal=self._journal)

    def add_event(self, event: Any) -> None:
        """Import one event of the file."""
        if event.file_version:  # the first event: its time is when the file was made
            return
        time = nanoseconds(event.wall_time, self._now)
        self._now = max(self._now, time)
        if event.graph_def or event.meta_graph_def:
            self.skipped["graph"] += 1
        for value in event.summary.value:
            kind = self._kind(value)
            if kind == SCALARS:
                self._add_scalar(value, event.step, time)
            elif kind == HISTOGRAMS:
                self._add_histogram(value, time)
            elif kind == HPARAMS:
                self._add_hparams(value, time)
            else:
                self.skipped[kind] += 1

    def _kind(self, value: Any) -> str:
        """Return the plugin that a value belongs to, or the name of its field if no plugin is known."""
        plugin = str(value.metadata.plugin_data.plugin_name)
        if plugin == HPARAMS:
            return plugin
        plugin = self._plugins.setdefault(value.tag, plugin)
        field = str(value.WhichOneof("value"))
        of_field = {"simple_value": SCALARS, "histo": HISTOGRAMS, "image": "image", "audio": "audio"}
        return str(of_field.get(field) or plugin or "tensor")

    def _add_scalar(self, value: Any, step: int, time: int) -> None:
        scalar = _scalar(value)
        if scalar is None:
            self.skipped["tensor"] += 1
            return
        if HPARAMS_FOLDER.fullmatch(self._part.process):  # numbers of add_hparams() are the results of the run
            self._merge(self._summary, {value.tag: scalar}, time)
            return
        exact, identity = read_own_fields(value)
        curve = self._curves.get(value.tag)
        if curve is None:
            curve = self._curves[value.tag] = self._new_curve(value.tag, identity)
        if exact is None:
            curve.add(scalar, float(step), time)
        else:
            curve.add_exact(exact)
        self.counts["points"] += 1
        if self.counts["points"] % _MOST_PENDING == 0:
            self.flush()

    def _new_curve(self, tag: str, identity: CurveIdentity | None) -> _Curve:
        if identity is None:
            group, metric = group_and_name(self._part.full_tag(tag))
            identity = CurveIdentity(group, metric, "", (), None)
        stream = f"{self._stream}.{hashlib.blake2b(tag.encode(), digest_size=6).hexdigest()}"
        return _Curve(stream, identity, self._restart)

    def _add_histogram(self, value: Any, time: int) -> None:
        self.counts["histograms"] += 1
        buckets = _buckets(value)
        if not buckets:
            return
        start = self._histogram_ends.get(value.tag, 0)
        end = self._histogram_ends[value.tag] = max(time, start + 1)
        hub = self._open_hub()
        if end >= self._sampled_at + _SAMPLE_EVERY:
            self._sampled_at = end
            hub.tick()
        rejected = hub.receive_metrics(_histogram_request(self._histogram_resource, value, buckets, start, end))
        if rejected.items:
            self.skipped[f"histogram ({rejected.why})"] += 1

    def _add_hparams(self, value: Any, time: int) -> None:
        try:
            hparams = HParamsPluginData.FromString(value.metadata.plugin_data.content)
        except DecodeError:
            self.skipped["invalid hparams"] += 1
            return
        if hparams.HasField("session_start_info"):
            start = hparams.session_start_info
            settings = {key: _hparam(start.hparams[key]) for key in sorted(start.hparams)}
            self._merge(self._config, settings, nanoseconds(start.start_time_secs, time))
        elif hparams.session_end_info.status in (STATUS_SUCCESS, STATUS_FAILURE):
            end = hparams.session_end_info
            reason = "exit" if end.status == STATUS_SUCCESS else "exception"
            self._add_log_event(END, nanoseconds(end.end_time_secs, time), {"reason": reason})

    def _merge(self, dictionary: Dictionary, values: Mapping[str, object], time: int) -> None:
        """Merge values into the configuration or the results, and add the event if that changed it."""
        dictionary.merge(values)
        for event in self._journal.drain():
            self._add_log_event(event.name, time, event.attributes)

    def _add_log_event(self, name: str, time: int, attributes: Mapping[str, AttributeValue]) -> None:
        self._open_hub()
        self._event_number += 1
        self._events.append(LogEvent(name, time, time, attributes, self._event_number, 0, 0, 0, self._stream))

    def _open_hub(self) -> Hub:
        """Return the hub; it begins with the first value, so a file without one leaves nothing in the store."""
        if self._hub is None:
            run = str(self._resource["dl.run.id"])
            self._hub = Hub(self._store, run=run, clock=lambda: self._now, time_to_live=_NEVER)
            self._sampled_at = self._now
            self._add_log_event(IMPORTED, self._now, {"library": "tensorboard", "run_start": self._now})
            self.flush()  # the hub takes the time of a process's first event from its clock
        return self._hub

    def flush(self) -> None:
        """Send everything that is pending."""
        if not self._curves and not self._events:
            return
        hub = self._open_hub()
        for curve in self._curves.values():
            self._events += curve.take_events()
        events = self._events
        self._events = []
        for request, _ in log_requests(events, self._resource, self._count_lost, lambda: None):
            hub.receive_logs(request)

    def _count_lost(self, count: int, reason: str) -> None:
        self.skipped[f"event ({reason})"] += count

    def close(self) -> None:
        """Close the run's file; everything that was sent is in it."""
        if self._hub is not None:
            self._hub.close()


def _histogram_request(
    resource: Mapping[str, AttributeValue], value: Any, buckets: Sequence[_Bucket], start: int, end: int
) -> ExportMetricsServiceRequest:
    """Return a request with one histogram, which covers the time from ``start`` to ``end``."""
    counts: Counter[float] = Counter()
    for bucket in buckets:
        counts[bucket.middle] += round(bucket.size)
    total = value.histo.sum if value.HasField("histo") else math.nan  # TensorFlow 2 does not store the sum
    if not math.isfinite(total):
        total = math.fsum(middle * count for middle, count in counts.items())
    group, name = group_and_name(value.tag)
    histogram = histogram_of(counts)
    point = ExponentialHistogramDataPoint(
        start_time_unix_nano=start,
        time_unix_nano=end,
        count=histogram.total,
        sum=total,
        scale=histogram.scale,
        zero_count=histogram.zeros,
        positive=_encode_buckets(histogram.positive),
        negative=_encode_buckets(histogram.negative),
        min=min(bucket.left for bucket in buckets),
        max=max(bucket.right for bucket in buckets),
    )
    request = ExportMetricsServiceRequest()
    resource_metrics = request.resource_metrics.add()
    add_attributes(resource_metrics.resource.attributes, resource.items())
    scope_metrics = resource_metrics.scope_metrics.add()
    scope_metrics.scope.name = group or SCOPE
    data = scope_metrics.metrics.add(name=name).exponential_histogram
    data.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA
    data.data_points.append(point)
    return request


def _encode_buckets(buckets: ExponentialBuckets) -> ExponentialHistogramDataPoint.Buckets:
    return ExponentialHistogramDataPoint.Buckets(offset=buckets.offset, bucket_counts=buckets.counts)


def _scalar(value: Any) -> float | None:
    """Return the number of a value; None if it is not exactly one number."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    try:
        return float(_array(value.tensor).item())
    except (TypeError, ValueError):
        return None


def _array(tensor: Any) -> Any:
    """Return a tensor as an array. For half precision, TensorBoard sets its type in a way that NumPy 2.5 deprecates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return make_ndarray(tensor)


def _buckets(value: Any) -> list[_Bucket]:
    """Return the buckets of a histogram that hold finite values."""
    if value.HasField("histo"):
        histogram = value.histo
        rights = [min(limit, histogram.max) for limit in histogram.bucket_limit]
        first = histogram.min if math.isfinite(histogram.min) else min(histogram.bucket_limit, default=0.0)
        lefts = [first, *(max(limit, histogram.min) for limit in histogram.bucket_limit)]
        rows = list(zip(lefts, rights, histogram.bucket, strict=False))
    else:
        try:
            rows = _array(value.tensor).reshape(-1, 3).tolist()
        except (TypeError, ValueError):
            return []
    buckets = [_Bucket(*row) for row in rows]
    return [
        bucket for bucket in buckets if math.isfinite(bucket.middle) and _LEAST_SIZE <= bucket.size < _LARGEST_WHOLE
    ]


def _hparam(value: Any) -> str | float | bool | None:
    """Return a hyperparameter; a number that is whole is an int, because all numbers are floats in the file."""
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = float(value.number_value)
        return int(number) if number.is_integer() and abs(number) < _LARGEST_WHOLE else number
    if kind == "string_value":
        return str(value.string_value)
    return bool(value.bool_value) if kind == "bool_value" else None

"""The hub's state: the telemetry of every process of a node, in memory and in the store."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tachograph.diagnosis import diagnose_run
from tachograph.exporters.prometheus.format import Format, negotiate
from tachograph.hub._archive import Archive
from tachograph.hub._diagnoses import Diagnoses
from tachograph.hub._index import Index
from tachograph.hub._layouts import SentResource, decoded, parsed, read_metrics
from tachograph.hub._page import NodePage
from tachograph.hub._rejections import Rejected, Rejections
from tachograph.hub._run import STAYS, LiveRun, Sent, apply
from tachograph.hub._series import Limits
from tachograph.hub._stream_decoder import StreamDecoder, is_beside, shape_of
from tachograph.hub.doctors import Doctors
from tachograph.hub.events import Events
from tachograph.hub.processes import Incarnation, LiveProcess, LostProcess, life
from tachograph.identity.launch import Launch
from tachograph.identity.program import StartMarks
from tachograph.recording.log import LogOnce
from tachograph.recording.own_metrics import HUB, OWN_GROUP, Reason
from tachograph.recording.registry import Registry
from tachograph.runs import (
    SECOND,
    OpenStores,
    RunFile,
    StoreError,
    count_events,
    count_points,
    count_user_events,
    ending_as_json,
    find_ending,
    look,
    read_losses,
    read_members,
    sort_losses,
)

_log = logging.getLogger("tachograph")
TIME_TO_LIVE = 300.0
_REPEAT, _REPEATS = 30.0, 10  # seconds after which a client of ours sends all again; how often in the time to live
_MANY = 1000  # new series: the page that shows them first takes several times as long as the next one
_RECEIVED = ("data_points", "log_records", "spans")  # in requests, of any kind
_MOST_DELETED = 100  # files that the summary names
_SAVE_EVERY = 5 * SECOND
_SWEEP_EVERY = 10 * SECOND
_TAKE_OVER_EVERY = 60 * SECOND
_THIN_EVERY = 60 * SECOND
_DIAGNOSE_EVERY = 10 * SECOND


class Hub:
    """Receives the telemetry of a node's processes, shows it on one page, and stores it.

    Metrics are shown as soon as they are received; events are in the store when :meth:`receive_logs` returns. A hub
    that begins on the same store shows the same series as the one before it, and its counters go on.

    A hub with a run of its own stores all that comes, and has that run on its page. One without has every live run
    there; see :meth:`tachograph.hub._run.LiveRun.is_shown`.

    Args:
        store: the folder for the files of the runs; made where there is none, for this user only.
        run: the hub's own; None for none.
        nameless: the run that everything without ``dl.run.id`` belongs to, where the hub has none of its own.
        clock: nanoseconds since the epoch.
        time_to_live: seconds after which a series that is not sent any more leaves the page; at least five export
            intervals of its process.
        limits: of memory; points of series beyond them are rejected, and counted.
        started: start marks of the job's processes; the marks of those that report are removed.
        open_stores: bounds how many files are open at once.

    Raises:
        StoreError: the store cannot be written, or the run's file is damaged or of a newer version; an ``OSError``.

    Attributes:
        folder: the store.
        name: of the hub's own run, or else of the one that senders belong to which name none.
        doctors: the hang doctors of the runs.
        repeat: seconds for which it does without a series that has not changed; 0 where that is to be sent each time.
    """

    def __init__(
        self,
        store: Path,
        *,
        run: str | None = None,
        nameless: str = "default",
        clock: Callable[[], int] = time.time_ns,
        time_to_live: float = TIME_TO_LIVE,
        limits: Limits | None = None,
        started: StartMarks | None = None,
        open_stores: OpenStores | None = None,
    ) -> None:
        self.registry = Registry(enabled=True)
        self._clock = clock
        self._lock = threading.Lock()
        self._ticking = threading.Lock()
        self._limits = limits or Limits()
        self._page = NodePage(self.registry, self._lock, most_bytes=self._limits.page)
        self._totals: Counter[str] = Counter()
        self._log_once = LogOnce()
        self._began = clock()
        self._due = {"save": 0, "thin": 0, "diagnose": 0}
        self._due |= {"sweep": self._began + _SWEEP_EVERY, "take over": self._began + _TAKE_OVER_EVERY}
        self._closed = False
        self._asked = Format(openmetrics=True, version="1.0.0", utf8=True)  # as Prometheus 3 does
        self._known = 0
        self._losses = {"dropped": 0, "lost": 0}
        self._rejections = Rejections(self.registry)
        self._started = started
        self.folder = store
        self.name = nameless if run is None else run
        self.repeat = int(min(_REPEAT, time_to_live / _REPEATS))
        self._index = Index(
            store,
            run,
            nameless=self.name,
            limits=self._limits,
            time_to_live=int(time_to_live * SECOND),
            open_stores=open_stores,
        )
        self._diagnoses = Diagnoses()
        self._archive = Archive(self._index, self._lock, self.registry)
        self.doctors = Doctors(self.receive_logs)
        try:
            self._index.restore(self._began)
        except BaseException:
            self._index.close()
            raise

    @property
    def store(self) -> Path:
        """The file of the hub's own run; the store's folder where there is none."""
        run = self._index.own
        return self.folder if run is None or run.store is None else run.store.path

    def launched(self, launch: Launch) -> None:
        """Keep how the hub's own run was started; told again, once more is known of the same launch."""
        run = self._index.own
        if run is None:
            return
        run.launch, run.launch_unsaved = launch, True
        self._archive.guarded(run.save_launch)

    def job_ended(self) -> None:
        """Keep how the job has ended that ``tachograph run`` has started, where it has noted that."""
        status = None if self._started is None else self._started.status()
        run, now = self._index.own, self._clock()
        if status is not None and run is not None:
            self._archive.guarded(lambda: run.save_job_end(now, status))

    def count(self, name: str, amount: int = 1, **attributes: str) -> None:
        """Count in a metric of the hub's own: one of :data:`tachograph.recording.own_metrics.HUB`, without a rank."""
        self.registry.group(OWN_GROUP).own(HUB[name]).record(amount, attributes)

    def read_metrics(self, body: bytes) -> list[SentResource]:
        """Return a request in protobuf, decoded for :meth:`receive_metrics`.

        Raises:
            Refusal: it is no such request.
        """
        return read_metrics(body, self._index.layouts)

    def receive_metrics(
        self, request: ExportMetricsServiceRequest | list[SentResource], *, own: bool = False
    ) -> Rejected:
        """Take metrics; return the rejected data points. The hub's ``own``, its machine's, do not count as received."""
        now = self._clock()
        rejected: Counter[Reason] = Counter()
        named: dict[Reason, str] = {}  # the first metric of which points were rejected, by reason
        points = ahead = 0
        for resource in request if isinstance(request, list) else map(decoded, request.resource_metrics):
            with self._lock:
                sender = self._index.sender(resource.resource, now, machine=own)
                if isinstance(sender, str):
                    points += self._turned_away(resource, sender, rejected, named)
                    continue
                process, incarnation = sender
                self.doctors.heard(process.run.name, incarnation.key.pid)
                if not incarnation.noted:
                    self._heard(incarnation)
                for name, count, stream, refused in self._taken(resource, process, incarnation, now):
                    points += count
                    ahead, stream.ahead = ahead + stream.ahead, 0
                    if refused:
                        rejected.update(refused)
                        named = {**dict.fromkeys(refused, name), **named}
        if not own:
            self._totals["data_points"] += points
            self.count("tachograph.hub.points", points)
        if ahead:
            self.count("tachograph.hub.points.ahead", ahead)
        first = {reason: f"first of metric {name!r:.100}" for reason, name in named.items()}
        return self._rejections.take(rejected, first)

    def _taken(
        self, resource: SentResource, process: LiveProcess, incarnation: Incarnation, now: int
    ) -> Iterator[tuple[str, int, StreamDecoder, dict[Reason, int]]]:
        """Take a resource's metrics; yield the name of each, how many points, its stream, and how many were refused."""
        layouts, writer = process.layouts, incarnation.key
        for scope, metrics in resource.scopes:
            for sent in metrics:
                message, layout, content = sent
                if layout is not None and resource.layouts is layouts:  # none of its series has gone meanwhile
                    stream = layout.stream
                    refused = stream.take_points(layout.points(content), writer, now, delta=layout.is_delta)
                    yield layout.name, len(layout.series), stream, refused
                    continue
                metric = parsed(sent)
                data = metric.WhichOneof("data")
                if data is None:
                    continue
                of_data = getattr(metric, data)
                key = scope, metric.name, metric.unit, shape_of(of_data, data)
                stream = process.streams.get(key) or self._index.stream(process, key, metric.description)
                if data == "exponential_histogram" and is_beside(metric):
                    yield metric.name, 0, stream, stream.take_beside(of_data, writer, now)
                    continue
                refused = stream.take(of_data, data, writer, now)
                if message and not refused:
                    layouts.learn(scope, message, metric, data, stream, streams=len(process.streams))
                yield metric.name, len(of_data.data_points), stream, refused

    def _turned_away(
        self, resource: SentResource, reason: Reason, rejected: Counter[Reason], named: dict[Reason, str]
    ) -> int:
        """Note all points of a resource as rejected, and return their number."""
        metrics = [parsed(sent) for _, metrics in resource.scopes for sent in metrics]
        found = [
            (metric.name, len(getattr(metric, data).data_points))
            for metric in metrics
            if (data := metric.WhichOneof("data")) is not None and not is_beside(metric)
        ]
        count = sum(points for _, points in found)
        if count:
            rejected[reason] += count
            named.setdefault(reason, found[0][0])
        return count

    def receive_logs(self, request: ExportLogsServiceRequest) -> Rejected:
        """Take log records; return the rejected ones. The others are in the store, each once, when this returns.

        Raises:
            StoreError: the store cannot be written: they may be sent again.
        """
        now = self._clock()
        rejected: Counter[Reason] = Counter()
        by_run: dict[str, tuple[LiveRun, list[Sent]]] = {}
        with self._lock:
            for resource in request.resource_logs:
                sender = self._index.sender(resource.resource, now)
                if isinstance(sender, str):
                    count = sum(len(scope.log_records) for scope in resource.scope_logs)
                    rejected.update({sender: count})
                    continue
                process, incarnation = sender
                run: LiveRun = process.run
                kept = self.doctors.take(run.name, resource)
                if kept is not None:
                    by_run.setdefault(run.name, (run, []))[1].append((process, incarnation, kept))
        for run, sent in by_run.values():
            new, lives, count = run.add_events(sent)
            for _, incarnation, resource in sent:
                self.doctors.look_for_failures(run.name, incarnation.key.pid, resource)
            with self._lock:
                for each in lives:
                    apply(each)
                    self.doctors.heard(run.name, each.incarnation.key.pid, each.record.reason)
                    self._heard(each.incarnation)
            self._totals["log_records"] += len(new)
            self.count("tachograph.hub.events", len(new))
            if count > len(new):
                self.count("tachograph.hub.events.repeated", count - len(new))
            newer = sum(record.newer for record in new)
            if newer:
                self.count("tachograph.hub.events.newer", newer)
        return self._rejections.take(rejected, dict.fromkeys(rejected, "log records"))

    def _heard(self, incarnation: Incarnation) -> None:
        incarnation.noted = True
        if self._started is not None:
            self._started.heard(incarnation.key.pid)

    def receive_traces(self, request: ExportTraceServiceRequest) -> Rejected:
        """Count spans, which are not stored; none is rejected."""
        spans = sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)
        self._totals["spans"] += spans
        self.count("tachograph.hub.spans", spans)
        return Rejected()

    def page(self, accept: str = "", escaping: str | None = None, scraper: str = "") -> tuple[str, bytes]:
        """Return the content type and the page ``/metrics`` of the node.

        Several threads may ask at once, and while others receive: the lock is held for short slices.

        Args:
            accept: the scraper's ``Accept`` header.
            escaping: of the URL's query; see :func:`tachograph.exporters.prometheus.format.negotiate`.
            scraper: names the client; each one gets the last values of a run that has ended.
        """
        form = self._asked = negotiate(accept, escaping)
        return form.content_type, self._rendered(form, scraper)

    def _rendered(self, form: Format, scraper: str | None = None) -> bytes:
        """Return the page in a format; the constant parts of its lines are cached."""
        with self._lock:
            now = self._clock()
            left_out = self._index.left_out(scraper, now, self._began)
            instruments = list(self._index.instruments.values())
            self._known = len(self._index.series)
            processes = [each for each in self._index.processes() if each.run not in left_out]
            over = {each for each in processes if each.ended_before(now - STAYS)}
            others = [*life(processes), *self._diagnoses.points(processes)]
        others += self.registry.collect()
        others += self.doctors.metrics()
        others += self._index.by_rank.metrics(self._lock, left_out)
        page = self._page.render(instruments, processes, others, form, left_out, over=over)
        if page.omitted:
            self.count("tachograph.hub.page.omitted", page.omitted)
            message = "the hub's /metrics page is cut off at %d MiB (see tachograph_hub_page_omitted_total)"
            self._log_once("page", message, self._limits.page >> 20)
        return page.body

    def tick(self) -> None:
        """Do the periodic work: find lost processes, save states and samples, drop series that are not sent any more.

        Call it about once a second, from any thread but the one that receives. Errors of the store are logged and
        counted.
        """
        with self._ticking:
            if self._closed:
                return
            now = self._clock()
            with self._lock:
                self._index.check(now, self._began)
                dropped = self._rejections.total + self._index.dropped()
                self._losses = {"dropped": dropped, "lost": len(self._index.lost())}
            self._archive.restart_deleted()
            self._index.open_missing(self._lock)
            everything = self._is_due("save", now, _SAVE_EVERY)
            self._archive.save(everything=everything)
            if len(self._index.series) > self._known + _MANY:  # so that no scraper waits for their names and labels
                self._rendered(self._asked)
            if self._is_due("sweep", now, _SWEEP_EVERY):
                self._sweep(now)
            if self._is_due("diagnose", now, _DIAGNOSE_EVERY):
                self._diagnoses.renew(self._index.stored(), now, self._archive.guarded)
            if self._is_due("thin", now, _THIN_EVERY):
                for run in self._index.stored():
                    self._archive.guarded(lambda run=run: self._thin(run))  # type: ignore[misc]

    def _thin(self, run: LiveRun) -> None:
        if run.history is None or run.store is None or not run.store.is_open:
            return
        gone = run.history.thin_samples()
        if gone:
            self.count("tachograph.hub.samples.thinned", gone)
            return
        merged = run.history.thin_points()
        if merged:
            self.count("tachograph.hub.points.thinned", merged)

    def _is_due(self, what: str, now: int, every: int) -> bool:
        if now < self._due[what]:
            return False
        self._due[what] = now + every
        return True

    def _sweep(self, now: int) -> None:
        self._index.by_rank.mark(self._lock)
        self._index.expire(now, self._lock)
        with self._lock:
            dismissed, self._index.dismissed = self._index.dismissed, 0
        if dismissed:
            self.count("tachograph.hub.processes.dismissed", dismissed)
        takes_over = self._is_due("take over", now, _TAKE_OVER_EVERY)
        for run in self._index.stored():
            missing = run.events.settle() if run.events else 0
            if missing:
                self.count("tachograph.hub.events.missing", missing)
            if run.store is not None:
                self._archive.guarded(run.store.checkpoint if takes_over else run.store.sync)

    def summary(self, *, at_the_end: bool = False) -> dict[str, Any]:
        """Return the counts of received items since the hub began, ready for JSON.

        Args:
            at_the_end: all processes have ended: those that announced a begin and no end are lost, and those that have
                started and never reported never will.
        """
        with self._lock:
            lost = self._index.lost(at_the_end=at_the_end)
            dropped = self._rejections.total + self._index.dropped()
        return {
            "run": self.name,
            "runs": list(self._index.names),
            **{name: self._totals[name] for name in _RECEIVED},
            "dropped": dropped,
            "lost": [_described(each) for each in lost],
            "unheard": self._started.left() if at_the_end and self._started is not None else None,
            "store": str(self.store),
            "deleted": list(self._archive.deleted)[:_MOST_DELETED],
        }

    def kept(self) -> dict[str, Any]:
        """Return the contents of the files now, ready for JSON: points, events, losses by reason, and the run's end.

        All is saved first, so that these are the numbers that every reader finds. They are those of the hub's own run,
        whose processes have all ended; of a hub that has none, those of all runs together, without an end.
        """
        with self._ticking:
            if not self._closed:
                self._archive.save(everything=True)
        points = events = user_events = 0
        lost: Counter[tuple[str, str]] = Counter()
        lost.update({(reason, "hub"): count for reason, count in self._rejections.by_reason.items()})
        lost["helper", ""] += 0 if self._started is None else self._started.of_helpers()
        ended = diagnosed = None
        own = self._index.own
        runs = self._index.stored() if own is None else [own]
        for store in [run.store for run in runs if run.store is not None]:
            try:
                file = RunFile(store.path)
            except StoreError as error:
                _log.warning("cannot count the points of a run: %s", error)
                continue
            points += count_points(file.rows)
            events += count_events(file.rows)
            user_events += count_user_events(file.rows)
            lost.update({(each.reason, each.destination): each.points for each in read_losses(file.rows)})
            if own is not None:
                with look(file) as reading:
                    ended = ending_as_json(find_ending(reading, read_members(reading), self._clock(), written=False))
                    diagnosed = diagnose_run(reading, 0, recent=False).data()
        stored = {"points": points, "events": events, "user_events": user_events}
        counts = {**stored, "losses": [each._asdict() for each in sort_losses(lost)]}
        return {**counts, "ended": ended, "diagnosis": diagnosed}

    def health(self) -> dict[str, Any]:
        """Return the counts of the summary without a wait: losses are those of the latest tick."""
        counts = {name: self._totals[name] for name in _RECEIVED}
        return {"run": "" if self._index.own is None else self.name, **counts, **self._losses}

    def events(self, run: str) -> Events:
        """Return the events of a run, for reading.

        Raises:
            StoreError: its file cannot be used.
        """
        with self._lock:
            found = self._index.run(run)
        if found.events is None:
            raise StoreError(errno.EIO, "the file of this run is not available", run)
        return found.events

    def close(self) -> None:
        """Save everything, and close the store."""
        with self._ticking:
            if self._closed:
                return
            self._closed = True
            self._archive.save(everything=True, at_the_end=True)
            for run in self._index.stored():
                if run.store is not None:
                    self._archive.guarded(run.store.checkpoint)
            self._index.close()


def _described(lost: LostProcess) -> dict[str, Any]:
    at = datetime.fromtimestamp(lost.last_export / SECOND, UTC).isoformat(timespec="milliseconds")
    return {"rank": lost.rank, "role": lost.role, "pid": lost.pid, "last_export": at}

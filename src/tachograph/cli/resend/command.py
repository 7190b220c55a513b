"""``tachograph resend``: send spooled requests and JSON lines again."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.cli.command_line import (
    FAILED,
    WRONG_USAGE,
    Parser,
    add_store,
    add_url,
    fail,
    parser,
    positive_duration,
    reason,
)
from tachograph.identity.environment import store, text
from tachograph.recording.journal import LOG, SCHEMA
from tachograph.recording.packed_points import PACKED
from tachograph.recording.pulse_source import PULSE
from tachograph.runs import CALLS, FAILURE

if TYPE_CHECKING:
    from tachograph.cli.resend.recording import RecordedFile, RecordedPart, RefusedCount
    from tachograph.pipeline import Destination
    from tachograph.recording.journal import LogEvent
    from tachograph.recording.registry import Registry

_AT_ONCE = 5_000
_NO_RECORD = b"\n\x00"  # ExportLogsServiceRequest with one empty ResourceLogs
# In requests that only a hub of ours gets as they are.
_PRIVATE = frozenset({CALLS, FAILURE, LOG, PULSE})
_OWN_FORMS = tuple(each.encode() for each in (PACKED, "tachograph.beside", *_PRIVATE))
_REPORT_EVERY = 0.2


def command(arguments: Sequence[str]) -> int:
    """Send the contents of files, and return the exit code: 1 if a part was not delivered, 2 for wrong usage."""
    options = build_parser().parse_args(arguments)
    from tachograph.cli.resend.recording import files

    named = options.paths or [(options.store or store(os.environ)) / "spool"]
    if not options.paths and not named[0].exists():
        sys.stderr.write(f"tachograph resend: nothing to send, {named[0]} does not exist\n")
        return 0
    try:
        paths = files(named)
    except OSError as error:
        return fail("resend", reason(error), WRONG_USAGE)
    if not paths and not options.paths:
        sys.stderr.write(f"tachograph resend: nothing to send, {named[0]} is empty\n")
        return 0
    if not paths:
        return fail("resend", f"no *.spool or *.jsonl files in {', '.join(map(str, named))}", WRONG_USAGE)
    codes = [_resend(options, name, paths_of) for name, paths_of in _by_destination(options.to, paths).items()]
    return max(codes)


def _by_destination(chosen: str | None, paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the files by the name of their destination: the chosen one, else what each file was written for."""
    from tachograph.cli.resend.recording import RecordedFile

    if chosen is not None:
        return {chosen: list(paths)}
    grouped: dict[str, list[Path]] = {}
    for path in paths:
        try:
            with contextlib.closing(RecordedFile(path)) as recorded:
                name = "influxdb" if recorded.kind == "lines" else "otlp"
        except OSError:  # reported when it is sent
            name = "otlp"
        grouped.setdefault(name, []).append(path)
    return grouped


def _resend(options: argparse.Namespace, name: str, paths: Sequence[Path]) -> int:
    """Send files to one destination, and return the exit code."""
    from tachograph.cli.resend.recording import RefusedCount
    from tachograph.recording.registry import Registry

    registry = Registry(enabled=True)  # losses are read from it
    try:
        destination = _destination(options, name, registry)
    except (ValueError, TypeError, ModuleNotFoundError, OSError) as error:
        return fail("resend", reason(error), WRONG_USAGE)
    sender = _Sender(destination, RefusedCount(registry), options.timeout, delete=options.delete)
    try:
        for path in paths:
            if not sender.file(path):
                break
    finally:
        destination.close(options.timeout if sender.good else 0.0)
    return sender.end()


class _Sender:
    """Sends files to one destination, and prints the progress.

    Attributes:
        good: whether everything has arrived so far.
    """

    def __init__(self, destination: Destination, losses: RefusedCount, timeout: float, *, delete: bool) -> None:
        self._destination, self._losses, self._timeout, self._delete = destination, losses, timeout, delete
        self._takes = _requests_of(destination)
        self._sent = self._skipped = self._arrived = self._files = 0
        self._reported = 0.0
        self._terminal = sys.stderr.isatty()
        self.good = True

    def file(self, path: Path) -> bool:
        """Send a file; False where going on has no point."""
        from tachograph.cli.resend.recording import RecordedFile

        try:
            recording = RecordedFile(path, alone=self._delete)
        except BlockingIOError:
            outcome = "neither sent nor deleted" if self._delete else "not sent, that process sends it"
            return self._bad(f"{path}: in use by a running process, {outcome}")
        except OSError as error:
            return self._bad(f"{path}: {error.strerror}")
        try:
            if recording.kind and recording.kind not in self._takes:
                where = "InfluxDB (--to influxdb)" if recording.kind == "lines" else "OTLP (--to otlp)"
                self._say(f"{path}: skipped, its contents are for {where}")
                return True
            sent = self._sent
            stopped = self._send(recording)
            unreadable = f"{recording.damaged} line{'s' * (recording.damaged != 1)} cannot be read"
            if recording.damaged and not stopped and not recording.kind and self._sent == sent:
                return self._bad(f"{path} has no telemetry ({unreadable}); nothing was sent")
            found = [stopped] if stopped else []
            if refused := self._losses.refused():
                found.append(f"the receiver rejected {refused}")
            if recording.damaged:
                found.append(unreadable)
            if found:
                rest = "stopped sending" if stopped else "everything else was sent"
                self._bad(f"{path}: {', '.join(found)}, {rest}")
            elif self._delete:
                self._remove(recording)
            self._files += not stopped
            self._arrived += recording.arrived
            return not stopped
        except OSError as error:
            return self._bad(f"{path}: {error.strerror}")
        finally:
            recording.close()

    def _remove(self, recording: RecordedFile) -> None:
        try:
            recording.remove()
        except OSError as error:
            self._bad(f"{recording.path}: sent, but it cannot be deleted: {error.strerror}")

    def _send(self, recording: RecordedFile) -> str:
        """Send the contents of a file; return the reason to stop, or an empty string."""
        parts = recording.parts()
        while some := list(islice(parts, 64)):
            for part in some:
                self._hand_over(part)
            began = time.monotonic()
            arrived = self._destination.flush(self._timeout)
            if lost := self._losses.others():
                return f"not everything arrived ({lost})"
            if not arrived and time.monotonic() - began >= self._timeout:
                return f"not everything arrived within {self._timeout:g} s"
            if not self._losses.is_refused():  # else that is left for the next replay, with what follows
                recording.accept(some[-1])
            self._report()
        return ""

    def _hand_over(self, part: RecordedPart) -> None:
        from tachograph.exporters.batch import Batch

        if part.request is not None:
            kind, payload, items = part.request[:3]
            for body, count in self._readable(kind, payload, items):
                self._takes[kind](body, count)
            self._sent += items
        self._skipped += part.skipped
        known = self._given(part.events)
        for start in range(0, len(known), _AT_ONCE):
            events = known[start : start + _AT_ONCE]
            self._destination(Batch([], None, [], part.resource, time.time_ns(), events))
            self._sent += len(events)

    def _readable(self, kind: str, payload: bytes, items: int) -> Iterable[tuple[bytes, int]]:
        """Return a stored request as its receiver can read it, with its items; a hub of ours gets it as it is."""
        if kind not in ("logs", "metrics") or not any(each in payload for each in _OWN_FORMS):
            return [(payload, items)]
        from tachograph.hub import readable_elsewhere

        if self._is_hub():
            return [(payload, items)]
        return readable_elsewhere("logs" if kind == "logs" else "metrics", payload)

    def _given(self, events: list[LogEvent]) -> list[LogEvent]:
        """Return the events of a file that its receiver gets: private ones only a hub of ours, or this machine."""
        from tachograph.exporters.otlp.exporter import OtlpExporter

        public = [event for event in events if event.name not in _PRIVATE]
        if len(public) == len(events) or not isinstance(self._destination, OtlpExporter) or self._is_hub():
            return events
        return public

    def _is_hub(self) -> bool:
        """Tell whether the requests go to a hub of ours."""
        from tachograph.exporters.otlp.exporter import OtlpExporter

        destination = self._destination
        if not isinstance(destination, OtlpExporter):
            return False
        if destination.reads() is None:  # the answer to a request tells
            destination.put("logs", _NO_RECORD, 0)
            destination.flush(self._timeout)
        return (destination.reads() or 0) >= SCHEMA

    def _report(self) -> None:
        now = time.monotonic()
        if self._terminal and now - self._reported > _REPORT_EVERY:
            self._reported = now
            sys.stderr.write(f"\r{self._sent:,} events sent ")
            sys.stderr.flush()

    def _bad(self, why: str) -> bool:
        self.good = False
        self._say(why)
        return True

    def _say(self, message: str) -> None:
        sys.stderr.write(f"{self._line()}tachograph resend: {message}\n")

    def _line(self) -> str:
        return "\r\x1b[K" if self._terminal and self._reported else ""

    def end(self) -> int:
        """Say the result, and return the exit code."""
        skipped = f", skipped {self._skipped:,} metrics, spans and definitions" if self._skipped else ""
        arrived = f", skipped {self._arrived:,} that the server already has" if self._arrived else ""
        files = f"{self._files} file{'s' * (self._files != 1)}"
        sys.stderr.write(
            f"{self._line()}tachograph resend: sent {self._sent:,} events from {files}{arrived}{skipped}\n"
        )
        return 0 if self.good and self._files else FAILED


def _requests_of(destination: Destination) -> dict[str, Callable[[bytes, int], None]]:
    """Return how a destination takes requests as they lie in a spool, by their kind."""
    from tachograph.exporters.influxdb import InfluxDB
    from tachograph.exporters.otlp.exporter import OtlpExporter
    from tachograph.exporters.otlp.settings import SIGNALS

    if isinstance(destination, InfluxDB):
        return {"lines": destination.put}
    if isinstance(destination, OtlpExporter):
        return {signal: partial(destination.put, signal) for signal in SIGNALS}
    return {}


def _destination(options: argparse.Namespace, name: str, registry: Registry) -> Destination:
    from tachograph.recording.gil_yield import GilYield

    rests = GilYield(float("inf"))  # no training is disturbed
    if name == "influxdb":
        from tachograph.exporters.influxdb import InfluxDB
        from tachograph.logger.influx_target import InfluxTarget

        # MetricsLogger's defaults are those of its documents: points must not end up there by accident.
        database = options.database or text(os.environ, "INFLUXDB_DATABASE")
        organization = options.org or text(os.environ, "INFLUXDB_ORG")
        target = InfluxTarget.read(os.environ, host=options.url, database=database, batch_size=_AT_ONCE)
        if target is None:
            raise ValueError("set --url or INFLUXDB_HOST to the address of InfluxDB")
        if not database:
            raise ValueError("set --database or INFLUXDB_DATABASE to the InfluxDB database or bucket")
        return InfluxDB(replace(target, org=organization), registry, spool_limit=0, pace=rests)
    if name == "console":
        from tachograph.exporters.console import Console

        return Console(registry)
    if name == "jsonl":
        from tachograph.exporters.jsonl import JsonLines

        if options.output is None:
            raise ValueError("--to jsonl needs --output FILE")
        return JsonLines(options.output, registry, pace=rests)
    from tachograph.exporters.otlp.exporter import OtlpExporter
    from tachograph.exporters.otlp.settings import SIGNALS, read_otlp_settings

    return OtlpExporter(
        {signal: read_otlp_settings(signal, os.environ, endpoint=options.url) for signal in SIGNALS},
        registry,
        pace=rests,
    )


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser(
        "resend",
        "Resend data that an earlier process could not deliver (spool files of InfluxDB lines or OTLP requests), or "
        "JSON lines of the exporter 'jsonl' or of 'tachograph runs export --format jsonl'. Nothing is marked or "
        "deleted without --delete.",
    )
    add = built.add_argument
    paths = "Files, or folders with *.spool and *.jsonl files (default: the spools of the store)"
    add("paths", nargs="*", type=Path, metavar="FILE|FOLDER", help=paths)
    to = "The destination (default: InfluxDB for its lines, OTLP for everything else)"
    add("--to", choices=["influxdb", "otlp", "console", "jsonl"], help=to)
    add_url(built, "The address of the receiver (default: OTEL_EXPORTER_OTLP_ENDPOINT, or INFLUXDB_HOST)")
    add("--database", help="The InfluxDB database or bucket (default: INFLUXDB_DATABASE)")
    add("--org", help="The InfluxDB organization (default: INFLUXDB_ORG)")
    add("-o", "--output", type=Path, metavar="FILE", help="The file that --to jsonl appends to")
    delete = "Mark accepted points in a spool file, and delete each file once everything in it is accepted"
    add("--delete", action="store_true", help=delete)
    timeout = "How long to wait for an answer (default: 60s)"
    add("--timeout", type=positive_duration, default=60.0, metavar="DURATION", help=timeout)
    add_store(built, "The folder with the store")
    return built

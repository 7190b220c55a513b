"""``tachograph replay``: its command line."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.cli._command_line import FAILED, WRONG_USAGE, add_influxdb, fail, influxdb, parser, reason, seconds
from tachograph.recording.journal import LOG
from tachograph.recording.packed_points import PACKED, PACKED_SCHEMA
from tachograph.recording.pulse_source import PULSE
from tachograph.runs.recorded import CALLS, FAILURE

if TYPE_CHECKING:
    from tachograph.cli.replaying.recording import RecordedFile, RecordedPart, RefusedCount
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
    """Send the contents of files, and return the exit code: 1 where a part was not delivered, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    from tachograph.cli.replaying.recording import RefusedCount, files
    from tachograph.recording.registry import Registry

    registry = Registry(enabled=True)  # losses are read from it
    try:
        paths = files(options.paths)
        destination = _destination(options, registry)
    except (ValueError, TypeError, ModuleNotFoundError, OSError) as error:
        return fail("replay", reason(error), WRONG_USAGE)
    if not paths:
        return fail(
            "replay", f"there are no *.spool or *.jsonl files in {', '.join(map(str, options.paths))}", WRONG_USAGE
        )
    replay = _Replay(destination, RefusedCount(registry), options.timeout, delete=options.delete)
    try:
        for path in paths:
            if not replay.file(path):
                break
    finally:
        destination.close(options.timeout if replay.good else 0.0)
    return replay.end()


class _Replay:
    """One run of the command.

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
        from tachograph.cli.replaying.recording import RecordedFile

        try:
            recording = RecordedFile(path, alone=self._delete)
        except BlockingIOError:
            what = "it is neither sent nor deleted" if self._delete else "and sends what it holds itself"
            return self._bad(f"{path}: a running process uses it, {what}")
        except OSError as error:
            return self._bad(f"{path}: {error.strerror}")
        try:
            if recording.kind and recording.kind not in self._takes:
                where = "InfluxDB (--to influxdb)" if recording.kind == "lines" else "OTLP (--to otlp)"
                self._say(f"{path}: left out, it holds what is meant for {where}")
                return True
            stopped = self._send(recording)
            found = [stopped] if stopped else []
            if refused := self._losses.refused():
                found.append(f"not taken were {refused}")
            if recording.damaged:
                found.append(f"{recording.damaged} lines cannot be read")
            if found:
                rest = "nothing more is sent" if stopped else "the others were sent"
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
            self._bad(f"{recording.path}: it was sent, but cannot be deleted: {error.strerror}")

    def _send(self, recording: RecordedFile) -> str:
        """Send the contents of a file; return the reason to stop, or an empty string."""
        parts = recording.parts()
        while some := list(islice(parts, 64)):
            for part in some:
                self._hand_over(part)
            began = time.monotonic()
            arrived = self._destination.flush(self._timeout)
            if lost := self._losses.others():
                return f"not everything has arrived ({lost})"
            if not arrived and time.monotonic() - began >= self._timeout:
                return f"not everything has arrived within {self._timeout:g} s"
            if not self._losses.is_refused():  # else that is left for the next replay, with what follows
                recording.accept(some[-1].end)
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
        from tachograph.hub.forwarding import readable_elsewhere

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
        return (destination.reads() or 0) >= PACKED_SCHEMA

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
        sys.stderr.write(f"{self._line()}tachograph replay: {message}\n")

    def _line(self) -> str:
        return "\r\x1b[K" if self._terminal and self._reported else ""

    def end(self) -> int:
        """Say the result, and return the exit code."""
        skipped = f", {self._skipped:,} metrics, spans and definitions left out" if self._skipped else ""
        arrived = f", {self._arrived:,} left out that their server has acknowledged" if self._arrived else ""
        sys.stderr.write(
            f"{self._line()}tachograph replay: {self._sent:,} events of {self._files} files sent{arrived}{skipped}\n"
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


def _destination(options: argparse.Namespace, registry: Registry) -> Destination:
    from tachograph.recording.gil_yield import GilYield

    rests = GilYield(float("inf"))  # no training is disturbed
    if options.to == "influxdb":
        from tachograph.exporters.influxdb import InfluxDB
        from tachograph.logger.influx_target import InfluxTarget

        target = InfluxTarget.read(os.environ, **influxdb(options), batch_size=_AT_ONCE)
        if target is None:
            raise ValueError("--host or INFLUXDB_HOST must say where InfluxDB listens")
        return InfluxDB(target, registry, spool_limit=0, pace=rests)
    if options.to == "console":
        from tachograph.exporters.console import Console

        return Console(registry)
    if options.to == "jsonl":
        from tachograph.exporters.jsonl import JsonLines

        if options.output is None:
            raise ValueError("--output must name the file that 'jsonl' writes")
        return JsonLines(options.output, registry, pace=rests)
    from tachograph.exporters.otlp.exporter import OtlpExporter
    from tachograph.exporters.otlp.settings import SIGNALS, read_otlp_settings

    return OtlpExporter(
        {signal: read_otlp_settings(signal, os.environ, endpoint=options.endpoint) for signal in SIGNALS},
        registry,
        pace=rests,
    )


def _parser() -> argparse.ArgumentParser:
    made = parser(
        "replay",
        "Send what files hold to an exporter: what a spool keeps for InfluxDB or OTLP, the events of the exporter "
        "'jsonl' or of 'tachograph export --format jsonl'. Nothing is deleted unless it is asked for.",
    )
    add = made.add_argument
    add(
        "paths",
        nargs="+",
        type=Path,
        metavar="FILE|FOLDER",
        help="a folder stands for the *.spool and *.jsonl files in it",
    )
    add("--to", required=True, choices=["influxdb", "otlp", "console", "jsonl"], help="the exporter")
    add("--delete", action="store_true", help="delete each file once everything in it has arrived")
    add("--timeout", type=seconds, default=60.0, metavar="SECONDS", help="to wait for an answer (default 60)")
    add_influxdb(made)
    add("--endpoint", metavar="URL", help="of OTLP (default: OTEL_EXPORTER_OTLP_ENDPOINT)")
    add("--output", type=Path, metavar="FILE", help="the file that 'jsonl' appends to")
    return made

"""``tachograph replay``: its command line."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.command_line import FAILED, WRONG_USAGE, add_influxdb, fail, influxdb, parser, reason, seconds

if TYPE_CHECKING:
    from tachograph.destinations import Destination
    from tachograph.registry import Registry
    from tachograph.replaying.recording import Part, Recording

_AT_ONCE = 5_000
_REPORT_EVERY = 0.2


def command(arguments: Sequence[str]) -> int:
    """Send what files hold, and return the exit code: 1 where something was not delivered, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    from tachograph.registry import Registry
    from tachograph.replaying.recording import files

    registry = Registry()
    try:
        paths = files(options.paths)
        destination = _destination(options, registry)
    except (ValueError, TypeError, ModuleNotFoundError, OSError) as error:
        return fail("replay", reason(error), WRONG_USAGE)
    if not paths:
        return fail("replay", f"there are no *.jsonl files in {', '.join(map(str, options.paths))}", WRONG_USAGE)
    replay = _Replay(destination, options.timeout, delete=options.delete)
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

    def __init__(self, destination: Destination, timeout: float, *, delete: bool) -> None:
        self._destination, self._timeout, self._delete = destination, timeout, delete
        self._sent = self._skipped = self._files = 0
        self._reported = 0.0
        self._terminal = sys.stderr.isatty()
        self.good = True

    def file(self, path: Path) -> bool:
        """Send a file; False where going on has no point."""
        from tachograph.replaying.recording import Recording

        try:
            recording = Recording(path)
        except BlockingIOError:
            return self._bad(f"{path}: a running process uses it, and sends what it holds itself")
        except OSError as error:
            return self._bad(f"{path}: {error.strerror}")
        try:
            if not self._send(recording):
                self._bad(f"{path}: not everything has arrived within {self._timeout:g} s, nothing more is sent")
                return False
            if recording.damaged:
                self._bad(f"{path}: {recording.damaged} lines cannot be read, the others were sent")
            elif self._delete:
                recording.remove()
            self._files += 1
        finally:
            recording.close()
        return True

    def _send(self, recording: Recording) -> bool:
        parts = recording.parts()
        while some := list(islice(parts, 64)):
            for part in some:
                self._hand_over(part)
            if not self._destination.flush(self._timeout):
                return False
            self._report()
        return True

    def _hand_over(self, part: Part) -> None:
        from tachograph.batch import Batch

        self._skipped += part.skipped
        for start in range(0, len(part.events), _AT_ONCE):
            events = part.events[start : start + _AT_ONCE]
            self._destination(Batch([], None, [], part.resource, time.time_ns(), events))
            self._sent += len(events)

    def _report(self) -> None:
        now = time.monotonic()
        if self._terminal and now - self._reported > _REPORT_EVERY:
            self._reported = now
            sys.stderr.write(f"\r{self._sent:,} events sent ")
            sys.stderr.flush()

    def _bad(self, why: str) -> bool:
        self.good = False
        sys.stderr.write(f"{self._line()}tachograph replay: {why}\n")
        return True

    def _line(self) -> str:
        return "\r\x1b[K" if self._terminal and self._reported else ""

    def end(self) -> int:
        """Say what was done, and return the exit code."""
        skipped = f", {self._skipped:,} metrics, spans and definitions left out" if self._skipped else ""
        sys.stderr.write(
            f"{self._line()}tachograph replay: {self._sent:,} events of {self._files} files sent{skipped}\n"
        )
        return 0 if self.good else FAILED


def _destination(options: argparse.Namespace, registry: Registry) -> Destination:
    from tachograph.pace import Pace

    rests = Pace(float("inf"))  # there is nobody to disturb
    if options.to == "influxdb":
        from tachograph.influx_target import InfluxTarget
        from tachograph.influxdb import InfluxDB

        target = InfluxTarget.read(os.environ, **influxdb(options), batch_size=_AT_ONCE)
        if target is None:
            raise ValueError("--host or INFLUXDB_HOST must say where InfluxDB listens")
        return InfluxDB(target, registry, spool_limit=0, pace=rests)
    if options.to == "console":
        from tachograph.console import Console

        return Console(registry)
    if options.to == "jsonl":
        from tachograph.jsonl import JsonLines

        if options.output is None:
            raise ValueError("--output must name the file that 'jsonl' writes")
        return JsonLines(options.output, registry, pace=rests)
    from tachograph.otlp.exporter import OtlpExporter
    from tachograph.otlp.settings import read_otlp_settings

    return OtlpExporter(
        {"logs": read_otlp_settings("logs", os.environ, endpoint=options.endpoint)}, registry, pace=rests
    )


def _parser() -> argparse.ArgumentParser:
    made = parser(
        "replay",
        "Send the events of files to an exporter: of a spool, of the exporter 'jsonl', or of 'tachograph "
        "export --format jsonl'. Nothing is deleted unless it is asked for.",
    )
    add = made.add_argument
    add("paths", nargs="+", type=Path, metavar="FILE|FOLDER", help="a folder stands for the *.jsonl files in it")
    add("--to", required=True, choices=["influxdb", "otlp", "console", "jsonl"], help="the exporter")
    add("--delete", action="store_true", help="delete each file once everything in it has arrived")
    add("--timeout", type=seconds, default=60.0, metavar="SECONDS", help="to wait for an answer (default 60)")
    add_influxdb(made)
    add("--endpoint", metavar="URL", help="of OTLP (default: OTEL_EXPORTER_OTLP_ENDPOINT)")
    add("--output", type=Path, metavar="FILE", help="the file that 'jsonl' appends to")
    return made

"""Files to send again: a spool with encoded requests, or JSON lines of the exporter ``jsonl`` or an exported run."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from tachograph.exporters.otlp.json_text import events_of_json
from tachograph.exporters.spool_format import SUFFIX, Framed, Position, SpoolRecord, after
from tachograph.logger.point import EVENT_NAME, FIELDS
from tachograph.recording.journal import LogEvent
from tachograph.recording.own_metrics import DROPPED, OWN_GROUP, Reason
from tachograph.recording.points import NumberPoint
from tachograph.recording.registry import Registry

_POINT = "tachograph.metric"
# The keys of an exported line itself, beside the attributes of the point.
_OUTSIDE = {"kind", "run", "rank", "time_unix_nano", "stream", "seq", "units"}
_NUMBERS = {"NaN", "Infinity", "-Infinity"}


class RecordedPart(NamedTuple):
    """Contents of a line, or of a record.

    Attributes:
        resource: the attributes of the process that logged it.
        events: those that it logged.
        skipped: how much else it holds that is no event: metrics, spans, records of a later version.
        end: of a spool: where the record ends.
        request: of a spool: to be sent as it is.
    """

    resource: Mapping[str, Any]
    events: list[LogEvent]
    skipped: int
    end: Position | None = None
    request: SpoolRecord | None = None


class RecordedFile:
    """A file to send again, locked so that no other process sends it; what has arrived from a spool is left out.

    Args:
        path: the file.
        alone: lock it against readers and writers, too, because it is going to be deleted.

    Attributes:
        damaged: how many lines could not be read.
        arrived: how many events were left out because they have arrived.

    Raises:
        BlockingIOError: a running process uses it.
        OSError: it cannot be read.
    """

    def __init__(
        self, path: Path, *, alone: bool = False, flock: Callable[[IO[bytes], int], object] = fcntl.flock
    ) -> None:
        self.path, self._alone = path, alone
        self._file = _opened(path)
        self._read = self.arrived = 0
        try:
            flock(self._file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise
        except OSError:  # a file system without locks
            pass
        self.damaged = 0

    def parts(self) -> Iterator[RecordedPart]:
        """Yield all parts; a line or a record that cannot be read is counted in ``damaged``."""
        if self.path.suffix == SUFFIX:
            yield from self._requests()
            return
        for line in self._file:
            self._read += len(line)
            if not line.strip():
                continue
            try:
                parts = _parts(line)
            except (ValueError, TypeError, KeyError, AttributeError):
                self.damaged += 1
                continue
            yield from parts

    def _requests(self) -> Iterator[RecordedPart]:
        """Yield the records of a spool."""
        start = self._spool_start()
        if start is None:
            self.damaged += 1
            self._read = self._size()
            return
        if start.written is None:  # the file does not say how much of it has arrived
            self.damaged += 1
        else:
            self.arrived = start.before
        self._read = start.offset
        for begin, record, end in self._records(start):
            self._read = end.offset
            if not record.payload:
                self.damaged += 0 if record.gone else 1
                continue
            request = record
            if begin.offset == start.offset and start.items:  # lines, of which some have arrived
                self.arrived += start.items
                rest = b"\n".join(record.payload.split(b"\n")[start.items :])
                request = record._replace(payload=rest, items=record.items - start.items)
            yield RecordedPart({}, [], 0, end, request)

    def _spool_start(self) -> Position | None:
        """Return where the first record of a spool begins that has not arrived; None if the file does not say it."""
        return Framed().begin(self._file.fileno(), self._size())

    def _records(self, place: Position) -> Iterator[tuple[Position, SpoolRecord, Position]]:
        """Yield the records of a spool, each with the places where it begins and ends."""
        size = self._size()
        while (record := Framed().read(self._file.fileno(), place, size)) is not None:
            end = after(place, record)
            yield place, record, end
            place = end

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    @property
    def kind(self) -> str:
        """The kind of the requests in a spool; empty if it has none, or if it is another file."""
        start = self._spool_start() if self.path.suffix == SUFFIX else None
        records = self._records(start) if start is not None else ()
        return next((record.kind for _, record, _ in records if record.payload), "")

    def accept(self, part: RecordedPart) -> None:
        """Note in a spool that a part and everything before it has arrived, if the file is going to be deleted.

        Raises:
            OSError: the file cannot be written.
        """
        if part.end is not None and self._alone and self._file.writable():
            os.pwrite(self._file.fileno(), Framed().header(part.end), 0)

    def remove(self) -> None:
        """Delete the file.

        Raises:
            OSError: it cannot be deleted, or has grown since it was read.
        """
        if self._size() > self._read:  # where there are no locks
            raise BlockingIOError(errno.EAGAIN, "it has grown in the meantime", str(self.path))
        self.path.unlink()

    def close(self) -> None:
        """Release the file."""
        with contextlib.suppress(OSError):
            self._file.close()


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("r+b")  # NFS locks only files that are open for writing, too
    except OSError:
        return path.open("rb")


def files(paths: list[Path]) -> list[Path]:
    """Return the files that are meant: a folder stands for all ``*.spool`` and ``*.jsonl`` in it, by name.

    Raises:
        OSError: a path does not exist.
    """
    found: list[Path] = []
    for path in paths:
        os.stat(path)  # noqa: PTH116 - raises with the name
        found += sorted(f for f in path.rglob("*") if f.suffix in (SUFFIX, ".jsonl")) if path.is_dir() else [path]
    return list(dict.fromkeys(found))


def _parts(line: bytes) -> list[RecordedPart]:
    if b'"resourceLogs"' in line:
        return [RecordedPart(part.resource, part.events, part.newer) for part in events_of_json(line)]
    try:
        told = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    kind = told.get("kind")
    if kind in {"point", "event"}:
        resource = {} if told.get("rank") is None else {"dl.rank": told["rank"]}
        return [RecordedPart(resource, [_exported(told)], 0)]
    if kind == "definition" or "resourceMetrics" in told or "resourceSpans" in told:
        return [RecordedPart({}, [], 1)]
    raise ValueError("neither an OTLP request nor a line of an exported run")


def _exported(told: Mapping[str, Any]) -> LogEvent:
    at, stream, seq = int(told["time_unix_nano"]), str(told.get("stream", "")), int(told.get("seq", 0))
    if told["kind"] == "point":
        said = {key: _number(value) for key, value in told.items() if key not in _OUTSIDE and value is not None}
        attributes = {**said, "metric": told["metric"], "group": told.get("group", "")}
        return LogEvent(_POINT, at, at, attributes, seq, 0, 0, 0, stream)
    name = str(told["name"])
    attributes = {key: value for key, value in told.get("attributes", {}).items() if not key.startswith("tachograph.s")}
    if name == EVENT_NAME:
        attributes[FIELDS] = {key: _number(value) for key, value in attributes.get(FIELDS, {}).items()}
    ids = int(told.get("trace_id", "0"), 16), int(told.get("span_id", "0"), 16)
    return LogEvent(name, at, int(told.get("observed_unix_nano", at)), attributes, seq, *ids, 0, stream)


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and value in _NUMBERS else value


# Something is wrong with the point or the value itself, so that all others may arrive.
_FOR_WHAT_THEY_ARE: frozenset[Reason] = frozenset({"rejected", "encoding", "field_type"})
_HARMLESS: frozenset[Reason] = frozenset({"nonfinite", "empty"})  # of a point that arrives, or that is none


class RefusedCount:
    """Reads a registry's counts.

    Args:
        registry: where the destination counts.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._told: Counter[str] = Counter()

    def refused(self) -> str:
        """Return the number of refused ones since the last call, by reason; empty where there was none."""
        since = self._refused() - self._told
        self._told += since
        return _text(since)

    def is_refused(self) -> bool:
        """Tell whether there was one since the last call of :meth:`refused`."""
        return bool(self._refused() - self._told)

    def _refused(self) -> Counter[str]:
        return Counter({reason: n for reason, n in self._counts().items() if reason in _FOR_WHAT_THEY_ARE})

    def others(self) -> str:
        """Return how many were lost though nothing is wrong with them, by reason; empty where none was."""
        return _text(Counter({reason: n for reason, n in self._counts().items() if reason not in _FOR_WHAT_THEY_ARE}))

    def _counts(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for metric in self._registry.collect():
            if (metric.scope, metric.name) == (OWN_GROUP, DROPPED.name):
                for point in metric.points:
                    reason = str(dict(point.attributes).get("reason"))
                    if isinstance(point, NumberPoint) and reason not in _HARMLESS:
                        found[reason] += int(point.value)
        return found


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items()))

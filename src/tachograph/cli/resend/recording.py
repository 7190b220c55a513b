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
from tachograph.exporters.spool_format import SUFFIX, Framed, SpoolRecord, after
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
        end: where the record ends in a spool's file.
        request: of a spool: to be sent as it is.
    """

    resource: Mapping[str, Any]
    events: list[LogEvent]
    skipped: int
    end: int = 0
    request: SpoolRecord | None = None


class RecordedFile:
    """A file, held against a process that would send its contents, as that of a spool does.

    Parts that the server of a spool has acknowledged are left out.

    Args:
        path: the file.
        alone: hold it against those that read it or append to it, too: it is going to be deleted.

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
        file, form = self._file.fileno(), Framed()
        size = os.fstat(file).st_size
        done = form.begin(file, size)
        if done is None:
            self.damaged, self._read = self.damaged + 1, size
            return
        if done.written is None:  # it does not say how far, nor what was before
            self.damaged += 1
        self.arrived = done.before if done.written is not None else 0
        self._read, place = done.offset, done
        while (record := form.read(file, place, size)) is not None:
            begin, place = place.offset, after(place, record)
            self._read = place.offset
            if not record.payload:
                self.damaged += 0 if record.gone else 1
                continue
            if begin == done.offset and done.items:  # lines, of which some have arrived
                self.arrived += done.items
                rest = b"\n".join(record.payload.split(b"\n")[done.items :])
                record = record._replace(payload=rest, items=record.items - done.items)
            yield RecordedPart({}, [], 0, self._read, record)

    @property
    def kind(self) -> str:
        """Way that the requests of a spool take; empty where it has none, or is another file."""
        form = Framed()
        file = self._file.fileno()
        size = os.fstat(file).st_size
        place = form.begin(file, size) if self.path.suffix == SUFFIX else None
        while place is not None and (record := form.read(file, place, size)) is not None:
            if record.payload:
                return record.kind
            place = after(place, record)
        return ""

    def accept(self, end: int) -> None:
        """Note, in a file of a spool that is held alone, that everything before a part's ``end`` has arrived.

        Raises:
            OSError: the file does not take it.
        """
        if not self._alone or not self._file.writable() or self.path.suffix != SUFFIX:
            return
        file, form = self._file.fileno(), Framed()
        size = os.fstat(file).st_size
        place = form.begin(file, size)
        while place is not None and place.offset < end and (record := form.read(file, place, size)) is not None:
            place = after(place, record)
        if place is not None:
            os.pwrite(file, form.header(place), 0)

    def remove(self) -> None:
        """Delete the file.

        Raises:
            OSError: it cannot be deleted, or has grown since it was read.
        """
        if os.fstat(self._file.fileno()).st_size > self._read:  # where there are no locks
            raise BlockingIOError(errno.EAGAIN, "it has grown in the meantime", str(self.path))
        self.path.unlink()

    def close(self) -> None:
        """Let others have it."""
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

"""The JSON-lines destination: a file with one OTLP request a line, as the collector's file exporter writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from google.protobuf.message import Message

from tachograph.exporters._append_file import AppendFile
from tachograph.exporters._workers import FILES
from tachograph.exporters.batch import Batch
from tachograph.exporters.delivery_queue import DeliveryQueue
from tachograph.exporters.otlp._spans import span_requests
from tachograph.exporters.otlp.encoding import MetricsEncoder
from tachograph.exporters.otlp.json_text import JsonText
from tachograph.exporters.otlp.logs import log_requests
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.log import LogOnce
from tachograph.recording.registry import Registry

NAME = "jsonl"
_POINTS_PER_LINE = 1000


class JsonLines:
    """Appends metrics, spans and events to a file, one OTLP request a line.

    The file is made by the first line, readable by its owner alone, and so are the folders that it needs. A line is
    written whole or not at all; one that does not fit on the disk is counted.

    Args:
        path: the file; a process should have one of its own. ``tachograph resend`` does not
            delete it while it is open.
        registry: where losses and durations are counted.
        metrics: whether metrics come, too: then each closed window of a Stat is kept until it is written.
        pace: called between slices of encoding; by default a :class:`tachograph.recording.gil_yield.GilYield`.
    """

    def __init__(
        self, path: Path, registry: Registry, *, metrics: bool = True, pace: Callable[[], None] | None = None
    ) -> None:
        self.path = path
        self._registry = registry
        self._pace = pace or GilYield()
        self._text = JsonText(self._pace)
        self._log_once = LogOnce()
        self._encoder = MetricsEncoder(
            NAME, registry, windows=metrics, points_per_request=_POINTS_PER_LINE, pace=self._pace
        )
        self._queue = DeliveryQueue(NAME, registry, workers=FILES)
        self._file = AppendFile(path)

    def __call__(self, batch: Batch) -> None:
        """Encode a batch and queue it; never waits for the disk."""
        for metrics, points in self._encoder.messages(batch):
            self._put(metrics, points)
        for spans, count in span_requests(batch.spans, self._lose, self._pace):
            self._put(spans, count)
        for logs, count in log_requests(batch.events, batch.resource, self._lose, self._pace):
            self._put(logs, count)

    def flush(self, timeout: float) -> bool:
        """Write everything queued; True where all of it was written within ``timeout`` seconds."""
        return self._queue.flush(timeout)

    @property
    def delivered(self) -> int:
        """How much has arrived so far; it grows while the destination takes anything."""
        return self._queue.delivered

    def close(self, timeout: float) -> None:
        """Write everything queued, and close the file, within ``timeout`` seconds."""
        self._encoder.close()
        if self._queue.flush(timeout):
            self._file.close()
        self._queue.close(0)

    def reset_in_child(self) -> None:
        """Forget the queue, after a fork; the parent process writes it, and holds the file."""
        self._file.close()
        self._encoder.forget()
        self._queue.reset_in_child()

    def _put(self, request: Message, items: int) -> None:
        line = self._text.line(request)
        self._queue.put(lambda _timeout: self._append(line), len(line), items=items)

    def _append(self, line: bytes) -> None:
        fate = self._file.fate()
        if fate == "deleted":
            self._file.close()
            message = "%s: %s was deleted while being written; continuing in a new file"
            self._log_once("deleted", message, NAME, self.path)
        # If others have cut it in the middle of a line, this one must not be a part of that.
        is_torn = fate in ("cut", "changed") and not self._file.ends_with(b"\n")
        self._file.append(b"\n" + line if is_torn else line)

    def _lose(self, items: int, why: str) -> None:
        self._registry.count_dropped("encoding", NAME, items)
        self._log_once(
            "encoding",
            "%s: data was dropped (further warnings are suppressed; see tachograph_dropped_total on /metrics): %s",
            NAME,
            why,
        )

"""The bridge from MLflow: the fluent functions and ``MlflowClient``, into any store."""

from __future__ import annotations

import ast
import atexit
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tachograph.instrumentation.bridges._instrumentor import BridgeInstrumentor
from tachograph.instrumentation.bridges._nesting import Brought, calls
from tachograph.instrumentation.bridges._values import MOST_ORIGINS, MOST_SERIES, BridgedValues, Origin

_LIBRARY = "mlflow"
_OWN = "mlflow."  # its own tags begin with it
_LATEST = 2**43  # milliseconds: times in nanoseconds fit 64 bits
_ARTIFACT = "\0artifact"  # no name of a metric
_WAIT = 10**9  # nanoseconds
_OPENING = frozenset("[({")  # of a list, a tuple and a dictionary, as Python writes them
_SESSIONS = "mlflow.utils.autologging_utils.safety"


class _Run:
    """A run, as its calls tell it.

    Attributes:
        origin: of its values.
        stepped: the keys that have had a step beside 0.
    """

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.stepped: set[str] = set()

    def step(self, key: str, step: Any) -> Any:
        """Return the step of a value; None as long as those of its key are all 0, which MLflow puts where none is."""
        if step and len(self.stepped) < MOST_SERIES:
            self.stepped.add(key)
        return step if step or key in self.stepped else None


class TrackingNotes:
    """The notes of ``TrackingServiceClient``, which all of MLflow's interfaces log by; asynchronous ones, too.

    Every other ``log_…`` is counted as not taken, under its name.

    Args:
        values: where they go.
        clock: nanoseconds.
    """

    def __init__(self, values: BridgedValues, clock: Callable[[], int] = time.time_ns) -> None:
        self._values, self._clock = values, clock
        self._runs: dict[str, _Run] = {}
        self._read_out: deque[tuple[int, int, Callable[[], object]]] = deque()  # process, time, and what takes a value
        self._early = values.recording.registry.early
        self._early.append(self.take_old)
        atexit.register(self.take_all)

    def close(self) -> None:
        """Take the values that wait, and forget the runs."""
        self._early.remove(self.take_old)
        atexit.unregister(self.take_all)
        self.take_all()
        self._runs.clear()

    def take_old(self, _pace: object = None) -> None:
        """Take the values that have waited for a second."""
        self._take_until(self._clock() - _WAIT)

    def take_all(self) -> None:
        """Take all values that wait: the process ends."""
        self._take_until(sys.maxsize)

    def _take_until(self, last: int) -> None:
        while self._read_out and self._read_out[0][1] <= last:
            try:
                process, _, take = self._read_out.popleft()
            except IndexError:  # another thread was at it
                return
            if process == os.getpid():  # not those of a forked child's parent
                take()

    def _run(self, run_id: str) -> _Run:
        found = self._runs.get(run_id)
        if found is None:
            origin = self._values.origin(_LIBRARY, run_id, _name_of(run_id) or run_id)
            if len(self._runs) >= MOST_ORIGINS:  # of a sweep: no run of MLflow's own is held, so none tells its end
                self._runs.pop(next(iter(self._runs)), None)
            found = self._runs[run_id] = _Run(origin)
        return found

    def log_metric(
        self, _client: Any, run_id: str, key: str, value: Any, timestamp: Any = None, step: Any = None, **_more: Any
    ) -> None:
        """Take one value."""
        self._take(self._run(run_id), key, value, timestamp, step)

    def log_batch(
        self,
        _client: Any,
        run_id: str,
        metrics: Sequence[Any] = (),
        params: Sequence[Any] = (),
        tags: Sequence[Any] = (),
        **_more: Any,
    ) -> None:
        """Take the values and the parameters of a batch."""
        run = self._run(run_id)
        for metric in metrics:
            self._take(run, metric.key, metric.value, metric.timestamp, metric.step)
        if params:
            self._values.config(run.origin, {param.key: _plain(param.value) for param in params})
        for tag in tags:
            self.set_tag(_client, run_id, tag.key)

    def _take(self, run: _Run, key: str, value: Any, timestamp: Any, step: Any) -> None:
        x = run.step(key, step)
        is_read_out = _is_autologging()
        # Values that MLflow's own autologging reads out of a trainer have steps of its own making.
        counted = x is None or is_read_out
        at = int(timestamp) * 1_000_000 if isinstance(timestamp, int | float) and 0 < timestamp < _LATEST else None
        if calls.outermost is None and not is_read_out:
            self._values.scalar(run.origin, key, value, x, counted=counted, time_unix_nano=at)
            return
        record = partial(self._values.scalar, run.origin, key, value, x, counted=counted, time_unix_nano=at)
        if calls.outermost is None:
            # The trainer logs them a moment later, with its own steps: the curve shall be its. MLflow keeps some for a
            # later batch, where its store is slow: then the trainer's value would begin a second one.
            self._read_out.append((os.getpid(), self._clock(), record))
        elif not self._values.passed_over(_LIBRARY, key, value, record):
            record()

    def log_param(self, _client: Any, run_id: str, key: str, value: Any, *_args: Any, **_more: Any) -> None:
        """Take one parameter."""
        self._values.config(self._run(run_id).origin, {key: _plain(str(value))})

    def set_tag(self, _client: Any, _run_id: str, key: str, *_args: Any, **_more: Any) -> None:
        """Count a tag, but for those of MLflow itself."""
        if not str(key).startswith(_OWN):
            self._values.not_taken(_LIBRARY, "tag")

    def log_artifact(self, _client: Any, *_args: Any, **_more: Any) -> None:
        """Count a file or a folder; one that MLflow makes of an image or the like is counted as that."""
        count = partial(self._values.not_taken, _LIBRARY, "artifact")
        if calls.outermost is None or not calls.outermost.passes_over(_ARTIFACT, 1, count):
            count()

    @staticmethod
    def artifacts(*_args: Any, **_more: Any) -> Brought:
        """Return the one value by which :meth:`log_artifact` knows that it is inside of ``log_image`` or the like."""
        return {_ARTIFACT: [None]}

    def __getattr__(self, name: str) -> Any:
        kind = name.removeprefix("log_")
        if kind == name or kind.startswith("_"):
            raise AttributeError(name)
        return lambda *_args, **_more: self._values.not_taken(_LIBRARY, kind)

    def log_inputs(self, _client: Any, *_args: Any, **_more: Any) -> None:
        """Count the description of a dataset."""
        self._values.not_taken(_LIBRARY, "input")


def _name_of(run_id: str) -> str:
    """Return the name of a run that is active in this thread; nothing asks the store, where it may wait."""
    active = sys.modules["mlflow"].active_run() if hasattr(sys.modules.get("mlflow"), "active_run") else None
    return str(active.info.run_name or "") if active is not None and active.info.run_id == run_id else ""


def _is_autologging() -> bool:
    sessions = getattr(sys.modules.get(_SESSIONS), "_AutologgingSessionManager", None)
    return getattr(sessions, "_session", None) is not None


def _plain(text: str) -> object:
    """Return a parameter, which MLflow keeps as text.

    It is None, a boolean, a number, or a list or mapping of these and of texts if its text is exactly that one's.
    """
    known: Mapping[str, bool | None] = {"None": None, "True": True, "False": False}
    if text in known:
        return known[text]
    if text[:1] in _OPENING and "\\" not in text:  # the parser warns about some backslashes
        return _container(text)
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:  # longer than CPython's limit for integers, too
            continue
        if str(number) == text:
            return number
    return text


def _container(text: str) -> object:
    try:
        value = ast.literal_eval(text)
        json.dumps(value)  # no bytes, no complex numbers
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return value if str(value) == text else text


class MlflowInstrumentor(BridgeInstrumentor):
    """Record the metrics and parameters that a program logs with MLflow.

    x is the step; for a metric whose steps are all 0 (MLflow's default) it is a running count of its values. Parameters
    become the configuration of the run. A second run in the process, or a nested one, becomes a group.
    """

    library = _LIBRARY

    def notes(self, values: BridgedValues) -> TrackingNotes:  # noqa: D102 - as the base class says
        return TrackingNotes(values)

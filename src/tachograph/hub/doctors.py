"""The hang doctors of a hub: one a run whose ranks send pulses, and the news of their incidents."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs

from tachograph.diagnosis.doctor import Doctor
from tachograph.diagnosis.doctor_stack import PySpy
from tachograph.diagnosis.incident import HANG, Incident, attributes_of
from tachograph.exporters.otlp.logs import log_requests
from tachograph.hub.processes import node_resource
from tachograph.recording.ids import random_hex
from tachograph.recording.journal import LogEvent
from tachograph.recording.log import LogOnce
from tachograph.recording.own_metrics import HANGS
from tachograph.recording.points import MetricPoints, NumberPoint
from tachograph.recording.pulse_source import PULSE
from tachograph.runs.recorded import FAILURE

LOOK = 0.5  # seconds between two looks
_MOST_PULSE = 1 << 20  # bytes
_STAYS = 60.0  # seconds that the gauge of an incident stays at 0 after its end
_MOST_RUNS = 64
_MOST_WORDS = 300  # of an exception

_log = logging.getLogger("tachograph")


class Doctors:
    """The doctors of all runs. Pulses come by one thread, looks are made by another, and others ask.

    Args:
        store_event: stores the event of an incident, which is a request.

    Attributes:
        tell: called with the sentence of a hang that has begun, or is over.
    """

    def __init__(self, store_event: Callable[[ExportLogsServiceRequest], object]) -> None:
        self._store_event = store_event
        self.tell: Callable[[str], object] = lambda _: None
        self._pyspy = PySpy()
        self._doctors: dict[str, Doctor] = {}
        self._gauges: dict[tuple[str, int, str], tuple[int, float]] = {}
        self._reported: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._stream = f"{random_hex()}.doctor"
        self._number = 0
        self._log_once = LogOnce()

    def take(self, run: str, logs: ResourceLogs) -> ResourceLogs | None:
        """Take the pulses out of the records of one process; return the others, None where there are none."""
        if not any(record.event_name == PULSE for scope in logs.scope_logs for record in scope.log_records):
            return logs
        rest = ResourceLogs(resource=logs.resource, schema_url=logs.schema_url)
        for scope in logs.scope_logs:
            others = [record for record in scope.log_records if record.event_name != PULSE]
            if others:
                rest.scope_logs.add(scope=scope.scope, schema_url=scope.schema_url).log_records.extend(others)
            for record in scope.log_records:
                if record.event_name == PULSE:
                    text = next((each.value.string_value for each in record.attributes if each.key == PULSE), "")
                    self._take(run, text)
        return rest if rest.scope_logs else None

    def _take(self, run: str, text: str) -> None:
        try:
            pulse = json.loads(text) if len(text) <= _MOST_PULSE else None
            with self._lock:
                if isinstance(pulse, dict) and (run in self._doctors or len(self._doctors) < _MOST_RUNS):
                    self._doctors.setdefault(run, Doctor(pyspy=self._pyspy)).take(pulse)
        except Exception:  # noqa: BLE001 - the border to what anybody may send
            self._log_once(
                "pulse", "ignoring an invalid pulse of a rank (further warnings are suppressed)", exc_info=True
            )

    def heard(self, run: str, pid: int, reason: str = "") -> None:
        """Note that something came from a process; with the reason, where it is its end."""
        doctor = self._doctors.get(run)
        if doctor is None:
            return
        with self._lock:
            if reason:
                doctor.ended(pid, reason)
            else:
                doctor.heard(pid)

    def look_for_failures(self, run: str, pid: int, logs: ResourceLogs) -> None:
        """Note the exception that ends a process, where it is among its records."""
        doctor = self._doctors.get(run)
        if doctor is None:
            return
        for record in (record for scope in logs.scope_logs for record in scope.log_records):
            if record.event_name == FAILURE:
                attributes = {each.key: each.value.string_value for each in record.attributes}
                words = f"{attributes.get('exception.type', '')}: {attributes.get('exception.message', '')}"
                with self._lock:
                    doctor.failed(pid, words.partition("\n")[0][:_MOST_WORDS], record.time_unix_nano)

    def look(self) -> None:
        """Look at all ranks of all runs: twice a second."""
        for run, doctor in list(self._doctors.items()):
            self._look_at(run, doctor)

    def _look_at(self, run: str, doctor: Doctor) -> None:
        try:
            with self._lock:
                news = doctor.look()
                self._measure(run, doctor.open)
            for incident in news:
                self._say(run, incident)
        except Exception:  # noqa: BLE001 - the border to the machine and to the store: the next look goes on
            self._log_once("look", "the hang detector failed (further warnings are suppressed)", exc_info=True)

    def _measure(self, run: str, lasting: Incident | None) -> None:
        now = time.monotonic()
        hung = lasting is not None and lasting.verdict.grade == "hang"
        current = {(run, rank, lasting.verdict.cause) for rank in lasting.verdict.ranks} if hung and lasting else set()
        for key, (value, since) in list(self._gauges.items()):
            if key[0] == run and key not in current and value:
                self._gauges[key] = 0, now
            elif not value and now - since > _STAYS:
                del self._gauges[key]
        for key in current:
            self._gauges[key] = 1, now

    def _say(self, run: str, incident: Incident) -> None:
        """Keep an incident that is or was a hang, and tell of one that has begun."""
        if not incident.hung:
            return
        key = (run, incident.number)
        if incident.verdict.grade != "died":  # else the last lines of the run say how it has ended
            if incident.ended:
                self.tell(f"the hang ended after {(incident.ended - incident.began) / 1e9:.0f} s")
            elif incident.verdict.grade == "hang" and key not in self._reported:
                self._reported.add(key)
                self.tell(f"hang: {incident.verdict.text}")
        self._number += 1
        now = time.time_ns()
        event = LogEvent(HANG, now, now, attributes_of(incident), self._number, 0, 0, 0, self._stream)
        for request, _ in log_requests([event], node_resource(run), lambda *_: None, lambda: None):
            self._store_event(request)

    def picture(self, run: str) -> Mapping[str, Any] | None:
        """Return the ranks of a run as they stand now, and its incidents; None where none has sent a pulse."""
        doctor = self._doctors.get(run)
        if doctor is None:
            return None
        with self._lock:
            return doctor.picture()

    def metrics(self) -> list[MetricPoints]:
        """Return the gauge of the hangs: 1 for each rank that one is laid to, 0 for a minute after its end."""
        points = [
            NumberPoint((("cause", cause), ("dl.rank", rank), ("dl.run.id", run)), value, 0)
            for (run, rank, cause), (value, _) in list(self._gauges.items())
        ]
        return [MetricPoints(*HANGS[:5], points)] if points else []

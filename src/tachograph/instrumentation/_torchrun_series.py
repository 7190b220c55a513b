"""What torchrun's own process tells of its workers, as metrics: ``torchrun.*`` in the scope ``torchelastic``."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from tachograph.instrumentation._given_providers import EVERYWHERE, Recording
from tachograph.recording.instrument import Instrument, Record
from tachograph.recording.own_metrics import (
    PHASES,
    RESTARTS,
    TORCHELASTIC,
    WORKER_GROUP_STATE,
    WORKER_STATUS,
    WORKERS,
    OwnMetric,
)
from tachograph.recording.points import AttributeValue
from tachograph.recording.values import Number

STATE = "torchelastic.worker_group.state"


# WorkerState of torch.distributed.elastic.agent.server.api.
_STATES = frozenset({"unknown", "init", "healthy", "unhealthy", "stopped", "succeeded", "failed"})


class TorchrunSeries:
    """The metrics of a torchrun agent; each has the worker group's ``role`` as an attribute.

    ``torchrun.restarts`` is a counter from 0 on. It leaves out restarts because of nodes that come or go, as torchrun
    itself does; ``function.calls`` of ``SimpleElasticAgent._restart_workers`` counts all. Each change of the group's
    state is an event ``torchelastic.worker_group.state``, besides.

    Args:
        recording: where it is recorded.
    """

    def __init__(self, recording: Recording = EVERYWHERE) -> None:
        self.recording = recording
        self._lock = threading.Lock()
        self._records: dict[tuple[str, str], Record] = {}
        self._state: dict[str, str] = {}
        self._restarts: dict[str, int] = {}

    def point(self, role: str, name: str, value: object) -> None:
        """Take one point that torchelastic has put as ``workers.<role>.<name>``."""
        if name in _STATES:
            self._enter(role, name)
            return
        record = self._records.get((role, name))
        if record is None:
            what = f"torchelastic's workers.<role>.{name}."
            other = OwnMetric(TORCHELASTIC, f"torchrun.{name}", "", "gauge", what)
            record = self._instrument(WORKERS.get(name, other)).bind(role=role)
            self._records[role, name] = record
        record(value)

    def _enter(self, role: str, state: str) -> None:
        before = self._state.get(role)
        if before == state:  # ten times a second
            return
        self._state[role] = state
        self.recording.journal.append(STATE, time.time_ns(), {"role": role, "state": state.upper()})
        instrument = self._instrument(WORKER_GROUP_STATE)
        instrument.record(1, {"role": role, "state": state})
        if before is not None:
            instrument.record(0, {"role": role, "state": before})

    def status(self, told: Mapping[str, AttributeValue]) -> None:
        """Take the attributes of one status event, of a worker or of the agent."""
        role, state = str(told.get("role", "")), str(told.get("state", ""))
        restarts = told.get("agent_restarts")
        if isinstance(restarts, int):
            self._restarted(role, restarts)
        seconds = told.get("duration_ms")
        if isinstance(seconds, int | float):
            self._took(role, state, seconds / 1000)
        if told.get("source") == "WORKER":
            self._instrument(WORKER_STATUS).record(1, {"role": role, "state": state})

    def _restarted(self, role: str, count: int) -> None:
        with self._lock:
            before = self._restarts.get(role, 0)
            self._restarts[role] = count
        # Fewer than before: the process has launched another job.
        self._instrument(RESTARTS).record(count - before if count >= before else count, {"role": role})

    def _took(self, role: str, state: str, seconds: Number) -> None:
        name = state.lower()
        what = f"Duration of torchrun's {name.replace('_', ' ')}."
        other = OwnMetric(TORCHELASTIC, f"torchrun.{name}.duration", "s", "histogram", what)
        self._instrument(PHASES.get(state, other)).record(seconds, {"role": role})

    def _instrument(self, metric: OwnMetric) -> Instrument:
        return self.recording.registry.group(TORCHELASTIC).own(metric)

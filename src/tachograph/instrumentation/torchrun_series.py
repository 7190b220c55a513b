"""What torchrun's own process tells of its workers, as metrics: ``torchrun.*`` in the scope ``torchelastic``."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from tachograph import journal, registry
from tachograph.instrument import Instrument, Record
from tachograph.naming import Kind
from tachograph.points import AttributeValue
from tachograph.values import Number

GROUP = "torchelastic"
STATE = "torchelastic.worker_group.state"


class _Meaning(NamedTuple):
    name: str
    kind: Kind
    unit: str
    description: str


# torch.distributed.elastic.agent.server.api, SimpleElasticAgent._record_metrics and _invoke_run: each is put as
# ``workers.<role>.<name>``.
_POINTS = {
    "run_total": _Meaning("torchrun.run", "counter", "{run}", "Runs of the worker group that have ended."),
    "run_success_no_retries": _Meaning(
        "torchrun.run_success_no_retries", "counter", "{run}", "Runs that succeeded without a restart."
    ),
    "run_success_with_retries": _Meaning(
        "torchrun.run_success_with_retries", "counter", "{run}", "Runs that succeeded after a restart."
    ),
    "run_failed_no_retries": _Meaning(
        "torchrun.run_failed_no_retries", "counter", "{run}", "Runs that failed without a restart."
    ),
    "run_failed_with_retries": _Meaning(
        "torchrun.run_failed_with_retries", "counter", "{run}", "Runs that failed in spite of restarts."
    ),
    "flakiness": _Meaning(
        "torchrun.flakiness", "gauge", "%", "Share of the allowed restarts that was used up; 100 for a run that failed."
    ),
    "remaining_restarts": _Meaning("torchrun.remaining_restarts", "gauge", "{restart}", "Restarts that are left."),
}
# WorkerState of the same module.
_STATES = frozenset({"unknown", "init", "healthy", "unhealthy", "stopped", "succeeded", "failed"})
_STATE = _Meaning("torchrun.state", "gauge", "", "1 for the state that the worker group is in, 0 for those it was in.")
_RESTARTS = _Meaning(
    "torchrun.restarts", "counter", "{restart}", "Restarts of the worker group that used up one of --max-restarts."
)
_STATUS = _Meaning(
    "torchrun.worker.status", "counter", "{event}", "Workers that were started, or have ended, by how they did."
)


class TorchrunSeries:
    """The metrics of a torchrun agent; each has the worker group's ``role`` as an attribute.

    ``torchrun.restarts`` is a counter from 0 on. It leaves out restarts because of nodes that come or go, as torchrun
    itself does; ``function.calls`` of ``SimpleElasticAgent._restart_workers`` counts all. Each change of the group's
    state is an event ``torchelastic.worker_group.state``, besides.
    """

    def __init__(self) -> None:
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
            other = _Meaning(f"torchrun.{name}", "gauge", "", f"torchelastic's workers.<role>.{name}.")
            record = _instrument(_POINTS.get(name, other)).bind(role=role)
            self._records[role, name] = record
        record(value)

    def _enter(self, role: str, state: str) -> None:
        before = self._state.get(role)
        if before == state:  # ten times a second
            return
        self._state[role] = state
        journal.default.append(STATE, time.time_ns(), {"role": role, "state": state.upper()})
        instrument = _instrument(_STATE)
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
            _instrument(_STATUS).record(1, {"role": role, "state": state})

    def _restarted(self, role: str, count: int) -> None:
        with self._lock:
            before = self._restarts.get(role, 0)
            self._restarts[role] = count
        # Fewer than before: the process has launched another job.
        _instrument(_RESTARTS).record(count - before if count >= before else count, {"role": role})

    @staticmethod
    def _took(role: str, state: str, seconds: Number) -> None:
        name = state.lower()
        what = f"Duration of torchrun's {name.replace('_', ' ')}."
        _instrument(_Meaning(f"torchrun.{name}.duration", "histogram", "s", what)).record(seconds, {"role": role})


def _instrument(meaning: _Meaning) -> Instrument:
    group = registry.default.group(GROUP)
    found = group.instruments.get(meaning.name)
    if found is not None:
        return found
    return group.declare(
        meaning.name, kind=meaning.kind, unit=meaning.unit, description=meaning.description, boundaries=None
    )

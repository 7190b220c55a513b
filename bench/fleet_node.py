"""The processes of a training node, which record and send OTLP with Tachograph's own registry, tables and encoders.

A node is torchrun's agent and 8 ranks. Local rank 0 speaks for the node's hardware, as where no hub runs
(``tachograph.identity.rank.speaks_for_node``).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from tachograph.exporters.batch import Batch
from tachograph.exporters.otlp.encoding import MetricsEncoder
from tachograph.exporters.otlp.logs import log_requests
from tachograph.hardware import _gpu as gpu
from tachograph.hardware import _process as process
from tachograph.hardware import _system as system
from tachograph.hardware._sampler import Reading, metrics, tried
from tachograph.identity.resource import instance_id
from tachograph.recording.journal import Journal
from tachograph.recording.own_metrics import (
    ASSIGN_DURATION,
    RENDEZVOUS_DURATION,
    RESTARTS,
    TORCHELASTIC,
    WORKER_STATUS,
    WORKERS,
)
from tachograph.recording.points import AttributeValue, MetricPoints
from tachograph.recording.registry import Registry

RANKS = 8  # a node
SERVICE = "fleet"
STEPS = 10  # that a rank makes between two exports
EVENTS = 5  # that it logs meanwhile

_DURATIONS = (
    *("step.duration", "data.wait", "forward", "backward", "optimizer.step", "allreduce.wait", "checkpoint.save"),
)
_PROFILED = ("Trainer.step", "Loader.fetch", "Checkpointer.save")
_GAUGES = (
    *("loss", "loss.auxiliary", "learning_rate", "grad_norm", "weight_norm", "update_ratio", "accuracy", "perplexity"),
    *("throughput", "utilization", "loss_scale", "queue_depth", "padding", "router_balance", "epoch_progress"),
    *("allocated.bytes", "reserved.bytes", "peak.bytes", "sequence_length", "temperature"),
)
_COUNTERS = {"tokens": "{token}", "samples": "{sample}", "steps": "{step}", "skipped": "{step}"}
_ROLE = {"role": "trainer"}
_CARD = {"hw.name": "NVIDIA H100 80GB HBM3", "hw.vendor": "NVIDIA"}

_FAULTS = ("Reasons", "EccErrors", "ReplayCounter")

Sent = tuple[str, bytes]  # path under /v1, and body


class _Answer(int):
    """An answer of NVML's: a number that has every field and every element."""

    used = total = memory = gpu = 50

    def __getitem__(self, _index: int) -> int:
        return int(self)


class _Api:
    """The constants of NVML, of any name."""

    def __getattr__(self, _name: str) -> int:
        return 1


class _Card:
    """A GPU that answers every question, and has no errors."""

    api = _Api()

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def ask(self, *question: object) -> _Answer:
        if any(fault in str(question) for fault in _FAULTS):
            return _Answer(0)
        return _Answer(self._chance.randrange(1, 2**31))

    ask_newest = field = ask

    def memory(self) -> SimpleNamespace:
        return SimpleNamespace(used=self._chance.randrange(2**36), total=85_520_809_984)


class Machine:
    """The hardware of a node: this machine's own system and process metrics, and eight simulated GPUs.

    Args:
        host: its name.
        chance: the source of the GPUs' answers.
    """

    def __init__(self, host: str, chance: random.Random) -> None:
        self._cards: list[tuple[Any, dict[str, str]]] = [
            (_Card(chance), {**_CARD, "hw.id": f"GPU-{host}-{index}", "hw.gpu.index": str(index)})
            for index in range(RANKS)
        ]

    def metrics(self, system_readings: Iterable[Reading], since: int) -> Iterator[MetricPoints]:
        """Yield local rank 0's metrics of the node; counters begin with the node."""
        cards = [
            reading for card, more in self._cards for row in gpu.TABLE for reading in tried(row, card, more, _fail)
        ]
        yield from metrics([*system_readings, *cards], since)


def _fail(name: str, error: Exception) -> None:
    raise SystemExit(f"{name}: {error}")


class Readings:
    """The readings of all nodes, once a round: this machine's system and process metrics."""

    def __init__(self) -> None:
        self._machine, self._process = system.Machine(), process.ProcessState()
        self.system: list[Reading] = []
        self.process: list[Reading] = []

    def again(self) -> None:
        """Read anew."""
        self.system = list(system.readings(self._machine, _fail))
        self.process = list(process.readings(self._process, _fail))


class Sender:
    """One process of a job, as it records and exports; a restart goes on with its series.

    Args:
        who: its resource attributes.
        readings: of the hardware.
        machine: the node whose hardware it reports; None for none.
        seed: of its values.
    """

    def __init__(
        self, who: Mapping[str, AttributeValue], readings: Readings, machine: Machine | None, seed: int
    ) -> None:
        self.resource: dict[str, AttributeValue] = {"service.name": SERVICE, **who}
        self.resource["service.instance.id"] = self.instance = instance_id(self.resource)
        self.machine = machine
        self._readings = readings
        self._chance = random.Random(seed)
        self.begin()

    def begin(self) -> None:
        """Start, or start again: totals begin at 0 and the stream of events is a new one."""
        self._since = time.time_ns()
        self._registry = Registry()
        self._journal = Journal(self._registry)
        self._encoder = MetricsEncoder("otlp", self._registry, pace=_at_once)
        self._step = 0
        self.resource["process.pid"] = self._chance.randrange(2, 2**22)

    def requests(self) -> Iterator[Sent]:
        """Record the values of an interval, and yield the requests of the export at its end."""
        if "dl.rank" in self.resource:
            self._train()
        else:
            self._watch()
        self._registry.export_duration.record(self._chance.lognormvariate(-5, 1), {"destination": "otlp"})
        found = self._registry.collect()
        found += metrics(self._readings.process, self._since)
        if self.machine is not None:
            found += self.machine.metrics(self._readings.system, self._since)
        batch = Batch(found, None, [], self.resource, time.time_ns())
        for request, _ in self._encoder.requests(batch):
            yield "metrics", request
        for logged, _ in log_requests(self._journal.drain(), self.resource, _lose, _at_once):
            yield "logs", logged.SerializeToString()

    def restarted(self) -> None:
        """Count a restart of the ranks, as torchrun's agent does."""
        self._registry.group(TORCHELASTIC).own(RESTARTS).record(1, _ROLE)

    def _train(self) -> None:
        group, chance = self._registry.group("train"), self._chance
        for name in _DURATIONS:
            record = group.declare(name, kind="histogram", unit="s", description=f"{name}.", boundaries=None).bind()
            for _ in range(STEPS):
                record(chance.lognormvariate(-3, 1))
        for name in _PROFILED:
            record = group.function(name).success.record
            for _ in range(STEPS):
                record(chance.lognormvariate(-4, 1))
        for name in _GAUGES:
            group.instrument(name).record(chance.random())
        for name, unit in _COUNTERS.items():
            counter = group.declare(name, kind="counter", unit=unit, description=f"{name}.", boundaries=None)
            counter.record(chance.randrange(1, 1000))
        for _ in range(EVENTS):
            self._step += 1
            point: dict[str, Any] = {"metric": "loss", "group": "train", "x": self._step, "value": chance.random()}
            self._journal.append("tachograph.metric", time.time_ns(), {**point, "branch": 0})

    def _watch(self) -> None:
        group = self._registry.group(TORCHELASTIC)
        for metric in (RENDEZVOUS_DURATION, ASSIGN_DURATION):
            group.own(metric).record(self._chance.random(), _ROLE)
        group.own(WORKERS["remaining_restarts"]).record(3, _ROLE)
        group.own(WORKER_STATUS).record(RANKS, {**_ROLE, "state": "HEALTHY"})
        self._journal.append("torchelastic.worker.status", time.time_ns(), {"state": "HEALTHY"})


def _lose(events: int, why: str) -> None:
    raise SystemExit(f"{events} events cannot be encoded: {why}")


def _at_once() -> None:
    """Do not rest: the generator has its process to itself."""


class Node:
    """Torchrun's agent and the ranks of one node of a job.

    Args:
        run: the job's run id.
        number: the node's in its job.
        host: its name.
        readings: of all nodes.
        seed: of its values.
    """

    def __init__(self, run: str, number: int, host: str, readings: Readings, seed: int) -> None:
        self.run, self.number, self._readings = run, number, readings
        self._chance = random.Random(seed)
        job: dict[str, AttributeValue] = {"dl.run.id": run, "dl.node_rank": number, "host.name": host}
        machine = Machine(host, self._chance)
        self._agent = Sender({**job, "dl.role": "agent"}, readings, None, self._chance.randrange(2**32))
        self._ranks = [
            Sender(
                {**job, "dl.role": "trainer", "dl.rank": number * RANKS + local, "dl.local_rank": local},
                readings,
                None if local else machine,
                self._chance.randrange(2**32),
            )
            for local in range(RANKS)
        ]

    def senders(self) -> list[Sender]:
        """Return its processes."""
        return [self._agent, *self._ranks]

    def restart_ranks(self) -> None:
        """Start the ranks again, as torchrun does when one of the job has ended."""
        self._agent.restarted()
        for rank in self._ranks:
            rank.begin()

    def replace(self, host: str) -> None:
        """Put another machine into its place: the ranks' series go on, those of the agent and the GPUs are new ones."""
        machine = Machine(host, self._chance)
        who = {**self._agent.resource, "host.name": host}
        del who["service.instance.id"]
        self._agent = Sender(who, self._readings, None, self._chance.randrange(2**32))
        for rank in self._ranks:
            rank.resource["host.name"] = host
        self._ranks[0].machine = machine

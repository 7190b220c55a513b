"""The metrics that Tachograph makes by itself: one table, from which the code that records takes them.

Those of the hardware are in the tables of ``tachograph.hardware``; ``docs/metrics.md`` is made from all of them. Names
and units follow the OpenTelemetry semantic conventions ("Metrics semantic conventions", "General guidelines").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from tachograph.recording.naming import Kind
from tachograph.version import __version__

OWN_GROUP = "tachograph"
HARDWARE_GROUP = "tachograph.hardware"
TASK_GROUP = "tachograph.task"  # of the durations of ``@task``, which nothing but us records
TORCHELASTIC = "torchelastic"
TORCH_MONITOR = "torch.monitor"
STEPS = "tachograph.step"
EVERY_GROUP = ""
Reason = Literal[
    "no_number",
    "attribute",
    "negative",
    "nonfinite",
    "overflow",
    "max_samples",
    "throttled",
    "closed",
    "empty",
    "name_conflict",
    "exponential_histogram",
    "not_exportable",
    "encoding",
    "not_installed",
    "queue_full",
    "windows_full",
    "unreachable",
    "rejected",
    "field_type",
    "shutdown",
    "feedback",
    "spool_full",
    "damaged",
    "newer",
    "replay_rate",
    "replay_late",
    "replay_negative",
    "replay_aggregated",
    "cardinality",
    "malformed",
    "no_value",
    "illegal_name",
    "too_large",
    "helper",
]
REASONS: Mapping[Reason, str] = {
    "no_number": "The recorded value is no number: its `__float__` or `item` is missing, or raised.",
    "attribute": "An attribute's own code raised when it was read: the value was recorded without it.",
    "negative": "A negative value would have made a counter go backwards.",
    "nonfinite": "NaN or an infinity came where there is no such number: in InfluxDB's line protocol, in a sum.",
    "overflow": "Values came faster than they could be added up, or those on a device never arrived.",
    "max_samples": "A `Stat` had its `max_samples` before its window ended: torch.monitor's rule.",
    "throttled": "Points of `progress()` in a loop that begins anew more often than is of use.",
    "closed": "A point came after `close()` of its `MetricsLogger`, or after the end of its task.",
    "empty": "A point had no field that could be written.",
    "name_conflict": "A metric has the name of another one of another kind; the later one is left out.",
    "exponential_histogram": "An SDK's exponential histogram: Prometheus' text format has none.",
    "not_exportable": "A metric of an SDK, or of the program's `prometheus_client`, that no text format can hold.",
    "encoding": "It could not be encoded for this destination.",
    "not_installed": "A package is missing that a destination needs: the extra `influxdb`.",
    "queue_full": "More waited than there is room for: the destination is away or too slow.",
    "windows_full": "More windows of Stats have closed between two exports than there is room for; the oldest goes.",
    "unreachable": "The destination did not answer, or asked for patience, until the time for it was up.",
    "rejected": "The destination refused it; the log says what it answered.",
    "field_type": "The field has another type in InfluxDB until its next shard: the rest of the point was written.",
    "shutdown": "The process ended before it was delivered.",
    "feedback": "An event handler logs an event for each that it gets: it does not get the rest, exporters do.",
    "spool_full": "The disk's share for what waits for a destination is used up; the oldest goes.",
    "damaged": "A record of the spool cannot be read, or is gone.",
    "newer": "A later version of Tachograph has written it.",
    "replay_rate": "More values than can be handed on one by one to your own SDK; its histogram lacks them.",
    "replay_late": "Values from before your own SDK's provider was found; its histogram lacks them.",
    "replay_negative": "Negative values, which an SDK's histogram does not take.",
    "replay_aggregated": "Values that came added up, as a `Stat`'s do; your own SDK's histogram lacks them.",
    "cardinality": "There is no room for one more series (in the hub, or of a bridge) or metric name (in a process).",
    "malformed": "A histogram came to the hub whose bounds and counts do not fit each other.",
    "no_value": "A data point came to the hub without a value.",
    "illegal_name": "A name or key came to the hub empty, with a NUL (Prometheus refuses it) or over 1,024 characters.",
    "too_large": "A histogram of more than 1,000 bounds came to the hub, or a resource of more than 64 KiB.",
    "helper": "Recorded in a helper process, such as a data-loader worker, without `TACHOGRAPH_HELPERS=true`.",
}
# The semantic conventions that the names in our scopes follow.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"


class OwnMetric(NamedTuple):
    """A metric with its description.

    Attributes:
        group: its instrumentation scope; empty where it is in the group of its subject.
        unit: UCUM.
        attributes: the keys of its series' attributes.
    """

    group: str
    name: str
    unit: str
    kind: Kind
    description: str
    attributes: tuple[str, ...] = ()


def _ours(name: str, unit: str, kind: Kind, description: str, *attributes: str) -> OwnMetric:
    return OwnMetric(OWN_GROUP, name, unit, kind, description, attributes)


def _step(name: str, unit: str, kind: Kind, description: str, *attributes: str) -> OwnMetric:
    return OwnMetric(STEPS, f"dl.{name}", unit, kind, description, attributes)


def _torchrun(name: str, unit: str, kind: Kind, description: str, *attributes: str) -> OwnMetric:
    return OwnMetric(TORCHELASTIC, f"torchrun.{name}", unit, kind, description, ("role", *attributes))


DROPPED = _ours(
    "tachograph.dropped",
    "{item}",
    "counter",
    "Items that were not recorded or not delivered, by reason.",
    *("reason", "destination"),
)
NONFINITE = _ours("tachograph.nonfinite", "{value}", "counter", "Recorded values that were NaN or infinite.", "metric")
RESENT = _ours(
    "tachograph.resent",
    "{item}",
    "counter",
    "Items that were sent again because an answer was lost: they may have arrived twice. No loss.",
    "destination",
)
ERRORS = _ours("tachograph.errors", "{error}", "counter", "Errors that were kept away from the program.", "where")
EXPORT_DURATION = _ours(
    "tachograph.export.duration", "s", "histogram", "Time that one export took, by destination.", "destination"
)
BRIDGE_REPEATED = _ours(
    "tachograph.bridge.repeated",
    "{value}",
    "counter",
    "Values that two libraries logged, or one and `log()`; each counts once.",
    "library",
)
BRIDGE_NOT_TAKEN = _ours(
    "tachograph.bridge.not_taken",
    "{item}",
    "counter",
    "Items given to a library that make no curve: images, texts, tables; and log records that came too fast.",
    *("library", "kind"),
)

FUNCTION_DURATION = OwnMetric(
    EVERY_GROUP,
    "function.duration",
    "s",
    "histogram",
    "Duration of the calls of a profiled function.",
    ("code.function.name", "outcome"),
)
FUNCTION_CALLS = OwnMetric(
    EVERY_GROUP,
    "function.calls",
    "{call}",
    "counter",
    "Calls of a profiled function, by outcome.",
    ("code.function.name", "outcome", "error.type"),
)
WAIT_DURATION = OwnMetric(
    TORCH_MONITOR, "torch.wait.duration", "s", "histogram", "How long the program waited, by what for.", ("name",)
)
WAIT_CALLS = OwnMetric(
    TORCH_MONITOR, "torch.wait.calls", "{call}", "counter", "Waits that have ended or are under way.", ("name",)
)
WAIT_TIME = OwnMetric(TORCH_MONITOR, "torch.wait.time", "s", "counter", "Time of the waits that have ended.", ("name",))
WAIT_ACTIVE = OwnMetric(TORCH_MONITOR, "torch.wait.active", "{call}", "gauge", "Waits that are under way.", ("name",))

STEP_DURATION = _step("step.duration", "s", "histogram", "Duration of a training step.")
STEP_PHASE_DURATION = _step(
    "step.phase.duration",
    "s",
    "histogram",
    "Time of a step that went into a phase; all phases add up to the step.",
    "dl.step.phase",
)
STEP_COUNT = _step("step.count", "{step}", "counter", "Training steps.")
STEP_SKIPPED = _step("step.skipped", "{step}", "counter", "Optimizer steps that a gradient scaler left out: overflow.")
SAMPLES = _step("samples", "{sample}", "counter", "Samples of training, by the first dimension of the batches.")
TOKENS = _step("tokens", "{token}", "counter", "Tokens of training: elements of `input_ids`, or as `log()` was told.")
CHECKPOINT_DURATION = _step(
    "checkpoint.duration",
    "s",
    "histogram",
    "Duration of a checkpoint: `torch.save` and others, and all files that follow each other without training.",
)
COMPILE_DURATION = _step("compile.duration", "s", "histogram", "Duration of a compilation by `torch.compile`.")
DEVICE_STEP_DURATION = _step(
    "step.device.duration", "s", "histogram", "Duration of a step on the CUDA device; some steps are timed."
)
DEVICE_PHASE_DURATION = _step(
    "step.phase.device.duration",
    "s",
    "histogram",
    "Time of a step on the CUDA device that went into a phase.",
    "dl.step.phase",
)
MEMORY_ALLOCATED = _step("memory.allocated", "By", "gauge", "Memory of CUDA tensors at the end of a step.")
MEMORY_RSS = _step(
    "memory.rss", "By", "gauge", "Resident memory of the rank, and of its children: workers.", "dl.memory.of"
)

# torch.distributed.elastic.agent.server.api, SimpleElasticAgent._record_metrics and _invoke_run, put each of these as
# ``workers.<role>.<name>``.
WORKERS = {
    "run_total": _torchrun("run", "{run}", "counter", "Runs of the worker group that have ended."),
    "run_success_no_retries": _torchrun(
        "run_success_no_retries", "{run}", "counter", "Runs that succeeded without a restart."
    ),
    "run_success_with_retries": _torchrun(
        "run_success_with_retries", "{run}", "counter", "Runs that succeeded after a restart."
    ),
    "run_failed_no_retries": _torchrun(
        "run_failed_no_retries", "{run}", "counter", "Runs that failed without a restart."
    ),
    "run_failed_with_retries": _torchrun(
        "run_failed_with_retries", "{run}", "counter", "Runs that failed in spite of restarts."
    ),
    "flakiness": _torchrun(
        "flakiness", "%", "gauge", "Share of the allowed restarts that was used up; 100 for a run that failed."
    ),
    "remaining_restarts": _torchrun("remaining_restarts", "{restart}", "gauge", "Restarts that are left."),
}
WORKER_GROUP_STATE = _torchrun(
    "state", "", "gauge", "1 for the state that the worker group is in, 0 for those it was in.", "state"
)
RESTARTS = _torchrun(
    "restarts", "{restart}", "counter", "Restarts of the worker group that used up one of --max-restarts."
)
WORKER_STATUS = _torchrun(
    "worker.status", "{event}", "counter", "Workers that were started, or have ended, by how they did.", "state"
)
RENDEZVOUS_DURATION = _torchrun("rendezvous.duration", "s", "histogram", "Duration of torchrun's rendezvous.")
ASSIGN_DURATION = _torchrun(
    "assign_worker_ranks.duration", "s", "histogram", "Duration of torchrun's assign worker ranks."
)
PHASES = {"RENDEZVOUS": RENDEZVOUS_DURATION, "ASSIGN_WORKER_RANKS": ASSIGN_DURATION}

VERDICT = _ours(
    "tachograph.verdict", "", "gauge", "Why a rank trains slowly: 1 for a warning, 2 where it is critical.", "verdict"
)
GOODPUT = _step("goodput", "s", "gauge", "Time of the run by category, from its start to now.", "category")
STRAGGLER = _step(
    "step.straggler", "1", "gauge", "A rank's own time above the median of the others, as a share of the step."
)

PROCESS_LAST_EXPORT = _ours(
    "tachograph.process.last_export", "s", "gauge", "When the process was heard last, in Unix time."
)
PROCESS_LOST = _ours(
    "tachograph.process.lost", "{process}", "counter", "Starts of the process that fell silent without a word."
)
HANGS = _ours(
    "tachograph.hang",
    "",
    "gauge",
    "1 while a job stands still, for each rank that holds it up; 0 after it.",
    *("dl.rank", "cause"),
)
HUB = {
    metric.name: metric
    for metric in (
        _ours("tachograph.hub.points", "", "counter", "Data points that the hub received."),
        _ours("tachograph.hub.points.ahead", "", "counter", "Data points over a minute ahead of the hub's clock."),
        _ours("tachograph.hub.events", "", "counter", "Events that the hub stored."),
        _ours("tachograph.hub.events.repeated", "", "counter", "Events that came again, and were not stored again."),
        _ours("tachograph.hub.events.newer", "", "counter", "Events of a newer schema: stored, and not looked into."),
        _ours("tachograph.hub.events.missing", "", "counter", "Events that never came, by gaps in their numbers."),
        _ours("tachograph.hub.samples.thinned", "", "counter", "Samples that went because a run's file is too large."),
        _ours("tachograph.hub.points.thinned", "", "counter", "Points of gauges that went for the same reason."),
        _ours("tachograph.hub.spans", "", "counter", "Spans that the hub received; it keeps none."),
        _ours("tachograph.hub.failed", "", "counter", "Requests and turns of upkeep that failed in the hub.", "signal"),
        _ours("tachograph.hub.refused", "", "counter", "Requests that the hub refused.", "signal", "status"),
        _ours("tachograph.hub.files.renewed", "", "counter", "Files of runs that were deleted or damaged.", "why"),
        _ours("tachograph.hub.page.omitted", "", "counter", "Lines and series left out of pages: of 256 MiB at most."),
        _ours("tachograph.hub.processes.dismissed", "", "counter", "Ended processes that left the page for new ones."),
        _ours(
            "tachograph.hub.connections.closed",
            "",
            "counter",
            "Connections that the hub closed: silent, slow, deaf to the answer, or too many.",
            "reason",
        ),
    )
}

ALL = (
    *(FUNCTION_DURATION, FUNCTION_CALLS),
    *(DROPPED, RESENT, NONFINITE, ERRORS, EXPORT_DURATION, BRIDGE_REPEATED, BRIDGE_NOT_TAKEN),
    *(RESTARTS, WORKER_STATUS, WORKER_GROUP_STATE, *WORKERS.values(), *PHASES.values()),
    *(WAIT_DURATION, WAIT_CALLS, WAIT_TIME, WAIT_ACTIVE),
    *(STEP_DURATION, STEP_PHASE_DURATION, STEP_COUNT, STEP_SKIPPED, SAMPLES, TOKENS),
    *(CHECKPOINT_DURATION, COMPILE_DURATION, DEVICE_STEP_DURATION, DEVICE_PHASE_DURATION, MEMORY_ALLOCATED, MEMORY_RSS),
    *(GOODPUT, STRAGGLER, VERDICT),
    *(PROCESS_LAST_EXPORT, PROCESS_LOST, HANGS, *HUB.values()),
)


def scope_origin(name: str) -> tuple[str | None, str | None]:
    """Return the version and the schema URL of a scope: ours for ``tachograph`` and below it, None for a user's group.

    They stand in the order in which OpenTelemetry's ``get_meter``, ``get_tracer`` and ``get_logger`` take them.
    Source: OpenTelemetry specification, "Instrumentation Scope" and "Telemetry Schemas".
    """
    ours = name == OWN_GROUP or name.startswith(f"{OWN_GROUP}.")
    return (__version__, SCHEMA_URL) if ours else (None, None)

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
    "no_number": "The value is not a number: it has no `__float__` or `item`, or calling it raised an exception.",
    "attribute": "Reading an attribute raised an exception; the value was recorded without it.",
    "negative": "A negative value of a counter; a counter can only increase.",
    "nonfinite": "NaN or infinity where it cannot be represented: in InfluxDB's line protocol, or in a sum.",
    "overflow": "Values were recorded faster than they could be aggregated, or values on a device never arrived.",
    "max_samples": "A `Stat` reached `max_samples` before its window ended, as in torch.monitor.",
    "throttled": "Points of a `progress()` loop that restarts too often.",
    "closed": "A point was logged after `close()` of its `MetricsLogger`, or after the end of its task.",
    "empty": "A point had no field that could be written.",
    "name_conflict": "A metric has the same name as another one of another kind; the later one is dropped.",
    "exponential_histogram": "An SDK's exponential histogram, which Prometheus' text format does not support.",
    "not_exportable": "A metric of an SDK or of `prometheus_client` that no text format can represent.",
    "encoding": "The item could not be encoded for this destination.",
    "not_installed": "The destination needs a package that is not installed: the extra `influxdb`.",
    "queue_full": "The destination's queue is full, because it is unreachable or too slow.",
    "windows_full": "Too many windows of Stats closed between two exports; the oldest are dropped.",
    "unreachable": "The destination did not answer, or asked to retry later, until the time limit was reached.",
    "rejected": "The destination rejected the item; the log has its answer.",
    "field_type": "The field has another type in InfluxDB until its next shard; the rest of the point was written.",
    "shutdown": "The process ended before the item was exported.",
    "feedback": "An event handler logs an event for each one it receives; only exporters receive the rest.",
    "spool_full": "The disk space for spooled data of a destination is used up; the oldest data is dropped.",
    "damaged": "A record of the spool cannot be read, or was deleted.",
    "newer": "A later version of Tachograph wrote the item.",
    "replay_rate": "More values than can be passed one by one to your own SDK; its histogram lacks them.",
    "replay_late": "Values recorded before your own SDK's provider was found; its histogram lacks them.",
    "replay_negative": "Negative values, which an SDK's histogram does not accept.",
    "replay_aggregated": "Values that were aggregated already, as in a `Stat`; your own SDK's histogram lacks them.",
    "cardinality": "The limit of series (in the hub or of a bridge) or of metric names (in a process) is reached.",
    "malformed": "The hub received a histogram whose bounds and counts do not match.",
    "no_value": "The hub received a data point without a value.",
    "illegal_name": "The hub received a name or key that is empty, has a NUL, or is over 1,024 characters long.",
    "too_large": "The hub received a histogram of more than 1,000 bounds, or a resource of more than 64 KiB.",
    "helper": "Recorded in a helper, such as a data loader worker, which exports only with `TACHOGRAPH_HELPERS=1`.",
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
    "Items that were dropped: not recorded or not exported, by reason.",
    *("reason", "destination"),
)
NONFINITE = _ours("tachograph.nonfinite", "{value}", "counter", "Recorded values that were NaN or infinite.", "metric")
RESENT = _ours(
    "tachograph.resent",
    "{item}",
    "counter",
    "Items that were sent again because an answer was lost. They may have arrived twice; nothing is lost.",
    "destination",
)
ERRORS = _ours(
    "tachograph.errors",
    "{error}",
    "counter",
    "Errors that Tachograph caught instead of raising them into the program.",
    "where",
)
EXPORT_DURATION = _ours(
    "tachograph.export.duration", "s", "histogram", "Duration of an export, by destination.", "destination"
)
BRIDGE_REPEATED = _ours(
    "tachograph.bridge.repeated",
    "{value}",
    "counter",
    "Values logged by two libraries, or by one and `log()`; each is recorded once.",
    "library",
)
BRIDGE_NOT_TAKEN = _ours(
    "tachograph.bridge.not_taken",
    "{item}",
    "counter",
    "Items logged with a library that are not numbers (images, texts, tables), and log records logged too fast.",
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
    TORCH_MONITOR, "torch.wait.duration", "s", "histogram", "Duration of the program's waits, by reason.", ("name",)
)
WAIT_CALLS = OwnMetric(
    TORCH_MONITOR, "torch.wait.calls", "{call}", "counter", "Waits that have ended or are in progress.", ("name",)
)
WAIT_TIME = OwnMetric(
    TORCH_MONITOR, "torch.wait.time", "s", "counter", "Total time of the waits that have ended.", ("name",)
)
WAIT_ACTIVE = OwnMetric(TORCH_MONITOR, "torch.wait.active", "{call}", "gauge", "Waits that are in progress.", ("name",))

STEP_DURATION = _step("step.duration", "s", "histogram", "Duration of a training step.")
STEP_PHASE_DURATION = _step(
    "step.phase.duration",
    "s",
    "histogram",
    "Time of a phase of a step; all phases add up to the step.",
    "dl.step.phase",
)
STEP_COUNT = _step("step.count", "{step}", "counter", "Training steps.")
STEP_SKIPPED = _step(
    "step.skipped", "{step}", "counter", "Optimizer steps that a gradient scaler skipped because of an overflow."
)
SAMPLES = _step("samples", "{sample}", "counter", "Training samples, from the first dimension of the batches.")
TOKENS = _step(
    "tokens", "{token}", "counter", "Training tokens: elements of `input_ids`, or the number logged with `log()`."
)
CHECKPOINT_DURATION = _step(
    "checkpoint.duration",
    "s",
    "histogram",
    "Duration of a checkpoint (`torch.save` and others): all files written without training in between.",
)
COMPILE_DURATION = _step("compile.duration", "s", "histogram", "Duration of a compilation by `torch.compile`.")
DEVICE_STEP_DURATION = _step(
    "step.device.duration", "s", "histogram", "Duration of a step on the CUDA device, for some of the steps."
)
DEVICE_PHASE_DURATION = _step(
    "step.phase.device.duration",
    "s",
    "histogram",
    "Time of a phase of a step on the CUDA device.",
    "dl.step.phase",
)
MEMORY_ALLOCATED = _step("memory.allocated", "By", "gauge", "Memory of CUDA tensors at the end of a step.")
MEMORY_RSS = _step(
    "memory.rss", "By", "gauge", "Resident memory of the rank, and of its child processes (workers).", "dl.memory.of"
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
        "run_failed_with_retries", "{run}", "counter", "Runs that failed despite restarts."
    ),
    "flakiness": _torchrun(
        "flakiness", "%", "gauge", "Share of the allowed restarts that were used; 100 for a failed run."
    ),
    "remaining_restarts": _torchrun("remaining_restarts", "{restart}", "gauge", "Remaining restarts."),
}
WORKER_GROUP_STATE = _torchrun(
    "state", "", "gauge", "1 for the present state of the worker group, 0 for its earlier states.", "state"
)
RESTARTS = _torchrun(
    "restarts", "{restart}", "counter", "Restarts of the worker group that count against --max-restarts."
)
WORKER_STATUS = _torchrun(
    "worker.status", "{event}", "counter", "Workers that were started or have ended, by outcome.", "state"
)
RENDEZVOUS_DURATION = _torchrun("rendezvous.duration", "s", "histogram", "Duration of torchrun's rendezvous.")
ASSIGN_DURATION = _torchrun(
    "assign_worker_ranks.duration", "s", "histogram", "Duration of torchrun's assignment of ranks to workers."
)
PHASES = {"RENDEZVOUS": RENDEZVOUS_DURATION, "ASSIGN_WORKER_RANKS": ASSIGN_DURATION}

VERDICT = _ours(
    "tachograph.verdict", "", "gauge", "Why a rank trains slowly: 1 for a warning, 2 for a critical verdict.", "verdict"
)
GOODPUT = _step("goodput", "s", "gauge", "Time of the run by category, from its start to now.", "category")
STRAGGLER = _step(
    "step.straggler", "1", "gauge", "A rank's own time above the median of the other ranks, as a share of the step."
)

PROCESS_LAST_EXPORT = _ours("tachograph.process.last_export", "s", "gauge", "Unix time of the process's last export.")
PROCESS_LOST = _ours(
    "tachograph.process.lost",
    "{process}",
    "counter",
    "Starts of the process that stopped reporting without a final event.",
)
HANGS = _ours(
    "tachograph.hang",
    "",
    "gauge",
    "1 while the job hangs, for each rank that causes it; 0 afterward.",
    *("dl.rank", "cause"),
)
HUB = {
    metric.name: metric
    for metric in (
        _ours("tachograph.hub.points", "", "counter", "Data points that the hub received."),
        _ours("tachograph.hub.points.ahead", "", "counter", "Data points more than a minute ahead of the hub's clock."),
        _ours("tachograph.hub.events", "", "counter", "Events that the hub stored."),
        _ours("tachograph.hub.events.repeated", "", "counter", "Events that were received again and not stored again."),
        _ours("tachograph.hub.events.newer", "", "counter", "Events of a newer schema: stored, but not interpreted."),
        _ours(
            "tachograph.hub.events.missing",
            "",
            "counter",
            "Events that never arrived, detected by gaps in their numbers.",
        ),
        _ours("tachograph.hub.samples.thinned", "", "counter", "Samples removed because a run's file is too large."),
        _ours("tachograph.hub.points.thinned", "", "counter", "Points of gauges removed for the same reason."),
        _ours("tachograph.hub.spans", "", "counter", "Spans that the hub received; it does not store them."),
        _ours(
            "tachograph.hub.failed", "", "counter", "Requests and maintenance tasks that failed in the hub.", "signal"
        ),
        _ours("tachograph.hub.refused", "", "counter", "Requests that the hub rejected.", "signal", "status"),
        _ours("tachograph.hub.files.renewed", "", "counter", "Files of runs that were deleted or damaged.", "why"),
        _ours(
            "tachograph.hub.page.omitted",
            "",
            "counter",
            "Lines and series omitted from pages, which have at most 256 MiB.",
        ),
        _ours(
            "tachograph.hub.processes.dismissed",
            "",
            "counter",
            "Ended processes removed from the page to make room for new ones.",
        ),
        _ours(
            "tachograph.hub.connections.closed",
            "",
            "counter",
            "Connections that the hub closed: idle, slow, not reading the answer, or too many.",
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

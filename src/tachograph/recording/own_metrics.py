"""Definitions of the metrics that Tachograph records about itself and the training, with names, units and descriptions.

Hardware metrics are defined in ``tachograph.hardware``. ``docs/metrics.md`` is generated from both. Names and units
follow the OpenTelemetry semantic conventions ("Metrics semantic conventions", "General guidelines").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from tachograph.recording.naming import Kind
from tachograph.version import __version__

OWN_GROUP = "tachograph"
HARDWARE_GROUP = "tachograph.hardware"
TASK_GROUP = "tachograph.task"  # durations of ``@task``, which only Tachograph records
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
    "no_number": "The value is not a number: `__float__` or `item()` is missing or raised.",
    "attribute": "Reading an attribute raised an exception; the value was recorded without that attribute.",
    "negative": "Negative value for a counter, which can only go up.",
    "nonfinite": "NaN or infinity where the format has no such number, such as InfluxDB line protocol or a sum.",
    "overflow": "Values arrived faster than they could be aggregated, or a value on a device was never computed.",
    "max_samples": "A `Stat` reached its `max_samples` before the window ended, as torch.monitor defines.",
    "throttled": "Points of `progress()` in a loop that restarts too often.",
    "closed": "Recorded after `close()` of the `MetricsLogger`, or after the end of the task.",
    "empty": "The point has no field that can be written.",
    "name_conflict": "Another metric of a different kind already has this name; only the first one is exported.",
    "exponential_histogram": "Exponential histogram from an SDK, which the Prometheus text format does not support.",
    "not_exportable": "Metric of an SDK, or of the program's `prometheus_client`, that no text format can represent.",
    "encoding": "The item could not be encoded for this destination.",
    "not_installed": "The destination needs a package that is not installed: the extra `influxdb`.",
    "queue_full": "The queue is full because the destination is down or too slow.",
    "windows_full": "More `Stat` windows closed between two exports than fit in memory; the oldest was dropped.",
    "unreachable": "The destination did not respond, or kept asking to retry, until the timeout.",
    "rejected": "The destination rejected the data; its response is in the log.",
    "field_type": "InfluxDB has a different type for this field until its next shard; the other fields were written.",
    "shutdown": "The process exited before delivery.",
    "feedback": "An event handler logs an event for every event it receives. It gets no more; exporters still do.",
    "spool_full": "The spool for this destination reached its size limit; the oldest data was dropped.",
    "damaged": "A record in the spool is unreadable or missing.",
    "newer": "A newer version of Tachograph wrote this record.",
    "replay_rate": "Too many values to pass to your own SDK one by one; they are missing from its histogram.",
    "replay_late": "Recorded before your own SDK's provider was found; missing from its histogram.",
    "replay_negative": "Negative values, which an SDK's histogram does not accept.",
    "replay_aggregated": "Already aggregated values, such as those of a `Stat`; missing from your own SDK's histogram.",
    "cardinality": "Too many series (in the hub or a bridge) or too many metric names (in a process).",
    "malformed": "The hub received a histogram whose bounds and counts do not match.",
    "no_value": "The hub received a data point without a value.",
    "illegal_name": "The hub received a name or key that is empty, contains NUL, or is longer than 1,024 characters.",
    "too_large": "The hub received a histogram with more than 1,000 bounds, or a resource larger than 64 KiB.",
    "helper": "Recorded in a helper process, such as a data loader worker, without `TACHOGRAPH_HELPERS=true`.",
}
# The version of the semantic conventions that the names in our scopes follow.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"


class OwnMetric(NamedTuple):
    """Definition of one metric.

    Attributes:
        group: the instrumentation scope; empty if the metric uses the group of the profiled function.
        unit: in UCUM notation.
        attributes: keys of the attributes that distinguish its series.
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
    "Items that were not recorded or not delivered.",
    *("reason", "destination"),
)
NONFINITE = _ours("tachograph.nonfinite", "{value}", "counter", "Recorded values that were NaN or infinite.", "metric")
RESENT = _ours(
    "tachograph.resent",
    "{item}",
    "counter",
    "Items resent because the response to the first attempt was lost; they may have arrived twice. Not a loss.",
    "destination",
)
ERRORS = _ours("tachograph.errors", "{error}", "counter", "Internal errors of Tachograph that were caught.", "where")
EXPORT_DURATION = _ours("tachograph.export.duration", "s", "histogram", "Duration of one export.", "destination")
BRIDGE_REPEATED = _ours(
    "tachograph.bridge.repeated",
    "{value}",
    "counter",
    "Values logged more than once, by two libraries or by a library and `log()`; recorded once.",
    "library",
)
BRIDGE_NOT_TAKEN = _ours(
    "tachograph.bridge.not_taken",
    "{item}",
    "counter",
    "Items logged with a library that are not recorded: images, texts, tables, and log records above the rate limit.",
    *("library", "kind"),
)

FUNCTION_DURATION = OwnMetric(
    EVERY_GROUP,
    "function.duration",
    "s",
    "histogram",
    "Duration of calls to a profiled function.",
    ("code.function.name", "outcome"),
)
FUNCTION_CALLS = OwnMetric(
    EVERY_GROUP,
    "function.calls",
    "{call}",
    "counter",
    "Calls to a profiled function.",
    ("code.function.name", "outcome", "error.type"),
)
WAIT_DURATION = OwnMetric(TORCH_MONITOR, "torch.wait.duration", "s", "histogram", "Duration of a wait.", ("name",))
WAIT_CALLS = OwnMetric(
    TORCH_MONITOR, "torch.wait.calls", "{call}", "counter", "Waits, finished and in progress.", ("name",)
)
WAIT_TIME = OwnMetric(TORCH_MONITOR, "torch.wait.time", "s", "counter", "Total time of finished waits.", ("name",))
WAIT_ACTIVE = OwnMetric(TORCH_MONITOR, "torch.wait.active", "{call}", "gauge", "Waits in progress.", ("name",))

STEP_DURATION = _step("step.duration", "s", "histogram", "Duration of a training step.")
STEP_PHASE_DURATION = _step(
    "step.phase.duration",
    "s",
    "histogram",
    "Time of a step spent in one phase; the phases add up to the step.",
    "dl.step.phase",
)
STEP_COUNT = _step("step.count", "{step}", "counter", "Training steps.")
STEP_SKIPPED = _step("step.skipped", "{step}", "counter", "Optimizer steps that a gradient scaler skipped (overflow).")
SAMPLES = _step("samples", "{sample}", "counter", "Training samples, from the first dimension of the batches.")
TOKENS = _step("tokens", "{token}", "counter", "Training tokens: elements of `input_ids`, or as passed to `log()`.")
CHECKPOINT_DURATION = _step(
    "checkpoint.duration",
    "s",
    "histogram",
    "Duration of a checkpoint (`torch.save` and others); files saved without a step in between count as one.",
)
COMPILE_DURATION = _step("compile.duration", "s", "histogram", "Duration of a compilation by `torch.compile`.")
DEVICE_STEP_DURATION = _step(
    "step.device.duration", "s", "histogram", "Duration of a step on the CUDA device; only some steps are timed."
)
DEVICE_PHASE_DURATION = _step(
    "step.phase.device.duration",
    "s",
    "histogram",
    "Time of a step on the CUDA device spent in one phase.",
    "dl.step.phase",
)
MEMORY_ALLOCATED = _step("memory.allocated", "By", "gauge", "Memory allocated by CUDA tensors at the end of a step.")
MEMORY_RSS = _step(
    "memory.rss", "By", "gauge", "Resident memory of the rank, and of its child processes (workers).", "dl.memory.of"
)

# torch.distributed.elastic.agent.server.api, SimpleElasticAgent._record_metrics and _invoke_run, put each of these as
# ``workers.<role>.<name>``.
WORKERS = {
    "run_total": _torchrun("run", "{run}", "counter", "Finished runs of the worker group."),
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
        "run_failed_with_retries", "{run}", "counter", "Runs that failed after all restarts."
    ),
    "flakiness": _torchrun(
        "flakiness", "%", "gauge", "Percentage of the allowed restarts that were used; 100 for a failed run."
    ),
    "remaining_restarts": _torchrun("remaining_restarts", "{restart}", "gauge", "Remaining restarts."),
}
WORKER_GROUP_STATE = _torchrun(
    "state", "", "gauge", "1 for the current state of the worker group, 0 for its earlier states.", "state"
)
RESTARTS = _torchrun(
    "restarts", "{restart}", "counter", "Restarts of the worker group that count toward --max-restarts."
)
WORKER_STATUS = _torchrun("worker.status", "{event}", "counter", "Worker starts and exits, by state.", "state")
RENDEZVOUS_DURATION = _torchrun("rendezvous.duration", "s", "histogram", "Duration of a rendezvous of torchrun.")
ASSIGN_DURATION = _torchrun(
    "assign_worker_ranks.duration", "s", "histogram", "Time in which torchrun assigned the worker ranks."
)
PHASES = {"RENDEZVOUS": RENDEZVOUS_DURATION, "ASSIGN_WORKER_RANKS": ASSIGN_DURATION}

VERDICT = _ours(
    "tachograph.verdict", "", "gauge", "Why a rank trains slowly: 1 is a warning, 2 is critical.", "verdict"
)
GOODPUT = _step("goodput", "s", "gauge", "Time since the start of the run, split into categories.", "category")
STRAGGLER = _step(
    "step.straggler",
    "1",
    "gauge",
    "By how much a rank's own time exceeds the median of the others, as a fraction of the step.",
)

PROCESS_LAST_EXPORT = _ours(
    "tachograph.process.last_export", "s", "gauge", "Unix time of the last export that arrived from the process."
)
PROCESS_LOST = _ours(
    "tachograph.process.lost", "{process}", "counter", "Times the process disappeared without an end event."
)
HANGS = _ours(
    "tachograph.hang",
    "",
    "gauge",
    "1 for each rank that blocks the job during a hang; 0 afterward.",
    *("dl.rank", "cause"),
)
HUB = {
    metric.name: metric
    for metric in (
        _ours("tachograph.hub.points", "", "counter", "Data points that the hub received."),
        _ours("tachograph.hub.points.ahead", "", "counter", "Data points more than a minute ahead of the hub's clock."),
        _ours("tachograph.hub.events", "", "counter", "Events that the hub stored."),
        _ours("tachograph.hub.events.repeated", "", "counter", "Duplicate events, which were not stored again."),
        _ours("tachograph.hub.events.newer", "", "counter", "Events with a newer schema: stored, not interpreted."),
        _ours("tachograph.hub.events.missing", "", "counter", "Events that never arrived, from gaps in numbering."),
        _ours(
            "tachograph.hub.samples.thinned", "", "counter", "Samples deleted to keep a run's file within its limit."
        ),
        _ours("tachograph.hub.points.thinned", "", "counter", "Points of gauges deleted for the same reason."),
        _ours("tachograph.hub.spans", "", "counter", "Spans that the hub received; they are not stored."),
        _ours("tachograph.hub.failed", "", "counter", "Requests and maintenance cycles that failed.", "signal"),
        _ours("tachograph.hub.refused", "", "counter", "Requests that the hub rejected.", "signal", "status"),
        _ours("tachograph.hub.page.omitted", "", "counter", "Lines and series omitted from pages over 256 MiB."),
        _ours("tachograph.hub.processes.dismissed", "", "counter", "Finished processes removed from the page."),
        _ours(
            "tachograph.hub.connections.closed",
            "",
            "counter",
            "Connections that the hub closed: idle, too slow, not reading the response, or too many.",
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
    """Return the version and the schema URL of a scope: both are None for a user's group.

    The order is that of the arguments of OpenTelemetry's ``get_meter``, ``get_tracer`` and ``get_logger``.
    Source: OpenTelemetry specification, "Instrumentation Scope" and "Telemetry Schemas".
    """
    ours = name == OWN_GROUP or name.startswith(f"{OWN_GROUP}.")
    return (__version__, SCHEMA_URL) if ours else (None, None)

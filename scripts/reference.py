"""Write docs/metrics.md, the reference of all metrics that Tachograph records by itself.

Run ``python scripts/reference.py``. The page is generated from the same tables that the code uses to record.
"""
# ruff: noqa: INP001 - a script

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tachograph.hardware import _cuda_memory as cuda_memory
from tachograph.hardware import _filesystem as filesystem
from tachograph.hardware import _gpu as gpu
from tachograph.hardware import _process as process
from tachograph.hardware import _system as system
from tachograph.recording import own_metrics
from tachograph.recording.naming import Kind, prometheus_name

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"

_HEAD = """# Metrics

This page lists all metrics that Tachograph records by itself. It also explains why data can be dropped, how your own
metrics are named, and how precise quantiles are.

On `/metrics` and behind a collector, every series also has the labels `dl_rank`, `dl_role`, `dl_run_id` and
`otel_scope_name` (the group). All other facts about a process are in `target_info`. Units are in UCUM notation.

<!-- Made by `python scripts/reference.py`; do not edit it here. -->
"""

_TAIL = """## Across ranks, on a hub's page

A hub adds these metrics for each duration histogram `X` that has the label `dl_rank`:

| metric | kind | description |
|---|---|---|
| `X_by_rank` | gauge | the means of the ranks: `aggregation` is `min`, `median` or `max` over all ranks |
| `X_by_rank_p50`, `X_by_rank_p99` | gauge | the same for the median and the 99th percentile of each rank |
| `X_slowest_rank` | gauge | the rank with the longest mean |

They cover the last 10 to 20 seconds. The quantiles come from the exponential histograms that ranks send to the hub. The
error is at most 1.1 % if a rank's largest value is up to a thousand times its smallest, and 2.2 % up to a million
times. Quantiles never lie outside the smallest and largest value.

## Names of your own metrics

| you record | metric |
|---|---|
| `put_metric("loss", …)` | gauge `loss` |
| `put_metric("step.duration.ms", …)`, `load_ms` | histogram `step.duration` / `load` in `ms` |
| `fetch_seconds`, `fetch.latency` | histogram `fetch` in `s`, `fetch.latency` without a unit |
| `sent_bytes` | gauge `sent` in `By` |
| `checkpoint.success`, `checkpoint.failure` | counters |
| `declare("tokens", kind="counter", unit="{token}")` | as declared |
| `Stat("load", [MEAN], …)` | gauges `load.mean`, `load.window.count`, `.window.sum`, `.window.end`; histogram `load` |
| `MetricsLogger(prefix="p_").log("m", …, {"f": 1.0})` | gauge `p_m.f` |
| `Metric("loss", group="g")` | gauge `loss` in the group `g` |
| `progress(…, "epochs")` | gauges `epochs`, `epochs.total`, `epochs.rate`, `epochs.eta` |

## Windows of a Stat

The gauges of a `Stat` show the last window that had values, even after the `Stat` is gone. `<stat>.window.end` is the
Unix time in seconds at which that window ended. `/metrics`, `console` and your own meter provider show only this
window.

OTLP (HTTP, gRPC, and to the hub), JSON lines, and OpenTelemetry `MetricExporter` objects passed to `start()` get all
windows. Each closed window that has values is one point of each gauge, sent once and in order, starting when the
destination was added. The point's start and time are those of the window:

- Windows start and end at multiples of the window size. The first window of a `Stat` starts when the `Stat` is created.
- A window closed by `max_samples` ends at that moment. The next one starts at the next multiple.
- A window closed by the end of the `Stat` or of the process ends at that moment.
- A window of the real `torch.monitor` ends at the time of its event and starts where the previous one ended.

Details:

- If no window has closed since the last export, the last value is repeated with the export's time and without a start,
  so that the series does not become stale.
- Points of one series are at least a millisecond apart, because Prometheus rejects a request with two values in the
  same millisecond. If several `Stat` objects with the same name close together, or a window closes late, the later
  point gets a slightly later time.
- Up to 65,536 windows per name, and 98,304 in total, can wait for the slowest destination. After that, each new window
  of a `Stat` replaces its oldest one, which is counted once per destination with the reason `windows_full`.

## Quantiles

How precise a quantile is depends on the buckets from which it is computed:

- **Prometheus**, with `histogram_quantile` over `/metrics` or the hub's page: explicit buckets, by default 2 or 2.5
  times apart from 1 ms to 10 s, and further apart above. The error is up to the width of a bucket. For example, if all
  values are 10.4 ms, the p50 is 17.5 ms.
- **The Studio, `top` and `runs`**, which read a run's file: base-2 exponential buckets for each interval, up to 324 per
  sign. The error is 2.2 % if the interval's maximum is at most 2²⁰ times its minimum, 4.4 % up to 2⁴⁰ times, and so on.
- **Other OTLP destinations** with
  `OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION=base2_exponential_bucket_histogram`: up to 160 buckets per
  sign. The error is 4.4 % up to nearly 2²⁰ times. Cumulative histograms cover the whole run, so the widest range of the
  run counts.

The default of this OpenTelemetry variable is `explicit_bucket_histogram`. It does not affect the hub, which gets both
kinds of buckets, or `/metrics`, which always has explicit ones. The histogram of a `Stat` always has explicit buckets,
because its windows contain no individual values. Values recorded before `start()` count as the middle of their explicit
bucket. Instruments of other libraries use the aggregation of their provider.

See also: [Prometheus](prometheus.md) · [runbook](runbook.md) · [settings](settings.md)
"""

_PARTS = (
    ("Profiled functions", {own_metrics.EVERY_GROUP}),
    ("Training steps", {own_metrics.STEPS}),
    ("torchrun", {own_metrics.TORCHELASTIC}),
    ("torch.monitor", {own_metrics.TORCH_MONITOR}),
    ("Tachograph and its hub", {own_metrics.OWN_GROUP}),
)
_TABLES = (
    ("The machine", (system.TABLE, filesystem.TABLE)),
    ("GPUs", (gpu.TABLE,)),
    ("Processes", (process.TABLE, cuda_memory.TABLE)),
)


def page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for title, groups in _PARTS:
        rows = [metric for metric in own_metrics.ALL if metric.group in groups]
        parts.append(f"## {title}\n\n" + _table(_line(*row[1:5], row.attributes) for row in rows))
    parts.append("## Why something was dropped\n\n" + _reasons())
    for title, tables in _TABLES:
        parts.append(f"## {title}\n\n" + _table(_of_tables(tables)))
    return "\n".join([*parts, _TAIL])


def _reasons() -> str:
    introduction = "Values of the label `reason` of `tachograph_dropped_total`. The log shows the first of each.\n\n"
    rows = "".join(f"| `{reason}` | {meaning} |\n" for reason, meaning in own_metrics.REASONS.items())
    return introduction + "| reason | meaning |\n|---|---|\n" + rows


def _of_tables(tables: Iterable[Iterable[object]]) -> Iterator[str]:
    listed: set[str] = set()
    for table in tables:
        for row in table:
            name, unit, kind, description = row.name, row.unit, row.kind, row.description  # type: ignore[attr-defined]
            if name not in listed:  # rows with the same name differ only in their attributes
                listed.add(name)
                yield _line(name, unit, kind, description, ())


def _table(lines: Iterable[str]) -> str:
    return "| metric | in Prometheus | kind | unit | description |\n|---|---|---|---|---|\n" + "".join(lines)


def _line(name: str, unit: str, kind: Kind, description: str, attributes: Iterable[str]) -> str:
    labels = ", ".join(f"`{key}`" for key in attributes)
    text = description.rstrip(".") + (f"; by {labels}" if labels else "")
    return f"| `{name}` | `{prometheus_name(name, unit, kind)}` | {kind} | {f'`{unit}`' if unit else ''} | {text} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}: written\n")

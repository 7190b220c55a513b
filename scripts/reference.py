"""Write docs/metrics.md, the reference of every metric that Tachograph makes by itself.

``python scripts/reference.py``: it is made from the tables that the code records with, so that it says what is there.
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

Every metric that Tachograph makes by itself; this page is made from the code by `python scripts/reference.py`. Metrics
of your own have the names that you give them; the rule is at the [end](#names-of-your-own-metrics).

On `/metrics` and behind a collector every series also carries `dl_rank`, `dl_role`, `dl_run_id` and `otel_scope_name`
(the group); everything else about a process is in `target_info`. Units are UCUM.
"""

_TAIL = """## Across ranks, on a hub's page

For each histogram of a duration `X` with the label `dl_rank`:

| metric | kind | what |
|---|---|---|
| `X_by_rank` | gauge | the mean of each rank, across ranks: `aggregation` is `min`, `median` or `max` |
| `X_by_rank_p50`, `X_by_rank_p99` | gauge | the median and the 99th percentile of each rank, across ranks, alike |
| `X_slowest_rank` | gauge | the rank with the longest mean |

They tell of the last 10 to 20 seconds. The quantiles come from the exponential histograms that ranks send to a hub:
within 1.1 % where the greatest value of a rank is at most a thousand times the least, within 2.2 % up to a million
times, and never outside of these two.

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

A gauge shows the last window that had values, also when the `Stat` is gone. `<stat>.window.end` is the Unix time, in
seconds, at which that window ended.

Over OTLP (HTTP, gRPC, to the hub), in JSON lines and for every OpenTelemetry `MetricExporter` that you give to
`start()`, each closed window that has values is one point of each gauge, once, in order, from when the destination was
there. Its start and its time are those of the window: multiples of the window's size. The first window of a `Stat`
begins with the `Stat`. One that `max_samples` closes ends at that moment, and the next one begins at the next multiple.
One that the end of the `Stat` or of the process closes ends at that moment, too. A window of the real `torch.monitor`
ends at the time of its event, and begins where the one before it ended.

- In an export before which no window has closed, the last value comes again, with the export's time and without a
  start, so that the series does not go stale.
- Points of one series are at least a millisecond apart. If Stats of one name close together, or a window closes
  late, the later point's time is moved by that much: Prometheus refuses a request with two values in one millisecond.
- 65,536 windows of a name may wait for the slowest destination, and 98,304 in all. Beyond that the oldest of the `Stat`
  that adds one goes, which is counted once a window and destination, with the reason `windows_full`.

`/metrics`, `console`, and a meter provider of your own show the last window alone.

## Quantiles

A distribution has two kinds of buckets, and a quantile the error of those that it is taken from:

- `histogram_quantile` over `/metrics` or the hub's page: the boundaries, by default 2 or 2.5 times apart from 1 ms to
  10 s and further apart beyond. The error is the width of a bucket: of values that are all 10.4 ms the p50 is 17.5
  ms.
- The page, `top` and `runs`, from a run's file on our own hub: base-2 exponential buckets of each interval, up to 324
  a side. The error is 2.2 % while the interval's maximum is at most 2²⁰ times its minimum, 4.4 % up to 2⁴⁰ times, and
  so on.
- OTLP elsewhere with `OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION=base2_exponential_bucket_histogram`:
  up to 160 a side. The error is 4.4 % up to nearly 2²⁰ times; cumulative ones are of the whole run, with its worst
  value.

The variable is OpenTelemetry's, and `explicit_bucket_histogram` its default; our own hub gets both kinds whatever it
says, and `/metrics` keeps the boundaries. A `Stat`'s histogram keeps them, too: its windows hold no single values.
Values that were added up before `start()` are in the middle of their explicit bucket. Instruments of other libraries
keep the aggregation of their provider.

On: [Prometheus](prometheus.md) · [runbook](runbook.md) · [settings](settings.md)
"""

_PARTS = (
    ("Functions: `@prof`, `--prof`, and torchelastic's own", {own_metrics.EVERY_GROUP}),
    ("Training steps", {own_metrics.STEPS}),
    ("torchrun", {own_metrics.TORCHELASTIC}),
    ("torch.monitor", {own_metrics.TORCH_MONITOR}),
    ("Tachograph itself, and its hub", {own_metrics.OWN_GROUP}),
)
_TABLES = (
    ("The machine", (system.TABLE, filesystem.TABLE)),
    ("GPUs", (gpu.TABLE,)),
    ("Each process", (process.TABLE, cuda_memory.TABLE)),
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
    said = "The values of `reason` on `tachograph_dropped_total`; the log says the first of each kind.\n\n"
    rows = "".join(f"| `{reason}` | {what} |\n" for reason, what in own_metrics.REASONS.items())
    return said + "| reason | what |\n|---|---|\n" + rows


def _of_tables(tables: Iterable[Iterable[object]]) -> Iterator[str]:
    told: set[str] = set()
    for table in tables:
        for row in table:
            name, unit, kind, description = row.name, row.unit, row.kind, row.description  # type: ignore[attr-defined]
            if name not in told:  # two rows of a name differ in their attributes
                told.add(name)
                yield _line(name, unit, kind, description, ())


def _table(lines: Iterable[str]) -> str:
    return "| metric | in Prometheus | kind | unit | what |\n|---|---|---|---|---|\n" + "".join(lines)


def _line(name: str, unit: str, kind: Kind, description: str, attributes: Iterable[str]) -> str:
    labels = ", ".join(f"`{key}`" for key in attributes)
    said = description.rstrip(".") + (f"; by {labels}" if labels else "")
    return f"| `{name}` | `{prometheus_name(name, unit, kind)}` | {kind} | {f'`{unit}`' if unit else ''} | {said} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}: written\n")

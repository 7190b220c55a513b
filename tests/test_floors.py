"""The floors of the design: imports only ever go down, and what is on one floor imports in no circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "tachograph"

FLOORS = {
    # 0: numbers and names
    "accumulators": 0,
    "closed_windows": 0,
    "interrupts": 0,
    "last_value": 0,
    "log_lines": 0,
    "losses": 0,
    "naming": 0,
    "own_metrics": 0,
    "scope": 0,
    "sample": 0,
    "spread": 0,
    "switch": 0,
    "tally": 0,
    "pace": 0,
    "values": 0,
    "version": 0,
    "command_line": 0,
    "standard_streams": 0,
    # 1: the registry
    "function_calls": 1,
    "journal": 1,
    "influx_target": 1,
    "point": 1,
    "instrument": 1,
    "points": 1,
    "registry": 1,
    # 2: the front doors
    "declaration": 2,
    "elastic": 2,
    "elastic.api": 2,
    "elastic.handlers": 2,
    "elastic.stream": 2,
    "aggregation": 2,
    "event": 2,
    "event_log": 2,
    "logger.fields": 2,
    "logger.delivery": 2,
    "logger.identity": 2,
    "logger": 2,
    "logger.arguments": 2,
    "logger.shape": 2,
    "logger.readings": 2,
    "logger.census": 2,
    "monitor": 2,
    "small_window": 2,
    "stat": 2,
    "stat_series": 2,
    "wait_counter": 2,
    "windows": 2,
    "stat_window": 2,
    "trace_context": 2,
    "probe": 2,
    "profiled": 2,
    "profiling": 2,
    "tracing": 2,
    "arriving": 2,
    "chart": 2,
    "curve": 2,
    "definition": 2,
    "executed": 2,
    "execution": 2,
    "loop": 2,
    "metric": 2,
    "nowhere": 2,
    "progress_bar": 2,
    "progress_loop": 2,
    "throttle": 2,
    "under_way": 2,
    "hardware": 2,
    "hardware.cuda_memory": 2,
    "hardware.filesystem": 2,
    "hardware.gpu": 2,
    "hardware.observation": 2,
    "hardware.process": 2,
    "hardware.row": 2,
    "hardware.sampler": 2,
    "hardware.system": 2,
    "hardware.nvml": 2,
    "hardware.snapshot": 2,
    "hardware.visible": 2,
    # 3: readers and exporters
    "identity": 3,
    "identity.announced": 3,
    "otlp": 3,
    "prometheus": 3,
    "append_file": 3,
    "batch": 3,
    "console": 3,
    "deltas": 3,
    "identity.detectors": 3,
    "environment": 3,
    "fed_readers": 3,
    "exporter_queue": 3,
    "foreign": 3,
    "handler_exporter": 3,
    "joined": 3,
    "log_emitter": 3,
    "jsonl": 3,
    "otlp.exporter": 3,
    "otlp.encoding": 3,
    "otlp.grpc": 3,
    "otlp.http": 3,
    "otlp.json": 3,
    "otlp.logs": 3,
    "otlp.points": 3,
    "otlp.sdk": 3,
    "otlp.settings": 3,
    "otlp.spans": 3,
    "otlp.values": 3,
    "otel_exporters": 3,
    "outbox": 3,
    "influxdb": 3,
    "proxies": 3,
    "influxdb.backlog": 3,
    "influxdb.courier": 3,
    "influxdb.crew": 3,
    "influxdb.delivery": 3,
    "influxdb.disk": 3,
    "influxdb.exporter": 3,
    "influxdb.kept": 3,
    "influxdb.line": 3,
    "influxdb.losses": 3,
    "influxdb.parcel": 3,
    "influxdb.patience": 3,
    "influxdb.position": 3,
    "influxdb.sdk": 3,
    "influxdb.secret": 3,
    "influxdb.server": 3,
    "influxdb.spool": 3,
    "influxdb.spooled": 3,
    "influxdb.spooling": 3,
    "producer": 3,
    "identity.program": 3,
    "prometheus.client": 3,
    "prometheus.collector": 3,
    "prometheus.conflicts": 3,
    "prometheus.endpoint": 3,
    "prometheus.external": 3,
    "prometheus.family": 3,
    "prometheus.format": 3,
    "prometheus.page": 3,
    "prometheus.sdk": 3,
    "prometheus.sheet": 3,
    "prometheus.target": 3,
    "prometheus.text": 3,
    "providers": 3,
    "identity.rank": 3,
    "reader_seam": 3,
    "reader_views": 3,
    "reader_feed": 3,
    "replay": 3,
    "identity.resource": 3,
    "identity.run_id": 3,
    "identity.start_marks": 3,
    "sigterm": 3,
    "spans": 3,
    "spool_limit": 3,
    "stat_events": 3,
    "tensorboard": 3,
    "closed_window_reader": 3,
    "windowed_reader": 3,
    # 4: start() and shutdown()
    "ambient": 4,
    "guest": 4,
    "destinations": 4,
    "event_feed": 4,
    "pipeline": 4,
    "settings": 4,
    "point_routes": 4,
    "routes": 4,
    "ticker": 4,
    "own_process": 4,
    "process_ends": 4,
    "provider_watch": 4,
    "starting": 4,
    "testing": 4,
    "unheard": 4,
    # 5: the outside
    "__main__": 5,
    "checking": 5,
    "checking.command": 5,
    "checking.probes": 5,
    "checking.remedies": 5,
    "cli": 5,
    "dashboards": 5,
    "dashboards.charts": 5,
    "dashboards.command": 5,
    "dashboards.panel": 5,
    "dashboards.promql": 5,
    "dashboards.provisioning": 5,
    "dashboards.run_dashboard": 5,
    "dashboards.units": 5,
    "hub": 5,
    "hub.store": 5,
    "hub.series": 5,
    "hub.schema": 5,
    "hub.rows": 5,
    "hub.room": 5,
    "hub.run": 5,
    "hub.processes": 5,
    "hub.overlapping": 5,
    "hub.page": 5,
    "hub.numbers": 5,
    "hub.open_stores": 5,
    "hub.recent": 5,
    "hub.samples": 5,
    "hub.node": 5,
    "hub.lanes": 5,
    "hub.hub": 5,
    "hub.history": 5,
    "hub.events": 5,
    "hub.covered": 5,
    "hub.census": 5,
    "hub.claim": 5,
    "hub.by_rank": 5,
    "hub.archive": 5,
    "hub.arrived": 5,
    "hub.blocks": 5,
    "hub.points": 5,
    "hub.buckets": 5,
    "hub.announcement": 5,
    "hub.body": 5,
    "hub.command": 5,
    "hub.connections": 5,
    "hub.decoding": 5,
    "hub.descriptors": 5,
    "hub.discovery": 5,
    "hub.forwarding": 5,
    "hub.guard": 5,
    "hub.lifetime": 5,
    "hub.receiver": 5,
    "hub.server": 5,
    "instrumentation": 5,
    "instrumentation.bridge": 5,
    "instrumentation.bridged_stats": 5,
    "identity.import_hooks": 3,
    "instrumentation.given_providers": 5,
    "instrumentation.logs_specs": 5,
    "instrumentation.main_module": 5,
    "instrumentation.own": 5,
    "instrumentation.profiles": 5,
    "instrumentation.torch_monitor": 5,
    "instrumentation.torchelastic": 5,
    "instrumentation.torchelastic_events": 5,
    "instrumentation.torchelastic_metrics": 5,
    "instrumentation.torchrun_series": 5,
    "instrumentation.wait_counters": 5,
    "launching": 5,
    "launching.bootstrap.sitecustomize": 5,
    "launching.distro": 5,
    "launching.hub_process": 5,
    "launching.job": 5,
    "launching.options": 5,
    "launching.run": 5,
    "launching.surroundings": 5,
    "launching.witness": 5,
    "launching.zero_code": 5,
    "replaying": 5,
    "replaying.command": 5,
    "replaying.losses": 5,
    "replaying.recording": 5,
    "runs": 5,
    "runs.catalogue": 5,
    "runs.command": 5,
    "runs.export": 5,
    "runs.export_command": 5,
    "runs.file": 5,
    "runs.listing": 5,
    "runs.recorded": 5,
    "runs.run": 5,
    "runs.table": 5,
    "runs.thinning": 5,
    "runs.intervals": 5,
    "runs.look": 5,
    "runs.members": 5,
    "runs.window": 5,
    "studio": 5,
    "studio.answer": 5,
    "studio.stream": 5,
    "studio.live": 5,
    "studio.news": 5,
    "studio.arrivals": 5,
    "studio.api": 5,
    "studio.charts": 5,
    "studio.functions": 5,
    "studio.lines": 5,
    "studio.loops": 5,
    "studio.occurrences": 5,
    "studio.overview": 5,
    "studio.pages": 5,
    "studio.question": 5,
    "studio.series": 5,
    "studio.studio": 5,
    "top": 5,
    "top.asking": 5,
    "top.bars": 5,
    "top.command": 5,
    "top.keys": 5,
    "top.legible": 5,
    "top.picture": 5,
    "top.screen": 5,
    "top.section": 5,
    "top.sections": 5,
    "top.served": 5,
    "top.sheet": 5,
    "top.source": 5,
    "top.sparkline": 5,
    "top.stored": 5,
    "top.tail": 5,
    # What users type: it names modules of every floor, and loads each at its first use.
    "": 9,
}


def modules() -> dict[str, Path]:
    """Return every module of the package by its name below ``tachograph``."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").strip("."): path
        for path in PACKAGE.rglob("*.py")
    }


MODULES = modules()


def imported(module: str) -> set[str]:
    """Return the modules of the package that a module imports anywhere in its code."""
    tree = ast.parse(MODULES[module].read_text())
    found = {_home(name) for node in ast.walk(tree) for name in _names(node)}
    return {other for other in found if other is not None} - {module}


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _home(name: str) -> str | None:
    """Return the module behind a dotted name, which may be that of something in it."""
    package, _, inner = name.partition(".")
    if package != "tachograph":
        return None
    while inner and inner not in MODULES:
        inner = inner.rpartition(".")[0]
    return inner


def test_every_module_has_a_floor() -> None:
    """The table names exactly the modules that there are."""
    assert sorted(FLOORS) == sorted(MODULES)


def test_imports_only_go_down() -> None:
    """No module imports one of a higher floor, in a function neither."""
    up = [f"{module} -> {other}" for module in MODULES for other in imported(module) if FLOORS[other] > FLOORS[module]]
    assert up == []


def test_no_floor_imports_in_a_circle() -> None:
    """The modules can be put into an order in which each imports only what comes before it."""
    TopologicalSorter({module: imported(module) for module in MODULES}).prepare()


def test_imports_are_absolute() -> None:
    """Every import names the package, so that the tests above see it."""
    relative = [
        module
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []

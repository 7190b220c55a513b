"""Settings of a pipeline: keyword arguments of ``start()`` over ``OTEL_*`` variables over ``TACHOGRAPH_*`` ones."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

from tachograph.exporters.otel_exporters import EntryPointExporter, installed, is_reader, signals_of
from tachograph.exporters.otlp.settings import SIGNALS, OtlpSettings, Signal, endpoint_variables, read_otlp_settings
from tachograph.exporters.spool import spool_limit_of
from tachograph.identity import resource as who
from tachograph.identity.environment import JOB_HUB, Setting, setting, system_text, text
from tachograph.identity.extra import install_command
from tachograph.logger.influx_target import InfluxTarget
from tachograph.recording.points import Attributes, AttributeValue, attributes_key

GROUP = "tachograph.exporters"
PROMETHEUS_HOST = "127.0.0.1"
PROMETHEUS_PORT = 9464
INTERVAL = 60.0
HUB_INTERVAL = 1.0
EXEMPLAR_FILTER = "OTEL_METRICS_EXEMPLAR_FILTER"

_BUILT_IN: dict[Signal, tuple[str, ...]] = {
    "metrics": ("otlp", "prometheus", "console", "jsonl", "none"),
    "traces": ("otlp", "console", "jsonl", "none"),
    "logs": ("otlp", "console", "jsonl", "influxdb", "tensorboard", "none"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a pipeline, already read; equal for equal input in one process.

    Args:
        disabled: nothing is recorded and nothing leaves; there are no exporters then.
        metrics: names of exporters, those of OpenTelemetry's entry points, and exporters themselves; empty where
            metrics are not exported.
        traces: the same as ``metrics``, for spans.
        logs: the same for log records.
        otlp: how each signal leaves for which ``otlp`` was named.
        interval: seconds between two exports of metrics.
        service_name: the service's name.
        run_id: the run's id.
        resource: further resource attributes, sorted.
        resource_labels: keys of the resource attributes that each Prometheus series has as labels.
        prometheus_host: the address that ``/metrics`` is served on.
        prometheus_port: its port, where it is free; 0 for any.
        store: the folder for files that outlive the process.
        jsonl: the JSON-lines file that was asked for; see :meth:`jsonl_path`.
        influx: the InfluxDB that ``influxdb`` stands for, where it was named.
        spool_limit: bytes that may wait on the disk for each destination; None where nothing says so, see
            :func:`tachograph.exporters.spool.spool_limit_of`.
        system_metrics: metrics of the hardware are exported, too: :func:`tachograph.hardware.observe`.
        set_global: make the global providers of OpenTelemetry where the program has none.
        join: deliver into the program's own providers.
        prometheus_registry: ``/metrics`` shows the program's metrics in prometheus_client, too.
        curves: where the points of curves go that are not events anyway: ``hub``, to our own hub alone, or ``all``.
        doctor: pulses for the hang doctor go to our own hub (``true``), everywhere (``all``), or there are none
            (``false``).
        named_logs: exporters of logs were chosen, rather than implied by an endpoint: they get the records of the
            program's own logging, too.
        own_hub: OTLP goes to the hub of the ``tachograph run`` around it.
        job_hub: the URL of that hub if it gets everything in addition to the destinations above; else empty.
        hub: the process was asked to have a hub of its own.
        tags: of the run; no setting of a pipeline, so that they do not make two of them differ.
        notes: of the run, the same.
    """

    disabled: bool
    metrics: tuple[object, ...]
    traces: tuple[object, ...]
    logs: tuple[object, ...]
    otlp: tuple[OtlpSettings, ...]
    interval: float
    service_name: str
    run_id: str
    resource: Attributes
    resource_labels: tuple[str, ...]
    prometheus_host: str
    prometheus_port: int
    store: Path
    jsonl: Path | None
    influx: InfluxTarget | None
    spool_limit: int | None
    system_metrics: bool = False
    set_global: bool = True
    join: bool = True
    prometheus_registry: bool = True
    curves: str = "hub"
    doctor: str = "true"
    named_logs: bool = False
    own_hub: bool = False
    job_hub: str = ""
    hub: bool = False
    tags: tuple[str, ...] = field(default=(), compare=False)
    notes: str = field(default="", compare=False)

    def otlp_for(self, signal: Signal) -> OtlpSettings | None:
        """Return how a signal is exported as OTLP, or None if it is not."""
        return next((found for found in self.otlp if found.signal == signal), None)

    def tensorboard_folder(self) -> Path:
        """Return the folder for TensorBoard event files: one per run, in the store."""
        return self.store / "tensorboard" / who.file_safe(self.run_id)

    def jsonl_path(self) -> Path:
        """Return the JSON lines file of this process: the configured path, or a new file per process in the store."""
        name = f"{who.file_safe(socket.gethostname())}-{os.getpid()}.jsonl"
        return self.jsonl or self.store / "exports" / who.file_safe(self.run_id) / name


class Keywords(TypedDict, total=False):
    """The keyword arguments of ``start()``, for type checkers and editors; :func:`read_settings` explains each."""

    metrics: object
    traces: object
    logs: object
    endpoint: str | None
    protocol: str | None
    headers: Mapping[str, str] | None
    timeout: float | None
    compression: str | None
    interval: float | None
    service_name: str | None
    run_id: str | None
    resource: Mapping[str, AttributeValue] | None
    resource_labels: Sequence[str] | None
    prometheus_host: str | None
    prometheus_port: int | None
    prometheus_registry: bool | None
    store: str | os.PathLike[str] | None
    jsonl: str | os.PathLike[str] | None
    system_metrics: bool | None
    set_global: bool | None
    join: bool | None
    hub: bool | None
    tags: Collection[str] | None
    notes: str | None


def check_keywords(given: Iterable[str]) -> None:
    """Check the names of arguments that ``start()`` was called with.

    Raises:
        TypeError: one of them is none of its arguments; the message names the nearest that is.
    """
    known = Keywords.__annotations__
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1) or [each for each in known if name in each.split("_")]
            hint = f"did you mean {near[0]}=?" if near else f"use one of {', '.join(known)}"
            raise TypeError(f"start() has no argument {name!r:.200}: {hint}")


def read_settings(
    environ: Mapping[str, str],
    *,
    metrics: object = None,
    traces: object = None,
    logs: object = None,
    endpoint: str | None = None,
    protocol: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    compression: str | None = None,
    interval: float | None = None,
    service_name: str | None = None,
    run_id: str | None = None,
    resource: Mapping[str, AttributeValue] | None = None,
    resource_labels: Sequence[str] | None = None,
    prometheus_host: str | None = None,
    prometheus_port: int | None = None,
    prometheus_registry: bool | None = None,
    store: str | os.PathLike[str] | None = None,
    jsonl: str | os.PathLike[str] | None = None,
    system_metrics: bool | None = None,
    set_global: bool | None = None,
    join: bool | None = None,
    hub: bool | None = None,
    tags: Collection[str] | None = None,
    notes: str | None = None,
) -> Settings:
    """Return the settings that the arguments of ``start()`` and the environment variables result in.

    Args:
        environ: environment variables; an empty value counts as unset.
        metrics: exporters of metrics: names, as a sequence or separated by commas, or exporter objects. An object is a
            callable that takes a :class:`tachograph.exporters.batch.Batch`, or an exporter or metric reader of the
            OpenTelemetry SDK. A name is looked up among Tachograph's exporters, the entry points in
            ``tachograph.exporters``, and OpenTelemetry's entry points for this signal, in this order. Use ``none`` or
            an empty sequence for no exporter. Variable: OTEL_METRICS_EXPORTER. Default: ``prometheus``, and ``otlp`` if
            an endpoint is set.
        traces: the same for spans. Variable: OTEL_TRACES_EXPORTER. Default: ``otlp`` if an endpoint is set.
        logs: the same for log records. Variable: OTEL_LOGS_EXPORTER. Default: ``otlp`` if an endpoint is set.
        endpoint: OTLP endpoint; :func:`tachograph.exporters.otlp.settings.read_otlp_settings` describes this and the
            next four arguments.
        protocol: OTLP protocol.
        headers: OTLP headers.
        timeout: OTLP timeout in seconds.
        compression: OTLP compression.
        interval: seconds between two exports of metrics. Variable: OTEL_METRIC_EXPORT_INTERVAL, in milliseconds.
            Default: 60 s, or 1 s with ``hub=True``.
        service_name: the service name. Variable: OTEL_SERVICE_NAME. Default: the program's name.
        run_id: the run id; see :func:`tachograph.run_id.run_id`.
        resource: additional resource attributes; they win over OTEL_RESOURCE_ATTRIBUTES.
        resource_labels: keys of the resource attributes that become labels of each Prometheus series.
        prometheus_host: address to serve ``/metrics`` on. Variable: OTEL_EXPORTER_PROMETHEUS_HOST. Default: 127.0.0.1.
        prometheus_port: port to serve ``/metrics`` on. Variable: OTEL_EXPORTER_PROMETHEUS_PORT. Default: 9464 plus the
            local rank, or 9463 for torchrun's own process.
        prometheus_registry: include the program's metrics in ``prometheus_client.REGISTRY`` in ``/metrics``. Variable:
            TACHOGRAPH_PROMETHEUS_REGISTRY (``true`` or ``false``). Default: True.
        store: folder for runs and spooled data. Variable: TACHOGRAPH_STORE; see
            :func:`tachograph.identity.resource.store`.
        jsonl: path of the JSON lines file; see :meth:`Settings.jsonl_path`.
        system_metrics: export ``process.*`` and ``torch.cuda.memory.*`` of this process and, once per node,
            ``system.*`` and ``hw.*``. Variable: TACHOGRAPH_SYSTEM_METRICS (``true`` or ``false``). Default: False.
            Requires the extra ``hardware``.
        set_global: set OpenTelemetry's global providers if the program has none, so that metrics of other libraries are
            exported as well. OpenTelemetry then refuses a provider that the program sets later; with False, Tachograph
            uses such a provider. Default: True.
        join: export through the program's own providers. Turn it off if their backend charges per series. Variable:
            TACHOGRAPH_JOIN (``true`` or ``false``). Default: True.
        hub: start a hub for this process in addition to the other destinations. It stores the run, serves its page on
            127.0.0.1, port 4318 or the next free one, and ends with the process; see
            :class:`tachograph.pipeline.Pipeline`. Default: False.
        tags: tags to add to the run; a run has at most 64 tags of at most 64 characters.
        notes: notes of the run, at most 10,000 characters; they replace earlier notes.

    Two settings have only a variable. TACHOGRAPH_CURVES is ``hub`` (default) or ``all``; see :attr:`Settings.curves`.
    TACHOGRAPH_HANGS is ``true`` (default), ``false`` or ``all``; see :attr:`Settings.doctor`.

    Raises:
        ValueError: a value is wrong; the message names the argument or variable and the allowed values.
        TypeError: an argument has the wrong type.
    """

    def find(keyword: str, value: object, *variables: str) -> Setting | None:
        return setting(environ, keyword, value, *variables)

    def string(keyword: str, value: object) -> str | None:
        given = find(keyword, value)
        return given.string() if given else None

    switched_off = find("", None, "OTEL_SDK_DISABLED")
    disabled = switched_off is not None and switched_off.choice(("true", "false")) == "true"
    helpers = find("", None, "TACHOGRAPH_HELPERS")
    if helpers:
        helpers.boolean()  # each process reads it again, before it has settings
    exemplars = find("", None, EXEMPLAR_FILTER)
    if exemplars:
        exemplars.choice(("always_on", "always_off", "trace_based"))  # for the SDK
    recorded = find("", None, "TACHOGRAPH_RECORD_PROGRAM")
    if recorded:
        recorded.boolean()  # for tachograph run
    chosen: dict[Signal, object] = {"metrics": metrics, "traces": traces, "logs": logs}
    exporters: dict[Signal, tuple[object, ...]] = {
        signal: () if disabled else _exporters(signal, environ, chosen[signal], endpoint) for signal in SIGNALS
    }
    otlp = tuple(
        read_otlp_settings(
            signal,
            environ,
            endpoint=endpoint,
            protocol=protocol,
            headers=headers,
            timeout=timeout,
            compression=compression,
        )
        for signal in SIGNALS
        if "otlp" in exporters[signal]
    )
    every = find("interval", interval, "OTEL_METRIC_EXPORT_INTERVAL")
    hardware = find("system_metrics", system_metrics, "TACHOGRAPH_SYSTEM_METRICS")
    globally, joining = find("set_global", set_global), find("join", join, "TACHOGRAPH_JOIN")
    own_hub = find("hub", hub)
    with_hub = own_hub.boolean() if own_hub else False
    host = find("prometheus_host", prometheus_host, "OTEL_EXPORTER_PROMETHEUS_HOST")
    port = find("prometheus_port", prometheus_port, "OTEL_EXPORTER_PROMETHEUS_PORT")
    program = find("prometheus_registry", prometheus_registry, "TACHOGRAPH_PROMETHEUS_REGISTRY")
    curves = find("", None, "TACHOGRAPH_CURVES")
    doctor = find("", None, "TACHOGRAPH_HANGS")
    further = _attributes(resource)
    attributes = who.resource_attributes(
        environ,
        service_name=string("service_name", service_name),
        run_id=string("run_id", run_id),
        extra=resource,
    )
    return Settings(
        disabled=disabled,
        metrics=exporters["metrics"],
        traces=exporters["traces"],
        logs=exporters["logs"],
        otlp=otlp,
        interval=every.seconds() if every else HUB_INTERVAL if with_hub else INTERVAL,
        service_name=str(attributes["service.name"]),
        run_id=str(attributes["dl.run.id"]),
        resource=further,
        resource_labels=who.SERIES_KEYS if resource_labels is None else who.series_keys(resource_labels),
        prometheus_host=_host(host, serves="prometheus" in exporters["metrics"]) if host else PROMETHEUS_HOST,
        prometheus_port=port.port() if port else _default_port(attributes),
        prometheus_registry=program.boolean() if program else True,
        store=_path("store", store) or who.store(environ),
        jsonl=_path("jsonl", jsonl),
        influx=_influx(environ) if "influxdb" in exporters["logs"] else None,
        spool_limit=spool_limit_of(environ),
        system_metrics=hardware.boolean() if hardware else False,
        set_global=globally.boolean() if globally else True,
        join=joining.boolean() if joining else True,
        hub=with_hub,
        curves=curves.choice(("hub", "all")) if curves else "hub",
        doctor=doctor.boolean_or("all") if doctor else "true",
        named_logs=logs is not None or bool(text(environ, "OTEL_LOGS_EXPORTER")),
        own_hub=endpoint == text(environ, JOB_HUB) != "",
        **_description(tags, notes),
    )


class _Description(TypedDict, total=False):
    tags: tuple[str, ...]
    notes: str


def _description(tags: object, notes: object) -> _Description:
    """Return the tags and notes of the run, where there are some."""
    if tags is None and notes is None:
        return {}
    from tachograph.identity.launch import notes_of, tags_of  # 7 ms, which few processes need

    return {
        "tags": tags_of(Setting("tags=", () if tags is None else tags)),
        "notes": notes_of(Setting("notes=", "" if notes is None else notes)),
    }


def _influx(environ: Mapping[str, str]) -> InfluxTarget:
    """Return the target of ``influxdb``, as the ``INFLUXDB_*`` variables name it."""
    target = InfluxTarget.read(environ)
    if target is None:
        raise ValueError("INFLUXDB_HOST is not set: set it to the host or URL that the exporter 'influxdb' writes to")
    if find_spec("influxdb_client") is None:
        raise ValueError(
            f"the exporter 'influxdb' requires influxdb-client, which is not installed: {install_command('influxdb')}"
        )
    return target


def _exporters(signal: Signal, environ: Mapping[str, str], chosen: object, endpoint: str | None) -> tuple[object, ...]:
    given = setting(environ, signal, chosen, f"OTEL_{signal.upper()}_EXPORTER")
    if given is None:
        sends = setting(environ, "endpoint", endpoint, *endpoint_variables(signal)) is not None
        return ("otlp",) * sends + ("prometheus",) * (signal == "metrics")
    found: list[object] = []
    for part in _parts(given):
        wanted = _name(signal, given, part) if isinstance(part, str) else part
        if wanted is part:
            _check_object(signal, given, part)
        if not any(wanted is other or (_is_named(wanted) and wanted == other) for other in found):
            found.append(wanted)
    if "none" in found and len(found) > 1:
        raise given.wrong("'none' cannot be combined with other exporters")
    return tuple(part for part in found if part != "none")


def _parts(given: Setting) -> list[object]:
    """Return the names and exporters in a choice, one by one."""
    value = given.value
    if isinstance(value, str):
        return [part for part in given.string().split(",") if part.strip()] if value.strip(", ") else [value]
    parts: list[object] = list(value) if isinstance(value, Sequence) and not _exports(value) else [value]
    for part in parts:
        if not isinstance(part, str) and (isinstance(part, type) or not _exports(part)):
            handler = given.source == "metrics=" and callable(getattr(part, "emit", None))
            hint = (
                " (this is a handler: call configure(handler), or pass tachograph.otel.HandlerExporter(handler))"
                if handler
                else ""
            )
            raise Setting(given.source, part).wrong_type(f"a name, an exporter, or a sequence of them{hint}")
    return parts


def _exports(value: object) -> bool:
    return callable(value) or callable(getattr(value, "export", None)) or is_reader(value)


def _is_named(exporter: object) -> bool:
    return isinstance(exporter, str | EntryPointExporter)


def _check_object(signal: Signal, given: Setting, exporter: object) -> None:
    """Refuse an exporter that is known to be of other signals, and a reader that has its provider already."""
    fitting = signals_of(exporter)
    if fitting and signal not in fitting:
        where = " or ".join(f"{other}=" for other in SIGNALS if other in fitting)
        raise Setting(given.source, exporter).wrong_type(f"an exporter of {signal} (pass this one as {where})")
    if is_reader(exporter):
        from tachograph.exporters.reader_feed import unfit

        refused = unfit(exporter)  # type: ignore[arg-type] # is_reader() has told
        if refused:
            raise Setting(given.source, exporter).wrong(refused)


def _name(signal: Signal, given: Setting, part: str) -> str | EntryPointExporter:
    """Return the exporter of a name: a built-in one, else one of our entry points, else one of OpenTelemetry's."""
    name = part.strip()
    if name.lower() in _BUILT_IN[signal]:
        return name.lower()
    ours, standard = {entry.name for entry in entry_points(group=GROUP)}, installed(signal)
    if name in ours:
        return name
    if name in standard:
        return EntryPointExporter(signal, name)
    allowed = (*_BUILT_IN[signal], *sorted(ours), *sorted(standard - ours - set(_BUILT_IN[signal])))
    raise given.wrong(f"unknown {signal} exporter {name!r:.100}: use one of {', '.join(allowed)}")


def _attributes(resource: Mapping[str, AttributeValue] | None) -> Attributes:
    if resource is not None and not isinstance(resource, Mapping):
        raise Setting("resource=", resource).wrong_type("a mapping of attributes")
    try:
        return attributes_key(resource or {})
    except TypeError as error:
        raise TypeError(f"resource=: {error}") from None
    except ValueError as error:
        raise ValueError(f"resource=: {error}") from None


def _path(keyword: str, value: str | os.PathLike[str] | None) -> Path | None:
    if value is None:
        return None
    given = Setting(f"{keyword}=", value)
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise given.wrong_type("a path")
    if not os.fspath(value):
        raise given.wrong("it must not be empty")
    try:
        return Path(system_text(os.fspath(value))).expanduser()
    except RuntimeError:
        raise given.wrong("the home directory does not exist") from None


def _host(given: Setting, *, serves: bool) -> str:
    """Return the host of the page; one that is listened on must have an address."""
    host = given.string()
    if serves:
        try:
            socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, ValueError):
            raise given.wrong("expected a host that resolves, without a port and without brackets") from None
    return host


def _default_port(attributes: Mapping[str, AttributeValue]) -> int:
    """Return a port of its own for each rank of a node, as far as there are ports; torchrun's own is the one below."""
    if attributes.get("dl.role") == "agent" and "dl.rank" not in attributes:
        return PROMETHEUS_PORT - 1
    local_rank = attributes.get("dl.local_rank")
    return min(PROMETHEUS_PORT + local_rank, 65535) if isinstance(local_rank, int) else PROMETHEUS_PORT

"""Every setting that users set, as a table: ``docs/settings.md`` is made from it, and a test compares it with the code.

Variables that Tachograph's own processes pass to each other are not settings, and are not here.
"""

from __future__ import annotations

from dataclasses import dataclass

from tachograph.exporters import spool
from tachograph.exporters.otlp.settings import AGGREGATIONS, COMPRESSIONS, PROTOCOLS, TEMPORALITIES, TIMEOUT
from tachograph.logger import influx_target
from tachograph.pipeline.settings import HUB_INTERVAL, INTERVAL, PROMETHEUS_HOST, PROMETHEUS_PORT

BOOLEAN = ("true", "false")


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One row of the table: settings that have the same values and the same default.

    Args:
        arguments: keyword arguments of ``start()``.
        variables: environment variables.
        values: words that are allowed, or, in one sentence fragment, what the values are.
        default: the word that unset means, or what happens then.
        description: what the setting does, as Markdown.
    """

    arguments: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    values: tuple[str, ...] | str = ""
    default: str = ""
    description: str = ""


_EXPORTERS = "names, separated by commas: "

DESTINATIONS = (
    SettingRow(
        ("metrics",),
        ("OTEL_METRICS_EXPORTER",),
        _EXPORTERS + "`otlp`, `prometheus`, `console`, `jsonl`, `none`, or an installed [exporter](exporters.md)",
        "`prometheus`, and `otlp` if an endpoint is set",
        "Where metrics go. The arguments of this and the next two rows also take exporters and metric readers.",
    ),
    SettingRow(
        ("traces",),
        ("OTEL_TRACES_EXPORTER",),
        _EXPORTERS + "`otlp`, `console`, `jsonl`, `none`, or an installed exporter",
        "`otlp` if an endpoint is set",
        "Where spans go.",
    ),
    SettingRow(
        ("logs",),
        ("OTEL_LOGS_EXPORTER",),
        _EXPORTERS + "`otlp`, `console`, `jsonl`, `influxdb`, `tensorboard`, `none`, or an installed exporter",
        "`otlp` if an endpoint is set",
        "Where log records go: events, points of curves and of `MetricsLogger` and, if you name exporters here, the"
        " program's own logging.",
    ),
    SettingRow(
        ("interval",),
        ("OTEL_METRIC_EXPORT_INTERVAL",),
        "seconds as argument, milliseconds as variable",
        f"{INTERVAL:g} s; {HUB_INTERVAL:g} s with `hub=True` or `tachograph run`",
        "The time between two exports of metrics.",
    ),
    SettingRow(
        ("hub",),
        (),
        ("True", "False"),
        "`False`",
        "Start [a hub](hub.md) for this process, in addition to the other destinations.",
    ),
    SettingRow(
        (),
        ("TACHOGRAPH_CURVES",),
        ("hub", "all"),
        "`hub`",
        "Send points of gauges and of `log()` to the job's hub only (`hub`), or to every destination of log records.",
    ),
    SettingRow(
        (),
        ("TACHOGRAPH_SPOOL_LIMIT",),
        "bytes; `0` for no spool",
        f"{spool.LIMIT // 2**30} GiB for InfluxDB, `0` for OTLP and `--forward`",
        "Disk space for [data that waits](exporters.md#a-receiver-that-is-down), for each destination that is down.",
    ),
    SettingRow(
        ("join",),
        ("TACHOGRAPH_JOIN",),
        BOOLEAN,
        "`true`",
        "Also record into the OpenTelemetry providers that the program has set up. Turn this off if they belong to a"
        " backend that bills by series.",
    ),
    SettingRow(
        ("set_global",),
        (),
        ("True", "False"),
        "`True`",
        "Set OpenTelemetry's global providers if the program has not, so that metrics of other libraries are exported.",
    ),
    SettingRow((), ("OTEL_SDK_DISABLED",), BOOLEAN, "`false`", "Record nothing and export nothing."),
)

OTLP = (
    SettingRow(
        ("endpoint",),
        ("OTEL_EXPORTER_OTLP_ENDPOINT",),
        "a URL",
        "no OTLP",
        "Where OTLP is sent. The variables `OTEL_EXPORTER_OTLP_METRICS_…`, `_TRACES_…`, and `_LOGS_…` set this and the"
        " next rows for one signal.",
    ),
    SettingRow(
        ("protocol",), ("OTEL_EXPORTER_OTLP_PROTOCOL",), PROTOCOLS, f"`{PROTOCOLS[0]}`", "The protocol of OTLP."
    ),
    SettingRow(
        ("headers",),
        ("OTEL_EXPORTER_OTLP_HEADERS",),
        "`name=value`, separated by commas; as argument a mapping",
        "none",
        "Headers of each request, for example a token.",
    ),
    SettingRow(
        ("timeout",),
        ("OTEL_EXPORTER_OTLP_TIMEOUT",),
        "seconds as argument, milliseconds as variable; there, `0` means no limit",
        f"{TIMEOUT:g} s",
        "Time limit of one request.",
    ),
    SettingRow(
        ("compression",),
        ("OTEL_EXPORTER_OTLP_COMPRESSION",),
        COMPRESSIONS,
        f"`{COMPRESSIONS[0]}`",
        "Compression of requests.",
    ),
    SettingRow(
        (),
        (
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
            "OTEL_EXPORTER_OTLP_CLIENT_KEY",
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
        ),
        "paths of PEM files",
        "the system's authorities; no client certificate",
        "Certificates for TLS and mutual TLS.",
    ),
    SettingRow(
        (),
        ("OTEL_EXPORTER_OTLP_INSECURE",),
        BOOLEAN,
        "`false`",
        "For gRPC endpoints without a scheme: do not use TLS.",
    ),
    SettingRow(
        (),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",),
        TEMPORALITIES,
        f"`{TEMPORALITIES[0]}`",
        "Temporality of metrics.",
    ),
    SettingRow(
        (),
        ("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",),
        AGGREGATIONS,
        f"`{AGGREGATIONS[0]}`",
        "Buckets of histograms ([quantiles](metrics.md#quantiles)).",
    ),
    SettingRow(
        (),
        ("OTEL_METRICS_EXEMPLAR_FILTER",),
        ("always_on", "always_off", "trace_based"),
        "`trace_based`",
        "Which values OpenTelemetry's SDK keeps as exemplars.",
    ),
)

PROMETHEUS = (
    SettingRow(
        ("prometheus_host",),
        ("OTEL_EXPORTER_PROMETHEUS_HOST",),
        "a host or an address",
        f"`{PROMETHEUS_HOST}`",
        "The address that `/metrics` listens on.",
    ),
    SettingRow(
        ("prometheus_port",),
        ("OTEL_EXPORTER_PROMETHEUS_PORT",),
        "a port; `0` for any free one",
        f"{PROMETHEUS_PORT} + local rank; {PROMETHEUS_PORT - 1} for torchrun itself",
        "Its port. If it is in use, the next free one is used.",
    ),
    SettingRow(
        ("prometheus_registry",),
        ("TACHOGRAPH_PROMETHEUS_REGISTRY",),
        BOOLEAN,
        "`true`",
        "Also show the program's own metrics in `prometheus_client.REGISTRY` on `/metrics`.",
    ),
    SettingRow(
        ("resource_labels",),
        (),
        "names of resource attributes",
        "`dl.rank`, `dl.role`, `dl.run.id`",
        "Resource attributes that every series on `/metrics` has as labels.",
    ),
)

RUN = (
    SettingRow(
        ("run_id",), ("TACHOGRAPH_RUN",), "text", "from torchrun, Slurm, or Kubernetes; else generated", "The run's id."
    ),
    SettingRow(("service_name",), ("OTEL_SERVICE_NAME",), "text", "the program's name", "The service's name."),
    SettingRow(
        ("resource",),
        ("OTEL_RESOURCE_ATTRIBUTES",),
        "`key=value`, separated by commas; as argument a mapping",
        "none",
        "More resource attributes.",
    ),
    SettingRow(
        ("tags",), (), "up to 64 tags of up to 64 characters", "none", "Tags of the run, added to earlier ones."
    ),
    SettingRow(("notes",), (), "up to 10,000 characters", "none", "Notes of the run. They replace earlier notes."),
    SettingRow(
        (),
        ("TACHOGRAPH_RECORD_PROGRAM",),
        BOOLEAN,
        "`true`",
        "Store the command line, versions, and Git commit of the program with the run ([practices](practices.md)).",
    ),
    SettingRow(
        ("store",),
        ("TACHOGRAPH_STORE",),
        "a path",
        "`${XDG_STATE_HOME:-~/.local/state}/tachograph`",
        "The folder for stored runs, spools, and exported files.",
    ),
    SettingRow(("jsonl",), (), "a path", "one file per process in the store", "The file of the exporter `jsonl`."),
)

RECORDING = (
    SettingRow(
        ("system_metrics",),
        ("TACHOGRAPH_SYSTEM_METRICS",),
        BOOLEAN,
        "`false`; the hub of `tachograph run` records its machine",
        "Record metrics of each process, its GPU memory and, once per node, the machine and its GPUs. Needs the extra"
        " `hardware`. `false` also turns off what the hub records.",
    ),
    SettingRow(
        (),
        ("TACHOGRAPH_BRIDGES",),
        "`all`, `none`, or [names](bridges.md) separated by commas",
        "`all` under `tachograph run`, else `none`",
        "Which other logging libraries Tachograph records from.",
    ),
    SettingRow(
        (),
        ("TACHOGRAPH_ANATOMY",),
        BOOLEAN,
        "`true` under `tachograph run`, else `false`",
        "Record the [step breakdown](anatomy.md).",
    ),
    SettingRow(
        (),
        ("TACHOGRAPH_WAIT_COUNTERS",),
        BOOLEAN,
        "`false`",
        "Record torch's WaitCounters: how long torch waited ([torch.monitor](torch-monitor.md)).",
    ),
    SettingRow(
        (),
        ("TACHOGRAPH_HELPERS",),
        BOOLEAN,
        "`false`",
        "Also record in helper processes, such as data-loader workers.",
    ),
    SettingRow(
        (),
        ("TACHOGRAPH_HANGS",),
        (*BOOLEAN, "all"),
        "`true`",
        "Send pulses for the [hang detector](hangs.md): to the job's hub (`true`), to every destination of log records"
        " (`all`), or not at all (`false`).",
    ),
)

INFLUXDB = (
    SettingRow(
        (),
        ("INFLUXDB_HOST",),
        "a URL, or a host: with `https`, or with `http` for this machine",
        "no InfluxDB",
        "The address of InfluxDB.",
    ),
    SettingRow((), ("INFLUXDB_PORT",), "a port", f"{influx_target.PORT}", "Its port, if the URL has none."),
    SettingRow(
        (),
        ("INFLUXDB_DATABASE",),
        "text",
        f"`{influx_target.DATABASE}`",
        "The bucket (version 2) or database (version 1). `tachograph resend` has no default.",
    ),
    SettingRow(
        (),
        ("INFLUXDB_ORG",),
        "text",
        f"`{influx_target.ORG}`",
        "The organization (version 2). `tachograph resend` has no default.",
    ),
    SettingRow((), ("INFLUXDB_TOKEN",), "text", "none", "The token for InfluxDB."),
    SettingRow(
        (),
        ("INFLUXDB_INTEGERS",),
        ("integer", "float"),
        "`integer`",
        "Write integers [as integers or as floats](from-influxdb.md#a-field-with-integers-and-floats).",
    ),
)

COMMANDS = (
    SettingRow(
        (),
        ("TACHOGRAPH_HUB",),
        "a URL",
        "`http://127.0.0.1:4318`",
        "The hub that `tachograph top` and `tachograph diagnose` ask.",
    ),
    SettingRow(
        (),
        ("TACHOGRAPH_HUB_TOKEN",),
        "text",
        "none",
        "The bearer token that `tachograph hub` and `studio` require, and that commands send. A hub that listens for"
        " other machines needs one.",
    ),
    SettingRow(
        (),
        ("TACHOGRAPH_TRACE_URL",),
        "a URL with `{trace_id}`",
        "none",
        "For the hub and the Studio: the address of a trace in your tracing system, to which calls are linked.",
    ),
    SettingRow(
        (),
        ("TACHOGRAPH_PYSPY",),
        "a path, or `none`",
        "the installed `py-spy`",
        "For the hub: the `py-spy` that reads the stacks of hanging ranks.",
    ),
)

SECTIONS = {
    "Destinations": DESTINATIONS,
    "OTLP": OTLP,
    "Prometheus": PROMETHEUS,
    "The run and its files": RUN,
    "What is recorded": RECORDING,
    "InfluxDB": INFLUXDB,
    "Hub, Studio, and commands": COMMANDS,
}

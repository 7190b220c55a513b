"""Settings: arguments over OTEL_* over TACHOGRAPH_*, and errors that say what is allowed."""

from __future__ import annotations

import inspect
import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

import tachograph
from tachograph.exporters.otlp.settings import OtlpSettings
from tachograph.instrumentation._zero_code import zero_code_settings
from tachograph.pipeline.settings import Keywords, Settings, read_settings
from tachograph.recording.forking import helpers_record

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
SIGNALS = ("metrics", "traces", "logs")


def chosen(settings: Settings) -> list[tuple[object, ...]]:
    """Return the exporters of each signal."""
    return [settings.metrics, settings.traces, settings.logs]


def exporter(batch: object) -> None:
    """Take a batch."""


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [("prometheus",), (), ()]),
        ({"OTEL_METRICS_EXPORTER": " "}, [("prometheus",), (), ()]),
        (ENDPOINT, [("otlp", "prometheus"), ("otlp",), ("otlp",)]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/t"}, [("prometheus",), ("otlp",), ()]),
        ({**ENDPOINT, "OTEL_METRICS_EXPORTER": "none"}, [(), ("otlp",), ("otlp",)]),
        ({"OTEL_METRICS_EXPORTER": "Console, jsonl,console"}, [("console", "jsonl"), (), ()]),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_LOGS_EXPORTER": "jsonl"}, [("prometheus",), ("otlp",), ("jsonl",)]),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, [(), (), ()]),
    ],
)
def test_exporters_follow_from_the_environment(environ: dict[str, str], expected: list[tuple[str, ...]]) -> None:
    """Exactly the exporters that are named; unset, OTLP where an endpoint is given, and /metrics."""
    settings = read_settings(environ)
    assert chosen(settings) == expected
    assert [found.signal for found in settings.otlp] == [
        signal for signal, exporters in zip(SIGNALS, expected, strict=True) if "otlp" in exporters
    ]


@pytest.mark.parametrize(
    ("environ", "more", "named"),
    [
        (ENDPOINT, {}, False),
        ({**ENDPOINT, "OTEL_LOGS_EXPORTER": "otlp"}, {}, True),
        (ENDPOINT, {"logs": "otlp"}, True),
        ({**ENDPOINT, "TACHOGRAPH__ENDPOINT": "http://c"}, None, False),
        ({"TACHOGRAPH__ENDPOINT": "http://c", "OTEL_LOGS_EXPORTER": "otlp"}, None, True),
    ],
)
def test_an_endpoint_alone_names_no_logs(environ: dict[str, str], more: dict[str, Any] | None, named: bool) -> None:
    """Records of the program's own logging leave where an exporter of logs is chosen; under zero code as well."""
    settings = zero_code_settings(environ) if more is None else read_settings(environ, **more)
    assert settings.logs == ("otlp",)
    assert settings.named_logs is named


@pytest.mark.process
def test_arguments_win_over_variables() -> None:
    """What start() is told counts, whatever the environment says."""
    environ = {
        **ENDPOINT,
        "OTEL_METRICS_EXPORTER": "console",
        "OTEL_METRIC_EXPORT_INTERVAL": "5000",
        "OTEL_SERVICE_NAME": "env",
        "TACHOGRAPH_RUN": "env",
        "OTEL_EXPORTER_PROMETHEUS_HOST": "::1",
        "OTEL_EXPORTER_PROMETHEUS_PORT": "1",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://other:1",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=env",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "TACHOGRAPH_STORE": "/env",
    }
    settings = read_settings(
        environ,
        metrics=["otlp", "prometheus"],
        traces="none",
        logs=(),
        endpoint="https://given:9",
        protocol="http/protobuf",
        headers={"Authorization": "Bearer x"},
        timeout=2,
        compression="gzip",
        interval=0.5,
        service_name="given",
        run_id="r/1",
        resource={"team": "a"},
        resource_labels=["dl.rank", "team"],
        prometheus_host="0.0.0.0",  # noqa: S104 - what a user would give; nothing listens
        prometheus_port=0,
        store="/given",
    )
    assert chosen(settings) == [("otlp", "prometheus"), (), ()]
    assert settings.otlp == (
        OtlpSettings(
            signal="metrics",
            protocol="http/protobuf",
            endpoint="https://given:9/v1/metrics",
            headers=(("authorization", "Bearer x"),),
            timeout=2.0,
            compression="gzip",
        ),
    )
    assert (settings.interval, settings.service_name, settings.run_id) == (0.5, "given", "r/1")
    assert (settings.resource, settings.resource_labels) == ((("team", "a"),), ("dl.rank", "team"))
    assert (settings.prometheus_host, settings.prometheus_port) == ("0.0.0.0", 0)  # noqa: S104 - compared only
    assert settings.store == Path("/given")
    name = f"{socket.gethostname()}-{os.getpid()}.jsonl"
    assert settings.jsonl_path() == Path("/given/exports/r%2F1") / name


@pytest.mark.process
def test_the_defaults_are_those_of_the_specification() -> None:
    """Without any setting: a minute, loopback, 9464, rank, role and run as labels."""
    settings = read_settings({"HOME": "/home/u"})
    assert settings.interval == 60
    assert (settings.prometheus_host, settings.prometheus_port) == ("127.0.0.1", 9464)
    assert settings.resource_labels == ("dl.rank", "dl.role", "dl.run.id")
    assert settings.store == Path("/home/u/.local/state/tachograph")


@pytest.mark.process
def test_every_rank_of_a_node_has_a_port() -> None:
    """The default port is 9464 plus the local rank, torchrun's or Slurm's; a port that was set is that port."""
    assert read_settings({"RANK": "9", "LOCAL_RANK": "1"}).prometheus_port == 9465
    assert read_settings({"SLURM_PROCID": "9", "SLURM_LOCALID": "3"}).prometheus_port == 9467
    assert read_settings({"RANK": "0", "LOCAL_RANK": "7" * 9}).prometheus_port == 65535
    assert read_settings({"LOCAL_RANK": "1", "OTEL_EXPORTER_PROMETHEUS_PORT": "9000"}).prometheus_port == 9000


@pytest.mark.process
@pytest.mark.parametrize(("name", "port"), [("torchrun", 9463), ("train", 9464)])
def test_torchruns_own_page_takes_no_ranks_port(tmp_path: Path, name: str, port: int) -> None:
    """Torchrun begins before its ranks: its default port is the one below theirs."""
    program = tmp_path / name
    program.write_text(
        "from tachograph.pipeline.settings import read_settings; print(read_settings({}).prometheus_port)"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == port


def test_equal_input_makes_equal_settings() -> None:
    """Reading the same twice gives equal settings, an exporter object and a minted run id included."""
    environ = {**ENDPOINT, "OTEL_EXPORTER_OTLP_HEADERS": "b=2,a=1"}
    arguments: dict[str, Any] = {"metrics": [exporter, "otlp"], "resource": {"b": 1, "a": [1, 2]}}
    assert read_settings(environ, **arguments) == read_settings(environ, **arguments)
    assert read_settings(environ, **arguments) != read_settings(environ)
    assert read_settings(environ) != read_settings({**environ, "OTEL_EXPORTER_OTLP_HEADERS": "b=2"})


def test_exporters_can_be_given_themselves() -> None:
    """A callable or an exporter of the SDK stands beside names, alone or in a sequence, in the given order."""
    sdk = ConsoleMetricExporter()
    assert read_settings({}, metrics=exporter).metrics == (exporter,)
    assert read_settings({}, metrics=["console", sdk, exporter, sdk]).metrics == ("console", sdk, exporter)
    assert read_settings({}, metrics="console,prometheus").metrics == ("console", "prometheus")
    assert read_settings({}, metrics=[]).metrics == ()


def test_installed_exporters_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package's entry point of tachograph.exporters is an exporter like those built in."""
    package = tmp_path / "mine-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[tachograph.exporters]\nMine = mine:export\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read_settings({"OTEL_LOGS_EXPORTER": "Mine,jsonl"}).logs == ("Mine", "jsonl")
    with pytest.raises(ValueError, match="none, Mine"):
        read_settings({"OTEL_LOGS_EXPORTER": "yours"})


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("OTEL_SDK_DISABLED", "1", "'true', 'false'"),
        ("OTEL_METRICS_EXPORTER", "promtheus", "prometheus, console"),
        ("OTEL_METRICS_EXPORTER", "none,console", "cannot be combined"),
        ("OTEL_METRICS_EXPORTER", ",", "prometheus, console"),
        ("OTEL_TRACES_EXPORTER", "prometheus", "otlp, console, jsonl, none"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0", "milliseconds above 0"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1m", "milliseconds above 0"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "nan", "milliseconds above 0"),
        ("OTEL_EXPORTER_PROMETHEUS_PORT", "70000", "1 to 65535"),
        ("OTEL_EXPORTER_PROMETHEUS_PORT", "9" * 5000, "1 to 65535"),
        ("OTEL_EXPORTER_PROMETHEUS_PORT", "-1", "1 to 65535"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "'http/protobuf', 'grpc'"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "udp", "'http/protobuf', 'grpc'"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "http://localhost:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://:4318", "http://localhost:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:port", "http://localhost:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c d", "http://localhost:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://c", "http://localhost:4318"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "-5", "milliseconds"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "deflate", "'none', 'gzip'"),
        ("OTEL_EXPORTER_OTLP_INSECURE", "yes", "'true', 'false'"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such.pem", "PEM"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/no/such.pem", "CLIENT_CERTIFICATE"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "monotonic", "'cumulative', 'delta', 'lowmemory'"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "sometimes", "'always_on', 'always_off', 'trace_based'"),
        ("TACHOGRAPH_HELPERS", "yes", "'true', 'false'"),
        ("TACHOGRAPH_HANGS", "on", "'true', 'false', 'all'"),
        ("TACHOGRAPH_PROMETHEUS_REGISTRY", "2", "'true', 'false'"),
    ],
)
def test_a_wrong_variable_is_an_error_that_names_it(variable: str, value: str, allowed: str) -> None:
    """The error names the variable, the value and what is allowed."""
    with pytest.raises(ValueError, match=variable) as caught:
        read_settings({**ENDPOINT, variable: value})
    assert value[:40] in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("False", False), ("1", True), ("0", False)])
def test_a_boolean_is_true_or_false_and_digits_are_accepted(value: str, expected: bool) -> None:
    """``1`` and ``0`` mean ``true`` and ``false`` in every boolean of ours, whatever the case of the word."""
    variables = ("TACHOGRAPH_JOIN", "TACHOGRAPH_PROMETHEUS_REGISTRY", "TACHOGRAPH_SYSTEM_METRICS", "TACHOGRAPH_HANGS")
    settings = read_settings(dict.fromkeys((*variables, "TACHOGRAPH_HELPERS", "TACHOGRAPH_RECORD_PROGRAM"), value))
    assert settings.join is settings.prometheus_registry is settings.system_metrics is expected
    assert settings.doctor == str(expected).lower()
    assert helpers_record({"TACHOGRAPH_HELPERS": value}) is expected


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"metrics": 1}, TypeError),
        ({"metrics": ["console", 1]}, TypeError),
        ({"metrics": ConsoleMetricExporter}, TypeError),
        ({"metrics": ""}, ValueError),
        ({"metrics": ["influx"]}, ValueError),
        ({"traces": "prometheus"}, ValueError),
        ({"endpoint": 4318}, TypeError),
        ({"endpoint": " "}, ValueError),
        ({"protocol": "http/json"}, ValueError),
        ({"protocol": True}, TypeError),
        ({"headers": [("a", "b")]}, TypeError),
        ({"headers": {"a": 1}}, TypeError),
        ({"headers": {"a b": "c"}}, ValueError),
        ({"headers": {"a": "c\r\nd: e"}}, ValueError),
        ({"timeout": "10"}, TypeError),
        ({"timeout": 0}, ValueError),
        ({"interval": True}, TypeError),
        ({"interval": math.inf}, ValueError),
        ({"interval": -1.0}, ValueError),
        ({"compression": "br"}, ValueError),
        ({"service_name": 3}, TypeError),
        ({"service_name": ""}, ValueError),
        ({"run_id": b"x"}, TypeError),
        ({"resource": {"a": None}}, TypeError),
        ({"resource": "a=b"}, TypeError),
        ({"resource_labels": "dl.rank"}, TypeError),
        ({"resource_labels": [1]}, TypeError),
        ({"prometheus_host": 0}, TypeError),
        ({"prometheus_port": "9464"}, TypeError),
        ({"prometheus_port": 65536}, ValueError),
        ({"store": 1}, TypeError),
        ({"store": ""}, ValueError),
        ({"store": "~no-such-user/x"}, ValueError),
        ({"jsonl": b"x"}, TypeError),
        ({"prometheus_registry": "no"}, TypeError),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it(arguments: dict[str, Any], error: type[Exception]) -> None:
    """A wrong type is a TypeError, a wrong value a ValueError, and both say which argument."""
    with pytest.raises(error) as caught:
        read_settings(ENDPOINT, **arguments)
    (name,) = arguments
    assert name in str(caught.value) or (name == "resource" and "attribute" in str(caught.value))


@given(
    st.sampled_from(
        [
            "OTEL_METRICS_EXPORTER",
            "OTEL_METRIC_EXPORT_INTERVAL",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "OTEL_EXPORTER_OTLP_HEADERS",
            "OTEL_EXPORTER_OTLP_TIMEOUT",
            "OTEL_EXPORTER_PROMETHEUS_PORT",
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "TACHOGRAPH_PROMETHEUS_REGISTRY",
        ]
    ),
    st.text(),
)
def test_any_value_is_taken_or_named(variable: str, value: str) -> None:
    """Whatever a variable holds, it is either understood, or the error names the variable."""
    try:
        settings = read_settings({**ENDPOINT, variable: value})
    except ValueError as error:
        assert variable in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert 0 < settings.interval < math.inf


class Unspeakable:
    """An object whose ``repr()`` raises."""

    def __repr__(self) -> str:
        raise RuntimeError


WRONG = [10**5000, -(10**5000), Unspeakable(), b"\xff", {1: 2}, "a" * 10_000]


@pytest.mark.parametrize("value", WRONG, ids=["long", "negative", "unspeakable", "bytes", "mapping", "text"])
@pytest.mark.parametrize(
    "keyword",
    [
        *("metrics", "traces", "logs", "endpoint", "protocol", "headers", "timeout", "compression", "interval"),
        *("resource", "prometheus_port", "prometheus_registry", "join"),
    ],
)
def test_a_wrong_argument_is_named_whatever_it_is(keyword: str, value: Any) -> None:
    """A number of 5,000 digits, an object that cannot be shown, a text without end: the error names the argument."""
    with pytest.raises((TypeError, ValueError)) as raised:
        read_settings(ENDPOINT, **{keyword: value})
    assert keyword in str(raised.value)
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("resource", [True, "a=b", [("a", 1)], {"": 1}, {1: "a"}, {"a": None}, {"a" * 10_000: None}])
def test_a_wrong_resource_is_named(resource: Any) -> None:
    """What is wrong with a resource attribute is said of the argument that it was given in."""
    with pytest.raises((TypeError, ValueError), match=r"^resource=") as raised:
        read_settings({}, resource=resource)
    assert len(str(raised.value)) < 1000


def test_an_unknown_argument_is_named_with_the_nearest() -> None:
    """start() says which argument it has not, and which one was probably meant; nothing runs after it."""
    with pytest.raises(TypeError, match=r"start\(\) has no argument 'intervall': did you mean interval=\?"):
        tachograph.start(intervall=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"start\(\) has no argument 'zzzz': use one of metrics, traces, logs"):
        tachograph.start(zzzz=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="has no argument") as raised:
        tachograph.start(**{"z" * 20_000: 1})  # type: ignore[misc]
    assert len(str(raised.value)) < 1000


def test_typed_arguments_are_those_that_are_read() -> None:
    """Editors and type checkers know each argument of start() that is read, and no other, with its type."""
    read = {
        name: parameter.annotation
        for name, parameter in inspect.signature(read_settings).parameters.items()
        if name != "environ"
    }
    assert {name: found.__forward_arg__ for name, found in Keywords.__annotations__.items()} == read


@pytest.mark.parametrize("host", ["127.0.0.1:9464", "[::1]", "no such host", "a..b", "http://127.0.0.1"])
def test_a_host_of_the_prometheus_page_resolves(host: str) -> None:
    """Any other is an error that names its source, if a page is asked for; otherwise nobody resolves it."""
    variables = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_HOST": host}
    with pytest.raises(ValueError, match=r"OTEL_EXPORTER_PROMETHEUS_HOST is .*: expected a host that resolves"):
        read_settings(variables)
    with pytest.raises(ValueError, match=r"prometheus_host= is .*: expected a host that resolves"):
        read_settings({}, metrics="prometheus", prometheus_host=host)
    assert read_settings({**variables, "OTEL_METRICS_EXPORTER": "console"}).prometheus_host == host

"""``tachograph check``: a line for each destination, with what is wrong and what to do about it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from receivers import SECRET, grpc_receiving, receiving, silent
from servers import free_port, influxdb1, influxql, victoria_metrics
from tachograph.cli import main
from tachograph.exporters.prometheus.endpoint import Endpoint
from tachograph.exporters.prometheus.page import Page
from tachograph.recording.registry import Registry


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the command see no setting of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith(("OTEL_", "INFLUXDB_", "TACHOGRAPH_")) and name != "TACHOGRAPH_TEST_BIN":
            monkeypatch.delenv(name)
    monkeypatch.setenv("TACHOGRAPH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    """Run the command, and return its exit code and its lines."""
    code = main(["check", "--timeout", "2", *arguments])
    return code, capsys.readouterr().out.splitlines()


def test_a_point_arrives_in_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """OTLP of each signal and InfluxDB get one test point each; every line names where and how long."""
    monkeypatch.delenv("OTEL_METRICS_EXPORTER")
    with receiving() as server, influxdb1(tmp_path / "data") as base:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url.removesuffix("/v1/metrics"))
        monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", str(free_port()))
        monkeypatch.setenv("INFLUXDB_HOST", base)
        code, lines = checked(capsys)
        assert influxql(base, 'SELECT "ok" FROM "tachograph_check"')[0]["values"][0][1] == 1
    assert code == 0
    assert [line.split("  ")[0] for line in lines] == ["ok"] * 5
    assert sorted(path for path, _, _ in server.requests) == ["/v1/logs", "/v1/metrics", "/v1/traces"]
    assert all(" ms" in line for line in lines)
    assert "without a token" in lines[3]


def test_the_v2_api_is_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server with the v2 API takes the point there."""
    with victoria_metrics(tmp_path / "data") as base:
        monkeypatch.setenv("INFLUXDB_HOST", base)
        assert checked(capsys)[0] == 0


def test_grpc_is_tested(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """OTLP over gRPC gets a point, too, and where nothing listens it is said."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "none")
    with grpc_receiving(lambda _, __: b"") as port:
        assert checked(capsys, "--endpoint", f"http://127.0.0.1:{port}")[0] == 0
    code, (line,) = checked(capsys, "--endpoint", f"http://127.0.0.1:{free_port()}")
    assert code == 1
    assert line.startswith("FAILED  otlp metrics")
    assert line.endswith("?")


def test_nothing_listens(capsys: pytest.CaptureFixture[str]) -> None:
    """A refused connection says that no server runs there."""
    code, (line,) = checked(capsys, "--host", f"http://127.0.0.1:{free_port()}")
    assert code == 1
    assert line.startswith("FAILED  influxdb")
    assert line.endswith("does the server run, and is the port right?")


def test_no_such_host(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that does not resolve is said to be none."""
    code, (line,) = checked(capsys, "--host", "no-such-host.invalid")
    assert code == 1
    assert "there is no such host" in line


def test_tls_against_a_plain_port(capsys: pytest.CaptureFixture[str]) -> None:
    """HTTPS against a server without TLS says to use http."""
    with receiving() as server:
        code, (line,) = checked(capsys, "--host", f"https://127.0.0.1:{server.server_port}")
    assert code == 1
    assert "http:// in place of https://?" in line


def test_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that accepts and says nothing is given up after the time-out."""
    with silent() as port:
        code, (line,) = checked(capsys, "--host", f"http://127.0.0.1:{port}", "--timeout", "0.3")
    assert code == 1
    assert "it does not answer" in line


def test_the_database_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A database that there is not is named, with how to make it."""
    with influxdb1(tmp_path / "data", database=None) as base:
        code, (line,) = checked(capsys, "--host", base, "--database", "nowhere")
    assert code == 1
    assert "'nowhere'" in line
    assert "CREATE DATABASE" in line


def test_the_token_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """401 names the variable of the token, and never shows it."""
    monkeypatch.setenv("INFLUXDB_TOKEN", SECRET)
    body = f'{{"code":"unauthorized","message":"{SECRET} is not known"}}'.encode()
    with receiving((401, {}, body)) as server:
        code, (line,) = checked(capsys, "--host", server.url.removesuffix("/v1/metrics"))
    assert code == 1
    assert "INFLUXDB_TOKEN" in line
    assert SECRET not in line


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The Prometheus page's port is tried; where it is taken, the next that is free is named, as start() takes it."""
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "prometheus")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", str(port))
        code, (line,) = checked(capsys)
        made = Endpoint(lambda: ([], None), Page({}, {}, Registry()), "127.0.0.1", port, Registry())
        made.close(1)
    assert code == 0
    assert line.startswith("ok      prometheus")
    assert line.endswith(f"it is taken: start() takes port {made.port}")


def test_an_address_of_another_machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An address for the Prometheus page that is not this machine's fails."""
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "prometheus")
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_HOST", "192.0.2.1")
    code, (line,) = checked(capsys)
    assert code == 1
    assert line.startswith("FAILED  prometheus")


@pytest.mark.parametrize(("found", "code"), [("math:floor", 0), ("math:nothing", 1)])
def test_an_exporter_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: str, code: int
) -> None:
    """An exporter of an entry point is loaded, and its line says that nothing was sent."""
    distribution = tmp_path / "theirs-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text(f"[tachograph.exporters]\ntheirs = {found}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "theirs")
    result, (line,) = checked(capsys)
    assert result == code
    assert "theirs" in line
    assert ("NOT TESTED" in line) == (code == 0)


@pytest.mark.parametrize(("timeout", "code"), [("1000", 0), ("soon", 1)])
def test_an_exporter_of_opentelemetry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], timeout: str, code: int
) -> None:
    """An exporter of OpenTelemetry's entry points is made, by its own variables; its line names the signal."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp_proto_grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", timeout)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    result, (line,) = checked(capsys)
    assert result == code
    assert "otlp_proto_grpc traces" in line


def test_a_wrong_setting_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong value ends with 2, and names its variable."""
    monkeypatch.setenv("INFLUXDB_PORT", "many")
    assert main(["check"]) == 2
    assert "INFLUXDB_PORT" in capsys.readouterr().err


def test_nothing_is_configured(capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is nothing to check, that is said, and no success."""
    code, lines = checked(capsys)
    assert code == 1
    assert lines == []

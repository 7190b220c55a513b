"""``tachograph doctor``: a line for each check, with what is wrong and what to do about it."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

import tachograph
from receivers import SECRET, grpc_receiving, receiving, silent
from recorded_runs import points, record
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


def checked(capsys: pytest.CaptureFixture[str], *arguments: str, influxdb: str = "") -> tuple[int, list[str]]:
    """Run the command, with the address of an InfluxDB; return its code and its lines about destinations."""
    with pytest.MonkeyPatch.context() as patch:
        if influxdb:
            patch.setenv("INFLUXDB_HOST", influxdb)
        code = main(["doctor", "--timeout", "2", *arguments])
    printed = capsys.readouterr().out
    return code, [line[2:] for line in printed.partition("destinations\n")[2].splitlines()]


def test_a_point_arrives_in_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """OTLP of each signal and InfluxDB get one test point each, and their lines name how long the answer took."""
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
    assert [" answered in " in line for line in lines] == [True] * 4 + [False]
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
    assert line.endswith("the port is right")


def test_nothing_listens(capsys: pytest.CaptureFixture[str]) -> None:
    """A refused connection says that no server runs there."""
    code, (line,) = checked(capsys, influxdb=f"http://127.0.0.1:{free_port()}")
    assert code == 1
    assert line.startswith("FAILED  influxdb")
    assert line.endswith("check that the server is running and the port is right")


def test_no_such_host(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that does not resolve is said to be none."""
    code, (line,) = checked(capsys, influxdb="no-such-host.invalid")
    assert code == 1
    assert "no such host" in line


def test_tls_against_a_plain_port(capsys: pytest.CaptureFixture[str]) -> None:
    """HTTPS against a server without TLS says to use http."""
    with receiving() as server:
        code, (line,) = checked(capsys, influxdb=f"https://127.0.0.1:{server.server_port}")
    assert code == 1
    assert "use http:// instead of https://" in line


def test_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that accepts and says nothing is given up after the time-out."""
    with silent() as port:
        code, (line,) = checked(capsys, "--timeout", "0.3", influxdb=f"http://127.0.0.1:{port}")
    assert code == 1
    assert "no answer" in line


def test_the_database_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing database is named, with how to create it."""
    monkeypatch.setenv("INFLUXDB_DATABASE", "nowhere")
    with influxdb1(tmp_path / "data", database=None) as base:
        code, (line,) = checked(capsys, influxdb=base)
    assert code == 1
    assert "'nowhere'" in line
    assert "CREATE DATABASE" in line


def test_the_token_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """401 names the variable of the token, and never shows it."""
    monkeypatch.setenv("INFLUXDB_TOKEN", SECRET)
    body = f'{{"code":"unauthorized","message":"{SECRET} is not known"}}'.encode()
    with receiving((401, {}, body)) as server:
        code, (line,) = checked(capsys, influxdb=server.url.removesuffix("/v1/metrics"))
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
    assert line.endswith(f"the port is in use, start() will use {made.port}")


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
    assert ("not tested" in line) == (code == 0)


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


def test_a_wrong_setting_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong value fails, and the line names its variable."""
    monkeypatch.setenv("INFLUXDB_PORT", "many")
    code, (line,) = checked(capsys)
    assert code == 1
    assert line.startswith("FAILED  ")
    assert "INFLUXDB_PORT" in line


def test_an_installation_without_destinations_is_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    """Without destinations the command says how to add one, and passes."""
    code, (line,) = checked(capsys)
    assert code == 0
    assert line.startswith("-       none configured; set OTEL_EXPORTER_OTLP_ENDPOINT")


def test_the_installation_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Versions, the store with its runs, ports and extras are listed."""
    record(tmp_path / "store", "one", *points([1.0]))
    (tmp_path / "store" / "runs" / "broken.db").write_bytes(b"this is no database" * 1000)
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert f"  ok      tachograph {tachograph.__version__}\n" in printed
    assert f"  ok      {tmp_path / 'store'}: 2 runs, " in printed
    assert re.search(r"  FAILED  .*broken\.db: .*not a database", printed)
    assert re.search(r"  ok      hub: 4318 is (free|in use)", printed)
    assert "  ok      top: installed\n" in printed

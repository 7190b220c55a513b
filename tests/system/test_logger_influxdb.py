"""The documents' own programs through ``MetricsLogger``, to real servers."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import programs
from documented_logger import documented
from influx_points import lines_in, spool_files
from receivers import receiving
from servers import exported_series, free_port, influxdb1, influxql, victoria_metrics, wait_until
from tachograph.cli import main
from tachograph.identity.extra import install_command

# Coverage makes the client's import take seconds.
_UNMEASURED = {"COVERAGE_PROCESS_CONFIG": "", "COVERAGE_PROCESS_START": ""}
_STATISTICS = {"losses_mean": 0.25, "losses_min": 0.1, "losses_max": 0.4, "losses_median": 0.25}


def run(folder: Path, base: str) -> None:
    """Run the documents' program; what a busy machine did not deliver before its end is replayed, as the docs say."""
    done = programs.run(folder, documented(base), INFLUXDB_HOST=base, **_UNMEASURED)
    assert done.returncode == 0, done.stderr
    for left in (folder / "store" / "spool").glob("*/"):
        database = left.name.rpartition("tplr-")[2] if left.name.endswith("tplr") else "your-bucket"
        if list(left.glob("*.spool")):
            assert main(["resend", str(left), "--to", "influxdb", "--url", base, "--database", database]) == 0


def rows(base: str, measurement: str, database: str) -> list[dict[str, Any]]:
    """Return the points of a measurement, without what they do not say."""
    (series,) = influxql(base, f'SELECT * FROM "{measurement}"', database)  # noqa: S608 - a name of our own
    named = [dict(zip(series["columns"], row, strict=True)) for row in series["values"]]
    return [{key: value for key, value in row.items() if value is not None} for row in named]


def test_the_documents_program_in_influxdb(tmp_path: Path) -> None:
    """Run unchanged, each of its points is in InfluxDB with every field, strings too, and every tag."""
    with influxdb1(tmp_path / "data") as base:
        influxql(base, 'CREATE DATABASE "your-bucket"')
        run(tmp_path, base)
        (mine,) = rows(base, "minertraining_step", "tplr")
        found = rows(base, "validatortraining_step", "your-bucket")
    assert (mine["loss"], mine["step"], mine["uid"], mine["group"]) == (0.75, "42", "123", "training_group")
    first, second, third = found
    assert (first["loss"], first["step"], first["uid"], first["role"], first["prefix"]) == (
        0.75,
        "42",
        "456",
        "validator",
        "validator",
    )
    assert (second["loss"], second["accuracy"], second["batch"], second["epoch"]) == (0.345, 0.92, "100", "5")
    assert second["sys_mem_total"] > second["sys_mem_used"] > 0
    assert third["peer_ids"] == "[1, 2, 3, 4]"
    assert {key: third[key] for key in _STATISTICS} == _STATISTICS


def test_the_documents_program_in_victoria_metrics(tmp_path: Path) -> None:
    """Run unchanged, each of its numbers is in VictoriaMetrics, and equal."""
    with victoria_metrics(tmp_path / "data") as base:
        run(tmp_path, base)
        wait_until(lambda: exported_series(base, '{__name__="validatortraining_step_losses_mean"}'))
        found = {
            (series["metric"]["__name__"], series["metric"].get("step", "-")): set(series["values"])
            for series in exported_series(base)
        }  # a set: it keeps a line as often as it comes, and one whose answer came too late comes again
    assert found["minertraining_step_loss", "42"] == {0.75}
    assert found["validatortraining_step_loss", "42"] == {0.75}
    assert found["validatortraining_step_loss", "-"] == {0.345}
    assert found["validatortraining_step_accuracy", "-"] == {0.92}
    for key, value in _STATISTICS.items():
        assert found[f"validatortraining_step_{key}", "43"] == {value}


_THREE = """
import os, time, math
from tachograph.logger import MetricsLogger
logger = MetricsLogger(role="miner")
for step in range(3):
    logger.log("train", {"step": step}, {"loss": step / 3, "bad": math.nan})
print(time.time(), flush=True)
"""


def ended(folder: Path, host: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run the three points in a new folder; return the process, and the seconds from its last line to its end."""
    folder.mkdir()
    done = programs.run(folder, _THREE, INFLUXDB_HOST=host, **_UNMEASURED)
    return done, time.time() - float(done.stdout)


@pytest.mark.timing
def test_three_points_and_the_end(tmp_path: Path) -> None:
    """A process that logs three points and ends has delivered them when it is gone, within a second."""
    with influxdb1(tmp_path / "data") as base:
        programs.run(tmp_path, "import influxdb_client")  # the system has read its files, as on a machine in use
        for attempt in range(4):  # the client takes half a second to load: a busy machine may need another try
            done, took = ended(tmp_path / str(attempt), base)
            assert done.returncode == 0
            found = influxql(base, 'SELECT "loss" FROM "train"')
            if found and took <= 1.0:
                break
            influxql(base, 'DROP MEASUREMENT "train"')
    assert [row[1] for series in found for row in series["values"]] == [0.0, 1 / 3, 2 / 3]
    assert took <= 1.0


@pytest.mark.timing
def test_a_dead_server_costs_a_second_at_most(tmp_path: Path) -> None:
    """With a dead server the process ends within about a second, says so in a line or two, and the points wait."""
    for attempt in range(4):  # a busy machine may need another try
        folder = tmp_path / str(attempt)
        done, took = ended(folder, f"http://127.0.0.1:{free_port()}")
        if took <= 1.6:
            break
    assert done.returncode == 0
    assert took <= 1.6
    assert "undelivered data is stored in" in done.stderr
    assert "Traceback" not in done.stderr
    (file,) = spool_files(folder / "store")
    fields = [line.split(" ")[1] for line in lines_in([file])]
    assert [float(each.partition("loss=")[2].partition(",")[0]) for each in fields] == [0.0, 1 / 3, 2 / 3]
    assert all("bad" not in each for each in fields)  # NaN, which no line can hold


def test_start_writes_points_of_metrics(tmp_path: Path) -> None:
    """``start(logs="influxdb")`` writes the points of Metrics, and those of loggers without a host of their own."""
    program = """
        import os, tachograph
        where = os.environ.pop("INFLUXDB_HOST")
        logger = tachograph.MetricsLogger()
        os.environ["INFLUXDB_HOST"] = where
        with tachograph.start(metrics="none", traces="none", logs="influxdb", run_id="r"):
            metric = tachograph.Metric("loss", group="training", throttle=None)
            for at in range(5):
                metric.record(at / 3, at=at)
            logger.log("train", {"step": 1}, {"f": 0.5})
    """
    with influxdb1(tmp_path / "data") as base:
        done = programs.run(tmp_path, program, INFLUXDB_HOST=base)
        assert done.returncode == 0, done.stderr
        points = rows(base, "training/loss", "tplr")
        (point,) = rows(base, "train", "tplr")
    assert [(each["x"], each["value"], each["dl.run.id"]) for each in points] == [(at, at / 3, "r") for at in range(5)]
    assert point["f"] == 0.5


def test_a_point_is_written_once(tmp_path: Path) -> None:
    """A logger and ``start(logs="influxdb")`` of one database write each point once, and jsonl has it, too."""
    program = """
        import tachograph
        with tachograph.start(metrics="none", traces="none", logs="influxdb,jsonl", jsonl="out.jsonl"):
            with tachograph.MetricsLogger() as logger:
                for step in range(4):
                    logger.log("train", {"step": step}, {"f": step})
    """
    with receiving() as server:
        done = programs.run(tmp_path, program, INFLUXDB_HOST=f"http://127.0.0.1:{server.server_port}")
        assert done.returncode == 0, done.stderr
    lines = [line for _, _, body in server.requests for line in body.splitlines()]
    assert [line.split()[1] for line in lines] == [b"f=0i", b"f=1i", b"f=2i", b"f=3i"]
    assert len(programs.events(tmp_path / "out.jsonl")) == 4


def test_a_wrong_setting_names_its_variable(tmp_path: Path) -> None:
    """``start(logs="influxdb")`` without a host, or with a wrong share of the disk, is a ValueError that names it."""
    program = """
        import json, os, tachograph
        said = []
        for name, value in (("INFLUXDB_HOST", ""), ("TACHOGRAPH_SPOOL_LIMIT", "much"), ("INFLUXDB_PORT", "x")):
            before = dict(os.environ)
            os.environ.update({"INFLUXDB_HOST": "localhost", name: value})
            try:
                tachograph.start(logs="influxdb")
            except ValueError as error:
                said.append(str(error))
            os.environ.clear()
            os.environ.update(before)
        print(json.dumps(said))
    """
    done = programs.run(tmp_path, program)
    found = json.loads(done.stdout)
    assert [text.split()[0] for text in found] == ["INFLUXDB_HOST", "TACHOGRAPH_SPOOL_LIMIT", "INFLUXDB_PORT"]


def test_anybodys_logger_provider(tmp_path: Path) -> None:
    """The exporter behind a LoggerProvider of the program's own writes what a MetricsLogger logs through it."""
    program = """
        from opentelemetry._logs import set_logger_provider
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
        from tachograph.exporters.influxdb import InfluxDBLogExporter
        import os, tachograph
        provider = LoggerProvider()
        provider.add_log_record_processor(BatchLogRecordProcessor(InfluxDBLogExporter()))
        set_logger_provider(provider)
        del os.environ["INFLUXDB_HOST"]
        with tachograph.start(metrics="none", traces="none"):
            tachograph.MetricsLogger().log("train", {"step": 1}, {"f": 0.5, "s": "text"})
        provider.force_flush(20_000)  # at the end it has a second, and a busy machine takes that for importing
        provider.shutdown()
    """
    with influxdb1(tmp_path / "data") as base:
        done = programs.run(tmp_path, program, INFLUXDB_HOST=base)
        assert done.returncode == 0, done.stderr
        (point,) = rows(base, "train", "tplr")
    assert (point["f"], point["s"], point["step"]) == (0.5, "text", "1")


def test_without_the_client_the_rest_goes_on(tmp_path: Path) -> None:
    """Where the extra is not installed one line says so, and the points go to the other exporters."""
    program = """
        import os, sys
        sys.modules["influxdb_client"] = None
        os.environ["INFLUXDB_TOKEN"] = "some"
        import tachograph
        with tachograph.start(metrics="none", traces="none", logs="jsonl", jsonl="out.jsonl"):
            with tachograph.MetricsLogger() as logger:
                logger.log("train", {"step": 1}, {"f": 0.5})
    """
    done = programs.run(tmp_path, program, INFLUXDB_HOST=f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert install_command("influxdb") in line
    assert len(programs.events(tmp_path / "out.jsonl")) == 1

"""Real torchrun jobs behind agent and gateway: what they recorded arrives, equal, whatever dies on the way."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest

from collectors import JOB, PROMETHEUS, Collector, Ports, Recorded, agent, gateway, recorded
from hubs import Command, ask, command
from programs import events, spans
from servers import api, influxdb1, influxql, instant, prometheus, wait_until
from test_torchrun import torchrun

pytestmark = [pytest.mark.otelcol, pytest.mark.prometheus, pytest.mark.torch, pytest.mark.usefixtures("untraced")]

OUTAGE = float(os.environ.get("TACHOGRAPH_TEST_OUTAGE", "8"))  # seconds
EXPORTERS = {f"OTEL_{signal}_EXPORTER": "otlp,jsonl" for signal in ("METRICS", "LOGS", "TRACES")}
NAMES = {"loss": "loss", "checkpoint.success": "checkpoint_success_total", "function.calls": "function_calls_total"}
INFLUXQL = {
    "loss": 'SELECT "gauge" FROM "loss" GROUP BY "dl.rank"',
    "checkpoint.success": 'SELECT "counter" FROM "checkpoint.success" GROUP BY "dl.rank"',
    "function.calls": 'SELECT "counter" FROM "function.calls" GROUP BY "dl.rank"',
}
HUB_TOKEN = "the-hubs-t0ken"  # noqa: S105 - of a hub on loopback that lives as long as a test


class Ends(NamedTuple):
    """Where everything ends up: the variables that say so to a gateway, and how to ask."""

    layers: tuple[str, ...]
    env: dict[str, str]
    prometheus: str
    influxdb: str
    hub: Command


@contextmanager
def ends(folder: Path, scraped: Ports) -> Iterator[Ends]:
    """Run a Prometheus that also scrapes the gateway, an InfluxDB and a central hub."""
    config = folder / "prometheus.yml"
    scrape = f"{{job_name: gateway, static_configs: [{{targets: ['127.0.0.1:{scraped.prometheus}']}}]}}"
    config.write_text(f"{PROMETHEUS}scrape_configs: [{scrape}]\n")
    token = folder / "token"
    token.write_text(HUB_TOKEN)
    with ExitStack() as stack:
        base = stack.enter_context(prometheus(config, arguments=["--web.enable-remote-write-receiver"]))
        influx = stack.enter_context(influxdb1(folder / "influxdb", database="tachograph"))
        hub = stack.enter_context(command(folder, "--token-file", str(token)))
        env = {"REMOTE_WRITE": f"{base}/api/v1/write", "INFLUXDB": influx, "HUB": hub.url, "HUB_TOKEN": HUB_TOKEN}
        yield Ends(("gateway-remote-write", "gateway-influxdb", "gateway-hub"), env, base, influx, hub)


def job(folder: Path, to: int, seconds: float) -> Recorded:
    """Run two ranks that send to an agent, and return what they recorded."""
    where = f"http://127.0.0.1:{to}"
    done = torchrun(folder, JOB, str(seconds), ranks=2, OTEL_EXPORTER_OTLP_ENDPOINT=where, **EXPORTERS)
    assert done.returncode == 0, done.stderr
    (steps,) = {int(line.split()[1]) for line in done.stdout.splitlines()}
    found = recorded(folder)
    assert found.counts["step", "0"][0] == found.counts["step", "1"][0] == steps
    return found


def written(base: str, name: str) -> dict[str, dict[int, float]]:
    """Return the samples that were written remotely into Prometheus, by rank and time in milliseconds."""
    series = api(base, "query", query=f'{name}{{job="train"}}[20m]')["result"]
    return {
        one["metric"]["dl_rank"]: {round(float(at) * 1000): float(value) for at, value in one["values"]}
        for one in series
    }


def in_influxdb(base: str, name: str) -> dict[str, dict[int, float]]:
    """Return the samples in InfluxDB, by rank and time in milliseconds."""
    return {
        one["tags"]["dl.rank"]: {int(at) // 1_000_000: float(value) for at, value in one["values"]}
        for one in influxql(base, INFLUXQL[name], "tachograph")
    }


def of_ranks(what: Recorded, name: str) -> dict[str, dict[int, float]]:
    """Return the recorded samples of a name, by rank."""
    return {rank: samples for (of, rank), samples in what.numbers.items() if of == name}


def taken(hub: Command) -> int:
    """Return how many events a hub has, each once."""
    health = ask(hub.url, "/healthz").body.decode()
    return int(health.partition('"log_records": ')[2].partition(",")[0])


def in_file(collector: Collector) -> list[tuple[str, int]]:
    """Return which events a gateway has written into its file, by stream and number."""
    found = (record["attributes"] for record in events(collector.file))
    return [(attributes["tachograph.stream"], attributes["tachograph.seq"]) for attributes in found]


def everything_is_there(what: Recorded, at: Ends, collector: Collector) -> None:
    """Wait until every sample of every series and every event is everywhere, and nothing that was not recorded."""

    def until(found: Callable[[], object], wanted: object) -> None:
        wait_until(lambda: found() == wanted, 30, lambda: (found(), wanted, collector.server.log()[-2000:]))

    for name, in_prometheus in NAMES.items():
        until(partial(written, at.prometheus, in_prometheus), of_ranks(what, name))
        until(partial(in_influxdb, at.influxdb, name), of_ranks(what, name))
        last = {rank: samples[max(samples)] for rank, samples in of_ranks(what, name).items()}
        until(partial(scraped, at.prometheus, in_prometheus), last)
    for rank in ("0", "1"):
        count, total = what.counts["step", rank]
        for kind in ('job="train"', 'exported_job="train"'):
            label = f'{{{kind},dl_rank="{rank}"}}'
            until(partial(value, at.prometheus, f"step_seconds_count{label}"), count)
            assert value(at.prometheus, f"step_seconds_sum{label}") == total
            steps = [count // 4 + (number < count % 4) for number in range(4)]
            wanted = {0.1: steps[0] + steps[1], 1.0: steps[0] + steps[1], 10.0: sum(steps[:3]), math.inf: count}
            assert buckets(at.prometheus, f"step_seconds_bucket{label}") == wanted
    until(partial(taken, at.hub), what.events)
    assert len(set(in_file(collector))) == what.events


def scraped(base: str, name: str) -> dict[str, float]:
    """Return what Prometheus scraped from the gateway, by rank."""
    return {labels["dl_rank"]: now for labels, now in instant(base, f'{name}{{exported_job="train"}}')}


def value(base: str, expression: str) -> float | None:
    """Return the value of the one series of an expression; None where there is none."""
    found = instant(base, expression)
    return found[0][1] if len(found) == 1 else None


def buckets(base: str, expression: str) -> dict[float, float]:
    """Return a histogram's buckets; a scrape says le="1.0" where remote write says le="1"."""
    return {float(labels["le"]): now for labels, now in instant(base, expression)}


def test_what_a_job_recorded_arrives_everywhere(tmp_path: Path) -> None:
    """Each sample, total, bucket and event is in Prometheus (written and scraped), InfluxDB and the hub, equal."""
    ports = Ports.free()
    for name in ("agent", "gateway", "job"):
        (tmp_path / name).mkdir()
    with (
        ends(tmp_path, ports) as at,
        gateway(tmp_path / "gateway", *at.layers, ports=ports, TRACES_PERCENT="100", **at.env) as through,
        agent(tmp_path / "agent", through.http) as near,
    ):
        what = job(tmp_path / "job", near.http, 2)
        everything_is_there(what, at, through)
        assert len(in_file(through)) == what.events
        node = instant(at.prometheus, 'system_cpu_logical_count{job="node"}')
        assert [cpus for _, cpus in node] == [os.cpu_count()]
        wait_until(lambda: len(spans(through.file)) >= what.counts["step", "0"][0] * 2, 20)
        assert not lost(near, through)


def lost(*collectors: Collector) -> list[str]:
    """Return what collectors have said of data that they gave up."""
    said = [line for one in collectors for line in one.server.log().splitlines()]
    return [line for line in said if "Dropping data" in line or "sending queue is full" in line]


@pytest.mark.long
def test_a_gateway_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """The gateway is killed under load and comes back: every sample and event that was recorded is there, once.

    For as long as ``TACHOGRAPH_TEST_OUTAGE`` says, in seconds.
    """
    ports = Ports.free()
    for name in ("agent", "gateway", "job"):
        (tmp_path / name).mkdir()
    results: list[Recorded] = []
    with ends(tmp_path, ports) as at, ExitStack() as stack:
        with gateway(tmp_path / "gateway", *at.layers, ports=ports, **at.env) as first:
            near = stack.enter_context(agent(tmp_path / "agent", first.http))
            running = Thread(target=lambda: results.append(job(tmp_path / "job", near.http, OUTAGE + 5)))
            running.start()
            wait_until(lambda: instant(at.prometheus, 'loss{job="train"}'), 60, first.server.log)
            time.sleep(1)
            first.server.process.kill()
        before = taken(at.hub)
        time.sleep(OUTAGE)
        assert taken(at.hub) == before
        with gateway(tmp_path / "gateway", *at.layers, ports=ports, **at.env) as again:
            running.join(150)
            (what,) = results
            assert what.events > before > 0
            everything_is_there(what, at, again)
            assert not lost(near, again)


@pytest.mark.long
def test_a_gateway_that_is_not_there_is_said_and_harms_no_job(tmp_path: Path) -> None:
    """The job ends well, the agent says that it cannot reach the gateway, and delivers all, restarted, when it can."""
    ports, own = Ports.free(), Ports.free()
    for name in ("agent", "gateway", "job"):
        (tmp_path / name).mkdir()
    with agent(tmp_path / "agent", ports.http, ports=own) as near:
        what = job(tmp_path / "job", near.http, 1)
        wait_until(lambda: "Exporting failed. Will retry" in near.server.log(), 20, near.server.log)
        assert "connection refused" in near.server.log()
    with (
        gateway(tmp_path / "gateway", ports=ports) as through,
        agent(tmp_path / "agent", ports.http, ports=own),
    ):
        wait_until(lambda: len(set(in_file(through))) == what.events, 30, through.server.log)
        steps = {rank: float(what.counts["step", rank][0]) for rank in ("0", "1")}

        def shown() -> dict[str, float]:
            found = through.samples("train")
            return {labels["dl_rank"]: count for name, labels, count in found if name == "step_seconds_count"}

        wait_until(lambda: shown() == steps, 30, lambda: (shown(), steps, through.server.log()[-2000:]))

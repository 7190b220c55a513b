"""What is killed on the way, other than the gateway: the agent, and the Prometheus behind remote write."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from collectors import PROMETHEUS, TOKEN, Ports, agent, gateway
from programs import events
from servers import api, find, free_port, wait_until
from tachograph.exporters.batch import Batch
from tachograph.exporters.otlp.exporter import OtlpExporter
from tachograph.exporters.otlp.settings import OtlpSettings, Signal
from tachograph.recording.journal import Journal
from tachograph.recording.own_metrics import RESENT
from tachograph.recording.registry import Registry

pytestmark = [pytest.mark.otelcol, pytest.mark.prometheus]

AWAY = 3.0  # seconds


class Sender:
    """A process that records and sends five times a second, until told to stop."""

    def __init__(self, port: int) -> None:
        self.samples: dict[int, float] = {}
        self.events = 0
        self._own = Registry()
        self._port = port
        self._stop = Event()
        self._thread = Thread(target=self._send)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send to the end of the block, and until all has been taken."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(60)

    def resent(self) -> float:
        """Return how many items were sent again, because an answer to them was lost: they may have arrived twice."""
        again = [metric for metric in self._own.collect() if metric.name == RESENT.name]
        return sum(point.value for metric in again for point in metric.points)  # type: ignore[union-attr]

    def _send(self) -> None:
        registry = Registry()
        journal, counter = Journal(registry), registry.group("g").instrument("save.success")
        signals: tuple[Signal, ...] = ("metrics", "logs")
        where = f"http://127.0.0.1:{self._port}/v1/"
        settings = {signal: OtlpSettings(signal, "http/protobuf", where + signal) for signal in signals}
        exporter = OtlpExporter(settings, self._own)
        resource = {"service.name": "train", "service.instance.id": "one"}
        while not self._stop.wait(0.2):
            self.events += 1
            counter.record(self.events)
            journal.append("saved", time.time_ns(), {"number": self.events})
            (metric,) = (metric for metric in registry.collect() if metric.name == "save.success")
            (point,) = metric.points
            now = time.time_ns()
            self.samples[now // 1_000_000] = float(point.value)  # type: ignore[union-attr]
            exporter(Batch([metric], None, [], dict(resource), now, journal.drain()))
        assert exporter.flush(30)
        exporter.close(1)


@contextmanager
def prometheus(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Prometheus that takes remote write; one that is started again in the folder goes on with its data."""
    config = folder / "prometheus.yml"
    config.write_text(PROMETHEUS)
    command = [find("prometheus", 3), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver", "--log.level=error"]
    with subprocess.Popen(command, cwd=folder) as process:
        try:
            yield process
        finally:
            process.kill()


def there(port: int) -> dict[int, float]:
    """Return the samples that Prometheus has, by time in milliseconds; none while it does not answer."""
    try:
        found = api(f"http://127.0.0.1:{port}", "query", query="save_success_total[10m]")["result"]
    except OSError:
        return {}
    return {round(float(at) * 1000): float(value) for one in found for at, value in one["values"]}


def test_prometheus_and_the_agent_may_be_killed(tmp_path: Path) -> None:
    """Prometheus and the agent are killed under load, and come back: each sample and event is there, once.

    An event whose answer the agent has taken with it is sent again, and counted: that one may be there twice.
    """
    ports, port = Ports.free(), free_port()
    for name in ("agent", "gateway", "prometheus"):
        (tmp_path / name).mkdir()
    where = f"http://127.0.0.1:{port}/api/v1/write"
    with gateway(tmp_path / "gateway", "gateway-remote-write", REMOTE_WRITE=where) as through, ExitStack() as stack:
        database = stack.enter_context(prometheus(tmp_path / "prometheus", port))
        near = stack.enter_context(agent(tmp_path / "agent", through.http, ports=ports))
        sender = Sender(near.http)
        with sender.sending():
            wait_until(lambda: len(there(port)) > 5, 30, through.server.log)
            database.kill()
            database.wait()
            time.sleep(AWAY)
            near.server.process.kill()
            near.server.process.wait()
            time.sleep(1)
            stack.enter_context(agent(tmp_path / "agent", through.http, ports=ports))
            stack.enter_context(prometheus(tmp_path / "prometheus", port))
            known = len(sender.samples)
            wait_until(lambda: len(there(port)) > known, 30, through.server.log)
        wait_until(lambda: there(port) == sender.samples, 30, lambda: (there(port), sender.samples))
        wait_until(lambda: len(events(through.file)) >= sender.events, 30, through.server.log)
        seen = [record["attributes"]["tachograph.seq"] for record in events(through.file)]
        assert sorted({*seen}) == list(range(1, sender.events + 1))
        assert len(seen) - sender.events <= sender.resent()


def test_long_events_wait_for_a_gateway_that_is_away(tmp_path: Path) -> None:
    """What an agent makes of many long events after an outage is no larger than a gateway takes: each arrives, once."""
    ports = Ports.free()
    for name in ("agent", "gateway"):
        (tmp_path / name).mkdir()
    journal, total = Journal(Registry(), limit=3000), 3000
    with ExitStack() as stack:
        near = stack.enter_context(agent(tmp_path / "agent", ports.http))
        where = OtlpSettings("logs", "http/protobuf", f"http://127.0.0.1:{near.http}/v1/logs")
        exporter = OtlpExporter({"logs": where}, Registry())
        for number in range(total):
            journal.append("raised", time.time_ns(), {"traceback": f"{number:>12,}\n" * 1000})
        while found := journal.drain(200):
            exporter(Batch([], None, [], {"service.name": "train"}, time.time_ns(), found))
            assert exporter.flush(30)
        exporter.close(1)
        far = stack.enter_context(gateway(tmp_path / "gateway", ports=ports))
        # The file is put aside at 100 MB; 39 MB come.
        wait_until(lambda: len(events(far.file)) >= total, 60, near.server.log)
        assert sorted(record["attributes"]["tachograph.seq"] for record in events(far.file)) == [*range(1, total + 1)]


@pytest.mark.parametrize(
    ("layer", "variables"), [pytest.param("influxdb", ["INFLUXDB"], marks=pytest.mark.long), ("hub", ["HUB"])]
)
def test_a_destination_that_is_away_holds_up_no_other(layer: str, variables: list[str], tmp_path: Path) -> None:
    """With InfluxDB or the hub away for 1,500 requests, all that comes is on the gateway's page and in its file."""
    env = {**dict.fromkeys(variables, f"http://127.0.0.1:{free_port()}"), "HUB_TOKEN": "t"}
    with gateway(tmp_path, f"gateway-{layer}", **env) as through:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        registry, journal = Registry(), Journal(Registry())
        signals: tuple[Signal, ...] = ("metrics", "logs")
        base = f"http://127.0.0.1:{through.http}/v1/"
        settings = {
            signal: OtlpSettings(signal, "http/protobuf", base + signal, headers=tuple(headers.items()))
            for signal in signals
        }
        exporter, total = OtlpExporter(settings, Registry()), 1500
        counter = registry.group("g").instrument("save.success")
        for _ in range(total):
            counter.record(1)
            journal.append("saved", time.time_ns(), {})
            (metric,) = (metric for metric in registry.collect() if metric.name == "save.success")
            exporter(Batch([metric], None, [], {"service.name": "train"}, time.time_ns(), journal.drain()))
            assert exporter.flush(10)
        exporter.close(1)
        wait_until(lambda: through.values("train").get("save_success_total") == total, 30, through.server.log)
        wait_until(lambda: len(events(through.file)) == total, 30, through.server.log)

"""Real agents, a gateway and a Prometheus: the requests to them, and their costs."""

from __future__ import annotations

import http.client
import sys
import time
import urllib.request
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # real servers are started as tests start them

import psutil
from fleet_node import Sender

from collectors import PROMETHEUS, Ports, agent, gateway
from servers import api, prometheus

RULES = Path(__file__).resolve().parents[1] / "deploy" / "prometheus" / "rules"
IDLE = 4.0  # seconds in which the servers are watched before the first round


class Watched:
    """The CPU and the memory of one kind of server, which may be several processes."""

    def __init__(self, name: str, pids: list[int]) -> None:
        self.name = name
        self._processes = [psutil.Process(pid) for pid in pids]
        self._before = 0.0
        self.memory: list[int] = []
        self.idle = self.spent = 0.0  # seconds of CPU: a second without load, and in all rounds
        self.idle_memory = 0

    def __len__(self) -> int:
        return len(self._processes)

    def begin(self) -> None:
        """Measure from here on."""
        self._before = self._cpu()
        self.memory.clear()

    def end(self) -> float:
        """Measure to here; return the seconds of CPU."""
        self.spent = self._cpu() - self._before
        return self.spent

    def _cpu(self) -> float:
        return sum(sum(one.cpu_times()[:2]) for one in self._processes)

    def look(self) -> None:
        """Note the memory."""
        self.memory.append(sum(one.memory_info().rss for one in self._processes))


class Way:
    """Agents, gateway and Prometheus, while they run, and the requests to them.

    Args:
        folder: of their files.
        agents: their number.
        stack: ends them.
        aggregate: with ``gateway-aggregate.yaml``.
        rules: Prometheus evaluates those of ``deploy/prometheus/rules``.
    """

    def __init__(self, folder: Path, agents: int, stack: ExitStack, *, aggregate: bool, rules: bool = False) -> None:
        self.folder, self.aggregate = folder, aggregate
        (folder / "prometheus.yml").write_text(PROMETHEUS + (f'rule_files: ["{RULES}/*.yml"]\n' if rules else ""))
        arguments = ["--web.enable-remote-write-receiver", "--web.enable-admin-api"]
        self.base = stack.enter_context(prometheus(folder / "prometheus.yml", arguments=arguments))
        layers = ["gateway-remote-write", *(["gateway-aggregate"] if aggregate else [])]
        (folder / "gateway").mkdir()
        write = f"{self.base}/api/v1/write"
        through = stack.enter_context(gateway(folder / "gateway", *layers, REMOTE_WRITE=write))
        self._ports = [Ports.free() for _ in range(agents)]
        near = []
        for number, ports in enumerate(self._ports):
            (folder / f"agent-{number}").mkdir()
            near.append(stack.enter_context(agent(folder / f"agent-{number}", through.http, ports=ports)))
        self._connections = [http.client.HTTPConnection("127.0.0.1", ports.http) for ports in self._ports]
        where = self.base.partition("://")[2]
        for connection in self._connections:
            stack.callback(connection.close)
        (database,) = (one for one in psutil.Process().children() if where in " ".join(one.cmdline()))
        self.servers = [
            Watched("agent", [one.server.process.pid for one in near]),
            Watched("gateway", [through.server.process.pid]),
            Watched("Prometheus", [database.pid]),
        ]
        self.metrics: dict[str, list[bytes]] = defaultdict(list)
        self.logs: dict[str, list[bytes]] = defaultdict(list)
        self.latest: dict[str, list[bytes]] = {}
        self.taken: list[float] = []
        self._looked = 0.0

    def send(self, sender: Sender, number: int) -> None:
        """Let a process export, to the agent that stands for its node."""
        connection = self._connections[number % len(self._connections)]
        self.latest[sender.instance] = []
        for path, body in sender.requests():
            (self.metrics if path == "metrics" else self.logs)[sender.instance].append(body)
            if path == "metrics":
                self.latest[sender.instance].append(body)
            began = time.perf_counter()
            connection.request("POST", f"/v1/{path}", body, {"Content-Type": "application/x-protobuf"})
            answer = connection.getresponse()
            said = answer.read()
            self.taken.append(time.perf_counter() - began)
            if answer.status != http.client.OK:
                raise SystemExit(f"the agent said {answer.status}: {said!r:.300}")
        self.look()

    def look(self) -> None:
        """Note the servers' memory, once a second at most."""
        if time.monotonic() - self._looked >= 1:
            self._looked = time.monotonic()
            for server in self.servers:
                server.look()

    def watch_idle(self) -> None:
        """Note the servers' costs without load."""
        for server in self.servers:
            server.begin()
        time.sleep(IDLE)
        for server in self.servers:
            server.idle = server.end() / IDLE
            server.look()
            server.idle_memory = server.memory[-1]

    def begin(self) -> None:
        """Measure from here on."""
        self.taken.clear()
        for server in self.servers:
            server.begin()

    def end(self) -> None:
        """Measure to here."""
        for server in self.servers:
            server.end()

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Return Prometheus's answer to an expression."""
        found: list[dict[str, Any]] = api(self.base, "query", query=expression)["result"]
        return found

    def waiting(self) -> float:
        """Return the number of requests in the agents' queues."""
        return sum(
            value
            for ports in self._ports
            for line in _page(f"http://127.0.0.1:{ports.own}/metrics")
            if line.startswith("otelcol_exporter_queue_size{")
            for value in (float(line.rpartition(" ")[2]),)
        )


def _page(url: str) -> list[str]:
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - of a server of ours
        return str(answer.read().decode()).splitlines()


def stored(way: Way) -> dict[str, float]:
    """Return Prometheus's series, samples, and the bytes of its log and of a block made of it.

    And the seconds that one evaluation of all rules takes.
    """
    found: dict[str, float] = {"rules": 0.0}
    for line in _page(f"{way.base}/metrics"):
        name, _, value = line.rpartition(" ")
        if name.startswith("prometheus_rule_group_last_duration_seconds{"):
            found["rules"] += float(value)
        if name in ("prometheus_tsdb_head_series", 'prometheus_tsdb_head_samples_appended_total{type="float"}'):
            found[name.partition("{")[0].removeprefix("prometheus_tsdb_head_")] = float(value)
    data = Path(api(way.base, "status/flags")["storage.tsdb.path"])
    found["wal"] = _size(data / "wal")
    request = urllib.request.Request(f"{way.base}/api/v1/admin/tsdb/snapshot", method="POST")  # noqa: S310 - of ours
    with urllib.request.urlopen(request, timeout=300):  # noqa: S310 - the same
        pass
    blocks = list((data / "snapshots").glob("*/*/"))
    found["chunks"] = sum(_size(block / "chunks") for block in blocks)
    found["index"] = sum((block / "index").stat().st_size for block in blocks)
    return found


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

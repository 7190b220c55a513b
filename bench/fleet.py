"""A simulated fleet: N nodes of 8 ranks, through real agents and a real gateway, into a real Prometheus.

``python bench/fleet.py --nodes 64``: every process of every node records as a training does, and exports once an
interval, spread over it; OTLP goes to agents (``collector-config/agent.yaml``, one stands for several nodes), from
there to the gateway (``gateway.yaml``, ``gateway-remote-write.yaml``, and with ``--aggregate`` also
``gateway-aggregate.yaml``) and into Prometheus. In each round nodes are replaced, and the ranks of their jobs restart;
halfway a job ends and another begins.

``--check``: every sample of every series is in Prometheus with its time and its value, nothing else is, every event is
in the gateway's file once, and with ``--aggregate`` the sums over all ranks are those of the recorded values.

CPU and memory of each server are those of the rounds behind the first, in which all series are made. Memory "a 1,000
series" is the server's growth since it was idle.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import fleet_arrived as arrived
from fleet_node import RANKS, Node, Readings
from fleet_servers import Way, stored

NODES_A_JOB = 8
QUANTILE = "histogram_quantile(0.99, sum by (le, dl_run_id) (rate({name}_bucket[{range}])))"
MEAN = "rate({name}_sum[{range}]) / rate({name}_count[{range}])"
PATIENCE = 120.0  # seconds for requests under way when the last round is over


class Fleet:
    """All nodes, and the changes between rounds.

    Args:
        nodes: their number.
        replaced: the share of them that is replaced in a minute.
        interval: seconds between two exports of a process.
    """

    def __init__(self, nodes: int, replaced: float, interval: float) -> None:
        self._chance = random.Random(nodes)
        self._readings = Readings()
        self._hosts = 0
        self._each_round = replaced * nodes * interval / 60
        self._due = 0.0
        self.replaced = self.ended = 0
        self.jobs = [
            self._job(number, min(NODES_A_JOB, nodes - first))
            for number, first in enumerate(range(0, nodes, NODES_A_JOB))
        ]

    def _host(self) -> str:
        self._hosts += 1
        return f"node-{self._hosts:05}"

    def _job(self, number: int, nodes: int) -> list[Node]:
        return [
            Node(f"run-{number}", at, self._host(), self._readings, self._chance.randrange(2**32))
            for at in range(nodes)
        ]

    def nodes(self) -> list[Node]:
        """Return all nodes that there are now."""
        return [node for job in self.jobs for node in job]

    def go_on(self, *, job_ends: bool) -> None:
        """Make the changes between two rounds."""
        self._readings.again()
        self._due += self._each_round
        while self._due >= 1:
            self._due -= 1
            self.replaced += 1
            job = self._chance.choice(self.jobs)
            self._chance.choice(job).replace(self._host())
            for node in job:
                node.restart_ranks()
        if job_ends:
            self.ended += 1
            self.jobs[0] = self._job(len(self.jobs) + self.ended, len(self.jobs[0]))


class Played(NamedTuple):
    """The measurements of the rounds after the first.

    Args:
        seconds: that they took.
        cpu: seconds of CPU that the generator took for them.
        series: of the processes at the end.
        rate: samples a second that they sent.
    """

    seconds: float
    cpu: float
    series: int
    rate: float


def play(way: Way, fleet: Fleet, turns: int, interval: float) -> Played:
    """Play a first round and ``turns`` more, which are measured."""
    began, cpu = 0.0, 0.0
    for turn in range(turns + 1):
        fleet.go_on(job_ends=turn == turns // 2 + 1)
        if turn == 1:
            way.begin()
            began, cpu = time.monotonic(), time.process_time()
        start = time.monotonic()
        senders = [(sender, number) for number, node in enumerate(fleet.nodes()) for sender in node.senders()]
        for place, (sender, number) in enumerate(senders):
            time.sleep(max(0.0, start + interval * place / len(senders) - time.monotonic()))
            way.send(sender, number)
        late = time.monotonic() - start - interval
        if late > interval / 10:
            print(f"round {turn} took {late:.1f} s more than the interval: the machine is too slow for it", flush=True)
        time.sleep(max(0.0, -late))
    way.end()
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    living = [way.latest[sender.instance] for sender, _ in senders]
    series = sum(len(arrived.expected(bodies, aggregated=False)) for bodies in living)
    return Played(seconds, cpu, series, series * turns / seconds)


def lost(way: Way, patience: float = PATIENCE) -> list[str]:
    """Compare arrived and sent samples, and return the differences.

    Args:
        way: the servers, and the requests that were sent.
        patience: seconds for requests that are still under way.
    """
    patiently = partial(_patiently, time.monotonic() + patience)
    wrong = patiently(lambda: ["the agents' queues do not get empty"] if way.waiting() else [])
    compared = samples = 0
    for instance, bodies in way.metrics.items():
        wanted = arrived.expected(bodies, aggregated=way.aggregate)
        compared += len(wanted)
        samples += sum(map(len, wanted.values()))
        wrong += patiently(partial(_difference, way.ask, instance, wanted))
    print(f"compared: {compared:,} series with {samples:,} samples")
    if way.aggregate:
        totals = arrived.over_all_ranks(way.metrics.values())
        wrong += patiently(lambda: _sums(totals, arrived.last(way.ask, arrived.GATEWAY)))
        print(f"compared: {len(totals):,} series over all ranks")
    events = sum(map(arrived.events_sent, way.logs.values()))
    wrong += patiently(lambda: _events(events, *arrived.events_written(way.folder / "gateway")))
    print(f"compared: {events:,} events")
    return wrong


def _patiently(deadline: float, look: Callable[[], list[str]]) -> list[str]:
    while True:
        wrong = look()
        if not wrong or time.monotonic() > deadline:
            return wrong
        time.sleep(1)


def _difference(ask: arrived.Ask, instance: str, wanted: dict[arrived.Series, arrived.Samples]) -> list[str]:
    found = arrived.shown(ask, instance)
    differ = [key for key in {*wanted, *found} if wanted.get(key) != found.get(key)]
    return [f"{instance} {key}: sent {wanted.get(key)}, found {found.get(key)}" for key in differ[:3]]


def _events(sent: int, written: int, different: int) -> list[str]:
    return [] if sent == written == different else [f"{sent} events sent, {written} written, {different} different"]


def _sums(wanted: dict[arrived.Series, float], found: dict[arrived.Series, float]) -> list[str]:
    differ = [
        key
        for key in {*wanted, *found}
        if abs(wanted.get(key, 0.0) - found.get(key, 0.0)) > 1e-9 * abs(wanted.get(key, 0.0))
    ]
    return [f"over all ranks, {key}: recorded {wanted.get(key)}, found {found.get(key)}" for key in differ[:3]]


def report(way: Way, fleet: Fleet, played: Played, interval: float) -> None:
    """Print the costs."""
    print(
        f"{played.series:,} series and {played.rate:,.0f} samples/s sent; "
        f"{fleet.replaced} nodes replaced, {fleet.ended} jobs ended"
    )
    taken = sorted(way.taken)
    print(
        f"generator {played.cpu / played.seconds:.2f} cores; a request is taken in {statistics.median(taken) * 1e3:.1f}"
        f" ms, {taken[int(len(taken) * 0.99)] * 1e3:.0f} ms at p99, {taken[-1] * 1e3:.0f} ms at most"
    )
    print(f"{'':<15}{'cores':>8}{'idle':>8}{'mcores/1k samples/s':>21}{'MiB':>8}{'peak':>8}{'idle':>8}{'MiB/1k':>8}")
    for server in way.servers:
        cores = server.spent / played.seconds
        memory, peak, idle = (found / 2**20 for found in (*_of(server.memory), server.idle_memory))
        print(
            f"{len(server)} {server.name:<13}{cores:>8.3f}{server.idle:>8.3f}"
            f"{(cores - server.idle) / played.rate * 1e6:>21.2f}{memory:>8.0f}{peak:>8.0f}{idle:>8.0f}"
            f"{(memory - idle) / played.series * 1e3:>8.2f}"
        )
    has = stored(way)
    samples = has["samples_appended_total"]
    print(
        f"in Prometheus: {has['series']:,.0f} series, {samples:,.0f} samples; bytes a sample: "
        f"log {has['wal'] / samples:.1f}, block {has['chunks'] / samples:.1f}"
        f", and its index {has['index'] / has['series']:.0f} a series; all rules take {has['rules'] * 1e3:.0f} ms"
    )
    for firing in way.ask('count by (alertname) (last_over_time(ALERTS{alertstate="firing"}[2h]))'):
        print(f"has fired: {firing['metric']['alertname']}, {firing['value'][1]} times")
    for what, name in (("the p99 of all ranks", QUANTILE), ("the mean of each rank", MEAN)):
        suffix = "_all_ranks" if way.aggregate and name is QUANTILE else ""
        expression = name.format(name=f"step_duration{suffix}_seconds", range=f"{4000 * interval:.0f}ms")
        began = time.perf_counter()
        found = len(way.ask(expression))
        print(f"{what}: {(time.perf_counter() - began) * 1e3:.0f} ms for {found} values")


def _of(memory: list[int]) -> tuple[float, int]:
    return statistics.median(memory), max(memory)


def run(options: argparse.Namespace, *, aggregate: bool) -> list[str]:
    """Play one fleet through servers of its own, print their costs, and return the losses."""
    print(
        f"\n{options.nodes} nodes, {options.nodes * RANKS} ranks, an export each {options.interval:g} s, "
        f"{'with' if aggregate else 'without'} aggregation",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="tachograph-fleet-") as folder, ExitStack() as stack:
        way = Way(Path(folder), options.agents, stack, aggregate=aggregate, rules=options.rules)
        fleet = Fleet(options.nodes, options.replaced, options.interval)
        way.watch_idle()
        played = play(way, fleet, options.rounds, options.interval)
        wrong = lost(way)
        report(way, fleet, played, options.interval)
    print("\n".join(wrong) or "nothing lost, nothing doubled", flush=True)
    return wrong


def main() -> None:
    """Play, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 where anything was lost or doubled")
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--agents", type=int, default=2, help="that stand for all nodes")
    parser.add_argument("--interval", type=float, default=15.0, help="seconds between two exports of a process")
    parser.add_argument("--rounds", type=int, default=5, help="that are measured, behind a first one")
    parser.add_argument("--replaced", type=float, default=0.05, help="share of the nodes that is replaced in a minute")
    parser.add_argument("--aggregate", choices=("no", "yes", "both"), default="both")
    parser.add_argument("--rules", action="store_true", help="Prometheus evaluates deploy/prometheus/rules")
    options = parser.parse_args()
    gc.disable()  # thousands of ranks hold no garbage, and the search for it takes longer and longer
    ways = {"no": [False], "yes": [True], "both": [False, True]}[options.aggregate]
    wrong = [found for aggregate in ways for found in run(options, aggregate=aggregate)]
    sys.exit(1 if options.check and wrong else 0)


if __name__ == "__main__":
    main()

"""What the gateway makes of a fleet: histograms over all ranks, and the spans that are worth keeping."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from collectors import TOKEN, Collector, gateway
from programs import run, spans
from servers import wait_until
from tachograph.exporters.batch import Batch
from tachograph.exporters.otlp.exporter import OtlpExporter
from tachograph.exporters.otlp.settings import OtlpSettings
from tachograph.recording.points import AttributeValue
from tachograph.recording.registry import Registry

pytestmark = pytest.mark.otelcol

BOUNDARIES = (1.0, 2.0, 4.0)


class Rank:
    """One rank of a run that records a histogram, a gauge and a counter, and sends them when told to."""

    def __init__(self, rank: int | None, to: Collector, run: str = "a-run") -> None:
        self.registry = Registry()
        who: dict[str, AttributeValue] = {} if rank is None else {"dl.rank": rank}
        role = "agent" if rank is None else "trainer"
        self._resource = {**who, "dl.run.id": run, "dl.role": role, "process.pid": 100 + (rank or 0)}
        self._resource |= {"service.name": "train", "service.instance.id": f"{run}-{rank}"}
        headers = (("authorization", f"Bearer {TOKEN}"),)
        endpoint = f"http://127.0.0.1:{to.http}/v1/metrics"
        self._exporter = OtlpExporter(
            {"metrics": OtlpSettings("metrics", "http/protobuf", endpoint, headers=headers)}, Registry()
        )
        group = self.registry.group("g")
        self.step = group.declare("step", kind="histogram", unit="s", description="Steps.", boundaries=BOUNDARIES)
        self.loss = group.instrument("loss")
        self.sent: list[Batch] = []

    def send(self) -> None:
        """Send what was recorded so far."""
        self.sent.append(Batch(self.registry.collect(), None, [], self._resource, time.time_ns()))
        self.send_again(self.sent[-1])

    def send_again(self, batch: Batch) -> None:
        """Send what was sent before, as an agent does that was killed before it knew that it had arrived."""
        self._exporter(batch)
        assert self._exporter.flush(20)

    def close(self) -> None:
        """End."""
        self._exporter.close(1)


def shown(collector: Collector, name: str) -> list[tuple[dict[str, str], float]]:
    """Return the samples of a name."""
    return [(labels, value) for found, labels, value in collector.samples("train") if found == name]


def test_buckets_are_kept_once_for_all_ranks(tmp_path: Path) -> None:
    """Histograms keep count and sum a rank, exactly, and buckets over all ranks, also when ranks restart or repeat."""
    with gateway(tmp_path, "gateway-aggregate") as through:
        ranks = [Rank(rank, through) for rank in range(4)]
        other, of_torchrun = Rank(0, through, run="another-run"), Rank(None, through)
        values = (0.5, 1.5, 3.0, 7.0)
        for turn in range(12):
            if turn == 6:
                ranks[1].close()
                ranks[1] = Rank(1, through)  # it restarts: its totals begin anew
            for number, rank in enumerate([*ranks, other, of_torchrun]):
                if number == 3 and turn >= 4:
                    continue  # it has ended
                rank.step.record(values[(turn + number) % 4])
                rank.loss.record(float(turn))
                rank.send()
            time.sleep(0.4)
        for batch in (ranks[0].sent[3], ranks[0].sent[-1]):
            ranks[0].send_again(batch)
        recorded = [values[(turn + number) % 4] for number in range(4) for turn in range(12) if number < 3 or turn < 4]

        def over_all() -> dict[str, float]:
            found = shown(through, "step_all_ranks_seconds_bucket")
            return {labels["le"]: value for labels, value in found if labels["dl_run_id"] == "a-run"}

        wanted = {str(bound).removesuffix(".0"): float(sum(v <= bound for v in recorded)) for bound in BOUNDARIES}
        wanted["+Inf"] = float(len(recorded))
        wait_until(lambda: over_all() == wanted, 20, lambda: (over_all(), wanted, through.server.log()[-2000:]))

        def totals() -> dict[str, float]:  # the other run's last batch was sent later than those of this one
            return {labels["dl_run_id"]: value for labels, value in shown(through, "step_all_ranks_seconds_sum")}

        wait_until(lambda: totals() == {"a-run": sum(recorded), "another-run": 48.0 / 4 * 3}, 20, totals)
        assert not [labels for labels, _ in shown(through, "step_all_ranks_seconds_count") if "dl_rank" in labels]
        counts = {labels["dl_rank"]: value for labels, value in _of_run(shown(through, "step_seconds_count"))}
        assert counts == {"0": 12, "1": 6, "2": 12, "3": 4}
        bounds = {(labels["dl_rank"], labels["le"]) for labels, _ in _of_run(shown(through, "step_seconds_bucket"))}
        assert bounds == {(rank, "+Inf") for rank in counts}
        assert len(_of_run(shown(through, "loss"))) == 4
        agents = [labels["le"] for labels, _ in shown(through, "step_seconds_bucket") if labels["dl_role"] == "agent"]
        assert len(agents) == 4
        for rank in (*ranks, other, of_torchrun):
            rank.close()


def _of_run(samples: list[tuple[dict[str, str], float]]) -> list[tuple[dict[str, str], float]]:
    return [(labels, value) for labels, value in samples if labels["dl_run_id"] == "a-run" and "dl_rank" in labels]


CALLS = """
import os, time
import tachograph

@tachograph.prof
def failing(): raise ValueError("no")
@tachograph.prof
def slow(): time.sleep(0.25)
@tachograph.prof
def quick(): pass

secret = {"authorization": os.environ["AUTH"]}
with tachograph.start(metrics="none", logs="none", endpoint=os.environ["TO"], headers=secret):
    for _ in range(20):
        try: failing()
        except ValueError: pass
    slow()
    for _ in range(2000): quick()
"""


def test_failed_and_slow_calls_are_kept_and_a_share_of_the_rest(tmp_path: Path) -> None:
    """Of @prof's spans the gateway keeps each failed and each slow one, and about the share of the others."""
    with gateway(tmp_path, SLOW_MS="200", TRACES_PERCENT="10") as through:
        done = run(tmp_path, CALLS, TO=f"http://127.0.0.1:{through.http}", AUTH=f"Bearer {TOKEN}")
        assert done.returncode == 0, done.stderr

        def kept() -> dict[str, int]:
            names = [span["name"].rpartition(".")[2] for span in spans(through.file)]
            return {name: names.count(name) for name in set(names)}

        wait_until(lambda: kept().get("slow") == 1, 30, through.server.log)
        time.sleep(1)
        assert kept().get("failing") == 20
        assert 100 < kept()["quick"] < 320

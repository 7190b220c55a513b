"""Points of curves in the store: every one once, bit for bit, in the order in which it was recorded."""

from __future__ import annotations

import itertools
import math
import os
import signal
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from hub_requests import START, Clock, logs, only, rank
from places import TESTS
from tachograph import runs
from tachograph.hub.hub import Hub
from tachograph.runs.blocks import Block, Sample, pack, unpack
from tachograph.runs.sequence_numbers import SequenceNumbers, read_sequence_numbers
from tachograph.runs.store import Store, path_of

POINT = "tachograph.metric"
NUMBERS = st.one_of(st.floats(), st.integers(-(2**63), 2**63 - 1))
MORE = st.dictionaries(st.sampled_from(["min", "min_x", "max", "max_x", "count", "elapsed", "other"]), NUMBERS)

KILLED = """
import itertools, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from hub_requests import logs, rank
from tachograph.hub.hub import Hub

hub = Hub(Path(sys.argv[1]), run="run")
for first in itertools.count(1, 10):
    sent = [("tachograph.metric", {"metric": "loss", "x": float(i), "value": i / 3}) for i in range(first, first + 10)]
    hub.receive_logs(logs(rank(0), *sent, first=first))
    os.write(1, b"%d\\n" % (first + 9))
"""


def point(value: float, x: float = 0.0, *, metric: str = "loss", **more: Any) -> tuple[str, Mapping[str, Any]]:
    """Return a point as a Metric logs it."""
    return POINT, {"metric": metric, "x": x, "value": value, **more}


def bits(value: float) -> bytes:
    """Return a float as it is in memory: NaN has many forms."""
    return struct.pack("<d", value) if isinstance(value, float) else repr(value).encode()


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    """Return a hub on an empty store."""
    return Hub(tmp_path, run="run", clock=Clock())


@settings(max_examples=examples(30), deadline=None)
@given(
    requests=st.lists(st.lists(st.integers(1, 60), max_size=12), max_size=8),
    said=st.lists(st.tuples(st.floats(), st.floats(allow_nan=False, allow_infinity=False), MORE), min_size=1),
    branches=st.lists(st.integers(0, 3), min_size=1),
)
def test_each_point_once_and_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    requests: list[list[int]],
    said: list[tuple[float, float, dict[str, float]]],
    branches: list[int],
) -> None:
    """However often and in whatever order requests come, each point is there once, as it was, in its order."""
    folder = tmp_path_factory.mktemp("store")
    hub = Hub(folder, run="run")

    def made(seq: int) -> tuple[float, float, dict[str, float], int]:
        return (*said[seq % len(said)], branches[seq % len(branches)])

    for seqs in requests:
        sent = [point(made(seq)[0], made(seq)[1], branch=made(seq)[3], **made(seq)[2]) for seq in seqs]
        hub.receive_logs(logs(rank(0), *sent, seqs=seqs))
    hub.close()
    found = list(runs.open("run", folder).points()) if any(requests) else []
    assert [each.seq for each in found] == sorted({seq for seqs in requests for seq in seqs})
    for each in found:
        value, x, more, branch = made(each.seq)
        assert (bits(each.value), bits(each.x), each.branch) == (bits(value), bits(x), branch)
        assert {key: bits(number) for key, number in each.more.items()} == {k: bits(n) for k, n in more.items()}
        assert each.time_unix_nano == START + each.seq


def test_a_nan_keeps_its_bits(hub: Hub, tmp_path: Path) -> None:
    """A NaN with a payload of its own comes back with it."""
    (odd,) = struct.unpack("<d", bytes.fromhex("2a00000000001cff"))
    hub.receive_logs(logs(rank(0), point(odd), point(-0.0)))
    hub.close()
    assert [bits(each.value) for each in runs.open("run", tmp_path).points("loss")] == [bits(odd), bits(-0.0)]


def test_blocks_are_joined(hub: Hub, tmp_path: Path) -> None:
    """Points that come one at a time end in full blocks, each written a few times; what is read stays the same."""
    for seq in range(1, 3000):
        more = {"min": 0.5, "max": 2.0, "count": seq} if seq % 7 == 0 else {}
        hub.receive_logs(logs(rank(0), point(seq / 3, seq, branch=0, elapsed=0.1, **more), first=seq))
    hub.close()
    found = list(runs.open("run", tmp_path).points("loss"))
    assert [(each.seq, each.value, each.x) for each in found] == [(seq, seq / 3, seq) for seq in range(1, 3000)]
    assert [each.more.get("count") for each in found] == [None if seq % 7 else seq for seq in range(1, 3000)]
    assert all(each.more["elapsed"] == 0.1 for each in found)
    with sqlite3.connect(path_of(tmp_path, "run")) as connection:
        ((blocks, full, least),) = connection.execute("SELECT count(*), sum(n >= 1024), min(min) FROM block")
    connection.close()
    assert (full, least) == (2, 1 / 3)
    assert blocks < 90


def test_late_requests_find_their_place(hub: Hub, tmp_path: Path) -> None:
    """A request that was sent again later than those after it is read in its place."""
    parts = [range(first, first + 700) for first in range(1, 7001, 700)]
    for seqs in (*parts[::2], *parts[1::2], parts[3]):
        hub.receive_logs(logs(rank(0), *[point(seq, seq) for seq in seqs], seqs=seqs))
    hub.close()
    assert [each.value for each in runs.open("run", tmp_path).points()] == list(range(1, 7001))


@pytest.mark.process
@pytest.mark.parametrize("after", [2, 30])
def test_a_hub_killed_at_any_time(tmp_path: Path, after: int) -> None:
    """A hub that is killed has every request that it had taken, whole, and a second time adds nothing."""
    program = [sys.executable, "-c", KILLED, str(tmp_path), str(TESTS)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        acknowledged = [int(killed.stdout.readline()) for _ in range(after)][-1]
        os.kill(killed.pid, signal.SIGKILL)
        acknowledged = max([acknowledged, *(int(line) for line in killed.stdout.read().split("\n") if line)])
    hub = Hub(tmp_path, run="run")
    for first in range(1, acknowledged, 10):
        hub.receive_logs(logs(rank(0), *[point(-1.0, -1.0)] * 10, first=first))
    hub.close()
    found = [each.value for each in runs.open("run", tmp_path).points("loss")]
    assert found == [i / 3 for i in range(1, len(found) + 1)]
    assert acknowledged <= len(found) <= acknowledged + 10


def test_a_store_that_fails_takes_the_request_again(hub: Hub, tmp_path: Path) -> None:
    """Points of a request that could not be written are neither there nor taken for arrived."""
    hub.receive_logs(logs(rank(0), point(1.0), first=1))
    with sqlite3.connect(path_of(tmp_path, "run")) as connection:
        connection.execute("ALTER TABLE block RENAME TO elsewhere")
    connection.close()
    with pytest.raises(OSError, match="cannot use the file"):
        hub.receive_logs(logs(rank(0), point(2.0), first=2))
    with sqlite3.connect(path_of(tmp_path, "run")) as connection:
        connection.execute("ALTER TABLE elsewhere RENAME TO block")
    connection.close()
    hub.receive_logs(logs(rank(0), point(2.0), first=2))
    hub.close()
    assert [each.value for each in runs.open("run", tmp_path).points()] == [1.0, 2.0]


def test_starts_tasks_and_ranks_are_apart(hub: Hub, tmp_path: Path) -> None:
    """Each start of a process and each task has curves of its own; all of them are the metric's."""
    hub.receive_logs(logs(rank(1), point(1.0, branch=0), stream="a"))
    hub.receive_logs(logs(rank(0), point(2.0, branch=0), point(3.0, execution=1), stream="b"))
    hub.receive_logs(logs(rank(1, pid=7, restart=1), point(4.0, branch=1), stream="c"))
    hub.close()
    run = runs.open("run", tmp_path)
    found = [(each.rank, each.execution, each.branch, each.value, each.stream) for each in run.points("loss")]
    assert found == [(0, 0, 0, 2.0, "b"), (0, 1, 0, 3.0, "b"), (1, 0, 0, 1.0, "a"), (1, 0, 1, 4.0, "c")]
    assert [each.value for each in run.points("loss", rank=1)] == [1.0, 4.0]
    (metric,) = run.metrics()
    assert (metric.ranks, metric.points, metric.branches) == ((0, 1), 4, 4)


def test_the_latest_definition_counts(hub: Hub, tmp_path: Path) -> None:
    """Definitions are kept once a metric and start: the latest, even where an earlier one comes after it."""
    about = {"metric": "loss", "group": "train", "units": "nats", "lower": 0.0, "progress": True}
    hub.receive_logs(logs(rank(0), ("tachograph.definition", {**about, "units": "bits"}), point(1.0), first=5))
    hub.receive_logs(logs(rank(0), ("tachograph.definition", about), first=9))
    hub.receive_logs(logs(rank(0), ("tachograph.definition", {"metric": "loss", "units": "none"}), first=2))
    hub.receive_logs(logs(rank(0), point(2.0, group="train"), first=10))
    hub.close()
    run = runs.open("run", tmp_path)
    (found,) = run.definitions()
    assert {key: found[key] for key in about} == about
    assert (found["rank"], found["stream"], found["time_unix_nano"]) == (0, "s", START + 9)
    assert [(each.group, each.units, each.value) for each in run.points()] == [
        ("train", "nats", 1.0),
        ("train", "nats", 2.0),
    ]
    assert list(run.events()) == []


NO_POINTS: Sequence[Mapping[str, Any]] = [
    {"metric": "m", "x": math.nan, "value": 1.0},
    {"metric": "m", "x": 1.0},
    {"metric": "m", "value": 1.0},
    {"metric": "", "x": 1.0, "value": 1.0},
    {"metric": 5, "x": 1.0, "value": 1.0},
    {"metric": "m", "x": 1.0, "value": 2**60 + 1},
    {"metric": "m", "x": 1.0, "value": "text"},
    {"metric": "m", "x": 1.0, "value": 1.0, "note": "text"},
    {"metric": "m", "x": 1.0, "value": 1.0, "flag": True},
    {"metric": "m", "x": 1.0, "value": 1.0, "branch": 0.5},
    *({"metric": "m", "x": 1.0, "value": 1.0, "nonfinite": count} for count in (math.nan, math.inf, 1e300, 2**62, -1)),
    {"metric": "m", "x": 1.0, "value": 1.0, **{f"n{i}": i for i in range(60)}},
]


def test_what_a_block_cannot_hold_stays_an_event(hub: Hub, tmp_path: Path) -> None:
    """A record that says more or something else than a point is kept whole, as any event."""
    hub.receive_logs(logs(rank(0), *[(POINT, each) for each in NO_POINTS]))
    hub.receive_logs(logs(rank(0), point(1.0), stream=""))  # without a number
    hub.receive_logs(logs(rank(0), ("tachograph.definition", {"units": "s"}), stream="t"))
    newer = {"tachograph.schema": 99, "tachograph.stream": "n", "tachograph.seq": 1}
    hub.receive_logs(logs(rank(0), (POINT, {**point(1.0)[1], **newer}), stream=""))
    hub.close()
    run = runs.open("run", tmp_path)
    events = list(run.events())
    assert len(events) == len(NO_POINTS) + 3
    for event, sent in zip(events, NO_POINTS, strict=False):
        assert {key: bits(value) for key, value in event.attributes.items() if "." not in key} == {
            key: bits(value) for key, value in sent.items()
        }
    assert list(run.points()) == []


def test_points_count_as_events_of_the_hub(hub: Hub) -> None:
    """The hub's own counters have points among its events, and say what came once more."""
    for _ in range(2):
        hub.receive_logs(logs(rank(0), point(1.0), point(2.0)))
    page = hub.page()[1]
    assert only(page, "tachograph_hub_events_total") == 2
    assert only(page, "tachograph_hub_events_repeated_total") == 2
    hub.close()


@settings(max_examples=examples(60), deadline=None)
@given(numbers=st.lists(st.integers(1, 30), max_size=60), saved=st.sets(st.integers(0, 60)))
def test_what_has_arrived_is_a_set(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], saved: set[int]
) -> None:
    """Whatever arrives in whatever order, and whenever it is saved: each number is new once, and the file agrees."""
    store = Store(tmp_path_factory.mktemp("store"), "run")
    known: set[int] = set()
    with store.transaction() as connection:
        connection.execute("INSERT INTO process (id, instance, resource) VALUES (1, 'i', '{}')")
        connection.execute("INSERT INTO stream VALUES (1, 's', 1)")
        found = SequenceNumbers()
        for place, number in enumerate(numbers):
            assert found.add(number) is (number not in known)
            known.add(number)
            if place in saved:
                found.save(connection, 1)
                found = read_sequence_numbers(connection, 1)
        assert (found.count, found.highest) == (len(known), max(known, default=0))
        found.save(connection, 1)
        ranges = connection.execute("SELECT first, last FROM arrived ORDER BY first").fetchall()
    store.close()
    assert [number for first, last in ranges for number in range(first, last + 1)] == sorted(known)
    assert all(one[1] + 1 < after[0] for one, after in itertools.pairwise(ranges))


def test_a_damaged_block_says_so() -> None:
    """A block whose parts do not belong together is an error, not points that nobody recorded."""
    whole = pack([Sample(1, 2, 3.0, 4.0, {"count": 5})])
    for spoiled in (Block("[", *whole[1:]), Block('["zcount"]', *whole[1:]), whole._replace(rest=whole.rest[:-1])):
        with pytest.raises(ValueError, match="a block"):
            list(unpack(spoiled))

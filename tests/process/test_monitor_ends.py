"""Stats and events at the ends of a process, in forks, and in threads that cannot wait."""

from __future__ import annotations

import gc
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from programs import count, events, exported, run
from tachograph import monitor
from tachograph.monitor import Aggregation, Event, Stat
from tachograph.monitor._event_log import EventLog
from tachograph.monitor._windows import Windows
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry

START = """
import os, signal, sys, time
from datetime import datetime, timedelta
import tachograph
from tachograph.monitor import Aggregation, Event, Stat, log_event, register_event_handler
tachograph.start(metrics="jsonl", logs="jsonl", traces="none", jsonl="out.jsonl")
stat = Stat("load", [Aggregation.SUM, Aggregation.COUNT], timedelta(hours=1))
for number in range(5000):
    stat.add(1)
log_event(Event("epoch", datetime.now(), {"number": 3}))
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "raise ValueError",
        "sys.exit(3)",
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
        "del stat",
        "tachograph.shutdown(); del stat; tachograph.start(metrics='jsonl', logs='jsonl', jsonl='out.jsonl')",
    ],
)
def test_an_open_window_leaves_at_the_end(tmp_path: Path, end: str) -> None:
    """A window that is open when the process ends is closed, once, and leaves as event, gauges and sum."""
    run(tmp_path, START + end)
    found = events(tmp_path / "out.jsonl")
    names = [event["eventName"] for event in found]
    assert names.count("torch.monitor.Stat") == 1, names
    assert names.count("epoch") == 1
    metrics = exported(tmp_path / "out.jsonl")
    (point,) = metrics["torch.monitor", "load"]["histogram"]["dataPoints"]
    assert (int(point["count"]), point["sum"]) == (5000, 5000)


BLOCK = """
from datetime import timedelta
import tachograph
from tachograph.monitor import Aggregation, Stat

def train(stat, values):
    for value in values:
        stat.add(value)

options = {"metrics": "jsonl", "logs": "jsonl", "traces": "none", "jsonl": "out.jsonl"}
before = Stat("before", [Aggregation.SUM, Aggregation.COUNT], timedelta(hours=1))
with tachograph.start(**options):
    train(before, [1.0, 3.0])
    inside = Stat("inside", [Aggregation.SUM, Aggregation.COUNT], timedelta(hours=1))
    train(inside, [5.0])
"""


@pytest.mark.parametrize(
    ("more", "windows"),
    [
        ("", [(4.0, 2), (5.0, 1)]),
        ("train(inside, [7.0, 9.0])\nwith tachograph.start(**options): pass", [(4.0, 2), (5.0, 1), (16.0, 2)]),
    ],
    ids=["one block", "two blocks"],
)
def test_an_open_window_leaves_at_the_end_of_its_block(
    tmp_path: Path, more: str, windows: list[tuple[float, int]]
) -> None:
    """A window that is open when ``with tachograph.start():`` ends is closed there; later values get a window anew."""
    run(tmp_path, BLOCK + more)
    data = [event["attributes"] for event in events(tmp_path / "out.jsonl")]
    found = [
        (told[f"{name}.sum"], told[f"{name}.count"])
        for told in data
        for name in ("before", "inside")
        if f"{name}.sum" in told
    ]
    assert found == windows
    metrics = exported(tmp_path / "out.jsonl")
    assert {("torch.monitor", f"{name}.window.sum") for name in ("before", "inside")} <= metrics.keys()


def test_handlers_hear_of_it_too(tmp_path: Path) -> None:
    """Without a pipeline, handlers still get what was open at the end of the interpreter, as in the original."""
    done = run(
        tmp_path,
        """
from datetime import timedelta
from tachograph.monitor import Aggregation, Stat, register_event_handler
register_event_handler(lambda event: print(event.name, event.data))
stat = Stat("load", [Aggregation.SUM], timedelta(hours=1))
stat.add(2.5)
""",
    )
    assert (done.returncode, done.stdout) == (0, "torch.monitor.Stat {'load.sum': 2.5}\n"), done.stderr


@pytest.mark.parametrize("helpers", ["", "1"])
def test_a_forked_child_repeats_nothing_and_hangs_nowhere(tmp_path: Path, helpers: str) -> None:
    """The parent's window closes in the parent alone; a child that makes a Stat gets its windows closed."""
    done = run(
        tmp_path,
        """
import os, time
from datetime import timedelta
from tachograph.monitor import Aggregation, Stat, register_event_handler
register_event_handler(lambda event: os.write(1, f"{os.getpid() == parent} {event.data}\\n".encode()))
parent = os.getpid()
stat = Stat("load", [Aggregation.SUM], timedelta(hours=1))
stat.add(1)
child = os.fork()
if not child:
    stat.add(1)
    if os.environ["TACHOGRAPH_HELPERS"]:
        own = Stat("own", [Aggregation.SUM], timedelta(milliseconds=100))
        own.add(7)
        time.sleep(0.4)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
        TACHOGRAPH_HELPERS=helpers,
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert "True {'load.sum': 1.0}" in lines
    assert ("False {'own.sum': 7.0}" in lines) == (helpers == "1")
    assert len(lines) == 1 + (helpers == "1")


def test_a_window_that_closed_on_time_leaves_with_the_next_export(tmp_path: Path) -> None:
    """Once, as an event; the shutdown, which closes the windows that are still open, does not close it again."""
    run(
        tmp_path,
        START
        + """
short = Stat("short", [Aggregation.MEAN], 0.05)
short.add(4)
time.sleep(0.3)
tachograph.shutdown()
""",
    )
    records = [event["attributes"] for event in events(tmp_path / "out.jsonl") if event["eventName"] != "epoch"]
    assert [record["short.mean"] for record in records if "short.mean" in record] == [4.0]
    assert [record["load.count"] for record in records if "load.count" in record] == [5000]
    found = exported(tmp_path / "out.jsonl")
    assert count(found["torch.monitor", "short"]) == 1
    assert count(found["torch.monitor", "load"]) == 5000


def test_a_stat_destroyed_while_its_handler_is_busy_waits_for_nobody() -> None:
    """Garbage collection never waits for a handler: the event is handed out by another thread, later."""
    registry = Registry()
    log = EventLog(Journal(registry), registry)
    windows = Windows(log, registry, threaded=False)
    inside, leave = threading.Event(), threading.Event()
    seen: list[str] = []

    def handler(event: Event) -> None:
        if event.name == "slow":
            inside.set()
            leave.wait(10)
        seen.append(event.name)

    log.register(handler)
    slow = Event("slow", datetime.now(tz=UTC), {})
    logging = threading.Thread(target=log.log_event, args=(slow,))
    logging.start()
    inside.wait(10)
    stat = Stat("gone", [Aggregation.SUM], timedelta(seconds=1), windows=windows)
    stat.add(1)
    del stat
    gc.collect()
    assert seen == []
    leave.set()
    logging.join()
    windows.tick()
    windows.finish()
    assert seen == ["slow", monitor.STAT_EVENT]


def test_a_handler_that_logs_from_two_threads_is_handed_everything() -> None:
    """Nested events, destroyed Stats and several handlers in several threads: all arrive, nothing hangs."""
    registry = Registry()
    log = EventLog(Journal(registry), registry)
    windows = Windows(log, registry, threaded=False)
    seen: list[str] = []
    at = datetime.now(tz=UTC)

    def one(event: Event) -> None:
        seen.append(event.name)
        if event.name == "outer":
            log.log_event(Event("nested", at, {}))
            stat = Stat("inner", [Aggregation.SUM], 60.0, windows=windows)
            stat.add(1)

    log.register(one)
    log.register(lambda event: seen.append(event.name))

    def work() -> None:
        for _ in range(200):
            log.log_event(Event("outer", at, {}))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    windows.finish()
    assert [seen.count(name) for name in ("outer", "nested", monitor.STAT_EVENT)] == [1600, 1600, 1600]


def test_a_collection_counts_what_it_finds_lost() -> None:
    """What came after ``max_samples`` is counted by the collection that finds it, and not only by the next one."""
    registry = Registry()
    windows = Windows(EventLog(Journal(registry), registry), registry, threaded=False)
    stat = Stat("capped", [Aggregation.SUM], 3600.0, 2, windows=windows)
    for _ in range(5):
        stat.add(1)
    dropped = [metric for metric in registry.collect() if metric.name == "tachograph.dropped"]
    assert [(dict(p.attributes)["reason"], p.value) for m in dropped for p in m.points] == [("max_samples", 3)]
    windows.finish()

"""progress(): items come as they are, points tell how far the loop is, and a bar is drawn where somebody sees it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pty
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curves import Bench
from programs import environment, run, write
from tachograph.metric import MetricGroup, progress
from tachograph.metric import _progress as loops
from tachograph.metric.execution import current
from tachograph.recording.chart import Definition


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Let loops record into an execution of the test's own."""
    found = Bench()
    token = current.set(found)
    yield found
    current.reset(token)


def counts(bench: Bench) -> list[tuple[str, float]]:
    """Return metric and value of each point."""
    return [(point["metric"], point["value"]) for point in bench.logged()]


@given(st.lists(st.integers()), st.booleans(), st.integers(0, 30))
def test_items_come_as_they_are(items: list[int], sized: bool, left_after: int) -> None:
    """Each item is yielded once, in order; the first point says 0, the last how many were done, however it ends."""
    bench = Bench()
    token = current.set(bench)
    seen = []
    going = progress(items if sized else iter(items))
    for item in itertools.islice(going, left_after):
        seen.append(item)  # noqa: PERF402 - one by one is the test
    going.close()
    current.reset(token)
    assert seen == items[:left_after]
    values = [point["value"] for point in bench.logged()]
    done = len(items) if left_after > len(items) else max(left_after - 1, 0)
    if left_after:
        assert (values[0], values[-1]) == (0, done)
    else:
        assert values == []


def test_points_tell_count_total_rate_and_eta(bench: Bench) -> None:
    """A point every 0.1 s with what is done, the total, items a second and the seconds that are left."""
    for _ in progress(range(10), group=MetricGroup("g", units="s")):
        bench.now += 0.05
    found = bench.logged()
    for point in found:
        del point["elapsed"]
    assert found[0] == {"metric": "progress", "group": "g", "x": 0.0, "branch": 0, "value": 0.0, "total": 10}
    assert [point["value"] for point in found] == [0, 2, 4, 6, 8, 10]
    assert found[2]["x"] == pytest.approx(0.2)
    assert (found[2]["rate"], found[2]["eta"]) == (pytest.approx(20), pytest.approx(0.3))
    assert (found[-1]["eta"], found[-1]["total"]) == (0, 10)
    gauges = bench.gauges()
    assert gauges["g", "progress"] == ("{item}", 10)
    assert gauges["g", "progress.rate"] == ("{item}/s", pytest.approx(20))
    assert gauges["g", "progress.total"] == ("{item}", 10)
    assert gauges["g", "progress.eta"] == ("s", 0)


def test_its_definition_says_that_it_is_progress(bench: Bench) -> None:
    """Each loop has a definition of its own; the total is no part of it, and a long loop's is repeated."""
    for _ in progress([1]):
        bench.now += 61
        bench.define_again()
    assert (
        bench.logged("tachograph.definition")
        == [{"metric": "progress", "units": "item", "lower": 0.0, "progress": True}] * 2
    )


def test_nested_and_repeated_loops_are_told_apart(bench: Bench) -> None:
    """Loops of one key are progress, progress#2, #3 …; nested ones have a gauge each, repeated ones share it."""
    for _ in progress(range(2)):
        for _ in progress(range(3)):
            pass
    found = counts(bench)
    assert found[:2] == [("progress", 0), ("progress#2", 0)]
    assert {name for name, _ in found} == {"progress", "progress#2", "progress#3"}
    assert [value for name, value in found if name == "progress#3"] == [0, 3]
    values = {
        dict(point.attributes).get("loop"): point.value
        for metric in bench.registry.collect()
        if metric.name == "progress"
        for point in metric.points
    }
    assert values == {None: 2, "2": 3}


def test_thousands_of_short_loops_flood_nobody(bench: Bench) -> None:
    """Of 1,000 loops in a second some 100 are recorded, the others counted; after a while there is room again."""
    for _ in range(1000):
        for _ in progress([1], key="short"):
            pass
        bench.now += 0.001
    names = {name for name, _ in counts(bench)}
    assert 100 <= len(names) <= 111
    dropped = [metric for metric in bench.registry.collect() if metric.name == "tachograph.dropped"]
    assert sum(point.value for point in dropped[0].points) == 1000 - len(names)
    bench.now += 1
    for _ in progress([1], key="short"):
        pass
    assert len(counts(bench)) == 2


def test_a_slow_item_does_not_hide_the_one_before(bench: Bench) -> None:
    """While an item takes long, whoever collects still finds what was done before it."""
    going = progress(itertools.count())
    for _ in range(1000):
        next(going)
    bench.now += 5
    bench.pass_on(everything=False)
    assert counts(bench)[-1] == ("progress", 999)
    bench.pass_on(everything=True)
    assert counts(bench) == []
    going.close()


def test_an_endless_stream_is_streamed(bench: Bench) -> None:
    """Items are asked for one at a time; without a length there is neither total nor time left."""
    taken: list[int] = []

    def stream() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield number

    for number in progress(stream()):
        assert len(taken) == number + 1
        bench.now += 1
        if number == 4:
            break
    last = bench.logged()[-1]
    assert (last["value"], "total" in last, "eta" in last) == (4, False, False)


def test_a_total_can_be_given(bench: Bench) -> None:
    """total= is the length of what has none, and wins over one that it has; more items than that are no error."""
    for _ in progress(iter("abc"), total=2):
        bench.now += 1
    assert [(point["value"], point["total"], point.get("eta")) for point in bench.logged()] == [
        (0, 2, None),
        (1, 2, 1),
        (2, 2, 0),
        (3, 2, 0),
    ]


class Sequence:
    """An old iterable: it has items, and a length that fails."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, place: int) -> int:
        if place > 2:
            raise IndexError
        return place


def test_whatever_can_be_iterated(bench: Bench) -> None:
    """Old sequences, and lengths that cannot be told, are as good."""
    assert list(progress(Sequence())) == [0, 1, 2]
    assert counts(bench) == [("progress", 0), ("progress", 3)]


def test_exceptions_pass_through(bench: Bench) -> None:
    """What the iterable raises, and what is thrown in, arrives unchanged, and the loop's end is recorded."""

    def failing() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(progress(failing()))
    going = progress([1, 2])
    next(going)
    with pytest.raises(KeyError):
        going.throw(KeyError("mine"))
    assert counts(bench) == [("progress", 0), ("progress", 2), ("progress#2", 0)]


@pytest.mark.process
def test_async_iterables(bench: Bench) -> None:
    """Async for goes through an async iterable just so, also when it is left early."""

    async def stream() -> AsyncIterator[int]:
        for number in range(5):
            await asyncio.sleep(0)
            yield number

    async def main() -> list[int]:
        seen = [number async for number in progress(stream(), total=5)]
        going = progress(stream())
        async for number in going:
            seen.append(number)
            if number == 2:
                break
        await going.aclose()
        return seen

    assert asyncio.run(main()) == [0, 1, 2, 3, 4, 0, 1, 2]
    assert counts(bench) == [("progress", 0), ("progress", 5), ("progress#2", 0), ("progress#2", 2)]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: progress(3), TypeError, r"progress\(\) takes an iterable, not int: 3; write progress\(range\(3\)\)"),
        (lambda: progress([], key=3), TypeError, "metric name must be a string"),
        (lambda: progress([], key=""), ValueError, "must not be empty"),
        (lambda: progress([], group=3), TypeError, "must be a string, not int"),
        (lambda: progress([], total=-1), ValueError, "total must be a whole number of items, 0 or more: -1"),
        (lambda: progress([], total=1.5), ValueError, "whole number"),
        (lambda: progress([], total="3"), TypeError, "total must be a number, not str"),
    ],
)
def test_what_is_wrong_is_said_at_the_call(make: Callable[[], object], error: type[Exception], message: str) -> None:
    """A wrong argument is an error at the call, before any item."""
    with pytest.raises(error, match=message):
        make()


class Failing(Bench):
    """An execution that can log no definition."""

    def define(self, definition: Definition) -> None:
        """Fail."""
        raise MemoryError(definition.key)


def test_our_own_failures_stay_away_from_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """Where recording fails the loop goes on, and that is said once."""
    bench = Failing()
    token = current.set(bench)
    assert list(progress(range(200))) == list(range(200))
    current.reset(token)
    assert len([record for record in caplog.records if "stopped recording a loop" in record.getMessage()]) == 1
    assert counts(bench) == []


def test_the_last_point_is_not_lost_where_somebody_records_at_that_moment(bench: Bench) -> None:
    """The loop ends while the collector is recording how far it was: who holds the lock records the end, too."""
    loop = loops.Loop("p", None, 3, bench)
    loop.begin()
    append, ended = bench.journal.append, []

    def ending(*event: Any) -> None:
        append(*event)
        if not ended:
            ended.append(True)
            loop.done = 3
            loop.end()

    bench.journal.append = ending  # type: ignore[method-assign, assignment]
    loop.done = 2
    loop.pass_on(everything=True)
    assert [value for _, value in counts(bench)] == [0, 2, 3]


def on_a_terminal(folder: Path, program: str, **more: str) -> str:
    """Run a program whose stderr is a terminal, and return what it drew there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(write(folder, program))],
        cwd=folder,
        env=environment(folder, TERM="xterm", COLUMNS="100", **more),
        stderr=theirs,
        stdout=subprocess.DEVNULL,
    )
    os.close(theirs)
    drawn = b""
    try:
        while piece := os.read(ours, 4096):
            drawn += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait(30) == 0
    return drawn.decode()


LOOP = """
import sys, time
import tachograph as cf
for outer in cf.progress(range(3), key="epochs"):
    for inner in cf.progress(iter(range(4)), key="batches"):
        time.sleep(0.04)
assert "tqdm" in sys.modules or {bare!r}
"""


@pytest.mark.process
def test_a_bar_is_drawn_on_a_terminal(tmp_path: Path) -> None:
    """On a terminal there is a bar for each loop, with count and total; the inner ones are wiped away."""
    drawn = on_a_terminal(tmp_path, LOOP.format(bare=False))
    assert "epochs: 100%" in drawn
    assert "3/3" in drawn
    assert "batches: " in drawn


@pytest.mark.process
def test_no_bar_where_nobody_sees_it(tmp_path: Path) -> None:
    """Without a terminal, and for all ranks of a node but the first, nothing is drawn, and tqdm is not imported."""
    done = run(tmp_path, LOOP.format(bare=True) + "assert 'tqdm' not in sys.modules")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    bare = LOOP.format(bare=True) + "assert 'tqdm' not in sys.modules"
    assert on_a_terminal(tmp_path, bare, LOCAL_RANK="1") == ""
    assert run(tmp_path, "import sys; sys.stderr = None\n" + bare).returncode == 0


@pytest.mark.process
def test_without_tqdm_the_loop_runs_and_says_so(tmp_path: Path) -> None:
    """Where tqdm is not installed, one line says so, and everything else works."""
    drawn = on_a_terminal(tmp_path, "import sys; sys.modules['tqdm'] = None\n" + LOOP.format(bare=True))
    assert drawn.count("tqdm is not installed") == 1


@pytest.mark.process
def test_a_terminal_that_goes_away_costs_the_bar_only(tmp_path: Path) -> None:
    """A bar that cannot be drawn any more is given up, said once; the loop goes on."""
    program = """
import logging, os, time
import tachograph as cf
logging.basicConfig(filename="log")
seen = []
for item in cf.progress(range(300)):
    if item == 3:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
    time.sleep(0.001)
    seen.append(item)
assert seen == list(range(300))
"""
    on_a_terminal(tmp_path, program)
    (said,) = (tmp_path / "log").read_text().splitlines()
    assert "progress: stopped drawing the progress bar: OSError" in said


@pytest.mark.process
def test_a_loop_that_is_under_way_leaves_at_the_end(tmp_path: Path) -> None:
    """The process ends in the middle of a loop: how far it came is the last point."""
    program = """
import tachograph as cf, os, sys
cf.start(metrics="none", logs="jsonl", traces="none", jsonl="out.jsonl")
for item in cf.progress(range(100)):
    if item == 60:
        sys.exit()
"""
    run(tmp_path, program)
    from test_metric import points

    assert [point["value"] for point in points(tmp_path / "out.jsonl")][-1] == 60


@pytest.mark.process
def test_a_bar_in_a_notebook(tmp_path: Path) -> None:
    """Without ipywidgets a cell has one output, which is updated: an HTML bar, whose last state is the loop's end."""
    pytest.importorskip("IPython")
    program = """
        import json, sys
        sys.modules["ipywidgets"] = None
        from IPython.core.interactiveshell import InteractiveShell

        shell, shown = InteractiveShell.instance(), []
        shell.kernel = shown
        shell.display_pub.publish = lambda data, **more: shown.append({"html": data["text/html"], **more})
        from tachograph import progress
        assert len(list(progress(range(7), "an <epoch>"))) == 7
        sys.stdout.write(json.dumps(shown))
    """
    done = run(tmp_path, program, IPYTHONDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [each.get("update", False) for each in shown] == [False, *[True] * (len(shown) - 1)]
    assert len({each["transient"]["display_id"] for each in shown}) == 1
    assert '<progress aria-label="an &lt;epoch&gt;" value="7" max="7"' in shown[-1]["html"]
    assert " 7 of 7" in shown[-1]["html"]

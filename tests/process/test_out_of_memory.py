"""No memory, at any moment: everything recorded leaves once there is some again, or is counted.

CPython fails its n-th allocation, or thirty from the n-th on, in a process of its own, for every n: as SQLite tests
its own ("Out-Of-Memory Testing", sqlite.org/testing.html). It fails not all that follow: an interpreter without memory
for a small integer never gets out of a ``with`` statement (Python/ceval.c, exception_unwind, in CPython 3.11).
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from launches import events, metrics
from programs import run
from receivers import receiving

pytest.importorskip("_testcapi", reason="NOT TESTED: this interpreter comes without CPython's own test modules")
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("untraced")]  # coverage needs memory, too

FAILING = """
import ctypes, gc, sys, time, types
from _testcapi import remove_mem_hooks, set_nomemory
from tachograph.recording.registry import Registry

def dropped(registry):
    '''Return how many points were counted as lost.'''
    return sum(point.value for metric in registry.collect() if metric.name == "tachograph.dropped"
               for point in metric.points)

def nested(code):
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from nested(constant)

def hold():
    '''Hold the code of all nested functions for ever, a thousand times.

    CPython 3.12 and 3.13 let go of it twice where there is no memory for the function (MAKE_FUNCTION, in
    Python/bytecodes.c), and die of it a little later.
    '''
    functions = [thing for thing in gc.get_objects() if isinstance(thing, types.FunctionType)]
    held = [[code] * 1000 for function in functions for code in nested(function.__code__)]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))

def failing(make, work, found, most=250):
    '''Check for each of the first allocations that work makes that all is found or counted, though that one fails.'''
    wrong, failed = [], 0
    if sys.version_info >= (3, 12):
        subject = make()
        work(subject)
        found(subject)
        hold()
    for last in (1, 30):
        for first in range(1, most):
            subject = make()
            raised = False
            set_nomemory(first, first + last)
            try:
                work(subject)
            except MemoryError:
                raised = True
            except BaseException:
                remove_mem_hooks()
                raise
            finally:
                remove_mem_hooks()
            failed += raised
            recorded, arrived, counted = found(subject)
            if arrived > recorded or not recorded <= arrived + counted:
                wrong.append((first, last, recorded, arrived, counted))
    print(failed > 0, wrong[:5])
"""


DOORS = {
    "a counter": """
        def make():
            registry = Registry()
            counter = registry.group("g").instrument("steps.success")
            record = counter.bind()
            for _ in range(5000):
                record(1)
            return registry, counter

        def work(subject):
            subject[0].collect()

        def found(subject):
            registry, counter = subject
            ((_, series),) = counter.all_series()
            lost = dropped(registry)
            return 5000, series.value() or 0, lost
    """,
    "a Stat": """
        from tachograph.monitor._event_log import EventLog
        from tachograph.monitor._windows import Windows
        from tachograph.monitor.stat import Stat
        from tachograph.monitor import Aggregation
        from tachograph.recording.journal import Journal

        def make():
            registry = Registry()
            windows = Windows(EventLog(Journal(registry), registry), registry, threaded=False)
            stat = Stat("load", [Aggregation.COUNT], 60.0, windows=windows)
            for _ in range(500):
                stat.add(1.0)
            return registry, stat

        def work(subject):
            subject[1].count

        def found(subject):
            registry, stat = subject
            return 500, stat.count, dropped(registry)
    """,
    "events": """
        from tachograph.recording.journal import Journal

        def make():
            registry = Registry()
            journal = Journal(registry)
            for number in range(200):
                journal.append("e", 1, (dict, [("number", number)]))
            return registry, journal, [()]

        def work(subject):
            subject[2][0] = subject[1].drain()

        def found(subject):
            registry, journal, some = subject
            some.append(journal.drain())
            numbers = [event.attributes["number"] for events in some for event in events]
            assert len(numbers) == len(set(numbers)), numbers
            return 200, len(numbers), dropped(registry)
    """,
    "a Metric": """
        from tachograph.metric import Metric
        from tachograph.metric.execution import Execution
        from tachograph.recording.logged_points import packed
        from tachograph.recording.journal import Journal

        def make():
            registry = Registry()
            journal = Journal(registry)
            execution = Execution(journal=journal, registry=registry)
            record = Metric("loss", throttle=None, execution=execution).record
            for number in range(100):
                record(0.5, at=number)
            return registry, journal, execution, [()]

        def work(subject):
            registry, journal, execution, some = subject
            execution.pass_on(everything=True)
            some[0] = journal.drain(pack=packed)

        def found(subject):
            registry, journal, execution, some = subject
            execution.pass_on(everything=True)
            some.append(journal.drain(pack=packed))
            events = [event for events in some for event in events]
            return 100, sum(event.points for event in events if "value" in event.attributes), dropped(registry)
    """,
    "a gauge's curve": """
        def make():
            registry = Registry()
            registry.points.wanted = True
            gauge = registry.group("g").instrument("loss")
            gauge.keep_curves(registry.curves)
            record = gauge.bind()
            for number in range(100):
                record(float(number))
            return registry, [None] * 4

        def work(subject):
            registry, some = subject
            for place, (_, points) in enumerate(registry.points.drain(everything=True)):
                some[place] = points

        def found(subject):
            registry, some = subject
            some += [points for _, points in registry.points.drain(everything=True)]
            return 100, sum(points.size for points in some if points), dropped(registry)
    """,
    "log()": """
        from tachograph.metric._log import LoggedValues

        def make():
            registry = Registry()
            registry.points.wanted = True
            logged = LoggedValues(registry)
            for number in range(100):
                key_set, values = logged.key_set({"loss": 0.5, "lr": 0.1}, None)
                logged.append((key_set, time.time_ns(), number, *key_set.read(values)))
            lost = [series.gauge.losses.overflow for series in key_set.columns]
            return registry, logged, key_set, [None] * 4, sum(lost)

        def work(subject):
            registry, logged, key_set, some, _ = subject
            for place, (_, points) in enumerate(registry.points.drain(everything=True)):
                some[place] = points

        def found(subject):
            registry, logged, key_set, some, before = subject
            some += [points for _, points in registry.points.drain(everything=True)]
            lost = sum(series.gauge.losses.overflow for series in key_set.columns) - before
            return 200, sum(points.size for points in some if points), lost + dropped(registry)
    """,
    "the feed": """
        import logging
        from tachograph.pipeline.destinations import Route
        from tachograph.pipeline.event_feed import EventFeed
        from tachograph.recording.journal import Journal

        logging.getLogger("tachograph").setLevel(logging.CRITICAL)

        class Taking:
            def __init__(self):
                self.taken = []

            def __call__(self, batch):
                self.taken += batch.events

        def make():
            registry = Registry()
            journal = Journal(registry)
            taking = Taking()
            routes = [Route(taking, events=True)]
            feed = EventFeed(journal, registry)
            feed.open(routes)
            for number in range(200):
                journal.append("e", 1, {"number": number})
            return registry, feed, routes, taking

        def work(subject):
            registry, feed, routes, taking = subject
            feed.deliver(routes, {})

        def found(subject):
            registry, feed, routes, taking = subject
            feed.deliver(routes, {})
            numbers = {event.attributes["number"] for event in taking.taken}
            assert len(numbers) == len(taking.taken)
            return 200, len(numbers), dropped(registry)
    """,
}


@pytest.mark.parametrize("door", DOORS)
def test_what_cannot_be_kept_without_memory_is_counted(tmp_path: Path, door: str) -> None:
    """For every allocation that may fail: what was recorded arrives later, or is counted; nothing arrives twice."""
    program = FAILING + textwrap.dedent(DOORS[door]) + "\nfailing(make, work, found)\n"
    done = run(tmp_path, program, timeout=170)
    assert (done.returncode, done.stdout) == (0, "True []\n"), done.stderr[-3000:]


def test_a_program_that_ends_without_memory_delivers_all_the_same(tmp_path: Path) -> None:
    """Its traceback keeps all that it has taken to the end; address space that was kept free lets everything leave."""
    program = """
    import resource, sys
    from datetime import datetime, timezone
    from pathlib import Path
    import tachograph
    from tachograph.monitor import Event, log_event

    tachograph.start(metrics="otlp", logs="otlp", traces="none", endpoint=sys.argv[1], interval=600)
    for number in range(1000):
        tachograph.put_metric("x.success", 1)
        log_event(Event("e", datetime.now(timezone.utc), {"number": number}))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**26, resource.RLIM_INFINITY))
    def hoard():
        own = []
        while True:
            own.append(bytearray(2**16))
    hoard()
    """
    with receiving() as receiver:
        done = run(tmp_path, program, f"http://127.0.0.1:{receiver.server_port}")
        assert done.returncode == 1
        assert done.stderr.endswith("MemoryError\n"), done.stderr
        assert [event.attributes["number"] for event in events(receiver) if event.name == "e"] == list(range(1000))
        assert [point.value for point in metrics(receiver) if point.name == "x.success"][-1] == 1000


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_each_limit_of_memory_is_heeded(tmp_path: Path, limit: str) -> None:
    """Where there is none, requests are not encoded: protobuf's C code would end the process."""
    program = f"""
import resource
from tachograph.exporters.otlp.values import has_memory
before = has_memory()
resource.setrlimit(resource.{limit}, (2**20, resource.RLIM_INFINITY))
print(before, has_memory())
"""
    done = run(tmp_path, program)
    assert done.stdout == "True False\n", done.stderr

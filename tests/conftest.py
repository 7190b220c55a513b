"""The tests' process is that of a plain machine; what takes longest begins first; few programs are traced."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path

import pytest
from hypothesis import settings

from examples import examples

settings.register_profile("tests", deadline=None, max_examples=examples())  # a slow machine is no failure
settings.load_profile("tests")

_SETTINGS = ("OTEL_", "TACHOGRAPH_", "SLURM_", "K8S_", "TORCHELASTIC_")
_RANK = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_NAME", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_KEPT = "TACHOGRAPH_TEST_"  # settings of the tests themselves
_TRACING = ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")
_SLOWEST = Path(__file__).with_name("slowest.txt")
_TRACED = Path(__file__).with_name("traced.txt")  # tests whose programs run lines that no other test runs
_QUICK = 0.2  # seconds of a test that is not in the table
_traced: dict[str, str] = {}
_STDERR = pytest.StashKey[int]()


def _hold_tracing() -> None:
    """Keep to this process the variables by which coverage has every program traced that a test starts."""
    for name in _TRACING:
        if name in os.environ:
            _traced[name] = os.environ.pop(name)


def pytest_configure(config: pytest.Config) -> None:
    """Let no worker of pytest-xdist be traced twice, by these variables and by pytest-cov; and ignore no signal.

    What a script starts in the background, or with nohup, ignores some, and so would all programs of the tests.
    """
    _hold_tracing()
    config.stash[_STDERR] = os.dup(2)  # pytest's own: while a test runs, its output is captured
    for number, handler in (
        (signal.SIGHUP, signal.SIG_DFL),
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files without a test of the mark that is asked for: to import the others takes longer than many of them."""
    wanted = re.fullmatch(r"(\w+)(?: and (?:not )?\w+)*", config.option.markexpr)
    if wanted is None or wanted[1] == "not" or not collection_path.match("test_*.py"):
        return None
    mark = {"hypothesis": "@given(", "conforms": "conforms("}.get(wanted[1], f"mark.{wanted[1]}")  # not marked there
    return mark not in collection_path.read_text(encoding="utf-8") or None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have the stacks of a test with a time-out of its own printed as long after that as those of the others."""
    own = item.get_closest_marker("timeout")
    printed, timeout = (float(item.config.getini(name)) for name in ("faulthandler_timeout", "timeout"))
    if own is not None and printed:
        faulthandler.dump_traceback_later(own.args[0] + printed - timeout, file=item.config.stash[_STDERR])


def _slowest() -> dict[str, float]:
    """The seconds of slow tests, each of which goes to any worker, and of slow files, whose tests go together."""
    return {name: float(seconds) for seconds, name in map(str.split, _SLOWEST.read_text().splitlines())}


@lru_cache
def _traced_tests() -> frozenset[str]:
    return frozenset(_TRACED.read_text().splitlines())


def _name(nodeid: str) -> str:
    """The test's name in our tables: its file without folders, and no spaces."""
    file, _, test = nodeid.replace(" ", "_").partition("::")
    return f"{file.rpartition('/')[2]}::{test}"


def _unit(nodeid: str, slowest: dict[str, float]) -> str:
    """The test itself if it is in the table, otherwise its file: what one worker is to run."""
    test = _name(nodeid)
    return test if test in slowest else test.partition("::")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests by how long they take, the longest first, and mark those with a row of the conformance table."""
    for item in items:
        if "conforms" in getattr(item, "fixturenames", ()):
            item.add_marker("conforms")
    slowest = _slowest()
    units = {item: _unit(item.nodeid, slowest) for item in items}
    quick = Counter(units.values())
    items.sort(key=lambda item: (-slowest.get(units[item], quick[units[item]] * _QUICK), units[item]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Hand files to workers, and slow tests by themselves (pytest-xdist 3.8 knows no groups under pytest 9.2)."""
    from xdist.scheduler import LoadScopeScheduling

    slowest = _slowest()

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid, slowest)

    return Units(config, log)


@pytest.fixture(autouse=True, scope="session")
def plain_machine() -> Iterator[None]:
    """No settings of telemetry, no rank, and a state folder that goes away, for the tests and what they start."""
    _hold_tracing()  # a worker's own, which pytest-cov has set since
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as nohup and a shell's & leave it, to each program
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="tachograph-state-") as state:
        for name in list(os.environ):
            if not name.startswith(_KEPT) and (name.startswith(_SETTINGS) or name in _RANK):
                patch.delenv(name)
        patch.setenv("XDG_STATE_HOME", state)
        yield


@pytest.fixture(autouse=True)
def traced(request: pytest.FixtureRequest) -> Iterator[None]:
    """Coverage of the programs that a test of the table starts, where it is measured at all.

    It takes 1.7 times as long. Its tracer holds a lock at each call into our code (coverage 7,
    ``Collector.lock_data``): no signal handler that records or raises survives that, no child that is forked while
    another thread holds it, and it writes a file at the end. So a test of signals, forks, limits or full disks is not
    in the table, nor one whose programs run only lines that others run.
    """
    with pytest.MonkeyPatch.context() as patch:
        if _traced and _name(request.node.nodeid) in _traced_tests():
            for name, value in _traced.items():
                patch.setenv(name, value)
        yield


def _no_tracer() -> Iterator[None]:
    tracer, threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.settrace(tracer)
        threading.settrace(threads)  # type: ignore[arg-type]


@pytest.fixture
def untraced() -> Iterator[None]:
    """No coverage in the test's own process and its new threads.

    For what coverage breaks, and for loops of a hundred thousand rounds, which take up to seven times as long with it
    and cover no line that the tests beside them do not. The test says why.
    """
    yield from _no_tracer()


@pytest.fixture(scope="module")
def untraced_module() -> Iterator[None]:
    """No coverage while a file's tests run, nor while its fixtures are made."""
    yield from _no_tracer()


@pytest.fixture
def conforms(request: pytest.FixtureRequest) -> Callable[..., None]:
    """What checks the test's row of docs/bridges-conformance.md: :func:`bridged_rows.check`."""
    from bridged_rows import check  # which needs NumPy

    return partial(check, request.node.nodeid.rpartition("/")[2])

"""The tests' process is that of a plain machine; what takes longest begins first; few programs are traced."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("tests", deadline=None)  # a slow machine is no failure
settings.load_profile("tests")

_SETTINGS = ("OTEL_", "TACHOGRAPH_", "SLURM_", "K8S_", "TORCHELASTIC_")
_RANK = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_NAME", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_KEPT = "TACHOGRAPH_TEST_"  # settings of the tests themselves
_TRACING = ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")
_SLOWEST = Path(__file__).with_name("slowest.txt")
_QUICK = 0.2  # seconds of a test that is not in the table
_traced: dict[str, str] = {}


def _hold_tracing() -> None:
    """Keep to this process the variables by which coverage has every program traced that a test starts."""
    for name in _TRACING:
        if name in os.environ:
            _traced[name] = os.environ.pop(name)


def pytest_configure() -> None:
    """Let no worker of pytest-xdist be traced twice: by these variables, and by pytest-cov."""
    _hold_tracing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests by how long they take, the longest first; those that share a fixture or a file go together.

    ``slowest.txt`` has the seconds of the slow ones. A test that is named there goes to any worker; a file or a group
    that is named there stays together.
    """
    slowest = {test: float(seconds) for seconds, test in map(str.split, _SLOWEST.read_text().splitlines())}
    seconds = Counter({name: taken for name, taken in slowest.items() if "::" not in name})
    groups: dict[pytest.Item, str] = {}
    for item in items:
        name = f"{item.path.name}::{item.name}".replace(" ", "_")
        mark = item.get_closest_marker("xdist_group")
        group = mark.args[0] if mark else _shared(item) or ("" if name in slowest else item.path.name)
        if group and mark is None:
            item.add_marker(pytest.mark.xdist_group(group))
        groups[item] = group or name
        seconds[groups[item]] += slowest.get(name, _QUICK)
    items.sort(key=lambda item: (-seconds[groups[item]], groups[item]))


def _shared(item: pytest.Item) -> str:
    """The test's file and the fixtures of this module that it shares with other tests; empty where there is none."""
    manager = item.session._fixturemanager
    shared = [
        name
        for name in getattr(item, "fixturenames", ())
        for fixture in (manager.getfixturedefs(name, item) or ())[-1:]
        if fixture.scope == "module"
    ]
    return ":".join([item.path.name, *sorted(shared)]) if shared else ""


@pytest.fixture(autouse=True, scope="session")
def plain_machine() -> Iterator[None]:
    """No settings of telemetry, no rank, and a state folder that goes away, for the tests and what they start."""
    _hold_tracing()  # a worker's own, which pytest-cov has set since
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as nohup and a shell's & leave it, to each program
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="tachograph-state-") as state:
        for name in list(os.environ):
            if not name.startswith(_KEPT) and (name.startswith(_SETTINGS) or name in _RANK):
                patch.delenv(name)
        patch.setenv("XDG_STATE_HOME", state)
        yield


@pytest.fixture
def traced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coverage of the programs that the test starts, where it is measured at all.

    It takes 1.7 times as long. Its tracer holds a lock at each call into our code (coverage 7,
    ``Collector.lock_data``): no signal handler that records or raises survives that, no child that is forked while
    another thread holds it, and it writes a file at the end. So a test of signals, forks, limits or full disks does
    without.
    """
    for name, value in () if "untraced" in request.fixturenames else _traced.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def untraced() -> Iterator[None]:
    """No coverage, where all others of the file are ``traced``, nor in the test's own process; there it says why."""
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)

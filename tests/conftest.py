"""The tests' process is that of a plain machine, whatever the developer has set."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("tests", deadline=None)  # a slow machine is no failure
settings.load_profile("tests")

_SETTINGS = ("OTEL_", "TACHOGRAPH_", "SLURM_", "K8S_", "TORCHELASTIC_")
_RANK = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_NAME", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_KEPT = "TACHOGRAPH_TEST_"  # settings of the tests themselves
LONG = "TACHOGRAPH_TEST_LONG"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what takes minutes and says little more than its neighbours, unless it is asked for."""
    if os.environ.get(LONG) == "1":
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason=f"takes minutes: {LONG}=1 runs it"))


@pytest.fixture(autouse=True, scope="session")
def plain_machine() -> Iterator[None]:
    """No settings of telemetry, no rank, and a state folder that goes away, for the tests and what they start."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="tachograph-state-") as state:
        for name in list(os.environ):
            if not name.startswith(_KEPT) and (name.startswith(_SETTINGS) or name in _RANK):
                patch.delenv(name)
        patch.setenv("XDG_STATE_HOME", state)
        yield


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No coverage in this test, and in the programs that it starts.

    Its tracer holds a lock at each call into our code (coverage 7, ``Collector.lock_data``): no signal handler that
    records or raises survives that, and no child that is forked while another thread holds it.
    """
    for name in ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"):
        monkeypatch.delenv(name, raising=False)
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)

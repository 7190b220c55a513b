"""Tests in this folder start no process and no server and load no PyTorch, but for those marked ``process``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

_STARTS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "socket.bind"}
_started: list[str] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event in _STARTS or (event == "import" and arguments[0] == "torch"):
        _started.append(event if event in _STARTS else "import torch")


sys.addaudithook(_note)


@pytest.fixture(autouse=True)
def alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that is not what this folder promises: it needs the mark, or its place is another folder."""
    _started.clear()
    yield
    if _started and not request.node.get_closest_marker("process"):
        pytest.fail(f"neither marked `process` nor in tests/process, it has called {sorted(set(_started))}")

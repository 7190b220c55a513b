"""A program that has no file descriptor left: start() runs without a part of itself, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs import run

PROGRAM = """
import os, resource, socket, sys
import encodings.idna, http.server, selectors
import tachograph
from tachograph import put_metric
from tachograph.recording import registry
from tachograph.pipeline import lifecycle
from tachograph.exporters.prometheus import endpoint
from opentelemetry.sdk.metrics import MeterProvider

resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
files = []
try:
    while True:
        files.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for _ in range(int(sys.argv[1])):
    os.close(files.pop())
running = tachograph.start(prometheus_port=0)
put_metric("step.success", 1)
for file in files:
    os.close(file)
errors = registry.default.group("tachograph").own(tachograph.recording.registry.ERRORS)
print(running.running, sum(series.value() or 0 for _, series in errors.all_series() if series.fold()))
"""


@pytest.mark.usefixtures("untraced")  # coverage itself needs a descriptor at the end
@pytest.mark.parametrize("left", range(6))
def test_start_raises_nothing(tmp_path: Path, left: int) -> None:
    """Without a page or without the flush at SIGTERM it runs, counts that, and says it; with enough it has both."""
    ended = run(tmp_path, PROGRAM, str(left))
    assert ended.returncode == 0, ended.stderr
    alive, missing = ended.stdout.split()
    assert alive == "True"
    said = ended.stderr.count("out of file descriptors") + ended.stderr.count("will not discover this process")
    assert said == float(missing)
    assert float(missing) > 0 or left == 5

"""The job that ``bench/kills.py`` kills: it records fifty times a second, and notes each value beside it.

The notes are written after the value was recorded, without a buffer, so that they survive the process.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tachograph import put_metric
from tachograph.monitor import Event, log_event

PERIOD = 0.02


def main(folder: Path, seconds: float) -> None:
    """Record for some seconds."""
    rank, restart = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    who = f"{rank}-{restart}-{os.getpid()}"
    notes = os.open(folder / f"{who}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        number += 1
        log_event(Event("tick", datetime.now(UTC), {"who": who, "number": number}))
        put_metric("tick.success", 1, "kills")
        os.write(notes, f"{number} {time.time()}\n".encode())
        time.sleep(PERIOD)
    os.write(notes, b"done\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))

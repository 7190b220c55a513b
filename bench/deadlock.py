"""Four threads log events with a Python handler: the real ``torch.monitor`` hangs, ours does not.

``python bench/deadlock.py`` runs each side in a process of its own, with a time limit, and prints the outcome.
The original holds a C++ mutex while the handler runs, and others wait for it while they hold the interpreter.
"""

from __future__ import annotations

import subprocess
import sys

LIMIT = 60.0
PROGRAM = """
import sys, threading, time
from datetime import datetime
import {module} as monitor
seen = 0
def handler(event):
    global seen
    seen += 1
monitor.register_event_handler(handler)
def log():
    event = monitor.Event("deadlock", datetime.now(), {{"a": 1}})
    for _ in range({events}):
        monitor.log_event(event)
threads = [threading.Thread(target=log, daemon=True) for _ in range(4)]
start = time.perf_counter()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(f"{{seen:,}} of {{4 * {events}:,}} events handled in {{time.perf_counter() - start:.1f}} s")
sys.stdout.flush()
import os
os._exit(0)
"""


def outcome(module: str, events: int, limit: float) -> str:
    """Return the outcome of four threads that log events."""
    program = [sys.executable, "-c", PROGRAM.format(module=module, events=events)]
    try:
        ran = subprocess.run(program, capture_output=True, text=True, timeout=limit, check=False)  # noqa: S603 - our own
    except subprocess.TimeoutExpired:
        return f"hangs (given up after {limit:g} s)"
    return ran.stdout.strip() or f"exit status {ran.returncode}: {ran.stderr.strip()[-200:]}"


def main() -> None:
    """Run both, and fail where ours loses an event."""
    ours = outcome("tachograph.monitor", 250_000, LIMIT)
    print(f"tachograph.monitor: {ours}")
    print(f"torch.monitor:      {outcome('torch.monitor', 250_000, 10.0)}")
    sys.exit("--check" in sys.argv and not ours.startswith("1,000,000 of 1,000,000"))


if __name__ == "__main__":
    main()

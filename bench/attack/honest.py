"""An honest program: it records through the public API until its stdin ends, and prints its counts.

The attacks run it beside their inputs: whatever else a hub is sent, this program's counts are exact at the end.
"""

from __future__ import annotations

import json
import select
import sys
from collections import Counter
from datetime import UTC, datetime

import tachograph
from tachograph.monitor import Event, log_event

RUN, GROUP = "honest", "honest"
_PAUSE = 0.02


def main() -> int:
    """Record until stdin ends; the OTLP endpoint is the one that the environment names."""
    loss = tachograph.Metric("honest_loss", group=GROUP, throttle=None)
    said: Counter[str] = Counter()
    with tachograph.start(metrics="otlp", logs="otlp", traces="none", run_id=RUN, interval=0.5):
        while not select.select([sys.stdin], [], [], _PAUSE)[0]:
            number = said["events"]
            tachograph.put_metric("honest.success", 1, GROUP)
            tachograph.put_metric("honest.step.ms", number % 50, GROUP)
            log_event(Event("honest.event", datetime.now(UTC), {"number": number}))
            loss.record(number / 7, at=number)
            said.update(success=1, steps=1, total=number % 50, events=1, points=1)
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Single calls of profiled functions for hubs of ours: the slowest and the failed ones of each."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from tachograph.identity.masking import masked_text
from tachograph.recording.journal import Journal
from tachograph.recording.kept_calls import KeptCall
from tachograph.recording.registry import Registry

CALLS = "tachograph.function.calls"  # an event, for hubs of ours alone: messages of exceptions are private
EVERY = 5.0  # seconds between two events
_MOST = 50  # functions in an event


class CallsFeed:
    """Tells hubs of ours which calls were slow or failed, where there is news of them.

    Args:
        journal: takes the event.
        registry: has the profiled functions.
    """

    def __init__(self, journal: Journal, registry: Registry) -> None:
        self._journal, self._registry = journal, registry
        self._next = 0.0

    def tell(self, *, everything: bool) -> None:
        """Log the calls of the functions that have others than before: a few times a minute, or at once."""
        now = time.monotonic()
        if now < self._next and not everything:
            return
        self._next = now + EVERY
        changed = [
            (group.name, name, function.kept)
            for group in list(self._registry.groups.values())
            for name, function in list(group.functions.items())
            if function.kept.untold
        ]
        for place in range(0, len(changed) if everything else min(len(changed), _MOST), _MOST):
            said = []
            for group, name, kept in changed[place : place + _MOST]:
                slowest, failed = kept.told()
                said.append({"group": group, "function": name, "slowest": _plain(slowest), "failed": _plain(failed)})
            self._journal.tell(CALLS, {CALLS: json.dumps(said)})


def _plain(calls: Sequence[KeptCall]) -> list[list[object]]:
    named = [(call, f"{call.trace_id:032x}" if call.trace_id else "") for call in calls]
    return [[call.time_unix_nano, call.seconds, call.error, masked_text(call.message), trace] for call, trace in named]

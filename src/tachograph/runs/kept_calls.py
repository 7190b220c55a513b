"""Single calls of profiled functions, kept with a run: the slowest and the last failed ones of each function."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from typing import Any, NamedTuple

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from tachograph.recording.kept_calls import MOST, MOST_MESSAGE
from tachograph.runs.members import parse_object, rank_of
from tachograph.runs.recorded import CALLS

_MOST_FUNCTIONS = 1000  # of one start of a process
_MOST_NAME = 1024
_KEEP = (
    "INSERT OR REPLACE INTO kept_calls SELECT ?, ?, ?, ?, ?, ? WHERE"
    " (SELECT count(*) FROM kept_calls WHERE process = ? AND pid = ? AND restart = ?) < ?"
    " OR EXISTS (SELECT 1 FROM kept_calls WHERE process = ? AND pid = ? AND restart = ? AND scope = ? AND function = ?)"
)
_TRACE_ID = re.compile("[0-9a-f]{32}")


class ProfiledCall(NamedTuple):
    """A call of a profiled function.

    Attributes:
        rank: the rank of its process; None if it has none.
        role: the role of its process; empty if it has none.
        time_unix_nano: when it ended; for a successful call outside a sampled span, when that was noticed, at most some
            seconds later.
        error: the type of the exception; empty if the call succeeded.
        message: the exception's message, with secrets masked.
        trace_id: 32 hexadecimal digits; empty outside a sampled span.
    """

    function: str
    group: str
    rank: int | None
    role: str
    time_unix_nano: int
    seconds: float
    error: str
    message: str
    trace_id: str


class CallsOfFunction(NamedTuple):
    """The stored calls of one profiled function, over all processes.

    Attributes:
        slowest: its slowest calls, slowest first.
        failed: its most recent failed calls, newest first.
    """

    function: str
    slowest: list[ProfiledCall]
    failed: list[ProfiledCall]


def keep_calls(connection: sqlite3.Connection, start: tuple[int, int, int], data: bytes) -> None:
    """Keep the calls that a process has told, in place of those of the same functions that it has told before.

    Args:
        connection: in a transaction.
        start: of the process: its number in the file, pid and number of restarts.
        data: the log record; one of anybody else's with this name is left.
    """
    for attribute in LogRecord.FromString(data).attributes:
        said = _json(attribute.value.string_value) if attribute.key == CALLS else None
        for each in said[:_MOST_FUNCTIONS] if isinstance(said, list) else ():
            if not isinstance(each, dict):
                continue
            group, function = (str(each.get(name, ""))[:_MOST_NAME] for name in ("group", "function"))
            kept = {name: [call[4:] for call in _valid(each.get(name))] for name in ("slowest", "failed")}
            of = (*start, group, function)
            connection.execute(_KEEP, (*of, json.dumps(kept), *start, _MOST_FUNCTIONS, *of))


def read_kept_calls(rows: Callable[[str], Iterable[Sequence[Any]]]) -> list[CallsOfFunction]:
    """Return the calls of a run that are kept: of each function at most ten of either kind.

    Args:
        rows: returns the rows of a query.
    """
    found: dict[str, CallsOfFunction] = {}
    for resource, group, function, calls in rows(
        "SELECT resource, scope, function, calls FROM kept_calls JOIN process ON id = process ORDER BY id, pid, restart"
    ):
        who, said = parse_object(resource), parse_object(calls)
        of = found.setdefault(function, CallsOfFunction(function, [], []))
        for into, name in ((of.slowest, "slowest"), (of.failed, "failed")):
            named = {"function": function, "group": group, "rank": rank_of(who), "role": str(who.get("dl.role", ""))}
            into += [call._replace(**named) for call in _valid(said.get(name))]
    return [
        CallsOfFunction(
            each.function,
            sorted(each.slowest, key=lambda call: -call.seconds)[:MOST],
            sorted(each.failed, key=lambda call: -call.time_unix_nano)[:MOST],
        )
        for each in found.values()
    ]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _valid(calls: Any) -> Iterator[ProfiledCall]:
    """Yield the calls that are whole: any program may send some."""
    for call in calls[:MOST] if isinstance(calls, list) else ():
        try:
            time, seconds, error, message, trace_id = call
            texts = str(error)[:_MOST_NAME], str(message)[:MOST_MESSAGE], str(trace_id)
            found = ProfiledCall("", "", None, "", int(time), float(seconds), *texts)
        except (TypeError, ValueError, OverflowError):
            continue
        if isfinite(found.seconds) and 0 <= found.time_unix_nano < 2**63:
            yield found if _TRACE_ID.fullmatch(found.trace_id) else found._replace(trace_id="")

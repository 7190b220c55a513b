"""Slow and failed calls of profiled functions: kept from the fold, bounded, private, and valid whatever is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hub_requests import logs, rank
from tachograph import runs
from tachograph.hub.forwarding import _PRIVATE
from tachograph.hub.hub import Hub
from tachograph.pipeline._calls import CALLS, CallsFeed
from tachograph.profiling import prof
from tachograph.recording.journal import Journal
from tachograph.recording.kept_calls import MOST, MOST_MESSAGE, KeptCall, KeptCalls
from tachograph.recording.registry import Registry, default
from tachograph.runs.recorded import CALLS as STORED_CALLS
from tachograph.studio._trace_url import refused, trace_url

GROUP = "kept"
TRACE = "0123456789abcdef" * 2


@pytest.fixture
def group() -> Iterator[str]:
    """Return a group of profiled functions, which is forgotten at the end."""
    yield GROUP
    default.groups.pop(GROUP, None)


def kept(name: str) -> KeptCalls:
    """Return the calls of a function, folded."""
    (function,) = [each for key, each in default.groups[GROUP].functions.items() if key.endswith(name)]
    function.success.fold()
    return function.kept


def test_the_slowest_calls_of_all_folds_are_kept() -> None:
    """Ten of them, the slowest first, whatever the order; a value that is no slower costs no look."""
    calls = KeptCalls()
    for fold in range(5):
        durations = [(place * 7919 + fold) % 1000 / 10 for place in range(1000)]
        if max(durations) > calls.least:
            calls.folded(durations)
    slowest, failed = calls.told()
    assert [each.seconds for each in slowest] == [99.9, 99.8, 99.7, 99.6, 99.5, 99.4, 99.3, 99.2, 99.1, 99.0]
    assert (failed, calls.untold, calls.least) == ((), False, 99.0)


def test_failed_calls_have_their_error_and_time(group: str) -> None:
    """The last ten, the last one first, with type and cut message; ``str()`` that raises costs nobody anything."""

    class SulkingError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    @prof(group=group)
    def work(number: int) -> None:
        raise SulkingError if number == 13 else ValueError(f"{number}" + "x" * 1000)

    for number in range(14):
        with pytest.raises(Exception):  # noqa: B017, PT011 - of either kind
            work(number)
    failed = kept("work").told()[1]
    assert len(failed) == MOST
    assert (failed[0].error.endswith("SulkingError"), failed[0].message) == (True, "(its message cannot be read)")
    assert (failed[1].error, failed[1].message[:3], len(failed[1].message)) == ("ValueError", "12x", MOST_MESSAGE)
    assert [each.time_unix_nano for each in failed] == sorted((each.time_unix_nano for each in failed), reverse=True)


def test_calls_that_go_well_are_kept_from_the_fold(group: str) -> None:
    """Nothing is kept before the durations are folded, and the slowest of them afterwards."""

    @prof(group=group)
    def fine() -> None:
        return None

    for _ in range(100):
        fine()
    (function,) = default.groups[GROUP].functions.values()
    assert function.kept.told() == ((), ())
    slowest, failed = kept("fine").told()
    assert (len(slowest), failed) == (MOST, ())
    assert slowest[0].seconds == function.success.summary().maximum


def test_a_traced_call_is_kept_once() -> None:
    """The call that a sampled span has told is the same one in the fold, and keeps its trace."""
    calls = KeptCalls()
    calls.traced(KeptCall(1, 5.0, trace_id=7))
    calls.folded([1.0, 5.0, 2.0])
    assert [(each.seconds, each.trace_id) for each in calls.told()[0]] == [(5.0, 7), (2.0, 0), (1.0, 0)]


def test_a_hub_is_told_where_there_is_news(group: str) -> None:
    """One event for what has changed, with masked messages; none a moment later, and none without news."""
    registry = Registry()
    journal = Journal(registry)
    feed = CallsFeed(journal, registry)
    function = registry.group(group).function("work")
    function.kept.failed(KeptCall(1, 2.0, "ValueError", "password=hunter2", 0xAB))
    feed.tell(everything=False)
    ((event,), left) = list(journal.told), journal.told.clear()
    (said,) = json.loads(event.attributes[CALLS])  # type: ignore[arg-type]
    assert (said["function"], said["failed"]) == ("work", [[1, 2.0, "ValueError", "password=***", f"{0xAB:032x}"]])
    function.kept.failed(KeptCall(2, 2.0, "ValueError"))
    feed.tell(everything=False)
    assert (left, list(journal.told)) == (None, [])
    feed.tell(everything=True)
    feed.tell(everything=True)
    assert len(journal.told) == 1


def test_they_are_private() -> None:
    """A hub hands them on to no other destination; both sides have the same name for them."""
    assert CALLS == STORED_CALLS
    assert CALLS in _PRIVATE


def stored(folder: Path, *said: Any) -> list[runs.CallsOfFunction]:
    """Return the calls of a run to whose hub processes have sent some."""
    hub = Hub(folder, run="run")
    for number, each in enumerate(said):
        text = each if isinstance(each, str) else json.dumps(each)
        hub.receive_logs(logs(rank(number), (CALLS, {CALLS: text}), stream=f"s{number}"))
    hub.close()
    run = runs.open("run", folder)
    assert list(run.events()) == []
    return run.calls


def test_calls_of_all_ranks_are_joined(tmp_path: Path) -> None:
    """Of each function the ten slowest and the last ten failed ones of all ranks, each with its rank."""
    of = [
        {
            "group": "g",
            "function": "f",
            "slowest": [[1, 10 * place + number, "", "", TRACE] for place in range(10)],
            "failed": [[10 * place + number, 1.0, "E", "m", ""] for place in range(10)],
        }
        for number in range(3)
    ]
    (found,) = stored(tmp_path, *([each] for each in of))
    assert [(each.seconds, each.rank) for each in found.slowest[:4]] == [(92, 2), (91, 1), (90, 0), (82, 2)]
    assert [(each.time_unix_nano, each.rank) for each in found.failed[:2]] == [(92, 2), (91, 1)]
    assert (len(found.slowest), len(found.failed), found.slowest[0].trace_id) == (10, 10, TRACE)


def test_the_newest_word_of_a_process_counts(tmp_path: Path) -> None:
    """What a start of a process tells of a function takes the place of what it told before."""
    hub = Hub(tmp_path, run="run")
    for seq, seconds in ((1, 1.0), (2, 2.0)):
        told = [{"group": "g", "function": "f", "slowest": [[1, seconds, "", "", ""]], "failed": []}]
        hub.receive_logs(logs(rank(0), (CALLS, {CALLS: json.dumps(told)}), first=seq))
    hub.close()
    assert [each.seconds for each in runs.open("run", tmp_path).calls[0].slowest] == [2.0]


@pytest.mark.parametrize(
    "sent",
    [
        "{",
        "[" * 100_000,
        {"function": 1},
        [1, None, "x"],
        [{"function": "f", "slowest": 7, "failed": [[1], None, [1, "x", "", "", ""], [2**70, 1.0, "", "", ""]]}],
        [{"function": "f", "slowest": [[1, float("nan"), "", "", ""], [-1, 1.0, "", "", ""]]}],
    ],
)
def test_what_is_no_call_is_left(tmp_path: Path, sent: Any) -> None:
    """Any program may send such an event: nothing of it breaks the hub or a reader."""
    assert [each for one in stored(tmp_path, sent) for each in (*one.slowest, *one.failed)] == []


def test_they_are_bounded_in_the_file(tmp_path: Path) -> None:
    """A process that names ten thousand functions has a thousand; a trace that is none, and a long text, are cut."""
    told = [
        {"function": f"f{number}", "slowest": [[1, 1.0, "E", "m" * 9999, "javascript:"]]} for number in range(10_000)
    ]
    found = stored(tmp_path, told, told)
    assert len(found) == 1000
    assert (len(found[0].slowest[0].message), found[0].slowest[0].trace_id) == (MOST_MESSAGE, "")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("https://tempo.example/trace/{trace_id}", ""),
        ("http://localhost:16686/trace/{trace_id}?x=1", ""),
        ("https://grafana/explore?left={trace_id}", ""),
        ("javascript:alert('{trace_id}')", "must be an http"),
        ("data:text/html,{trace_id}", "must be an http"),
        ("//host/{trace_id}", "must be an http"),
        ("https://{trace_id}/x", "must have {trace_id} in its path"),
        ("https://host/trace", "must have {trace_id} in its path"),
        ("https://[host/{trace_id}", "is not a valid URL"),
    ],
)
def test_the_address_of_traces_is_checked(given: str, why: str) -> None:
    """Only http and https, with the trace in the path or the query; any other is said once and linked nowhere."""
    assert why in refused(given)
    assert trace_url({"TACHOGRAPH_TRACE_URL": given}) == ("" if why else given)
    assert trace_url({}) == ""

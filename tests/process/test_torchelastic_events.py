"""torchelastic's events arrive as log records and as metrics of torchrun, and torch sees nothing of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from front_door import recorded
from tachograph.instrumentation._torchelastic import ElasticEvents, TorchrunSeries
from tachograph.recording import journal

events = pytest.importorskip("torch.distributed.elastic.events")
handlers = pytest.importorskip("torch.distributed.elastic.events.handlers")
pytestmark = pytest.mark.torch
RENDEZVOUS = "dynamic_rendezvous"


@pytest.fixture(autouse=True)
def bridged() -> Iterator[ElasticEvents]:
    """Bridge the real events, and leave them as they were."""
    before = vars(events).copy()
    journal.default.drain()
    bridge = ElasticEvents(events, TorchrunSeries())
    yield bridge
    bridge.close()
    assert vars(events) == before


class Written(logging.Handler):
    """A handler as ``--event-log-handler`` names it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        self.lines.append(record.getMessage())


@pytest.fixture
def written(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    """Register a handler for the test's own destination, and for the rendezvous."""
    handler = Written()
    loggers = {RENDEZVOUS: logging.getLogger(request.node.name)}
    loggers[RENDEZVOUS].propagate = False
    loggers[RENDEZVOUS].setLevel("INFO")
    loggers[RENDEZVOUS].addHandler(handler)
    for name in (request.node.name, RENDEZVOUS):
        monkeypatch.setitem(handlers._log_handlers, name, handler)
    monkeypatch.setattr(events, "_events_loggers", loggers)
    yield handler
    loggers[RENDEZVOUS].removeHandler(handler)


def status(state: str, source: str = "AGENT", **more: Any) -> Any:
    """Return an event as torchrun makes it."""
    metadata = {"run_id": "r", "global_rank": None, "role": "trainer", "state": state, "raw_error": None, **more}
    return events.Event(f"torchelastic.worker.status.{state}", events.EventSource[source], metadata=metadata)


def test_a_worker_status_is_flat() -> None:
    """All metadata are attributes: those of the inner JSON as well, a list of one as its element, nothing as None."""
    inner = '{"group_world_size": 1, "entry_point": "train.py", "local_rank": [1], "exit_code": [null]}'
    events.record(status("FAILED", "WORKER", metadata=inner, agent_restarts=0, duration_ms=None))
    (event,) = journal.default.drain()
    assert event.name == "torchelastic.worker.status"
    assert event.attributes == {
        "source": "WORKER",
        "state": "FAILED",
        "run_id": "r",
        "role": "trainer",
        "group_world_size": 1,
        "entry_point": "train.py",
        "local_rank": 1,
        "agent_restarts": 0,
    }
    assert event.observed_unix_nano - event.time_unix_nano < 10**9


def test_restarts_durations_and_workers_are_counted() -> None:
    """Restarts count up from 0 through several jobs of one process; rendezvous have durations, workers a status."""
    role = "counted"
    for restarts in (0, 0, 1, 3, 0, 2):
        events.record(status("RENDEZVOUS", role=role, agent_restarts=restarts, duration_ms=1500.0))
    events.record(status("START", "WORKER", role=role, agent_restarts=2))
    found = recorded("torchelastic")
    assert found[f"torchrun.restarts role={role}"] == 5
    assert found[f"torchrun.rendezvous.duration role={role}"] == (6, 9.0)
    assert found[f"torchrun.worker.status role={role} state=START"] == 1


def test_no_restart_is_zero() -> None:
    """The number of restarts is there before the first one."""
    events.record(status("RENDEZVOUS", role="calm", agent_restarts=0))
    assert recorded("torchelastic")["torchrun.restarts role=calm"] == 0


def test_the_watchdog_and_others_keep_their_name() -> None:
    """A watchdog's event has a name of its own; a program's events keep theirs, and their time if they have one."""
    event = events.Event("timer expired", events.EventSource.AGENT, metadata={"metadata": '{"watchdog_event": "x"}'})
    events.record(event)
    events.record(events.Event("mine", events.EventSource.WORKER, 1_800_000_000_000, {"a": 1.5, "b": True}))
    watchdog, mine = journal.default.drain()
    assert (watchdog.name, watchdog.attributes) == ("torchelastic.watchdog", {"source": "AGENT", "watchdog_event": "x"})
    assert (mine.name, mine.attributes) == ("mine", {"source": "WORKER", "a": 1.5, "b": True})
    assert mine.time_unix_nano == 1_800_000_000_000_000_000


def test_rendezvous_are_logged_though_torch_tells_nobody() -> None:
    """Where no handler was asked for, a rendezvous event arrives with its place in torch's code; heartbeats do not."""
    state = events.NodeState
    events.construct_and_record_rdzv_event("r", "joined", state.RUNNING, name="Handler.next", hostname="h", rank=1)
    events.construct_and_record_rdzv_event("r", "beats", state.RUNNING, name="Handler._keep_alive")
    try:
        raise ValueError("no store")  # noqa: TRY301 - as torch does
    except ValueError:
        events.construct_and_record_rdzv_event("r", "failed", state.FAILED)
    joined, failed = journal.default.drain()
    assert {joined.name, failed.name} == {"torchelastic.rendezvous"}
    told = dict(joined.attributes)
    assert told.pop("pid") > 0  # type: ignore[operator]
    assert told == {
        "run_id": "r",
        "message": "joined",
        "node_state": "RUNNING",
        "name": "test_torchelastic_events.py:Handler.next",
        "hostname": "h",
        "rank": 1,
    }
    assert "no store" in str(failed.attributes["error_trace"])
    assert str(failed.attributes["name"]).endswith(":test_rendezvous_are_logged_though_torch_tells_nobody")


def test_a_handler_gets_what_it_got(written: Written, request: pytest.FixtureRequest, bridged: ElasticEvents) -> None:
    """Handlers of the program get the same lines as without us, naming the caller; the journal has each event once."""

    def emit() -> None:
        events.record(status("START", "WORKER"), request.node.name)
        events.construct_and_record_rdzv_event("r", "joined", events.NodeState.RUNNING, pid=7, hostname="h")

    emit()
    with_us, written.lines[:] = written.lines[:], []
    assert [event.name for event in journal.default.drain()] == [
        "torchelastic.worker.status",
        "torchelastic.rendezvous",
    ]
    bridged.close()
    emit()
    assert with_us == written.lines
    assert '"name": "test_torchelastic_events.py:emit"' in with_us[-1]
    assert journal.default.drain() == []


def test_an_unknown_destination_is_an_error_as_before() -> None:
    """Torch's own error for a destination that is not registered is passed on."""
    with pytest.raises(KeyError):
        events.record(status("START"), "nobody knows it")


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())


@given(
    name=st.text(),
    metadata=st.dictionaries(st.text(), st.one_of(PLAIN, st.lists(PLAIN, max_size=2)), max_size=5),
    inner=st.one_of(st.text(), st.just('{"a": [[1, {}]]}'), st.just("[1]"), st.just('{"duration_ms": [1]}')),
)
def test_no_event_raises(name: str, metadata: dict[str, Any], inner: str) -> None:
    """Whatever an event holds that torch takes, it is recorded with its values, and no error comes back."""
    events.record(events.Event(name, events.EventSource.WORKER, metadata={**metadata, "metadata": inner}))
    (event,) = journal.default.drain()
    for key, value in metadata.items():
        if key and key != "source" and isinstance(value, str | bool) and key.isascii() and key != "metadata":
            assert event.attributes[key] == value


def test_another_torch_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Where torch has no such functions, that is said in one line."""
    ElasticEvents(logging, TorchrunSeries()).close()
    assert [record.getMessage() for record in caplog.records] == [
        "this version of torch is not supported: its elastic events are not recorded"
    ]

"""The queue: everything queued is delivered or counted, and nobody ever waits for a destination."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from servers import wait_until
from tachograph.exporters._workers import Workers
from tachograph.exporters.delivery import Attempt, Request, Retry
from tachograph.exporters.delivery_queue import DeliveryQueue
from tachograph.exporters.spool import Spool
from tachograph.exporters.spool_format import SpoolRecord
from tachograph.recording.points import NumberPoint
from tachograph.recording.registry import Registry


def dropped(registry: Registry, destination: str = "there") -> dict[str, float]:
    """Return how many items were dropped, by reason."""
    return {
        str(dict(point.attributes)["reason"]): point.value
        for metric in registry.collect()
        if metric.name == "tachograph.dropped"
        for point in metric.points
        if isinstance(point, NumberPoint) and dict(point.attributes)["destination"] == destination
    }


def nothing(_timeout: float) -> None:
    """Send at once."""


def failing(error: Exception) -> Callable[[float], None]:
    """Return a send that fails."""

    def send(_timeout: float) -> None:
        raise error

    return send


def test_everything_arrives_in_order() -> None:
    """What is queued is sent once each, in order, and flush says so."""
    registry = Registry()
    queue = DeliveryQueue("there", registry)
    sent: list[int] = []
    for number in range(100):
        queue.put(lambda _timeout, number=number: sent.append(number), 10)  # type: ignore[misc]
    assert queue.flush(5)
    assert sent == list(range(100))
    queue.close(1)
    assert dropped(registry) == {}


Outcome = tuple[str, int]


@settings(max_examples=examples(40), deadline=None)
@given(
    outcomes=st.lists(st.tuples(st.sampled_from(["sent", "refused", "late"]), st.integers(1, 50)), max_size=30),
    limit=st.integers(1, 400),
)
def test_nothing_is_unaccounted_for(outcomes: list[Outcome], limit: int) -> None:
    """Whatever a destination does, each item is either delivered once or counted as dropped once."""
    registry = Registry()
    queue = DeliveryQueue("there", registry, limit_bytes=limit, first_back_off=0.0001)
    delivered = 0

    def sender(outcome: str, size: int) -> Callable[[float], None]:
        attempts = 0

        def send(_timeout: float) -> None:
            nonlocal attempts, delivered
            attempts += 1
            if outcome == "refused":
                raise ValueError("no")
            if outcome == "late" and attempts < 3:
                raise Retry(why="later")
            delivered += size

        return send

    for outcome, size in outcomes:
        queue.put(sender(outcome, size), size, items=size)
    queue.close(10)
    assert delivered + sum(dropped(registry).values()) == sum(size for _, size in outcomes)


def test_the_oldest_goes_first_when_it_is_full() -> None:
    """Beyond its limit the queue gives up what waited longest, and counts its items."""
    registry = Registry()
    queue = DeliveryQueue("there", registry, limit_bytes=100)
    gate, begun = threading.Event(), threading.Event()
    sent: list[int] = []

    def hold(_timeout: float) -> None:
        begun.set()
        gate.wait(10)

    queue.put(hold, 10)
    assert begun.wait(5)
    for number in range(10):
        queue.put(lambda _timeout, number=number: sent.append(number), 30, items=3)  # type: ignore[misc]
    queue.put(nothing, 101, items=5)
    gate.set()
    assert queue.flush(5)
    assert sent == [7, 8, 9]
    assert dropped(registry) == {"queue_full": 7 * 3 + 5}
    queue.close(1)


def test_flush_tells_of_losses() -> None:
    """Flush is True only if all that was queued has been sent."""
    queue = DeliveryQueue("there", Registry())
    queue.put(failing(ValueError("no")), 1)
    assert not queue.flush(5)
    queue.put(nothing, 1)
    assert queue.flush(5)
    queue.close(1)


def test_flush_tells_of_a_loss_that_was_quicker() -> None:
    """A refusal before the flush began to wait counts: once, and not for requests that are queued afterwards."""
    registry = Registry()
    queue = DeliveryQueue("there", registry)
    queue.put(failing(ValueError("no")), 1)
    wait_until(queue.is_through)
    assert not queue.flush(5)
    assert queue.flush(5)
    queue.put(failing(ValueError("no")), 1)
    wait_until(queue.is_through)
    queue.put(nothing, 1)
    assert queue.flush(5)
    assert dropped(registry) == {"rejected": 2}
    queue.close(1)


@pytest.mark.timing
def test_close_is_bounded_while_a_send_is_stuck() -> None:
    """A send that never returns delays the end by the time-out alone, and what it held up is counted."""
    registry = Registry()
    queue = DeliveryQueue("there", registry)
    for _ in range(3):
        queue.put(lambda _timeout: threading.Event().wait(), 1, items=2)
    began = time.monotonic()
    queue.close(0.3)
    assert time.monotonic() - began < 1
    assert dropped(registry) == {"shutdown": 6}
    queue.put(nothing, 1)
    queue.close(10)
    assert dropped(registry) == {"shutdown": 7}


@pytest.mark.timing
@pytest.mark.parametrize("is_gone", [False, True])
def test_what_was_sent_to_a_receiver_that_reads_late_is_not_lost(is_gone: bool) -> None:
    """A request without an answer is no loss if the receiver still reads it, which it cannot where it is gone."""
    registry = Registry()
    queue = DeliveryQueue("there", registry, reads_late=True)
    queue.put(failing(Retry(why="no answer", uncertain=True, is_gone=is_gone)), 1, items=2)
    queue.put(nothing, 1, items=5)
    wait_until(lambda: queue.is_answering is not is_gone)
    queue.close(0.3)
    assert dropped(registry) == {"shutdown": 7 if is_gone else 5}
    assert (queue.undelivered, queue.unanswered) == ((7, 0) if is_gone else (5, 2))


@pytest.mark.timing
def test_close_is_bounded_while_nothing_is_accepted() -> None:
    """A destination that asks for another attempt each time delays the end by the time-out alone."""
    registry = Registry()
    queue = DeliveryQueue("there", registry)
    queue.put(failing(Retry(why="refused")), 1)
    queue.put(failing(Retry(after=30)), 1)
    began = time.monotonic()
    queue.close(0.3)
    assert time.monotonic() - began < 1
    assert dropped(registry) == {"shutdown": 2}


def test_the_end_does_not_wait_for_a_back_off() -> None:
    """What waits for its next attempt is tried once more at once when the process ends."""
    registry = Registry()
    queue = DeliveryQueue("there", registry, first_back_off=60)
    attempts: list[float] = []

    def send(_timeout: float) -> None:
        attempts.append(time.monotonic())
        if len(attempts) == 1:
            raise Retry(why="refused")

    queue.put(send, 1)
    while not attempts:
        time.sleep(0.01)
    queue.close(5)
    assert len(attempts) == 2
    assert attempts[1] - attempts[0] < 2
    assert dropped(registry) == {}


def test_a_destination_that_asks_for_time_gets_it() -> None:
    """A retry is not earlier than the receiver said, not even for a flush."""
    queue = DeliveryQueue("there", Registry(), first_back_off=0.001)
    attempts: list[float] = []

    def send(_timeout: float) -> None:
        attempts.append(time.monotonic())
        if len(attempts) == 1:
            raise Retry(after=0.4)

    queue.put(send, 1)
    assert queue.flush(5)
    assert attempts[1] - attempts[0] >= 0.4
    queue.close(1)


def test_an_unreachable_destination_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """After its time is over an item is counted as unreachable; the reason is logged once."""
    registry = Registry()
    queue = DeliveryQueue("there", registry, give_up_after=0.2, first_back_off=0.01)
    for _ in range(3):
        queue.put(failing(Retry(why="nobody listens")), 1)
    assert not queue.flush(10)
    assert dropped(registry) == {"unreachable": 3}
    assert [record.message for record in caplog.records].count(
        "there: data was lost (unreachable; further warnings are suppressed; "
        "see tachograph_dropped_total on /metrics): nobody listens"
    ) == 1
    queue.close(1)


def test_how_long_an_export_takes_is_recorded() -> None:
    """Each attempt is measured into ``tachograph.export.duration``, by destination."""
    registry = Registry()
    queue = DeliveryQueue("there", registry)
    queue.put(lambda _timeout: time.sleep(0.05), 1)
    assert queue.flush(5)
    queue.close(1)
    (metric,) = (metric for metric in registry.collect() if metric.name == "tachograph.export.duration")
    (point,) = metric.points
    assert point.attributes == (("destination", "there"),)
    assert not isinstance(point, NumberPoint)
    assert point.summary.count == 1
    assert point.summary.minimum >= 0.05


FORKING = """
import os, threading
from tachograph.exporters.delivery_queue import DeliveryQueue
from tachograph.recording.registry import Registry
registry = Registry()
queue = DeliveryQueue("there", registry)
gate, begun = threading.Event(), threading.Event()
queue.put(lambda timeout: (begun.set(), gate.wait(10)), 1)
queue.put(lambda timeout: os.write(1, b"parent's "), 1)
begun.wait()
child = os.fork()
if not child:
    queue.reset_in_child()
    queue.put(lambda timeout: os.write(1, b"child's "), 1)
    os._exit(0 if queue.flush(5) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
gate.set()
queue.close(5)
"""


@pytest.mark.process
def test_a_forked_child_sends_only_its_own() -> None:
    """After a fork the child forgets the parent's queue, and its own thread starts with its first item."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "child's parent's "


ENDING = """
import atexit, os
from tachograph.exporters.delivery_queue import DeliveryQueue
from tachograph.recording.registry import Registry
queue = DeliveryQueue("there", Registry())
def end(who):
    queue.put(lambda timeout: os.write(1, who), 1)
    queue.close(5)
child = os.fork()
if child:
    os.waitpid(child, 0)
    atexit.register(end, b"parent's")
else:
    queue.reset_in_child()
    atexit.register(end, b"child's ")
"""


@pytest.mark.process
def test_what_is_queued_at_exit_is_sent() -> None:
    """While the interpreter shuts down, where CPython starts no thread any more, a forked child sends its own, too."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", ENDING],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "child's parent's"


def test_the_programs_random_numbers_stay_as_they_are() -> None:
    """Back-off draws nothing from the program's own random state."""
    import random

    random.seed(1)
    before = random.getstate()
    queue = DeliveryQueue("there", Registry(), give_up_after=0.1, first_back_off=0.01)
    queue.put(failing(Retry(why="later")), 1)
    queue.flush(5)
    queue.close(1)
    assert random.getstate() == before


def test_once_it_takes_the_rest_follows_at_once() -> None:
    """What a receiver asked for before an attempt that succeeded holds up nothing that is queued behind it."""
    queue = DeliveryQueue("there", Registry())
    attempts: list[float] = []

    def send(_timeout: float) -> None:
        attempts.append(time.monotonic())
        if len(attempts) == 1:
            raise Retry(after=30)

    for _ in range(5):
        queue.put(send, 1)
    while not attempts:
        time.sleep(0.01)
    time.sleep(0.1)
    queue.retry_now(1)
    assert queue.flush(5)
    assert len(attempts) == 6
    queue.close(1)


def test_back_offs_are_short_while_a_flush_waits() -> None:
    """However many attempts have failed, one that succeeds soon is not too late for a flush."""
    queue = DeliveryQueue("there", Registry(), first_back_off=60)
    attempts: list[float] = []

    def send(_timeout: float) -> None:
        attempts.append(time.monotonic())
        if len(attempts) < 6:
            raise Retry(why="busy")

    queue.put(send, 1)
    assert queue.flush(5)
    assert attempts[-1] - attempts[0] < 3
    queue.close(1)


class Watched(Spool):
    """A spool that notes what is counted in the moment in which it is told what has arrived."""

    def __init__(self, folder: Path, registry: Registry, noted: list[dict[str, float]]) -> None:
        super().__init__(folder, 2**20)
        self._registry, self._noted = registry, noted

    def advance(self, size: int, items: int) -> None:
        """Note."""
        self._noted.append(dropped(self._registry))
        super().advance(size, items)


def test_a_loss_is_counted_before_the_disk_forgets_it(tmp_path: Path) -> None:
    """A process that is killed between the two has counted what a later one finds no more."""
    registry = Registry()
    noted: list[dict[str, float]] = []
    left = Spool(tmp_path, 2**20)
    left.append(SpoolRecord("metrics", b"a", 3))
    left.close()

    def deliver(requests: Sequence[Request], attempt: Attempt) -> None:
        attempt.settled(requests[0].items, lost=requests[0].items, why="never")

    queue = DeliveryQueue("there", registry, deliver, spool=lambda _lose: Watched(tmp_path, registry, noted))
    wait_until(lambda: noted)
    queue.close(5)
    assert noted[0] == {"rejected": 3}
    assert list(tmp_path.iterdir()) == []


def test_queues_share_a_thread_until_one_hangs() -> None:
    """Queues with the same workers need one thread; behind a delivery that hangs, a further one serves the others.

    That one is gone once the delivery has returned, and nothing is lost but what could not be delivered in time.
    """
    registry = Registry()
    workers = Workers("shared")
    hung, other, third = (DeliveryQueue(name, registry, workers=workers) for name in ("there", "other", "third"))
    threads: set[threading.Thread] = set()
    returns = threading.Event()

    def noted(_timeout: float) -> None:
        threads.add(threading.current_thread())

    def hanging(_timeout: float) -> None:
        noted(_timeout)
        returns.wait(20)

    for queue in (hung, other, third):
        queue.put(noted, 1)
        assert queue.flush(5)
    assert len(threads) == 1
    hung.put(hanging, 1)
    for _ in range(3):
        for queue in (other, third):
            queue.put(noted, 1)
            assert queue.flush(5)
    assert len(threads) == 2
    hung.put(noted, 1)
    began = time.monotonic()
    hung.close(0.3)
    assert time.monotonic() - began < 2
    assert dropped(registry) == {"shutdown": 2}
    returns.set()
    wait_until(lambda: sum(thread.is_alive() for thread in threads) == 1)
    for queue in (other, third):
        queue.put(noted, 1)
        queue.close(5)
    wait_until(lambda: not any(thread.is_alive() for thread in threads))
    assert len(threads) == 2
    assert dropped(registry, "other") == dropped(registry, "third") == {}


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["sent", "refused", "late"])), max_size=40))
def test_queues_that_share_a_thread_keep_their_own_order_and_counts(puts: list[tuple[int, str]]) -> None:
    """Whatever is queued where, each item arrives once and in its queue's order, or is counted for its destination."""
    registry = Registry()
    workers = Workers("shared")
    queues = [DeliveryQueue(f"{number}", registry, workers=workers, first_back_off=0.001) for number in range(4)]
    arrived: list[list[int]] = [[] for _ in queues]
    expected: list[list[int]] = [[] for _ in queues]
    refused = [0] * len(queues)
    for number, (which, outcome) in enumerate(puts):
        tries = iter([Retry(None, "busy")] if outcome == "late" else [])

        def send(
            _timeout: float,
            which: int = which,
            number: int = number,
            refuse: bool = outcome == "refused",
            tries: Iterator[Retry] = tries,
        ) -> None:
            if (retry := next(tries, None)) is not None:
                raise retry
            if refuse:
                raise ValueError("no")
            arrived[which].append(number)

        queues[which].put(send, 1)
        if outcome == "refused":
            refused[which] += 1
        else:
            expected[which].append(number)
    for queue in queues:
        queue.close(10)
    assert arrived == expected
    lost = [dropped(registry, f"{number}") for number in range(4)]
    assert lost == [{"rejected": count} if count else {} for count in refused]


def test_the_end_says_how_much_was_not_delivered(caplog: pytest.LogCaptureFixture) -> None:
    """What is lost at the end is said by its number, and by what it is where that is known."""
    queue = DeliveryQueue("there", Registry())
    for items, kind in ((1200, "metrics"), (34, "metrics"), (1, "traces"), (2, "logs"), (3, "")):
        queue.put(failing(Retry(None, "busy")), 1, items=items, kind=kind)
    queue.close(0.1)
    assert "s at shutdown: 1,234 data points and 1 span and 2 records and 3 items" in caplog.text

"""Ids: no number is given twice, no random id comes again in a forked child, and the program's random state stays."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from programs import run
from tachograph.recording.ids import NumberSequence, random_hex, span_id, trace_id


@pytest.mark.parametrize("locked", [False, True])
def test_threads_get_each_number_once(locked: bool) -> None:
    """Four threads ask a sequence: together they get every number, from the first one on, in ascending order each."""
    numbers = NumberSequence(5, locked=locked)
    found: list[list[int]] = [[] for _ in range(4)]

    def ask(mine: list[int]) -> None:
        for _ in range(5000):
            mine.append(numbers.next())  # noqa: PERF401 - one at a time is the test

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=ask, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)
    assert all(mine == sorted(mine) for mine in found)
    assert sorted(number for mine in found for number in mine) == list(range(5, 20_005))


def test_a_signal_handler_may_ask_in_the_middle_of_asking() -> None:
    """A handler that needs a number while its own thread holds the sequence's lock gets one."""
    numbers = NumberSequence(locked=True)
    inside: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: inside.append(numbers.next()))
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        asked = [numbers.next() for _ in range(50_000)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert inside
    assert sorted(asked + inside) == list(range(1, len(asked + inside) + 1))


def test_random_ids_have_their_bits_and_leave_the_random_state() -> None:
    """Ids differ, fill their 64 and 128 bits, and are not taken from the random numbers that the program has seeded."""
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002 - the state that programs have
    before, theirs = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    spans, traces = [span_id() for _ in range(1000)], [trace_id() for _ in range(1000)]
    assert len({*spans, *traces}) == 2000
    assert 0 < min(spans) < max(spans) < 2**64
    assert 2**120 < max(traces) < 2**128
    bits = 0
    for found in traces:
        bits |= found
    assert bits == 2**128 - 1
    assert len({random_hex() for _ in range(100)}) == 100
    assert (len(random_hex()), len(random_hex(4))) == (32, 8)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == (before, theirs)  # noqa: NPY002


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_repeats_no_id_of_its_parent(tmp_path: Path) -> None:
    """Ids that were drawn before a fork are given out once: by the parent."""
    done = run(
        tmp_path,
        """
import os
from tachograph.recording.ids import random_hex, span_id, trace_id
def some():
    return [str(found) for _ in range(100) for found in (span_id(), trace_id(), random_hex())]
span_id()
if not os.fork():
    with open("child", "w") as file:
        file.write(" ".join(some()))
    os._exit(0)
mine = some()
os.wait()
theirs = open("child").read().split()
print(len(theirs), len({*mine, *theirs}))
""",
    )
    assert (done.stdout, done.stderr) == ("300 600\n", "")

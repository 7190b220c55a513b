"""Odd values: what a program's own objects do when they are read harms neither the program nor the page."""

from __future__ import annotations

import math
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

import tachograph
from programs import complaints, run
from tachograph import Metric
from tachograph.elastic import put_metric
from tachograph.metric.execution import Execution
from tachograph.monitor.event import Event
from tachograph.recording.points import attributes_key
from tachograph.recording.registry import Registry
from tachograph.recording.values import read
from tachograph.testing import capture


class Unhashable(str):
    """A string whose hash is not there."""

    __slots__ = ()

    def __hash__(self) -> int:
        """Fail."""
        raise RuntimeError("no hash")


class Raises:
    """Raises whatever it is given, however it is read."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __float__(self) -> float:
        """Raise."""
        raise self._error

    def item(self) -> float:
        """Raise."""
        raise self._error

    def __repr__(self) -> str:
        """Raise."""
        raise self._error


def test_a_long_double_is_a_number_everywhere() -> None:
    """NumPy's long double, whose ``item()`` returns itself, is a float: as a value, an attribute, an event's data."""
    value = np.longdouble("1.5")
    assert Event("step", datetime(2026, 1, 1), {"loss": value}).data == {"loss": 1.5}  # noqa: DTZ001
    assert Event("step", datetime(2026, 1, 1), {"loss": np.array([value])}).data == {"loss": 1.5}  # noqa: DTZ001
    assert attributes_key({"rate": value}) == (("rate", 1.5),)
    with capture() as captured:
        put_metric("loss", value, "hostile", attributes={"rate": value})
        assert captured.value("loss", "hostile", rate=1.5) == 1.5
    Metric("loss of long doubles").record(value, at=value)


def test_a_complex_long_double_is_no_number() -> None:
    """It is refused as every complex number is, and its real part is not taken for it."""
    value = np.clongdouble(1 + 2j)
    with pytest.raises(TypeError, match="not a number"):
        read(value)
    with pytest.raises(TypeError, match="not a number"):
        attributes_key({"rate": value})
    with pytest.raises(TypeError, match="not a number"):
        Event("step", datetime(2026, 1, 1), {"loss": value})  # noqa: DTZ001


def test_a_subclass_of_a_plain_type_is_copied_to_the_plain_type() -> None:
    """An attribute of the program's own class leaves as a plain string, int or float, which one series has."""

    class Own(int):
        def __str__(self) -> str:
            raise RuntimeError("no text")

        __repr__ = __str__

    class Text(str):
        __slots__ = ()

    found = attributes_key({"a": Unhashable("b"), "i": Own(7), "z": np.float64(0.5)})
    assert found == (("a", "b"), ("i", 7), ("z", 0.5))
    assert [type(value) for _, value in found] == [str, int, float]
    assert [type(key) for key, _ in attributes_key({Text("k"): 1})] == [str]


@pytest.mark.process
def test_a_page_is_served_whatever_an_attribute_is() -> None:
    """A string without a hash is a label as any other, in the metrics of a program that goes on."""
    with tachograph.start(prometheus_port=0) as running:
        put_metric("loss", 1.0, "hostile page", attributes={"node": Unhashable("left")})
        assert running.metrics_url is not None
        for _ in range(2):
            with urlopen(running.metrics_url, timeout=10) as answer:
                page = answer.read().decode()
            assert 'node="left"' in page


def test_an_attribute_that_raises_is_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The value is recorded without it, the program gets no exception, and how many were left out is exported."""
    registry = Registry()
    loss = registry.group("hostile").instrument("loss")
    for value in (1.0, 2.0):
        loss.record(value, {"node": Raises(OSError("gone")), "rank": 3})
    found = {(metric.name, point.attributes): point for metric in registry.collect() for point in metric.points}
    assert getattr(found["loss", (("rank", 3),)], "value", None) == 2.0
    dropped = found["tachograph.dropped", (("destination", "registry"), ("reason", "attribute"))]
    assert getattr(dropped, "value", None) == 2
    assert [line for line in caplog.messages if "dropped attribute 'node'" in line] == caplog.messages


@pytest.mark.parametrize(
    ("at", "error"),
    [
        (Raises(NotImplementedError("later")), TypeError),
        (Raises(KeyError("key")), TypeError),
        (Raises(RecursionError("deep")), TypeError),
        (Raises(OverflowError("far")), ValueError),
        (Raises(ValueError("odd")), ValueError),
        (Fraction(10**400), ValueError),
        (Decimal("sNaN"), ValueError),
        (Decimal("1e400"), ValueError),
        (np.longdouble(math.inf), ValueError),
        (object(), TypeError),
        ([], TypeError),
    ],
    ids=lambda case: type(case).__name__ if not isinstance(case, type) else case.__name__,
)
@pytest.mark.parametrize("first", [True, False])
def test_a_wrong_at_is_a_type_error_or_a_value_error(at: object, error: type[Exception], first: bool) -> None:
    """No number: TypeError; out of range: ValueError; at any call, and both name where it was written."""
    metric = Metric("loss", execution=Execution("hostile"))
    if not first:
        metric.record(1.0, at=0)
    with pytest.raises(error, match=r"at= of Metric 'loss' must be"):
        metric.record(2.0, at=at)


def test_a_name_forges_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A name with line ends and escape sequences is one line of the log, in which they are written out."""
    put_metric("loss\nCRITICAL root: forged\x1b[2J\u2028", object(), "hostile log")
    [line] = [line for line in caplog.messages if "forged" in line]
    assert r"loss\nCRITICAL root: forged\x1b[2J\u2028: dropped a value: " in line


@pytest.mark.process
def test_an_exception_of_a_signal_handler_reaches_the_program(tmp_path: Path) -> None:
    """A time-out by SIGALRM in the middle of a value ends the program's loop each time, and costs no attribute."""
    done = run(
        tmp_path,
        """
        import signal, time
        from tachograph import put_metric  # here: Python's own import swallows what interrupts the end of its lock
        class Expired(Exception):
            pass
        def expire(*_):
            raise Expired
        signal.signal(signal.SIGALRM, expire)
        def record_until(end):  # the jump back of a loop is in no "try" of its own function: CPython 3.13
            while time.monotonic() < end:
                put_metric("loss", 0.5, attributes={"phase": "warmup"})
        swallowed = 0
        for _ in range(200):
            end = time.monotonic() + 0.2
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.004)
                record_until(end)
                swallowed += 1
            except Expired:
                pass
        print(swallowed)
        """,
    )
    assert (done.returncode, done.stdout, complaints(done.stderr)) == (0, "0\n", "")

"""What MetricsLogger makes of the values of fields."""

from __future__ import annotations

import enum
import math
import statistics
import time
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.logger import MetricsLogger, process_value
from tachograph.logger._fields import Arriving, Statistics
from tachograph.recording.journal import Journal
from tachograph.recording.registry import Registry

torch: Any = pytest.importorskip("torch")


class Colour(enum.IntEnum):
    """A number with a name."""

    RED = 3


class Broken:
    """Fails whenever it is read."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("unreadable")

    __repr__ = __str__
    __float__ = __str__  # type: ignore[assignment]


def logged(fields: dict[Any, Any], tags: dict[Any, Any] | None = None) -> dict[str, Any]:
    """Return the attributes of the event that a point becomes."""
    registry = Registry()
    journal = Journal(registry)
    MetricsLogger(journal=journal, registry=registry).log("m", tags or {}, fields)
    (event,) = journal.drain()
    return dict(event.attributes)


@pytest.mark.process
@pytest.mark.parametrize(
    ("value", "found"),
    [
        (3, 3),
        (True, 1),
        (Colour.RED, 3),
        (2**63 - 1, 2**63 - 1),
        (2**63, str(2**63)),
        (0.5, 0.5),
        ("a", "a"),
        (None, 0.0),
        ([], 0.0),
        ((), 0.0),
        ([1, 2, 3], "[1, 2, 3]"),
        ([True, 2], "[True, 2]"),
        ([1, 2.0, 6], {"mean": 3.0, "min": 1.0, "max": 6.0, "median": 2.0}),
        ([0.1, 0.2], {"mean": 0.15000000000000002, "min": 0.1, "max": 0.2, "median": 0.15000000000000002}),
        ([1.0, "a"], "[1.0, 'a']"),
        ([1.0, None], "[1.0, None]"),
        ([[1.0]], "[[1.0]]"),
        ({"a": 1}, "{'a': 1}"),
        (Decimal("0.5"), "0.5"),
        (1j, "1j"),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), 1),
        (np.longdouble(0.5), 0.5),
        (np.array(4), 4),
        (np.array([1, 2]), "[1, 2]"),
        (np.array([[1.0, 2.0], [3.0, 6.0]]), {"mean": 3.0, "min": 1.0, "max": 6.0, "median": 2.5}),
        ([np.float32(1), 3], {"mean": 2.0, "min": 1.0, "max": 3.0, "median": 2.0}),
        ([np.int64(1), 3], "[1, 3]"),
        (np.array(["a", "b"]), "['a', 'b']"),
        (np.datetime64("2026-01-01"), "2026-01-01"),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.tensor([1.0, 2.0]), {"mean": 1.5, "min": 1.0, "max": 2.0, "median": 1.5}),
        ([torch.tensor(1.0), torch.tensor(2.0)], {"mean": 1.5, "min": 1.0, "max": 2.0, "median": 1.5}),
        (torch.zeros(0), 0.0),
    ],
)
def test_table(value: object, found: object) -> None:
    """Every kind of value becomes what the documents' table says, NumPy's and torch's among them."""
    made = process_value(value)
    assert made == found
    assert type(made) is type(found)
    flat = {f"k_{which}": number for which, number in found.items()} if isinstance(found, dict) else {"k": found}
    assert logged({"k": value})["tachograph.fields"] == flat


def test_process_value_is_a_method() -> None:
    """The documents call it on the logger."""
    assert MetricsLogger(registry=Registry()).process_value([1, 2]) == "[1, 2]"


@pytest.mark.parametrize("numbers", [[1.0, math.nan], [math.inf, -math.inf], [math.inf, 1.0], [1e308] * 3])
def test_lists_that_are_hard_to_add(numbers: list[float]) -> None:
    """A list with NaN, infinities or huge numbers has NumPy's statistics."""
    with np.errstate(all="ignore"):
        wanted = [float(np.mean(np.array(numbers, np.longdouble))), float(np.min(numbers)), float(np.max(numbers))]
    found = process_value(numbers)
    assert isinstance(found, dict)
    assert [found["mean"], found["min"], found["max"]] == pytest.approx(wanted, nan_ok=True)


def test_large_arrays_become_strings() -> None:
    """An array of more than 4,096 elements costs no statistics."""
    assert isinstance(process_value(np.zeros(4097)), str)
    assert isinstance(process_value(np.zeros(4096)), dict)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=50))
def test_statistics(numbers: list[float]) -> None:
    """Those of a list of floats are those of the standard library, to the last digits."""
    found = process_value(numbers)
    assert isinstance(found, dict)
    assert found["mean"] == pytest.approx(statistics.fmean(numbers), rel=1e-12, abs=0)
    assert (found["min"], found["max"]) == (min(numbers), max(numbers))
    assert found["median"] == statistics.median(numbers)


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3))
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=4),
    st.lists(st.floats(), max_size=4),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(st.text(max_size=2), SCALARS, max_size=2),
    st.builds(Broken),
    st.floats(width=32).map(np.float32),
    st.lists(st.floats(width=32), max_size=3).map(np.array),
)
NAMES = st.one_of(st.text(max_size=4), st.integers(0, 3), st.none(), st.builds(Broken))


def _plain(mapping: dict[Any, Any]) -> dict[Any, Any]:
    kept = mapping.items()
    return {key: value for key, value in kept if not isinstance(key, Broken) and not isinstance(value, Broken)}


@given(st.dictionaries(NAMES, VALUES, max_size=5), st.dictionaries(NAMES, VALUES, max_size=4))
def test_anything_goes(fields: dict[Any, Any], tags: dict[Any, Any]) -> None:
    """Whatever is logged, nothing raises, fields are numbers and strings, tags strings, and dicts stay as they are."""
    before = repr((_plain(fields), _plain(tags))), list(fields), list(tags)
    registry = Registry()
    journal = Journal(registry)
    MetricsLogger(journal=journal, registry=registry).log("m", tags, fields)
    assert repr((_plain(fields), _plain(tags))) == before[0]
    assert [list(fields), list(tags)] == [before[1], before[2]]
    registry.collect()
    for event in journal.drain():
        for name, value in event.attributes["tachograph.fields"].items():  # type: ignore[union-attr]
            assert type(name) is str
            assert type(value) in {int, float, str}
            f"{name}{value}".encode()
        for name, value in event.attributes["tachograph.tags"].items():  # type: ignore[union-attr]
            assert type(name) is type(value) is str
            f"{name}{value}".encode()


def test_a_field_that_fails_costs_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A value that raises is left out, said once and counted; the others of the point are logged."""
    registry = Registry()
    journal = Journal(registry)
    logger = MetricsLogger(journal=journal, registry=registry)
    for _ in range(3):
        logger.log("m", {}, {"bad": Broken(), "good": 1})
    assert [event.attributes["tachograph.fields"] for event in journal.drain()] == [{"good": 1}] * 3
    (said,) = caplog.messages
    assert "'bad'" in said
    lost = [
        point.value for metric in registry.collect() if metric.name == "tachograph.dropped" for point in metric.points
    ]  # type: ignore[union-attr]
    assert lost == [3]


def test_explicit_fields_win(caplog: pytest.LogCaptureFixture) -> None:
    """A field that the program calls as one of a list's statistics stays the program's, in the event and the gauge."""
    registry = Registry()
    journal = Journal(registry)
    logger = MetricsLogger(journal=journal, registry=registry)
    for _ in range(2):
        logger.log("m", {}, {"loss_mean": 7, "loss": [1.0, 3.0]})
    event = journal.drain()[-1]
    assert event.attributes["tachograph.fields"] == {"loss_mean": 7, "loss_min": 1.0, "loss_max": 3.0, "loss_median": 2}
    gauges = {metric.name: metric.points[0].value for metric in registry.collect()}  # type: ignore[union-attr]
    assert gauges == {"m.loss_mean": 7, "m.loss_min": 1.0, "m.loss_max": 3.0, "m.loss_median": 2.0}
    assert len(caplog.messages) == 1


def test_a_list_is_read_at_the_call() -> None:
    """What the program changes after the call does not change the point."""
    registry = Registry()
    journal = Journal(registry)
    losses, array, fields = [1.0, 3.0], np.array([1.0, 3.0]), {"a": 1}
    logger = MetricsLogger(journal=journal, registry=registry)
    logger.log("m", {}, {"l": losses, "n": array})
    logger.log("m", {}, fields)
    losses[0] = array[0] = 99.0
    fields["a"] = 99
    first, second = journal.drain()
    found: Any = first.attributes["tachograph.fields"]
    assert found["l_mean"] == found["n_mean"] == 2.0
    assert second.attributes["tachograph.fields"] == {"a": 1}


@pytest.mark.process
def test_devices_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """A tensor that has no data is left out of the fields, and as a tag it is not waited for."""
    meta = torch.zeros((), device="meta")
    found = logged({"bad": meta, "good": 1}, {"t": meta, "s": torch.tensor(4)})
    assert found["tachograph.fields"] == {"good": 1}
    assert found["tachograph.tags"]["t"] == "<Tensor>"
    assert found["tachograph.tags"]["s"] == "4"
    assert len(caplog.messages) == 2


class Late:
    """Something on a device, that arrives after a number of looks."""

    def __init__(self, looks: int, value: object) -> None:
        self.looks = looks
        self.value = value

    def ready(self) -> bool:
        """Look."""
        self.looks -= 1
        return self.looks < 0

    def take(self) -> object:
        """Return it."""
        return self.value


@pytest.mark.process
@pytest.mark.parametrize(
    ("value", "found"),
    [(torch.tensor(0.5), 0.5), (torch.tensor([1.0, 3.0]), Statistics(2.0, 1.0, 3.0, 2.0)), ([1, 2], "[1, 2]")],
)
def test_what_arrives_late(value: object, found: object) -> None:
    """A value that is on its way is waited for when its point leaves, and becomes what the table says."""
    late = Late(3, value)
    assert Arriving(late.ready, late.take).wait(time.monotonic() + 5) == found


def test_what_never_arrives() -> None:
    """A value that does not arrive in time is given up."""
    late = Late(10**9, 1.0)
    with pytest.raises(TimeoutError):
        Arriving(late.ready, late.take).wait(time.monotonic() + 0.01)


@pytest.mark.timing
@pytest.mark.process
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_on_a_gpu() -> None:
    """Tensors on a GPU are read without waiting for it, one by one, in lists and as a whole."""
    registry = Registry()
    journal = Journal(registry)
    logger = MetricsLogger(journal=journal, registry=registry)
    loss = torch.tensor(0.5, device="cuda")

    def log() -> None:
        logger.log("m", {}, {"loss": loss, "all": torch.stack([loss, loss * 3]), "some": [loss, 1.5]})

    log()  # CUDA itself waits where it loads a kernel, and where pinned memory is taken for the first time
    journal.drain()
    torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]  # about 0.1 s
    began = time.monotonic()
    log()
    assert time.monotonic() - began < 0.05
    loss.fill_(9.0)
    (event,) = journal.drain()
    found: Any = event.attributes["tachograph.fields"]
    assert (found["loss"], found["all_mean"], found["some_mean"]) == (0.5, 1.0, 1.0)

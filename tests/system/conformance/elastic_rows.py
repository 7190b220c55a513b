"""Rows of the torchelastic API: ``tachograph.elastic``."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import warnings
from collections.abc import AsyncIterator, Iterator

import tachograph
from expected import Counter, Gauge, Handed, Histogram, Lost, Nothing
from kept import Keeping, Raising
from rows import PROVIDERS, Section, differently
from tachograph.elastic import NullMetricHandler, configure, getStream, prof, profile, publish_metric, put_metric

section = Section("torchelastic metrics")
row = section.row


def calls(
    scope: str, name: str, count: int, *, outcome: str = "success", error: str = "", of: int = 0
) -> tuple[Counter, Histogram]:
    """Return both instruments of a profiled function; its durations are not compared.

    Args:
        scope: the group of the function.
        name: the name of the function.
        count: the number of calls with that outcome and error.
        outcome: ``success`` or ``failure``.
        error: the type of the error.
        of: the number of calls with that outcome, if there are other errors too.
    """
    named = {"code.function.name": name, "outcome": outcome}
    by_error = {**named, "error.type": error} if error else named
    return (
        Counter(scope, "function.calls", count, "{call}", by_error),
        Histogram(scope, "function.duration", of or count, unit="s", attributes=named),
    )


@row(Gauge("e.gauge", "loss", 0.5), Handed("e.gauge", "loss", [0.75, 0.5]))
def put_metric_gauge() -> None:
    """`put_metric` records a gauge with the last value, unless the name has a known suffix."""
    put_metric("loss", 0.75, "e.gauge")
    put_metric("loss", 0.5, "e.gauge")


@row(Gauge("torchelastic", "e.default", 3), Handed("torchelastic", "e.default", [3]))
def put_metric_default_group() -> None:
    """The default group is `torchelastic`."""
    put_metric("e.default", 3)


@row(
    Gauge("", "e.empty", 4),
    Handed("", "e.empty", [4]),
    otherwise={
        PROVIDERS: differently(
            "an SDK scope needs a name, so this group becomes the scope `tachograph.unnamed`",
            Gauge("tachograph.unnamed", "e.empty", 4),
        )
    },
)
def put_metric_empty_group() -> None:
    """The empty string is a valid group."""
    put_metric("e.empty", 4, "")


@row(
    Counter("e.counter", "checkpoint.success", 3),
    Counter("e.counter", "checkpoint.failure", 1),
    Handed("e.counter", "checkpoint.success", [1, 2]),
    Handed("e.counter", "checkpoint.failure", [1]),
)
def put_metric_counter() -> None:
    """`*.success` and `*.failure` are counters, which have the sum of the values."""
    put_metric("checkpoint.success", 1, "e.counter")
    put_metric("checkpoint.success", 2, "e.counter")
    put_metric("checkpoint.failure", 1, "e.counter")


@row(
    Histogram("e.ms", "step.duration", 3, 42, 2, 30, "ms", at_most={5.0: 1, 10.0: 2, 50.0: 3}),
    Handed("e.ms", "step.duration.ms", [2, 10, 30]),
)
def put_metric_duration() -> None:
    """`*.duration.ms` and `*_ms` are histograms in milliseconds with count, sum, minimum, maximum and buckets."""
    for value in (2, 10, 30):
        put_metric("step.duration.ms", value, "e.ms")


@row(Histogram("e.seconds", "fetch", 2, 0.75, 0.25, 0.5, "s"), Handed("e.seconds", "fetch_seconds", [0.25, 0.5]))
def put_metric_seconds() -> None:
    """`*_seconds` is a histogram in seconds; the suffix is removed from the name."""
    put_metric("fetch_seconds", 0.25, "e.seconds")
    put_metric("fetch_seconds", 0.5, "e.seconds")


@row(Histogram("e.latency", "calculate_latency", 1, 7.0, 7.0, 7.0), Handed("e.latency", "calculate_latency", [7.0]))
def put_metric_latency() -> None:
    """`*latency` and `*duration` are histograms without a unit."""
    put_metric("calculate_latency", 7.0, "e.latency")


@row(Gauge("e.bytes", "sent", 1024, "By"), Handed("e.bytes", "sent_bytes", [1024]))
def put_metric_bytes() -> None:
    """`*_bytes` is a gauge in bytes."""
    put_metric("sent_bytes", 1024, "e.bytes")


@row(
    Histogram("e.taken", "load", 1, 5, 5, 5, "ms"),
    Histogram("e.taken", "load_seconds", 1, 2, 2, 2, "s"),
    Handed("e.taken", "load_seconds", [2]),
)
def a_shorter_name_that_is_taken() -> None:
    """If the name without suffix already exists with another unit, the later metric keeps its full name."""
    put_metric("load_ms", 5, "e.taken")
    put_metric("load_seconds", 2, "e.taken")


@row(Gauge("e.one", "same", 1), Gauge("e.two", "same", 2), Handed("e.two", "same", [2]))
def one_name_in_two_groups() -> None:
    """The same name in two groups is two metrics, which differ in their scope."""
    put_metric("same", 1, "e.one")
    put_metric("same", 2, "e.two")


@row(
    Gauge("e.attributes", "accuracy", 0.5, attributes={"split": "eval", "epoch_kind": "last"}),
    Gauge("e.attributes", "accuracy", 0.75, attributes={"split": "train"}),
    Handed("e.attributes", "accuracy", [0.5, 0.75]),
)
def an_attribute() -> None:
    """`attributes=` creates separate series of a metric; handlers do not get attributes."""
    put_metric("accuracy", 0.5, "e.attributes", attributes={"split": "eval", "epoch_kind": "last"})
    put_metric("accuracy", 0.75, "e.attributes", attributes={"split": "train"})


@row(
    Gauge("e.types", "typed", 1, attributes={"flag": True, "number": 3, "share": 0.5, "names": ["a", "b"]}),
)
def attributes_of_each_type() -> None:
    """An attribute value can be a string, bool, int or float, or a list of them."""
    put_metric("typed", 1, "e.types", attributes={"flag": True, "number": 3, "share": 0.5, "names": ["a", "b"]})


@row(
    Counter("e.declared", "tokens", 1536, "{token}", {"modality": "text"}),
    Counter("e.declared", "tokens", 256, "{token}", {"modality": "image"}),
    Histogram("e.declared", "load", 3, 5.52, 0.02, 5, "s", at_most={0.1: 1, 1.0: 2, 10.0: 3}),
)
def declared_instruments() -> None:
    """`declare` sets kind, unit and buckets; `bind` resolves the attributes once."""
    tokens = tachograph.declare("tokens", group="e.declared", kind="counter", unit="{token}")
    text = tokens.bind(modality="text")
    for _ in range(3):
        text(512)
    put_metric("tokens", 256, "e.declared", attributes={"modality": "image"})
    load = tachograph.declare("load", group="e.declared", kind="histogram", unit="s", boundaries=(0.1, 1, 10))
    for value in (0.02, 0.5, 5):
        load.record(value)


@row(Gauge("e.published", "loss", 0.25), Handed("e.published", "loss", [0.25]))
def publish_metric_and_streams() -> None:
    """`publish_metric` and `MetricStream.add_value` record as `put_metric` does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        publish_metric("e.published", "loss", 0.25)


@row(Gauge("e.stream", "loss", 0.125), Handed("e.stream", "loss", [0.125]))
def a_stream() -> None:
    """`getStream(group).add_value` records as `put_metric` does."""
    getStream("e.stream").add_value("loss", 0.125)


@row(Gauge("e.configured", "loss", 1), Handed("e.configured", "loss", [1, "one"]), Lost("no_number", 1))
def a_configured_group() -> None:
    """`configure(handler, group)` passes the group's points to a handler with unchanged names and values.

    Recorded values still reach the exporters.
    """
    configure(Keeping(), "e.configured")
    put_metric("loss", 1, "e.configured")
    put_metric("loss", "one", "e.configured")


@row(Gauge("e.held", "loss", 0.5), Handed("e.held", "loss", [0.5]))
def a_stream_held_earlier() -> None:
    """A stream keeps the handler that was configured when the stream was created."""
    held = getStream("e.held")
    configure(Raising(), "e.held")
    held.add_value("loss", 0.5)


@row(Gauge("e.raising", "loss", 0.5), Lost("handler", 1, "tachograph.errors"))
def a_handler_that_raises() -> None:
    """If a handler raises, the error is counted and the value is recorded."""
    configure(Raising(), "e.raising")
    put_metric("loss", 0.5, "e.raising")


@row(Nothing("e.silenced"))
def an_explicit_null_handler() -> None:
    """Configuring a `NullMetricHandler` disables its group for all destinations."""
    configure(NullMetricHandler(), "e.silenced")
    put_metric("loss", 1, "e.silenced")
    tachograph.declare("tokens", group="e.silenced", kind="counter").record(1)


@row(
    *calls("e.prof", "elastic_rows.work", 2),
    Handed("e.prof", "elastic_rows.work.success", [1, 1]),
    Handed("e.prof", "elastic_rows.work.failure", []),
    Handed("e.prof", "elastic_rows.work.duration.ms", [None, None]),
)
def prof_success() -> None:
    """`@prof` counts calls of a function and measures their durations.

    A handler gets `.success` = 1 and `.duration.ms`, but no zero for the other outcome.
    """
    work()
    work()


@prof(group="e.prof")
def work() -> None:
    """Work."""


@row(
    *calls("e.failing", "elastic_rows.fail", 1, outcome="failure", error="ValueError", of=2),
    *calls("e.failing", "elastic_rows.fail", 1, outcome="failure", error="KeyboardInterrupt", of=2),
    Handed("e.failing", "elastic_rows.fail.failure", [1, 1]),
    Handed("e.failing", "elastic_rows.fail.success", []),
)
def prof_failure() -> None:
    """An exception, including `KeyboardInterrupt`, counts as a failure with its `error.type`."""
    for error in (ValueError("no"), KeyboardInterrupt()):
        with contextlib.suppress(ValueError, KeyboardInterrupt):
            fail(error)


@prof(group="e.failing")
def fail(error: BaseException) -> None:
    """Fail."""
    raise error


@row(
    *calls("torchelastic", "elastic_rows.bare", 1),
    Handed("torchelastic", "elastic_rows.bare.success", [1]),
)
def prof_bare() -> None:
    """`@prof` without arguments uses the group `torchelastic`."""
    bare()


@prof
def bare() -> None:
    """Work."""


class Profiled:
    """Has a method of each kind."""

    @prof(group="e.methods")
    def method(self) -> None:
        """Work."""

    @staticmethod
    @prof(group="e.methods")
    def static() -> None:
        """Work."""

    @classmethod
    @prof(group="e.methods")
    def of_class(cls) -> None:
        """Work."""

    @prof(group="e.methods")
    @staticmethod
    def above() -> None:
        """Work."""

    @property
    @prof(group="e.methods")
    def shown(self) -> int:
        """Work."""
        return 1


@row(
    *calls("e.methods", "Profiled.method", 1),
    *calls("e.methods", "Profiled.static", 1),
    *calls("e.methods", "Profiled.of_class", 1),
    *calls("e.methods", "Profiled.above", 1),
    *calls("e.methods", "Profiled.shown", 1),
    Handed("e.methods", "Profiled.method.success", [1]),
)
def prof_methods() -> None:
    """Methods, static and class methods, and properties have their qualified name; decorators can be in any order."""
    one = Profiled()
    one.method()
    one.static()
    one.of_class()
    one.above()
    assert one.shown == 1


@row(
    *calls("e.class", "Layer.forward", 2),
    Handed("e.class", "Layer.forward.success", [1, 1]),
)
def prof_class() -> None:
    """A decorated class remains a class; its public methods are profiled."""
    layer = Layer()
    layer.forward()
    layer.forward()


@prof(group="e.class")
class Layer:
    """Is profiled."""

    def forward(self) -> None:
        """Work."""


@row(
    *calls("e.async", "elastic_rows.load", 2),
    *calls("e.async", "elastic_rows.batches", 1),
    *calls("e.async", "elastic_rows.stream", 1),
    Handed("e.async", "elastic_rows.load.success", [1, 1]),
    Handed("e.async", "elastic_rows.batches.success", [1]),
)
def prof_coroutines_and_generators() -> None:
    """A coroutine, generator or async generator is one call from its start to its end."""

    async def run() -> None:
        await load()
        await load()
        assert [each async for each in stream()] == [1, 2]

    asyncio.run(run())
    assert list(batches()) == [1, 2]


@prof(group="e.async")
async def load() -> None:
    """Work."""
    await asyncio.sleep(0)


@prof(group="e.async")
def batches() -> Iterator[int]:
    """Work."""
    yield from (1, 2)


@prof(group="e.async")
async def stream() -> AsyncIterator[int]:
    """Work."""
    yield 1
    yield 2


@row(
    *calls("e.closed", "elastic_rows.endless", 1),
    Handed("e.closed", "elastic_rows.endless.success", [1]),
    Handed("e.closed", "elastic_rows.endless.failure", []),
)
def prof_generator_closed() -> None:
    """A generator that is closed early is not a failure."""
    for _ in (running := endless()):
        break
    running.close()


@prof(group="e.closed")
def endless() -> Iterator[int]:
    """Work."""
    while True:
        yield 1


@row(*calls("e.partial", "elastic_rows.add", 1), Handed("e.partial", "elastic_rows.add.success", [1]))
def prof_partial() -> None:
    """A `functools.partial` has the name of its function."""
    assert prof(functools.partial(add, 1), group="e.partial")(2) == 3


def add(one: int, other: int) -> int:
    """Work."""
    return one + other


@row(*calls("e.profile", "old", 1), Handed("e.profile", "old.success", [1]))
def profile_deprecated() -> None:
    """`profile` (deprecated) uses the function's bare name."""

    def old() -> None:
        pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        profile("e.profile")(old)()

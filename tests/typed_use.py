"""Only uses the API: mypy checks that decorated functions keep their exact signatures (each ignore must be needed)."""

# ruff: noqa: D101, D102, D103 - what is declared here is only used

from __future__ import annotations

import functools
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from datetime import timedelta
from typing import Any, assert_type

from opentelemetry.sdk.metrics import Counter, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ConsoleMetricExporter,
    MetricReader,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import View
from prometheus_client import REGISTRY

import tachograph
from tachograph import configure, declare, elastic, prof, put_metric
from tachograph.elastic import MetricData, MetricHandler, api
from tachograph.metric import Instrument
from tachograph.monitor import Event, log_event
from tachograph.otel import HandlerExporter, WindowedMetricReader, stat_views
from tachograph.pipeline import Pipeline


@prof
def scaled(value: int, *, factor: float = 2.0) -> float:
    return value * factor


@prof()
def called(text: str) -> str:
    return text


@prof(group="mine")
async def fetched(key: str) -> bytes:
    return key.encode()


@prof
def counted(upto: int) -> Generator[int, str, bool]:
    yield upto
    return True


@prof(group="mine")
async def streamed(upto: int) -> AsyncGenerator[int, None]:
    yield upto


@prof
class Model:
    def __init__(self, width: int) -> None:
        self.width = width

    def forward(self, batch: list[float]) -> float:
        return sum(batch)

    @prof
    @staticmethod
    def default() -> int:
        return 1

    @prof
    @classmethod
    def make(cls, width: int) -> Model:
        return cls(width)

    @property
    @prof
    def size(self) -> int:
        return self.width

    @functools.cached_property
    @prof
    def area(self) -> float:
        return 1.0

    @staticmethod
    @prof(group="mine")
    def below(value: int) -> str:
        return str(value)


assert_type(scaled(1), float)
assert_type(scaled(1, factor=3.0), float)
assert_type(called("a"), str)
fetching = fetched("a")
_ = assert_type(fetching, Coroutine[Any, Any, bytes])
fetching.close()
assert_type(counted(3), Generator[int, str, bool])
assert_type(streamed(3), AsyncGenerator[int, None])
assert_type(Model, type[Model])
model = Model(3)
assert_type(model, Model)
assert_type(model.forward([1.0]), float)
assert_type(Model.default(), int)
assert_type(Model.make(2), Model)
assert_type(model.size, int)
assert_type(model.area, float)
assert_type(Model.below(1), str)

half: Callable[..., float] = prof(functools.partial(scaled, factor=0.5))
assert_type(half(1), float)

put_metric("loss", 0.5)
put_metric("loss", 0.5, "mine", attributes={"phase": "train"})
tokens = declare("tokens", group="mine", kind="counter", unit="{token}")
assert_type(tokens, Instrument)
tokens.bind(phase="train")(512)


class Mine(MetricHandler):
    def emit(self, metric_data: MetricData) -> None:
        assert_type(metric_data.timestamp, float)
        assert_type(metric_data.group_name, str)


configure(Mine())
configure(Mine(), "mine")
configure(ConsoleMetricExporter(), group="mine")
REGISTRY.register(tachograph.otel.PrometheusCollector(resource_labels=["dl.rank"], target_info=False))
assert_type(elastic.getStream("mine"), elastic.MetricStream)
assert_type(api.get_elapsed_time_ms(0.0), int)
assert_type(api.MetricsConfig().params, dict[str, str])


def seen(event: Event) -> None:
    assert_type(event.data["load.count"], str | float | int | bool)


assert_type(stat_views("load", "step.*"), list[View])
readers: list[MetricReader] = [
    WindowedMetricReader(seen, timedelta(seconds=1)),
    WindowedMetricReader(log_event, window=0.5),
    WindowedMetricReader(ConsoleMetricExporter(), 60.0, clock=time.time_ns),
    PeriodicExportingMetricReader(
        HandlerExporter(
            Mine(), preferred_temporality={Counter: AggregationTemporality.DELTA}, preferred_aggregation=None
        )
    ),
]
MeterProvider(readers, views=stat_views("*"))


async def misuse() -> None:
    scaled("1")  # type: ignore[arg-type]
    scaled(1, 3.0)  # type: ignore[call-arg]
    called(1)  # type: ignore[arg-type]
    await fetched(1)  # type: ignore[arg-type]
    Model("3")  # type: ignore[arg-type]
    model.forward(1.0)  # type: ignore[arg-type]
    Model.below("1")  # type: ignore[arg-type]
    put_metric("loss", 0.5, "mine", {"phase": "train"})  # type: ignore[call-arg]
    declare("tokens", kind="dial")  # type: ignore[arg-type]
    configure(print)  # type: ignore[arg-type]
    WindowedMetricReader(Mine(), 1.0)  # type: ignore[arg-type]
    WindowedMetricReader(seen, "1s")  # type: ignore[arg-type]
    HandlerExporter(print)  # type: ignore[arg-type]
    stat_views(["load"])  # type: ignore[arg-type]


def started() -> None:
    assert_type(tachograph.start(metrics="jsonl", interval=5, jsonl="out.jsonl"), Pipeline)
    tachograph.start(tags=["baseline", "adam"], notes="a try")
    assert_type(tachograph.start(hub=True).hub_url, str | None)
    tachograph.start(hub="yes")  # type: ignore[arg-type]
    tachograph.start(tags=3)  # type: ignore[arg-type]
    tachograph.start(interval="5")  # type: ignore[arg-type]
    tachograph.start(intervall=5)  # type: ignore[call-arg]

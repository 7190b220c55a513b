"""Rows of Metric, its chart, and progress: ``tachograph.metric``."""

from __future__ import annotations

from expected import Curve, Gauge, Happened
from rows import Otherwise, Section, Without
from tachograph import Metric, MetricGroup, MetricScale, MetricsLogger, progress, put_metric, task
from tachograph.monitor import Aggregation, Stat
from ways import WayName

section = Section("Metric and progress")
row = section.row

POINT, DEFINITION = "tachograph.metric", "tachograph.definition"

_kept: list[Metric] = []


def metric(key: str, **about: object) -> Metric:
    """Return a metric that lives as long as the process, as those of a program do."""
    made = Metric(key, **about)  # type: ignore[arg-type]
    _kept.append(made)
    return made


@row(Gauge("c.at", "at.loss", 0.25), Curve("c.at", "at.loss", [(0.0, 1.0), (2.0, 0.5), (5.0, 0.25)]))
def record_with_at() -> None:
    """`record` sets a gauge, and keeps each point with its x; with `throttle=None`, every value."""
    loss = metric("at.loss", group="c.at", throttle=None)
    for at, value in ((0, 1.0), (2, 0.5), (5, 0.25)):
        loss.record(value, at=at)


@row(Gauge("c.time", "time.loss", 0.5), Curve("c.time", "time.loss", [1.0, 0.5]))
def record_without_at() -> None:
    """Without `at`, x is the time since the execution began."""
    loss = metric("time.loss", group="c.time", throttle=None)
    loss.record(1.0)
    loss.record(0.5)


@row(Gauge("tachograph.metric", "c.alone", 7), Curve("", "c.alone", [(1.0, 7.0)]))
def a_metric_without_a_group() -> None:
    """Without a group the scope is `tachograph.metric`."""
    metric("c.alone").record(7, at=1)


@row(
    Gauge("c.throttled", "throttled.loss", 0.5),
    Curve("c.throttled", "throttled.loss", [(0.0, 1.0), (9.0, 0.5)]),
    Happened(POINT, {"group": "c.throttled", "min": -3.0, "min_x": 4.0, "max": 90.0, "max_x": 7.0, "value": 0.5}),
)
def a_throttled_metric() -> None:
    """`throttle` lets so many points a second through: the first, then one an interval, and the last one always.

    A point of an interval has its smallest and its largest value, and their x.
    """
    loss = metric("throttled.loss", group="c.throttled", throttle=0.001)
    for at, value in ((0, 1.0), (4, -3.0), (7, 90.0), (9, 0.5)):
        loss.record(value, at=at)


@row(
    Gauge("c.branch", "branch.loss", 0.5),
    Curve("c.branch", "branch.loss", [(5.0, 1.0), (2.0, 0.5)]),
    Happened(POINT, {"group": "c.branch", "x": 5.0, "branch": 0}),
    Happened(POINT, {"group": "c.branch", "x": 2.0, "branch": 1}),
)
def an_at_that_goes_back() -> None:
    """An `at` that goes back, as after a resume, is kept, and begins a new branch of the curve."""
    loss = metric("branch.loss", group="c.branch", throttle=None)
    loss.record(1.0, at=5)
    loss.record(0.5, at=2)


@row(
    Gauge("c.chart", "accuracy", 0.5, "{share}"),
    Happened(
        DEFINITION,
        {
            "metric": "accuracy",
            "group": "c.chart",
            "x_units": "epoch",
            "x_upper": 10.0,
            "scale": "quality",
            "units": "share",
            "lower": 0.0,
            "upper": 1.0,
        },
    ),
)
def a_group_and_a_scale() -> None:
    """Group and scale with their units and bounds are an event `tachograph.definition`.

    The gauge has the scale's unit, as an annotation where it is none of UCUM.
    """
    group = MetricGroup("c.chart", units="epoch", upper=10)
    scale = MetricScale("quality", units="share", lower=0, upper=1)
    metric("accuracy", group=group, scale=scale).record(0.5, at=1)


@row(
    Happened(POINT, {"group": "c.task", "metric": "task.loss", "execution": 1, "value": 0.5}),
    Happened(POINT, {"group": "c.task", "metric": "task.loss", "execution": 2, "value": 0.25}),
    Gauge("c.task", "task.loss", 0.25),
)
def a_task() -> None:
    """Each call of a `task` is an execution with curves of its own; the gauge shows the last value."""

    @task()
    def train(value: float) -> None:
        Metric("task.loss", group="c.task", throttle=None).record(value, at=0)

    train(0.5)
    train(0.25)


@row(
    Gauge("c.loop", "epochs", 5, "{item}"),
    Gauge("c.loop", "epochs.total", 5, "{item}"),
    Gauge("c.loop", "epochs.rate", None, "{item}/s"),
    Gauge("c.loop", "epochs.eta", 0, "s"),
    Curve("c.loop", "epochs", [0.0, 5.0]),
)
def progress_of_a_loop() -> None:
    """`progress` records items done, total, rate and the time that is left; 0 at the start, and the end always."""
    for _ in progress(range(5), "epochs", group="c.loop"):
        pass


@row(
    Gauge("c.nested", "inner", 2, "{item}"),
    Curve("c.nested", "inner", [0.0, 3.0]),
    Curve("c.nested", "inner#2", [0.0, 2.0]),
)
def progress_again() -> None:
    """A loop of the same key with another length is a curve of its own, `#2`; the gauge shows the last one."""
    for length in (3, 2):
        for _ in progress(range(length), "inner", group="c.nested"):
            pass


@row(
    Gauge("c.within", "steps", 2, "{item}"),
    Gauge("c.within", "steps", 3, "{item}", {"loop": "2"}),
    Gauge("c.within", "steps.total", 3, "{item}", {"loop": "2"}),
    Curve("c.within", "steps", [0.0, 2.0]),
)
def progress_within_progress() -> None:
    """A loop inside of another one of the same key has gauges of its own, told apart by `loop`."""
    for _ in progress(range(2), "steps", group="c.within"):
        for _ in progress(range(3), "steps", group="c.within"):
            pass


@row(Gauge("c.stream", "items", 4, "{item}"), Curve("c.stream", "items", [0.0, 4.0]))
def progress_of_a_stream() -> None:
    """An iterable without a length is gone through as it comes."""
    for _ in progress((each for each in range(4)), "items", group="c.stream"):
        pass


DOORS: dict[tuple[WayName, ...], Otherwise] = {
    ("http", "grpc", "provider", "alone"): Without("curves of the other front doors go to the hub"),
}


@row(Curve("c.put", "loss", [0.5, 0.25]), otherwise=DOORS)
def a_curve_of_put_metric() -> None:
    """Every value of a gauge is a point of a curve, whichever front door it came by: `put_metric`."""
    put_metric("loss", 0.5, "c.put")
    put_metric("loss", 0.25, "c.put")


@row(Curve("torch.monitor", "c.stat.mean", [1.0, 2.0]), otherwise=DOORS)
def a_curve_of_a_stat() -> None:
    """Each window of a `Stat` is a point of a curve."""
    for value in (1.0, 2.0):
        Stat("c.stat", [Aggregation.MEAN], 3600.0, 1).add(value)


@row(Curve("c.logger", "loss", [(1.0, 0.5), (2.0, 0.25)]), otherwise=DOORS)
def a_curve_of_a_logger() -> None:
    """Each field of a `MetricsLogger` is a point of a curve, over the tag that counts up."""
    with MetricsLogger() as logger:
        for step, value in ((1, 0.5), (2, 0.25)):
            logger.log("c.logger", {"step": step}, {"loss": value})

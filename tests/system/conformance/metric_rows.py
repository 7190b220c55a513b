"""Rows of Metric, its charts, and progress: ``tachograph.metric``."""

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
    """Return a metric that lives until the process exits."""
    made = Metric(key, **about)  # type: ignore[arg-type]
    _kept.append(made)
    return made


@row(Gauge("c.at", "at.loss", 0.25), Curve("c.at", "at.loss", [(0.0, 1.0), (2.0, 0.5), (5.0, 0.25)]))
def record_with_at() -> None:
    """`record` sets a gauge and stores points with their x value; with `throttle=None`, it stores every value."""
    loss = metric("at.loss", group="c.at", throttle=None)
    for at, value in ((0, 1.0), (2, 0.5), (5, 0.25)):
        loss.record(value, at=at)


@row(Gauge("c.time", "time.loss", 0.5), Curve("c.time", "time.loss", [1.0, 0.5]))
def record_without_at() -> None:
    """Without `at`, x is the time since the start of the execution."""
    loss = metric("time.loss", group="c.time", throttle=None)
    loss.record(1.0)
    loss.record(0.5)


@row(Gauge("tachograph.metric", "c.alone", 7), Curve("", "c.alone", [(1.0, 7.0)]))
def a_metric_without_a_group() -> None:
    """The scope of a metric without a group is `tachograph.metric`."""
    metric("c.alone").record(7, at=1)


@row(
    Gauge("c.throttled", "throttled.loss", 0.5),
    Curve("c.throttled", "throttled.loss", [(0.0, 1.0), (9.0, 0.5)]),
    Happened(POINT, {"group": "c.throttled", "min": -3.0, "min_x": 4.0, "max": 90.0, "max_x": 7.0, "value": 0.5}),
)
def a_throttled_metric() -> None:
    """`throttle` limits the points per second: the first one, then one per interval, and always the last one.

    The point of an interval includes its smallest and largest value with their x values.
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
    """If `at` goes back, as after a resume from a checkpoint, the curve starts a new branch."""
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
    """The units and bounds of group and scale are sent as an event `tachograph.definition`.

    The gauge has the scale's unit; a unit that UCUM does not define becomes an annotation.
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
    """Each call of a `task` is an execution with its own curves; the gauge shows the last value."""

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
    """`progress` records finished items, total, rate and remaining time, always including the start and the end."""
    for _ in progress(range(5), "epochs", group="c.loop"):
        pass


@row(
    Gauge("c.nested", "inner", 2, "{item}"),
    Curve("c.nested", "inner", [0.0, 3.0]),
    Curve("c.nested", "inner#2", [0.0, 2.0]),
)
def progress_again() -> None:
    """A second loop with the same key and another length is a separate curve, `#2`; the gauge shows the last one."""
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
    """A nested loop with the same key has separate gauges, with the attribute `loop`."""
    for _ in progress(range(2), "steps", group="c.within"):
        for _ in progress(range(3), "steps", group="c.within"):
            pass


@row(Gauge("c.stream", "items", 4, "{item}"), Curve("c.stream", "items", [0.0, 4.0]))
def progress_of_a_stream() -> None:
    """`progress` accepts an iterable without a length."""
    for _ in progress((each for each in range(4)), "items", group="c.stream"):
        pass


OTHER_APIS: dict[tuple[WayName, ...], Otherwise] = {
    ("http", "grpc", "provider", "alone"): Without("curves of the other APIs go to the hub only"),
}


@row(Curve("c.put", "loss", [0.5, 0.25]), otherwise=OTHER_APIS)
def a_curve_of_put_metric() -> None:
    """Each value of a gauge is a point of a curve, also if it was recorded with `put_metric`."""
    put_metric("loss", 0.5, "c.put")
    put_metric("loss", 0.25, "c.put")


@row(Curve("torch.monitor", "c.stat.mean", [1.0, 2.0]), otherwise=OTHER_APIS)
def a_curve_of_a_stat() -> None:
    """Each window of a `Stat` is a point of a curve."""
    for value in (1.0, 2.0):
        Stat("c.stat", [Aggregation.MEAN], 3600.0, 1).add(value)


@row(Curve("c.logger", "loss", [(1.0, 0.5), (2.0, 0.25)]), otherwise=OTHER_APIS)
def a_curve_of_a_logger() -> None:
    """Each field of a `MetricsLogger` point is a point of a curve, with the tag that counts up as x."""
    with MetricsLogger() as logger:
        for step, value in ((1, 0.5), (2, 0.25)):
            logger.log("c.logger", {"step": step}, {"loss": value})

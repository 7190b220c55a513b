"""Rows of MetricsLogger: ``tachograph.logger``."""

from __future__ import annotations

import math
from typing import Any

from expected import Gauge, Happened, Lost, Nothing, nonfinite
from rows import NO_NAN, PROVIDERS, Section, counted
from tachograph import MetricsLogger

section = Section("MetricsLogger")
row = section.row

SCOPE = "tachograph.logger"
_kept: list[MetricsLogger] = []


def logger(**about: Any) -> MetricsLogger:
    """Return a logger with a fixed runtime_id, so that its tags are predictable."""
    made = MetricsLogger(**{"runtime_id": "start", **about})
    _kept.append(made)
    return made


def point(measurement: str, tags: dict[str, str], fields: dict[str, Any], **more: Any) -> Happened:
    """Return the expected event of a point, with all its tags and fields."""
    about = {
        "tachograph.measurement": measurement,
        "tachograph.tags": {"runtime_id": "start", **tags},
        "tachograph.fields": fields,
    }
    return Happened("tachograph.point", about, **more)


@row(
    Gauge(SCOPE, "l_step.loss", 0.75),
    Gauge(SCOPE, "l_step.tokens", 512),
    point("l_step", {"prefix": "l_"}, {"loss": 0.75, "tokens": 512}),
)
def a_point() -> None:
    """A point is one event with measurement, tags and fields, and one gauge per numeric field.

    The prefix is prepended to the measurement.
    """
    logger(prefix="l_").log("step", {}, {"loss": 0.75, "tokens": 512})


@row(
    Gauge(SCOPE, "l.kinds.flag", 1),
    Gauge(SCOPE, "l.kinds.none", 0.0),
    Gauge(SCOPE, "l.kinds.share", 0.5),
    Nothing(SCOPE, "l.kinds.name"),
    point(
        "l.kinds", {}, {"flag": 1, "none": 0.0, "share": 0.5, "name": "best", "other": "{'a': 1}", "peers": "[1, 2]"}
    ),
)
def fields_of_each_type() -> None:
    """A bool becomes 0 or 1, None becomes 0.0, and a list of ints or any other type becomes a string.

    Strings appear in the event only.
    """
    fields = {"flag": True, "none": None, "share": 0.5, "name": "best", "other": {"a": 1}, "peers": [1, 2]}
    logger().log("l.kinds", {}, fields)


@row(
    Gauge(SCOPE, "l.list.losses_mean", 3.0),
    Gauge(SCOPE, "l.list.losses_min", 1.0),
    Gauge(SCOPE, "l.list.losses_max", 6.0),
    Gauge(SCOPE, "l.list.losses_median", 2.0),
    point("l.list", {}, {"losses_mean": 3.0, "losses_min": 1.0, "losses_max": 6.0, "losses_median": 2.0}),
)
def a_list_of_numbers() -> None:
    """A list of numbers becomes its mean, minimum, maximum and median."""
    logger().log("l.list", {}, {"losses": [1.0, 2.0, 6.0]})


@row(
    Gauge(
        SCOPE, "l.tags.loss", 0.5, attributes={"phase": "warmup", "role": "miner", "group": "g", "job_type": "train"}
    ),
    point(
        "l.tags",
        {
            "phase": "warmup",
            "step": "42",
            "uid": "7",
            "version": "1.0",
            "role": "miner",
            "group": "g",
            "job_type": "train",
            "config_lr": "0.1",
        },
        {"loss": 0.5},
    ),
)
def tags() -> None:
    """Tags, role, group and job_type become labels.

    Tags that count up (such as `step`), uid, version and `config_*` appear in the event only.
    """
    about = {"uid": 7, "version": "1.0", "role": "miner", "group": "g", "job_type": "train", "config": {"lr": 0.1}}
    logger(**about).log("l.tags", {"phase": "warmup", "step": 42}, {"loss": 0.5})


@row(Gauge(SCOPE, "l.many.loss", 39.0), point("l.many", {"shard": "39"}, {"loss": 39.0}))
def a_tag_with_many_values() -> None:
    """A tag with more than 32 values is no longer a label; events still have it."""
    one = logger()
    for shard in range(40):
        one.log("l.many", {"shard": f"{shard}"}, {"loss": float(shard)})


@row(
    Gauge(SCOPE, "l.nan.loss", math.nan),
    nonfinite("l.nan.loss", 1),
    point("l.nan", {}, {"loss": math.nan}),
    otherwise={
        PROVIDERS: counted(NO_NAN, Nothing(SCOPE, "l.nan.loss"), nonfinite("l.nan.loss", 1)),
    },
)
def nan_in_a_field() -> None:
    """NaN remains NaN in the event and the gauge, and is counted."""
    logger().log("l.nan", {}, {"loss": math.nan})


@row(
    Gauge(SCOPE, "l.clash.loss_mean", 9.0, attributes={"uid": "mine"}),
    Gauge(SCOPE, "l.clash.loss_max", 2.0, attributes={"uid": "mine"}),
    point("l.clash", {"uid": "mine"}, {"loss_mean": 9.0, "loss_min": 1.0, "loss_max": 2.0, "loss_median": 1.5}),
)
def a_name_that_clashes() -> None:
    """If a tag or field that you pass has the same name as one of the logger's, yours is used."""
    logger(uid=7).log("l.clash", {"uid": "mine"}, {"loss": [1.0, 2.0], "loss_mean": 9.0})


@row(point("l.huge", {}, {"tokens": f"{2**63}", "most": 2**63 - 1}), Gauge(SCOPE, "l.huge.most", 2**63 - 1))
def a_huge_integer_in_a_field() -> None:
    """Integers up to 64 bits are exact; larger ones become strings, because no receiver accepts them."""
    logger().log("l.huge", {}, {"tokens": 2**63, "most": 2**63 - 1})


@row(point("l.when", {}, {"loss": 1.0}, time_unix_nano=1_700_000_000_123_456_789))
def a_timestamp() -> None:
    """`timestamp` sets the event's time in nanoseconds."""
    logger().log("l.when", {}, {"loss": 1.0}, timestamp=1_700_000_000_123_456_789)


@row(Lost("empty", 1), Nothing(SCOPE, "l.none"))
def a_point_without_a_field() -> None:
    """A point without fields is not logged; it is counted as dropped."""
    logger().log("l.none", {}, {})


@row(Lost("closed", 2), point("l.closed", {}, {"loss": 1.0}))
def a_point_after_close() -> None:
    """Points logged before `close()` arrive; later ones are counted as dropped."""
    with logger() as one:
        one.log("l.closed", {}, {"loss": 1.0})
    one.log("l.closed", {}, {"loss": 2.0})
    one.log("l.closed", {}, {"loss": 3.0})


@row(Nothing(SCOPE, "l.sampled.loss"), point("l.sampled", {}, {"loss": 1.0}, times=0))
def a_sample_rate() -> None:
    """`sample_rate` is the fraction of points that are logged; 0 logs none."""
    logger().log("l.sampled", {}, {"loss": 1.0}, sample_rate=0.0)


@row(
    Gauge(SCOPE, "l.system.sys_cpu_usage", None),
    Gauge(SCOPE, "l.system.sys_mem_used", None),
    Gauge(SCOPE, "l.system.sys_mem_total", None),
)
def with_system_metrics() -> None:
    """`with_system_metrics=True` adds CPU and memory usage of the machine."""
    logger().log("l.system", {}, {"loss": 1.0}, with_system_metrics=True)

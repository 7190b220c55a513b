"""Expressions of PromQL over Tachograph's own instruments; one that does not exist is a KeyError."""
# ruff: noqa: INP001 - modules of one program: python scripts/dashboards

from __future__ import annotations

from instruments import prometheus

from tachograph.cli.dashboards.panel import WHO, selector

RATE = "$__rate_interval"


def of(recorded: str, *matchers: str, suffix: str = "", who: str = WHO) -> str:
    """Return the series of an instrument; ``who`` is empty for what no process records."""
    return selector(prometheus(recorded, suffix), *matchers, *filter(None, [who]))


def rate(recorded: str, *matchers: str, suffix: str = "", who: str = WHO) -> str:
    """Return by how much a counter, or a part of a histogram, goes up in a second."""
    return f"rate({of(recorded, *matchers, suffix=suffix, who=who)}[{RATE}])"


def growth(recorded: str, *matchers: str, who: str = WHO) -> str:
    """Return by how much a counter went up in the time shown."""
    return f"increase({of(recorded, *matchers, who=who)}[$__range])"


def total(expression: str, *labels: str) -> str:
    """Return a sum; by labels, if there are any."""
    return f"sum by ({', '.join(labels)}) ({expression})" if labels else f"sum({expression})"


def mean(recorded: str, *matchers: str, by: tuple[str, ...], who: str = WHO) -> str:
    """Return the mean of a histogram's values."""
    parts = [total(rate(recorded, *matchers, suffix=suffix, who=who), *by) for suffix in ("_sum", "_count")]
    return " / ".join(parts)


def quantile(share: float, recorded: str, *matchers: str, by: tuple[str, ...], who: str = WHO) -> str:
    """Return a quantile of a histogram's values, by its buckets."""
    buckets = total(rate(recorded, *matchers, suffix="_bucket", who=who), "le", *by)
    return f"histogram_quantile({share}, {buckets})"


def or_zero(expression: str) -> str:
    """Return an expression that is 0 where there is no series: the counter begins with the first failure."""
    return f"{expression} or on () vector(0)"

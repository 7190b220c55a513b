"""PromQL expressions over Tachograph's own instruments; an unknown instrument raises KeyError."""
# ruff: noqa: INP001 - modules of one program: python scripts/dashboards

from __future__ import annotations

from instruments import prometheus

from tachograph.cli.dashboards.panel import WHO, selector

RATE = "$__rate_interval"


def of(recorded: str, *matchers: str, suffix: str = "", who: str = WHO) -> str:
    """Return the selector of an instrument; ``who`` is empty for metrics that do not belong to one process."""
    return selector(prometheus(recorded, suffix), *matchers, *filter(None, [who]))


def rate(recorded: str, *matchers: str, suffix: str = "", who: str = WHO) -> str:
    """Return the per-second rate of a counter, or of one series of a histogram."""
    return f"rate({of(recorded, *matchers, suffix=suffix, who=who)}[{RATE}])"


def growth(recorded: str, *matchers: str, who: str = WHO) -> str:
    """Return the increase of a counter over the displayed time range."""
    return f"increase({of(recorded, *matchers, who=who)}[$__range])"


def total(expression: str, *labels: str) -> str:
    """Return the sum of an expression, grouped by the given labels."""
    return f"sum by ({', '.join(labels)}) ({expression})" if labels else f"sum({expression})"


def mean(recorded: str, *matchers: str, by: tuple[str, ...], who: str = WHO) -> str:
    """Return the mean of a histogram."""
    parts = [total(rate(recorded, *matchers, suffix=suffix, who=who), *by) for suffix in ("_sum", "_count")]
    return " / ".join(parts)


def quantile(share: float, recorded: str, *matchers: str, by: tuple[str, ...], who: str = WHO) -> str:
    """Return a quantile of a histogram, from its buckets."""
    buckets = total(rate(recorded, *matchers, suffix="_bucket", who=who), "le", *by)
    return f"histogram_quantile({share}, {buckets})"


def or_zero(expression: str) -> str:
    """Return an expression that is 0 if there is no series, because the counter starts with the first failure."""
    return f"{expression} or on () vector(0)"

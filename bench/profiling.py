"""The cost of ``@prof``, beside torchelastic's and a bare OpenTelemetry span: ``python bench/profiling.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from race import Goal, Side, finish, medians, report

CALLS = 500
REPETITIONS = 151


def work(value: int) -> int:
    """Do next to nothing."""
    return value


def calling(fn: Callable[[int], int]) -> Side:
    """Return a side that calls a function."""

    def side() -> None:
        for value in range(CALLS):
            fn(value)

    return side


def bare_span() -> Callable[[int], int]:
    """Return ``work`` in a sampled span made by hand, with the attributes that ``@prof`` gives."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    provider: Any = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SpanProcessor())
    trace.set_tracer_provider(provider)
    tracer = provider.get_tracer("bench")

    def spanned(value: int) -> int:
        with tracer.start_as_current_span("profiling.work", attributes={"code.function.name": "profiling.work"}):
            return work(value)

    return spanned


def main() -> None:
    """Measure, print and judge."""
    import torch.distributed.elastic.metrics as torchelastic

    import tachograph

    torchelastic.configure(torchelastic.NullMetricHandler())
    original = calling(torchelastic.prof(work))
    profiled = calling(tachograph.prof(work))
    plain = medians(
        {"original": original, "ours": profiled, "bare": calling(work)}, calls=CALLS, repetitions=REPETITIONS
    )
    goals = [Goal("@prof, no tracing / torchelastic's @prof, Null", plain["ours"], plain["original"], 0.4)]
    span = calling(bare_span())
    traced = medians({"span": span, "ours": profiled}, calls=CALLS, repetitions=REPETITIONS)
    goals.append(Goal("@prof, sampled span / a bare span", traced["ours"], traced["span"], 1.15))
    kept = report("One call of a profiled function", goals)
    print(f"the call itself, not profiled: {plain['bare']:.0f} ns")
    finish(kept)


if __name__ == "__main__":
    main()

"""Rows of the real torch APIs, through Tachograph's instrumentors."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from expected import Counter, Gauge, Happened, Histogram, Lost
from rows import Section, Without
from tachograph import put_metric

section = Section("The real torchelastic and torch.monitor")
row = section.row

OWN_HANDLERS = "torch itself calls the handlers that are registered with it"

_kept: list[Any] = []


@row(
    Gauge("t.elastic", "loss", 0.25),
    Counter("t.elastic", "checkpoint.success", 3),
    Histogram("t.elastic", "step.duration", 1, 12, 12, 12, "ms"),
    Counter(
        "t.elastic", "function.calls", 2, "{call}", {"code.function.name": "torch_rows.work", "outcome": "success"}
    ),
    torch=True,
)
def real_torchelastic() -> None:
    """With `TorchElasticInstrumentor`, the real `put_metric` and `@prof` record like Tachograph's."""
    from torch.distributed.elastic.metrics import api

    from tachograph.instrumentation.torchelastic import TorchElasticInstrumentor

    TorchElasticInstrumentor().instrument()
    api.put_metric("loss", 0.25, "t.elastic")
    api.put_metric("checkpoint.success", 3, "t.elastic")
    api.put_metric("step.duration.ms", 12, "t.elastic")

    def work() -> None:
        pass

    work.__qualname__ = "work"
    profiled = api.prof(work, group="t.elastic")
    profiled()
    profiled()


AGENT = {"code.function.name": "SimpleElasticAgent._rendezvous", "outcome": "success"}


@row(
    Counter("torchelastic", "function.calls", 1, "{call}", AGENT),
    Histogram("torchelastic", "function.duration", 1, unit="s", attributes=AGENT),
    Counter("torchelastic", "torchrun.run", 1, "{run}", {"role": "trainer"}),
    Gauge("torchelastic", "torchrun.flakiness", 40, "%", {"role": "trainer"}),
    torch=True,
)
def torchruns_own_metrics() -> None:
    """Torchrun's own functions and `workers.<role>.*` metrics become `function.*` and `torchrun.*`."""
    from torch.distributed.elastic.metrics import api

    def rendezvous() -> None:
        pass

    rendezvous.__qualname__ = "SimpleElasticAgent._rendezvous"
    api.prof(rendezvous)()
    api.put_metric("workers.trainer.run_total", 1, "torchelastic")
    api.put_metric("workers.trainer.flakiness", 40, "torchelastic")


@row(
    Happened(
        "torchelastic.worker.status", {"state": "SUCCEEDED", "source": "WORKER", "role": "trainer", "run_id": "r"}
    ),
    Counter("torchelastic", "torchrun.worker.status", 1, "{event}", {"role": "trainer", "state": "SUCCEEDED"}),
    otherwise={("handler",): Without(OWN_HANDLERS)},
    torch=True,
)
def torchruns_events() -> None:
    """Torchelastic events become log records with their metadata as attributes, and a counter."""
    from torch.distributed.elastic import events

    about = {"run_id": "r", "role": "trainer", "state": "SUCCEEDED"}
    events.record(events.Event("torchelastic.worker.status.SUCCEEDED", events.EventSource.WORKER, metadata=about))


@row(
    Gauge("torch.monitor", "t.stat.mean", 1.5),
    Gauge("torch.monitor", "t.stat.window.count", 2),
    Histogram("torch.monitor", "t.stat", 2, 3.0),
    Happened("torch.monitor.Stat", {"t.stat.mean": 1.5, "t.stat.sum": 3.0, "t.stat.count": 2.0}),
    Happened("t.event", {"accuracy": 0.5, "epoch": 3}),
    otherwise={("handler",): Without(OWN_HANDLERS)},
    torch=True,
)
def real_torch_monitor() -> None:
    """With `TorchMonitorInstrumentor`, windows and events of the real torch.monitor are recorded like Tachograph's."""
    from torch import monitor

    from tachograph.instrumentation.torch_monitor import TorchMonitorInstrumentor

    TorchMonitorInstrumentor().instrument()
    asked = [monitor.Aggregation.MEAN, monitor.Aggregation.SUM, monitor.Aggregation.COUNT]
    stat = monitor.Stat("t.stat", asked, timedelta(hours=1), 2)
    stat.add(1.0)
    stat.add(2.0)
    _kept.append(stat)
    monitor.log_event(monitor.Event("t.event", datetime.now(), {"accuracy": 0.5, "epoch": 3}))  # noqa: DTZ005


@row(
    Gauge("t.scalars", "numpy", 0.5),
    Gauge("t.scalars", "torch", 3),
    Gauge("t.scalars", "parameter", 2.0),
    torch=True,
)
def scalars_of_numpy_and_torch() -> None:
    """NumPy and torch scalars, and tensors with one element, count as numbers and are read during the call."""
    import numpy as np
    import torch

    running = torch.tensor([2.0], requires_grad=True)
    put_metric("numpy", np.float32(0.5), "t.scalars")
    put_metric("torch", torch.tensor(3), "t.scalars")
    put_metric("parameter", running, "t.scalars")
    running.data.zero_()


@row(Gauge("t.elements", "loss", 1.0), Lost("no_number", 1), torch=True)
def a_tensor_of_several_elements() -> None:
    """A tensor with several elements is not a number: it is counted as dropped and not recorded."""
    import torch

    put_metric("loss", 1.0, "t.elements")
    put_metric("loss", torch.zeros(2), "t.elements")

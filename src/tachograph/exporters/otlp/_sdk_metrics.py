"""The points of SDK instruments as OTLP messages, through the official encoder, a slice of one instrument at a time.

One value that it refuses (a bool in a gauge, an integer beyond 64 bits) makes it give up everything it was handed; here
it costs its own series alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.sdk.metrics.export import Metric, MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.resources import Resource

from tachograph.exporters.otlp._message import DATA, Form, Lose, Part
from tachograph.exporters.otlp._points import delimited
from tachograph.recording.interrupts import pass_on

_NO_RESOURCE = Resource({})
_SLICE = 64


def encoded_sdk_metrics(data: MetricsData, lose: Lose) -> Iterator[Part]:
    """Yield the points of each instrument, a slice at a time.

    Args:
        data: as an SDK reader collected it.
        lose: called with a number of points that cannot be encoded, and the reason.
    """
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = metric.data.data_points
                form: Form | None = None
                for start in range(0, len(points), _SLICE):
                    for head, message in _encoded(scope, metric, points[start : start + _SLICE], lose):
                        kind = message.WhichOneof("data") or "gauge"
                        of_kind = getattr(message, kind)
                        pieces = [delimited(point.SerializeToString()) for point in of_kind.data_points]
                        if form is None:
                            del of_kind.data_points[:]
                            end = of_kind.SerializeToString()
                            message.ClearField(kind)
                            form = Form(message.SerializeToString(), DATA[kind], end)
                        yield Part(head, ((form, pieces),), len(pieces))


def _encoded(
    scope: ScopeMetrics, metric: Metric, points: Sequence[Any], lose: Lose
) -> Iterator[tuple[bytes, metrics_pb2.Metric]]:
    data: Any = metric.data
    some = replace(metric, data=replace(data, data_points=points))
    alone = ResourceMetrics(
        resource=_NO_RESOURCE, scope_metrics=[replace(scope, metrics=[some])], schema_url=scope.schema_url
    )
    try:
        request = encode_metrics(MetricsData(resource_metrics=[alone]))
    except Exception as error:  # noqa: BLE001 - the encoder's own exception holds the reason
        pass_on(error)
        if len(points) > 1:
            for point in points:
                yield from _encoded(scope, metric, [point], lose)
        else:
            lose(1, f"{metric.name}: {type(error).__name__}: {error}")
        return
    for found in request.resource_metrics[0].scope_metrics:
        messages = list(found.metrics)
        del found.metrics[:]
        head = found.SerializeToString()
        for message in messages:
            yield head, message

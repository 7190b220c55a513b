"""What a receiver took a request without. Source: OpenTelemetry protocol specification, "Partial Success"."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tachograph.exporters.otlp.settings import Signal


def partial_success(signal: Signal, answer: bytes) -> tuple[int, str]:
    """Return how many items of a request the receiver rejected, and why; none where it answers something of its own.

    Args:
        signal: what the request held.
        answer: the body of an answer that says success.
    """
    try:
        if signal == "metrics":
            metrics = ExportMetricsServiceResponse.FromString(answer).partial_success
            return max(metrics.rejected_data_points, 0), metrics.error_message
        if signal == "logs":
            logs = ExportLogsServiceResponse.FromString(answer).partial_success
            return max(logs.rejected_log_records, 0), logs.error_message
        spans = ExportTraceServiceResponse.FromString(answer).partial_success
        return max(spans.rejected_spans, 0), spans.error_message
    except DecodeError:
        return 0, ""

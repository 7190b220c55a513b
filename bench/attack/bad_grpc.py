"""The faults of an OTLP/gRPC backend: real gRPC servers, and connections that break under them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from bad_accounts import Account, Item, otlp_items
from bad_backends import Backend, Fault, otlp
from bad_http import HttpServer
from bad_otlp_http import closes, keeps_quiet
from bad_proxy import Proxy, cuts_answers

_SERVICES = {"metrics": "metrics.v1.MetricsService", "logs": "logs.v1.LogsService"}
_FIRST = 3


class Call:
    """One request over gRPC."""

    def __init__(
        self, number: int, signal: str, items: list[Item], context: grpc.ServicerContext, server: Server
    ) -> None:
        self.number, self.signal, self.items, self.context, self.server = number, signal, items, context, server

    def takes(self, items: list[Item] | None = None) -> None:
        """Take it, or a part; the client has the answer unless its time was up."""
        taken = self.items if items is None else items
        self.server.account.take(taken)
        left = self.context.time_remaining()
        if left is None or left > 0.1:
            self.server.account.acknowledge(taken)


Behaviour = Callable[[Call], bytes]


class Server:
    """A gRPC server with a given behaviour."""

    def __init__(self, account: Account, behaviour: Behaviour) -> None:
        self.account, self._behaviour = account, behaviour
        self.stopped = threading.Event()
        self._lock, self._count = threading.Lock(), 0
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers([self._service(signal, name) for signal, name in _SERVICES.items()])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def _service(self, signal: str, name: str) -> grpc.GenericRpcHandler:
        def export(body: bytes, context: grpc.ServicerContext) -> bytes:
            items = otlp_items(signal, body)
            self.account.see(items)
            with self._lock:
                self._count += 1
                number = self._count
            return self._behaviour(Call(number, signal, items, context, self))

        handlers = {"Export": grpc.unary_unary_rpc_method_handler(export)}
        return grpc.method_handlers_generic_handler(f"opentelemetry.proto.collector.{name}", handlers)

    def close(self) -> None:
        """End."""
        self.stopped.set()
        self._server.stop(0).wait(5)


def takes(call: Call) -> bytes:
    """Take it."""
    call.takes()
    return b""


def refuses(code: grpc.StatusCode, retry: float | None = None) -> Behaviour:
    """Return a behaviour: an error, with ``RetryInfo`` of so many seconds where that is given."""

    def answer(call: Call) -> bytes:
        if retry is not None:
            detail = AnyMessage()
            detail.Pack(RetryInfo(retry_delay=Duration(seconds=int(retry), nanos=int(retry % 1 * 1e9))))
            status = Status(code=code.value[0], details=[detail]).SerializeToString()
            call.context.set_trailing_metadata((("grpc-status-details-bin", status),))
        secret = dict(call.context.invocation_metadata()).get("x-key", "")
        call.context.abort(code, f"not you, {secret!s}")
        return b""

    return answer


def at_first(behaviour: Behaviour) -> Behaviour:
    """Return a behaviour for the first requests; the others are taken."""
    return lambda call: (behaviour if call.number <= _FIRST else takes)(call)


def hangs(call: Call) -> bytes:
    """Give no answer, for as long as the client waits."""
    while call.context.is_active() and not call.server.stopped.wait(0.05):
        pass
    return b""


def takes_and_fails(call: Call) -> bytes:
    """Take it, and say that it could not be."""
    call.server.account.take(call.items)
    call.context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
    return b""


def partial_success(call: Call) -> bytes:
    """Take all but two."""
    rejected = min(2, len(call.items))
    call.takes(call.items[rejected:])
    if call.signal == "logs":
        logs = ExportLogsServiceResponse()
        logs.partial_success.rejected_log_records, logs.partial_success.error_message = rejected, "two too many"
        return logs.SerializeToString()
    metrics = ExportMetricsServiceResponse()
    metrics.partial_success.rejected_data_points, metrics.partial_success.error_message = rejected, "two too many"
    return metrics.SerializeToString()


def junk(call: Call) -> bytes:
    """Take it, and answer with bytes that are no protobuf."""
    call.takes()
    return b"\xff\xfe\x00 no protobuf"


@contextlib.contextmanager
def serving(account: Account, _folder: Path, *, behaviour: Behaviour) -> Iterator[Backend]:
    """Put up a gRPC server."""
    server = Server(account, behaviour)
    try:
        yield Backend(otlp(server.port, protocol="grpc"))
    finally:
        server.close()


@contextlib.contextmanager
def no_grpc(account: Account, _folder: Path, *, accepts: Any) -> Iterator[Backend]:
    """Start a server that takes connections and speaks no gRPC."""
    server = HttpServer(account, otlp_items, lambda _exchange: None, accepts=accepts)
    try:
        yield Backend(otlp(server.port, protocol="grpc"))
    finally:
        server.close()


@contextlib.contextmanager
def behind_a_proxy(account: Account, _folder: Path) -> Iterator[Backend]:
    """Put up a server whose connections break before the first answers: the client cannot know about them."""

    def only_takes(call: Call) -> bytes:
        call.server.account.take(call.items)
        return b""

    server = Server(account, only_takes)
    proxy = Proxy(server.port, cuts_answers(_FIRST))
    try:
        yield Backend(otlp(proxy.port, protocol="grpc"))
    finally:
        proxy.close()
        server.close()


def _fault(name: str, behaviour: Behaviour, **more: Any) -> Fault:
    return Fault(name, "gRPC", partial(serving, behaviour=behaviour), **more)


_LATER = {"takes": True, "complete": True}
_Code = grpc.StatusCode

FAULTS = (
    _fault("none", takes, **_LATER),
    _fault("UNAVAILABLE", refuses(_Code.UNAVAILABLE)),
    _fault("UNAVAILABLE at first, then takes", at_first(refuses(_Code.UNAVAILABLE)), **_LATER),
    _fault("UNAVAILABLE, though each request was taken", takes_and_fails),
    _fault("RESOURCE_EXHAUSTED", refuses(_Code.RESOURCE_EXHAUSTED)),
    _fault("RESOURCE_EXHAUSTED with RetryInfo", refuses(_Code.RESOURCE_EXHAUSTED, 0.5)),
    _fault("RESOURCE_EXHAUSTED with RetryInfo at first", at_first(refuses(_Code.RESOURCE_EXHAUSTED, 0.5)), **_LATER),
    _fault("UNAVAILABLE with RetryInfo of a day", refuses(_Code.UNAVAILABLE, 86400)),
    _fault("DEADLINE_EXCEEDED", refuses(_Code.DEADLINE_EXCEEDED)),
    _fault("UNAUTHENTICATED", refuses(_Code.UNAUTHENTICATED)),
    _fault("UNIMPLEMENTED", refuses(_Code.UNIMPLEMENTED)),
    _fault("INVALID_ARGUMENT", refuses(_Code.INVALID_ARGUMENT)),
    _fault("hangs", hangs),
    _fault("partial success", partial_success, takes=True),
    _fault("an answer that is no protobuf", junk, **_LATER),
    Fault("connections break before the first answers", "gRPC", behind_a_proxy, takes=True),
    Fault("accepts, and speaks no gRPC", "gRPC", partial(no_grpc, accepts=partial(keeps_quiet, reads=True))),
    Fault("closes at once", "gRPC", partial(no_grpc, accepts=closes)),
)

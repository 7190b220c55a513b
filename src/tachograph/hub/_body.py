"""A request's body, unpacked while it arrives, within bounds of size, time and memory."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from http import HTTPStatus

from starlette.requests import Request

COMPRESSED_LIMIT = 16 * 2**20
LIMIT = 20 * 2**20  # as the OpenTelemetry Collector: empty messages take thirty times as much once they are parsed
MOST_BYTES = 128 * 2**20
MOST_REQUESTS = 256
SECONDS = 30.0

_MIB = 2**20
_SLICE = 256 * 2**10  # bytes that are unpacked before others get their turn
_MOST_MEMBERS = 64  # gzip streams in one body: each costs a copy of all that follows


class Refusal(Exception):  # noqa: N818 - an answer to the client, not a fault
    """A request is not taken.

    Args:
        status: what it is answered with.
        why: one line for whoever reads the client's log.
        retry_after: seconds after which it may be sent again; None where that makes no sense.
    """

    def __init__(self, status: HTTPStatus, why: str, *, retry_after: int | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.retry_after = retry_after


class Intake:
    """Reads bodies, and bounds what all requests under way hold in memory together.

    Args:
        compressed_limit: bytes of one body as it is sent.
        limit: bytes of one body unpacked.
        most_bytes: bytes of all bodies under way, unpacked.
        most_requests: how many may be under way.
        seconds: that one body may take to arrive.
    """

    def __init__(
        self,
        *,
        compressed_limit: int = COMPRESSED_LIMIT,
        limit: int = LIMIT,
        most_bytes: int = MOST_BYTES,
        most_requests: int = MOST_REQUESTS,
        seconds: float = SECONDS,
    ) -> None:
        self._compressed_limit = compressed_limit
        self._limit = limit
        self._bytes_left = most_bytes
        self._requests_left = most_requests
        self._seconds = seconds

    async def read(self, request: Request, limit: int = LIMIT) -> bytes:
        """Return a request's body, unpacked.

        Args:
            request: its ``Content-Encoding`` may be gzip.
            limit: bytes unpacked, where fewer are allowed than usual.

        Raises:
            Refusal: 400 for what is no gzip, 408, 413, 415 for another encoding, 503 where too much is under way.
        """
        encoding = request.headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip"):
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Encoding may be gzip or identity")
        if int(request.headers.get("content-length", 0)) > self._compressed_limit:
            raise _too_large(self._compressed_limit)
        if not self._requests_left:
            raise _busy()
        self._requests_left -= 1
        parts: list[bytes] = []
        unpack = _Gzip() if encoding.endswith("gzip") else None
        try:
            await asyncio.wait_for(self._fill(parts, request, unpack, min(limit, self._limit)), self._seconds)
        except asyncio.TimeoutError:
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, f"the body took more than {self._seconds:g} s") from None
        finally:
            self._requests_left += 1
            self._bytes_left += sum(map(len, parts))
        if unpack is not None and not unpack.complete:
            raise Refusal(HTTPStatus.BAD_REQUEST, "the body ends before its gzip does")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _fill(self, parts: list[bytes], request: Request, unpack: _Gzip | None, limit: int) -> None:
        sent = unpacked = 0
        async for chunk in request.stream():
            sent += len(chunk)
            if sent > self._compressed_limit:
                raise _too_large(self._compressed_limit)
            for part in (chunk,) if unpack is None else unpack(chunk):
                unpacked += len(part)
                if unpacked > limit:
                    raise _too_large(limit)
                if len(part) > self._bytes_left:
                    raise _busy()
                self._bytes_left -= len(part)
                parts.append(part)
                if unpacked > _SLICE:
                    await asyncio.sleep(0)


class _Gzip:
    """Unpacks what arrives, in slices. RFC 1952: a file is one or more streams, one after another."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=31)
        self._members = 1
        self._begun = False

    @property
    def complete(self) -> bool:
        """Whether the last stream has ended; so is an empty body."""
        return self._stream.eof or not self._begun

    def __call__(self, data: bytes) -> Iterator[bytes]:
        while data:
            self._begun = True
            if self._stream.eof:
                self._members += 1
                self._stream = zlib.decompressobj(wbits=31)
            if self._members > _MOST_MEMBERS:
                raise Refusal(HTTPStatus.BAD_REQUEST, f"more than {_MOST_MEMBERS} gzip streams in one body")
            try:
                yield from self._member(data)
            except zlib.error as error:
                raise Refusal(HTTPStatus.BAD_REQUEST, f"the body is no gzip: {error}") from None
            data = self._stream.unused_data

    def _member(self, data: bytes) -> Iterator[bytes]:
        full = True
        while data or full:
            part = self._stream.decompress(data, _SLICE)
            data = self._stream.unconsumed_tail
            full = len(part) == _SLICE  # more may wait in zlib
            if part:
                yield part
            if self._stream.eof:
                return


def _too_large(limit: int) -> Refusal:
    size = f"{limit // _MIB} MiB" if limit >= _MIB else f"{limit} bytes"
    return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {size}: send smaller batches")


def _busy() -> Refusal:
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too much is under way at once", retry_after=1)

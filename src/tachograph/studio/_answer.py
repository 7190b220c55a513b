"""What the API answers with: JSON, and words where there is nothing to answer."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from math import isfinite, isnan
from typing import Any

from starlette.responses import Response

_GZIP_LEVEL = 1
_WORTH_IT = 1024  # bytes, from which on an answer is compressed


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """There is no answer but words.

    Args:
        status: of the HTTP answer.
        why: a sentence for people.
    """

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


def text(data: Any) -> str:
    """Return data as JSON; NaN and infinities, which JSON has not, as ProtoJSON spells them: strings."""
    try:
        return json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_spelled(data), allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def encoded(data: Mapping[str, Any], *, gzipped: bool) -> tuple[bytes, bool]:
    """Return the bytes of an answer, and whether they are compressed; lone surrogates become question marks.

    Args:
        data: a JSON object; of its lists each item is encoded by itself, so that other threads run in between.
        gzipped: compress it, if that is worth it.
    """
    body = "".join(_parts(data)).encode("utf-8", "replace")
    if not gzipped or len(body) < _WORTH_IT:
        return body, False
    compressor = zlib.compressobj(_GZIP_LEVEL, wbits=31)
    return compressor.compress(body) + compressor.flush(), True


def _parts(data: Mapping[str, Any]) -> Iterable[str]:
    separator = "{"
    for key, value in data.items():
        yield f"{separator}{text(key)}:"
        separator = ","
        if isinstance(value, list):
            yield "[" + ",".join(map(text, value)) + "]"
        else:
            yield text(value)
    yield "}\n" if data else "{}\n"


def answer(body: bytes, *, gzipped: bool, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return an answer that nobody keeps: the next one may be another."""
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    return Response(body, status, {**headers, **({"Content-Encoding": "gzip"} if gzipped else {})})


def refusal(refused: Refused) -> Response:
    """Return the words as ``{"error": …}``."""
    return answer(encoded({"error": str(refused)}, gzipped=False)[0], gzipped=False, status=refused.status)


def spelled(value: float) -> str:
    """Return the name of a number that is not finite."""
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _spelled(value: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return spelled(value)
    if isinstance(value, dict):
        return {key: _spelled(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(each) for each in value]
    return value

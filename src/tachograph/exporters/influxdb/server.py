"""One InfluxDB: a body of lines goes there, and its answer says how to go on.

The official client makes the requests. Its own way of carrying them is replaced by :class:`_Carrier`: it takes another
time limit for each, compresses without holding the interpreter, and does not log through the root logger, which would
give a program without handlers one.
Sources: InfluxDB v2 API, "Write data"; InfluxDB v1 API reference, "/write HTTP endpoint".
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from opentelemetry import context

from tachograph.exporters._http import TimeLimit, gzipped, limited_pools, proxy_of, root
from tachograph.exporters.delivery import Retry
from tachograph.identity.extra import install_command
from tachograph.logger.influx_target import InfluxTarget
from tachograph.recording.forking import at_fork

TIMEOUT = 10.0
_WORTH_COMPRESSING = 1024
_LOADING = 10.0  # seconds that a fork waits at most, for what takes half a second on a machine that is not busy
_LONGEST_REASON = 300
_LONG = 8  # no word of a message is a token of so many characters; a shorter one may be part of a word
_LONGEST_ANSWER = 2**20
_V1, _V2 = "/write", "/api/v2/write"
_PARTLY = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}  # where it says how many lines it did not take
_UNREAD = _PARTLY | {HTTPStatus.REQUEST_ENTITY_TOO_LARGE}
_DROPPED = re.compile(r"partial write.*\bdropped=(\d+)", re.DOTALL)
# tsdb/shard.go of InfluxDB 1 and v1/validation of InfluxDB 2: both quote the names as they are.
_CONFLICT = re.compile(
    r'field type conflict: input field "(.*)" on measurement "(.*)" is type \w+, already exists as type (\w+)',
    re.DOTALL,
)
_REMEDIES = {
    401: "check INFLUXDB_TOKEN (or token=)",
    403: "the token must be allowed to write to this database",
    404: "check that the database (v1: CREATE DATABASE), or the bucket and organization (v2), exist",
}


class Misconfigured(Retry):
    """No point will arrive before a setting is changed, here or at the server."""

    kind = "configuration"


class NoClient(Misconfigured):
    """The client does not load."""

    kind = "client"


class BadLines(Exception):  # noqa: N818 - the server's word, not a fault of the program
    """The server did not take some of the lines.

    Attributes:
        dropped: how many, where it took the others and said so; None where the body as a whole was not taken.
    """

    def __init__(self, why: str, dropped: int | None) -> None:
        super().__init__(why)
        self.dropped = dropped


class FieldConflict(BadLines):
    """A field has another type in the database than in some of the lines.

    The points of these lines were not taken. The server names the first such field alone.

    Attributes:
        field: its name.
        measurement: of the points.
        kind: its type in the database: ``float``, ``integer``, ``string``, ``boolean`` or ``unsigned``.
    """

    def __init__(self, why: str, dropped: int | None, field: str, measurement: str, kind: str) -> None:
        super().__init__(why, dropped)
        self.field = field
        self.measurement = measurement
        self.kind = kind


class _Answer(NamedTuple):
    """Answer of a server, as the client reads it."""

    status: int
    text: str
    headers: Mapping[str, str]

    def getheaders(self) -> Mapping[str, str]:
        return self.headers


class _Failed(Exception):  # noqa: N818 - on its way to be told apart
    def __init__(self, answer: _Answer) -> None:
        super().__init__()
        self.answer = answer


class _Carrier:
    """Carries the client's requests over the client's own connections."""

    def __init__(self, pool_manager: Any, v1_authorization: str | None) -> None:
        self.pool_manager = pool_manager
        self.compresses = True
        self._limit = TimeLimit()
        pool_manager.pool_classes_by_scheme = limited_pools(self._limit)
        self._v1_authorization = v1_authorization

    def POST(  # noqa: N802 - the client's name for it
        self,
        url: str,
        *,
        query_params: Iterable[tuple[str, str]],
        headers: dict[str, str],
        body: bytes,
        _request_timeout: float,
        **_: Any,
    ) -> _Answer:
        import urllib3

        if self.compresses and len(body) >= _WORTH_COMPRESSING:
            headers, body = {**headers, "Content-Encoding": "gzip"}, gzipped(body)
        if self._v1_authorization and urlsplit(url).path.endswith(_V1) and not url.endswith(_V2):
            headers = {**headers, "Authorization": self._v1_authorization}
        self._limit.begin(_request_timeout)
        response = self.pool_manager.request(
            "POST",
            f"{url}?{urlencode(list(query_params))}",
            body=body,
            headers=headers,
            timeout=urllib3.Timeout(total=_request_timeout),
            retries=False,
            redirect=False,  # it would carry the token to another host
            preload_content=False,
        )
        said = response.read(_LONGEST_ANSWER)
        response.close() if len(said) == _LONGEST_ANSWER else response.release_conn()
        answer = _Answer(response.status, said.decode("utf-8", "replace"), response.headers)
        if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            raise _Failed(answer)
        return answer


class _Loading:
    """Lets a fork wait until the client is loaded: a child can never load a module that its parent had begun to load.

    Attributes:
        lock: held by the thread that loads it.
        patience: seconds that a fork waits at most.
        broken: this process is such a child: its import would wait for a lock that nobody holds any more.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.patience = _LOADING
        self.broken = self._held = False

    def before_fork(self) -> None:
        self._held = self.lock.acquire(timeout=self.patience)

    def after_fork(self) -> None:
        if self._held:
            self.lock.release()  # a thread of the child may wait for it already

    def after_in_child(self) -> None:
        self.after_fork()
        self.broken = self.broken or not self._held
        self.lock = threading.Lock()


_loading = _Loading()
at_fork(
    "influxdb_client",
    before=_loading.before_fork,
    in_parent=_loading.after_fork,
    in_child=_loading.after_in_child,
)


class Server:
    """Writes lines; used by several threads.

    Args:
        target: where, and as whom.
    """

    def __init__(self, target: InfluxTarget) -> None:
        self._target = target
        self._where = f"{target.url}, database {target.database!r}"
        self._lock = threading.Lock()
        self._client: Any = None
        self._carrier: _Carrier | None = None
        self._path: str | None = None  # found out by the first write
        self._secret = Secret(target.token)

    def connect(self) -> None:
        """Load the client, unless that was done: half a second of work, on a slow machine more.

        Raises:
            NoClient: it does not load.
        """
        with self._lock:
            if self._client is not None:
                return
            if _loading.broken:
                raise NoClient(
                    None, f"{self._where}: forked while its parent loaded the client, so this process cannot use it"
                )
            try:
                with _loading.lock:  # making a client imports, too
                    self._load()
            except ModuleNotFoundError as error:
                if error.name != "influxdb_client":
                    why = f"cannot load the client: {error}"
                else:
                    why = f"influxdb-client is not installed; run: {install_command('influxdb')}"
                raise NoClient(None, f"{self._where}: {why}") from None
            except Exception as error:  # noqa: BLE001 - a broken installation may raise anything
                why = self._secret.hidden(f"{type(error).__name__}: {error}")
                raise NoClient(None, f"{self._where}: cannot load the client: {why}") from None

    def _load(self) -> None:
        library: Any = import_module("influxdb_client")
        target = self._target
        proxy, headers = proxy_of(target.url), None
        if proxy is not None:
            from requests.adapters import HTTPAdapter

            headers = HTTPAdapter().proxy_headers(proxy)  # with the password that the proxy's URL may have
        client = library.InfluxDBClient(
            target.url, token=target.token or None, org=target.org, proxy=proxy, proxy_headers=headers
        )
        by_user = ":" in target.token  # v1: user and password; only its version 1.8 takes them as a token
        self._carrier = _Carrier(client.api_client.rest_client.pool_manager, basic(target.token) if by_user else None)
        client.api_client.rest_client = self._carrier
        self._service = library.WriteService(client.api_client)
        self._client = client

    def write(self, body: bytes, timeout: float) -> int:
        """Write lines with timestamps in nanoseconds, and return the answer's status.

        Args:
            body: the lines.
            timeout: seconds that it may take, up to the limit of 10 s.

        Raises:
            Retry: it may succeed later.
            Misconfigured: it will, but only once a setting is changed, or the client installed anew.
            FieldConflict: the type of a field in some lines does not fit that in the database.
            BadLines: some lines, or the body as it is, will never be taken.
        """
        self.connect()
        # Instrumented HTTP libraries would trace our own requests, and each export make the next one.
        token = context.attach(context.set_value("suppress_instrumentation", True))
        try:
            return self._try(body, timeout)
        finally:
            context.detach(token)

    def _try(self, body: bytes, timeout: float) -> int:
        seconds = max(min(timeout, TIMEOUT), 0.001)
        path = self._path
        try:
            return self._written(path or _V2, body, seconds)
        except _Failed as failed:
            answer = failed.answer
        if (
            answer.status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE
            and self._carrier is not None
            and self._carrier.compresses
        ):
            self._carrier.compresses = False
            return self._try(body, timeout)
        if path is None and answer.status == HTTPStatus.NOT_FOUND and _reason(answer)[0] != "not found":
            try:  # not an answer of the v2 API
                return self._written(_V1, body, seconds)
            except _Failed as failed:
                answer = failed.answer
        raise self._read(answer) from None

    def _written(self, path: str, body: bytes, seconds: float) -> int:
        target = self._target
        try:
            if path == _V2:
                _, status, _ = self._service.post_write_with_http_info(
                    target.org, target.database, body, precision="ns", _request_timeout=seconds
                )
            else:
                _, status, _ = self._client.api_client.call_api(
                    path,
                    "POST",
                    query_params=[("db", target.database), ("precision", "ns")],
                    header_params={"Content-Type": "text/plain; charset=utf-8"},
                    body=body,
                    _request_timeout=seconds,
                )
        except _Failed as failed:
            if failed.answer.status != HTTPStatus.NOT_FOUND:
                self._path = path
            raise
        except Exception as error:  # noqa: BLE001 - of urllib3, ssl, the system: all of them mean that nobody answered
            raise Retry(None, f"{self._where}: {self._secret.hidden(_said_by(error))}") from None
        self._path = path
        return int(status)

    def _read(self, answer: _Answer) -> Exception:
        _, reason = _reason(answer)
        conflict = _CONFLICT.search(reason)
        reason = self._secret.hidden(reason)
        why = f"{self._where} answered {answer.status}: {reason[:_LONGEST_REASON]}"
        if answer.status in _PARTLY and (found := _DROPPED.search(reason)):
            dropped = int(found[1]) or None
            return BadLines(why, dropped) if conflict is None else FieldConflict(why, dropped, *conflict.groups())
        if answer.status in _UNREAD:
            return BadLines(why, None)
        if answer.status in _REMEDIES:
            return Misconfigured(None, f"{why}: {_REMEDIES[answer.status]}")
        if HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST:
            elsewhere = urlsplit(answer.headers.get("Location", "")).netloc
            return Misconfigured(None, f"{why}: it redirects to {elsewhere!r}; check the URL")
        after = answer.headers.get("Retry-After", "")
        return Retry(float(after) if after.strip().isdecimal() else None, why)

    def close(self) -> None:
        """Close the connections."""
        if self._carrier is not None:
            self._carrier.pool_manager.clear()


def _reason(answer: _Answer) -> tuple[str, str]:
    """Return the answer's code (v2 has one) and its words."""
    try:
        told = json.loads(answer.text)
        return str(told.get("code", "")), str(told.get("message") or told.get("error") or answer.text)
    except (ValueError, AttributeError, RecursionError):
        return "", answer.text.strip() or HTTPStatus(answer.status).phrase if answer.status in set(HTTPStatus) else ""


def _said_by(error: BaseException) -> str:
    found = root(error)
    return f"{type(found).__name__}: {found}"


def basic(token: str) -> str:
    """Return the header for a user and a password."""
    return f"Basic {base64.b64encode(token.encode()).decode()}"


class Secret:
    """Takes a token out of texts.

    Args:
        token: the secret, and its password alone where it is a user and a password; empty for none.
    """

    def __init__(self, token: str) -> None:
        spelled = {basic(token).removeprefix("Basic ")} if token else set()
        for part in {token, token.partition(":")[2]} - {""}:
            spelled |= {part, quote(part, safe=""), repr(part)[1:-1], repr(part.encode("latin-1", "replace"))[2:-1]}
        longest_first = sorted(spelled, key=len, reverse=True)
        self._found = re.compile("|".join(map(_pattern, longest_first))) if spelled else None

    def hidden(self, text: str) -> str:
        """Return a text without the token, however an exception or an answer spells it."""
        return text if self._found is None else self._found.sub("…", text)


def _pattern(spelling: str) -> str:
    pattern = re.escape(spelling)
    return pattern if len(spelling) >= _LONG else rf"(?<![^\W_]){pattern}(?![^\W_])"

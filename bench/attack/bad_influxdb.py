"""The faults of an InfluxDB: a server that speaks its API, and real ones behind a proxy, where they are installed."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bad_accounts import Account, line_items
from bad_backends import SECRET, Backend, Fault, running
from bad_http import Behaviour, Exchange, HttpServer
from bad_otlp_http import Accepts, closes, keeps_quiet, resets_after_taking
from bad_proxy import Plan, Proxy, cuts_answers, halves_answers, passes

_FIRST = 3
_AWAY = 1.0  # seconds
_LARGE = 20  # lines
_LOOKS = 20  # half a second apart


def _settings(port: int, token: str = SECRET) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": port, "token": token, "role": "miner"}


def takes(exchange: Exchange) -> None:
    """Take it."""
    exchange.reply("204 No Content")


def refuses(status: str, code: str, message: str = "not you", **headers: str) -> Behaviour:
    """Return a behaviour: an error as InfluxDB words it, in which the client's secret is."""

    def answer(exchange: Exchange) -> None:
        told = {"code": code, "message": f"{message}, {exchange.request.headers.get('authorization', '')}"}
        body = json.dumps(told).encode()
        exchange.reply(status, body, {"Content-Type": "application/json", **headers})

    return answer


def at_first(behaviour: Behaviour, requests: int = _FIRST) -> Behaviour:
    """Return a behaviour for the first requests; the others are taken."""

    def answer(exchange: Exchange) -> None:
        (behaviour if exchange.request.number <= requests else takes)(exchange)

    return answer


def takes_a_part(exchange: Exchange) -> None:
    """Take all lines but two, as of another type than the field has."""
    dropped = min(2, len(exchange.request.items))
    message = f'partial write: field type conflict: input field "n" is type integer dropped={dropped}'
    body = json.dumps({"code": "invalid", "message": message}).encode()
    exchange.reply("400 Bad Request", body, takes=len(exchange.request.items) - dropped)


def takes_small_ones(exchange: Exchange) -> None:
    """Refuse a body that is large."""
    small = len(exchange.request.items) <= _LARGE
    (takes if small else refuses("413 Too Large", "request too large"))(exchange)


def takes_small_ones_slowly(exchange: Exchange) -> None:
    """Refuse a body that is large, and ask for time before every eleventh one."""
    small = (
        refuses("429 Slow", "too many requests", **{"Retry-After": "0"}) if exchange.request.number % 11 == 0 else takes
    )
    (small if len(exchange.request.items) <= _LARGE else takes_small_ones)(exchange)


def hangs(exchange: Exchange) -> None:
    """Take it, and never answer."""
    exchange.take()
    exchange.silence()


@contextlib.contextmanager
def serving(
    account: Account,
    _folder: Path,
    *,
    behaviour: Behaviour = takes,
    accepts: Accepts | None = None,
    back: str = "",
    healed: Behaviour = takes,
) -> Iterator[Backend]:
    """Put up a server.

    Args:
        account: gets the received items.
        behaviour: answers.
        accepts: takes connections in its place.
        back: when it listens: ``soon``, at the ``end``, or for the ``next`` process; by default from the beginning.
        healed: answers the next process.
    """
    server = HttpServer(account, line_items, behaviour, accepts=accepts, listens=not back)
    timer = threading.Timer(_AWAY, server.come_back)
    if back == "soon":
        timer.start()

    def heal() -> None:
        server.heal(healed)
        if back == "next":
            server.come_back()

    end = server.come_back if back == "end" else lambda: None
    try:
        yield Backend(_settings(server.port), training_ended=end, heal=heal)
    finally:
        timer.cancel()
        server.close()


def _get(url: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(url, body, timeout=10) as answer:
        return bytes(answer.read())


def _is_up(url: str) -> bool:
    try:
        _get(url)
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


_INFLUXDB1 = """
reporting-enabled = false
bind-address = "127.0.0.1:{rpc}"
[meta]
  dir = "meta"
[data]
  dir = "data"
  wal-dir = "wal"
  query-log-enabled = false
[monitor]
  store-enabled = false
[http]
  bind-address = "127.0.0.1:{http}"
  log-enabled = false
"""


@contextlib.contextmanager
def real_influxdb(_account: Account, folder: Path, *, plan: Plan) -> Iterator[Backend]:
    """Run InfluxDB 1 behind a proxy; it has every point once."""
    there = folder / "influxdb"
    there.mkdir()
    port = _free_port()
    (there / "influxdb.conf").write_text(_INFLUXDB1.format(rpc=_free_port(), http=port))
    base = f"http://127.0.0.1:{port}"
    command = [shutil.which("influxd") or "influxd", "-config", "influxdb.conf"]

    def query(text: str) -> Any:
        body = urllib.parse.urlencode({"q": text, "db": "tplr", "epoch": "ns"}).encode()
        (result,) = json.loads(_get(f"{base}/query", body))["results"]
        return result

    def wrong(recorded: int, lost: int) -> list[str]:
        series = query("SELECT n FROM train").get("series", [{"values": []}])
        return _missing(sorted(number for _, number in series[0]["values"]), recorded, lost)

    with running(command, there, lambda: _is_up(f"{base}/ping")):
        query('CREATE DATABASE "tplr"')
        yield from _behind(port, plan, wrong)


@contextlib.contextmanager
def victoria_metrics(_account: Account, folder: Path, *, plan: Plan) -> Iterator[Backend]:
    """Run VictoriaMetrics behind a proxy; it has every point, and stores a point twice that was sent twice."""
    there = folder / "victoria"
    there.mkdir()
    port = _free_port()
    base = f"http://127.0.0.1:{port}"
    command = [shutil.which("victoria-metrics") or "victoria-metrics", f"-storageDataPath={there}"]
    command += [f"-httpListenAddr=127.0.0.1:{port}", "-retentionPeriod=100y", "-memory.allowedBytes=64MB"]

    def wrong(recorded: int, lost: int) -> list[str]:
        complaints: list[str] = []
        for _ in range(_LOOKS):  # what it has just taken is not always found at once, though it is flushed
            _get(f"{base}/internal/force_flush")
            exported = _get(f"{base}/api/v1/export?match%5B%5D=train_n").splitlines()
            found = [json.loads(line) for line in exported]
            samples = {pair for each in found for pair in zip(each["timestamps"], each["values"], strict=True)}
            complaints = _missing(sorted(int(number) for _, number in samples), recorded, lost)
            if not complaints:
                break
            time.sleep(0.5)
        return complaints

    with running(command, there, lambda: _is_up(f"{base}/health")):
        yield from _behind(port, plan, wrong)


def _behind(port: int, plan: Plan, wrong: Callable[[int, int], list[str]]) -> Iterator[Backend]:
    proxy = Proxy(port, plan)
    try:
        yield Backend(_settings(proxy.port), heal=proxy.heal, wrong=wrong)
    finally:
        proxy.close()


def _missing(numbers: list[int], recorded: int, lost: int) -> list[str]:
    if len(numbers) == len(set(numbers)) and recorded - lost == len(numbers):
        return []
    return [f"the server has {len(numbers)} points, {len(set(numbers))} different ones, recorded were {recorded}"]


def _fault(name: str, behaviour: Behaviour = takes, **more: Any) -> Fault:
    told = {key: more.pop(key) for key in ("takes", "complete") if key in more}
    return Fault(name, "InfluxDB", partial(serving, behaviour=behaviour, **more), **told)


def _real(name: str, put_up: Any, plan: Plan) -> Fault:
    return Fault(name, "InfluxDB", partial(put_up, plan=plan), takes=True, complete=True, opaque=True)


_LATER = {"takes": True, "complete": True}
_KEPT = {"complete": True}  # on the disk, for the next process
_BUSY = refuses("503 Busy", "unavailable")
_SLOW = refuses("429 Slow", "too many requests", **{"Retry-After": "1"})

FAULTS = (
    _fault("none", **_LATER),
    _fault("429 with Retry-After at first, then takes", at_first(_SLOW, 2), **_LATER),
    _fault("429 with Retry-After", _SLOW, **_KEPT),
    _fault(
        "429 every second time", lambda exchange: (_SLOW if exchange.request.number % 2 else takes)(exchange), **_LATER
    ),
    _fault("503", _BUSY, **_KEPT),
    _fault("400, a partial write", takes_a_part, takes=True),
    _fault("400", refuses("400 Bad Request", "invalid"), takes=True),
    _fault("401", refuses("401 Unauthorized", "unauthorized"), **_KEPT),
    _fault("404, no such bucket", refuses("404 Not Found", "not found", "bucket not found"), **_KEPT),
    _fault("413 for a large body", takes_small_ones, **_LATER),
    _fault("413", refuses("413 Too Large", "request too large"), takes=True),
    _fault("reset after the first three were taken", at_first(resets_after_taking), **_LATER),
    _fault("reset after each was taken", resets_after_taking, **_KEPT),
    _fault("takes and never answers", hangs, **_KEPT),
    _fault("accepts and reads nothing", accepts=partial(keeps_quiet, reads=False), **_KEPT),
    _fault("closes at once", accepts=closes, **_KEPT),
    _fault("away at first, then back", back="soon", **_LATER),
    _fault("away until the end, then back", back="end", **_KEPT),
    _fault("away the whole time", back="next", **_KEPT),
    _fault("away, then 413 for a large body and 429", back="next", healed=takes_small_ones_slowly, **_KEPT),
)
REAL = {
    "influxd": (
        _real("a real one", real_influxdb, passes),
        _real("a real one, reset after the first three were taken", real_influxdb, cuts_answers(_FIRST)),
        _real("a real one, half of the first two answers", real_influxdb, halves_answers(2)),
    ),
    "victoria-metrics": (
        _real("VictoriaMetrics", victoria_metrics, passes),
        _real("VictoriaMetrics, reset after the first three were taken", victoria_metrics, cuts_answers(_FIRST)),
    ),
}

"""Command lines of ``tachograph``, over files and stores that hold anything."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import hostile
import mutations
import otlp_bodies
from in_process import ProcessKind, environment, folder
from tachograph.cli import main
from tachograph.hub.hub import Hub

_RUN = ("default", "run", "run 2", "../up", "none", "", "é", "a\nb", "\udcff", "a" * 5000)
_URLS = ("http://127.0.0.1:1", "127.0.0.1:1", "http://", "", "http://[::1", "ftp://a", "http://127.0.0.1:99999", "é://")
_OPTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "runs list": (
        ("--filter", "loss < 1", "(", "é"),
        ("--columns", "id", "", "loss"),
        ("--sort", "loss", "x"),
        ("--json",),
    ),
    "runs show": (_RUN,),
    "runs edit": (_RUN, ("--name", "a", "x" * 201), ("--add-tag", "a", "", "x" * 65), ("--notes", "é", "x" * 10_001)),
    "runs delete": (("none", "a\nb"), ("--yes",)),
    "runs prune": (("--older-than", "1d", "-1d", "0", "9" * 400 + "d"), ("--keep", "0", "-1"), ("--max-size", "1x")),
    "runs export": (
        _RUN,
        ("--format", "csv", "jsonl", "xml"),
        ("--metric", "loss", "é", "", "/", "a/b"),
        ("--output", "out", "/", ""),
    ),
    "resend": (
        ("FILE", "FILE", "nowhere", "STORE"),
        ("--to", "console", "jsonl", "otlp"),
        ("--output", "out"),
        ("--timeout", "0.05", "50ms", "1x"),
    ),
    "init grafana": (
        ("--output", "boards", "/dev/null", ""),
        ("--force",),
        ("--run", *_RUN),
        ("--datasource", "é", ""),
        ("--prometheus", *_URLS),
        ("--influxdb", *_URLS),
    ),
    "top": (("--once",), ("--url", *_URLS), _RUN, ("--store", "STORE"), ("--ranks",)),
    "diagnose": (_RUN, ("--url", *_URLS), ("--json",)),
    "doctor": (("--timeout", "0.05", "-1", "nan", "1e999"), ("--endpoint", *_URLS)),
    "hub": (
        ("--host", "256.0.0.1", "é", ""),
        ("--port", "-1", "65536", "x"),
        ("--store", "a"),
        ("--linger", "x", "-1"),
    ),
    "run": (
        ("--port", "-1", "x", "9" * 5000),
        ("--interval", "0", "nan", "x"),
        ("--prof", "a:b", ":", "é", "*:*"),
        ("--linger", "nan"),
        ("--tag", "", "x" * 65, "a\nb"),
        ("--notes", "x" * 10_001),
    ),
}
_STORED = ("runs", "init grafana", "diagnose", "doctor")  # commands that read a store
_ENDLESS = ("hub", "run")  # a wrong option keeps them from starting anything


class CommandLine(NamedTuple):
    """A command line, and the content of the file that it may name."""

    arguments: list[str]
    content: bytes


def _command_line(random: Random) -> CommandLine:
    command = random.choice(tuple(_OPTIONS))
    arguments = command.split()
    for option in random.sample(_OPTIONS[command], random.randrange(len(_OPTIONS[command]) + 1)):
        first, *values = option
        arguments += [first, random.choice(values)] if first.startswith("--") and values else [random.choice(option)]
    if command.startswith(_STORED) and random.random() < 0.9:
        arguments += ("--store", "STORE")
    if random.random() < 0.1:
        arguments.insert(random.randrange(len(arguments) + 1), hostile.text(random, huge=0).replace("\0", ""))
    if random.random() < 0.02:
        arguments = [hostile.text(random)]
    for each in _ENDLESS:
        if each in arguments:
            arguments.insert(arguments.index(each) + 1, "--no-such-option")
    return CommandLine(arguments, _recording(random) if "resend" in arguments else b"")


def _recording(random: Random) -> bytes:
    """Return a file of JSON lines, as a spool or an exporter leaves it, with damage."""
    lines = [mutations.as_json(random, otlp_bodies.logs(random)) for _ in range(random.randrange(4))]
    if random.random() < 0.3:
        lines.append(b'{"kind": "point", "metric": "a", "time_unix_nano": %d}' % hostile.integer(random))
    return random.choice((b"\n", b"\n\n", b"")).join(lines)


def _judge_command(given: Sequence[CommandLine]) -> str:
    (asked,) = given
    file = folder() / "recording.jsonl"
    file.write_bytes(asked.content)
    places = {"FILE": str(file), "STORE": str(_store())}
    arguments = [places.get(each, each) for each in asked.arguments]
    with environment({"TACHOGRAPH_STORE": str(_store()), "COLUMNS": "80"}):
        try:
            status = main(arguments)
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        except Exception as error:  # noqa: BLE001 - the finding
            return f"{type(error).__name__}: {error!s:.300}"
    return "" if status in (0, 1, 2, 3) else f"exit status {status}"


@cache
def _store() -> Path:
    """Return a store in which a hub has kept the contents of many hostile requests."""
    store, random = folder() / "store", Random(1)
    hub = Hub(store)
    for _ in range(200):
        hub.receive_metrics(otlp_bodies.metrics(random))
        hub.receive_logs(otlp_bodies.logs(random))
    hub.tick()
    hub.close()
    return store


COMMAND_KINDS: dict[str, ProcessKind] = {"cli": ProcessKind("command lines", 8, _command_line, _judge_command)}

"""A fault of a backend: its name, its set-up, and the invariants for a program that delivers there."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bad_accounts import Account

SECRET = "s3cr3t-t0k3n"  # noqa: S105 - it is what no log may hold


@dataclass
class Backend:
    """A backend that is up.

    Attributes:
        settings: of ``start()`` or of a ``MetricsLogger``, to deliver there.
        environ: variables of the program.
        training_ended: called once the training is over.
        heal: makes it take everything from now on.
        wrong: returns the broken invariants of the backend's content, given the recorded and the lost amounts; for a
            backend that is real, or is not the whole of it.
    """

    settings: dict[str, Any]
    environ: dict[str, str] = field(default_factory=dict)
    training_ended: Callable[[], object] = lambda: None
    heal: Callable[[], object] = lambda: None
    wrong: Callable[[int, int], list[str]] = lambda _recorded, _lost: []


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: of the row, without its door.
        kind: ``HTTP``, ``gRPC``, ``hub`` or ``InfluxDB``.
        put_up: starts it, given an account and a folder.
        takes: it goes on taking requests, if slowly: the end may take ten seconds.
        takes_late: it has taken a request once the client's time-out is over: with one of a second it takes some.
        complete: nothing may be lost.
        opaque: arrived items are not in the account; ``Backend.wrong`` looks.
    """

    name: str
    kind: str
    put_up: Callable[[Account, Path], AbstractContextManager[Backend]]
    takes: bool = False
    takes_late: bool = False
    complete: bool = False
    opaque: bool = False

    @property
    def title(self) -> str:
        """The row's name."""
        return f"{self.kind}: {self.name}"

    @property
    def door(self) -> str:
        """The program that it is for."""
        return "influxdb" if self.kind == "InfluxDB" else "otlp"


def otlp(port: int, *, scheme: str = "http", protocol: str = "http/protobuf", **more: Any) -> dict[str, Any]:
    """Return settings of ``start()``."""
    endpoint = f"{scheme}://127.0.0.1:{port}"
    return {"endpoint": endpoint, "protocol": protocol, "headers": {"x-key": SECRET}, "interval": 0.2, **more}


@contextlib.contextmanager
def running(command: list[str], folder: Path, ready: Callable[[], bool]) -> Iterator[None]:
    """Run a server in a folder, and wait until it is ready.

    Raises:
        RuntimeError: it did not come up.
    """
    with (
        (folder / "server.log").open("wb") as log,
        subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as process,
    ):
        try:
            pause = threading.Event()
            for _ in range(600):
                if process.poll() is not None or ready():
                    break
                pause.wait(0.05)
            else:
                raise RuntimeError(f"{command[0]} did not come up")
            if process.poll() is not None:
                raise RuntimeError(f"{command[0]}: {(folder / 'server.log').read_text(errors='replace')[-2000:]}")
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


_AUTHORITY = """
[ca]
default_ca = it
[it]
database = index.txt
new_certs_dir = .
rand_serial = yes
default_md = sha256
policy = any
x509_extensions = ext
[any]
commonName = supplied
[ext]
subjectAltName = IP:127.0.0.1
basicConstraints = CA:TRUE
"""


def certificate(folder: Path, *, until: str) -> tuple[Path, Path]:
    """Return a key and a certificate for 127.0.0.1 that vouches for itself.

    Args:
        folder: for the files.
        until: when it ends, as in ``20200201000000Z``.
    """
    key, made = folder / "key.pem", folder / "certificate.pem"
    (folder / "ca.cnf").write_text(_AUTHORITY)
    (folder / "index.txt").touch()
    request = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    sign = ["openssl", "ca", "-batch", "-selfsign", "-config", "ca.cnf", "-keyfile", str(key), "-in", "request.pem"]
    for command in (
        [*request, "-subj", "/CN=127.0.0.1", "-keyout", str(key), "-out", "request.pem"],
        [*sign, "-startdate", "20200101000000Z", "-enddate", until, "-out", str(made), "-notext"],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    return key, made

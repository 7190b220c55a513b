"""Files by which a Prometheus on this host finds each ``/metrics``: ``<store>/targets/<host>-<pid>.json``."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import tempfile
from pathlib import Path
from typing import Any

from tachograph.recording.log import log
from tachograph.recording.registry import Registry

_FOLDER = "targets"
_PROBE_TIMEOUT = 0.2


def target_files(store: Path) -> str:
    """Return the pattern of this host's target files, as an absolute path."""
    return str(store.absolute() / _FOLDER / f"{_host()}-*.json")


def authority(address: Any, for_any: str) -> str:
    """Return host and port of a socket's address, such as ``127.0.0.1:9464``.

    Args:
        address: host, port, and what else the family has.
        for_any: the host for a socket that listens on all addresses.
    """
    host = str(address[0])
    if host in ("0.0.0.0", "::"):  # noqa: S104 - it is compared, not listened on
        host = for_any
    elif ":" in host:
        host = f"[{host}]"
    return f"{host}:{address[1]}"


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())


class TargetFile:
    """A target for Prometheus's file_sd, until :meth:`remove`; files of this host whose process is gone are removed.

    If the store cannot be written nothing else happens: it is logged, and counted as an error at ``target_file``.

    Args:
        store: the folder of the store; made, for this user only, where there is none.
        address: the socket's address: host and port.
        registry: where errors are counted.
    """

    def __init__(self, store: Path, address: Any, registry: Registry) -> None:
        host = _host()
        self.path = store / _FOLDER / f"{host}-{os.getpid()}.json"
        try:
            store.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            self._write(json.dumps([{"targets": [authority(address, socket.gethostname())]}]))
            self._remove_stale(host)
        except OSError as error:
            registry.count_error("target_file")
            log.warning("Prometheus will not discover this process: cannot write %s: %s", self.path, error)

    def _write(self, text: str) -> None:
        descriptor, written = tempfile.mkstemp(dir=self.path.parent, prefix=".")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text + "\n")
            Path(written).replace(self.path)
        except OSError:
            Path(written).unlink()
            raise

    def _remove_stale(self, host: str) -> None:
        for path in self.path.parent.glob("*.json"):
            name, _, pid = path.stem.rpartition("-")
            if name == host and pid.isdecimal() and not _lives(int(pid)) and not _answers(path):
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Take the target away."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _answers(path: Path) -> bool:
    """Tell whether the target listens: a process of another container on this host has a pid that says nothing here."""
    try:
        host, _, port = json.loads(path.read_text())[0]["targets"][0].rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_TIMEOUT):
            return True
    except (OSError, ValueError, LookupError, TypeError):
        return False

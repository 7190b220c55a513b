"""The file by which a Prometheus on this host finds an endpoint: ``<store>/targets/<host>-<pid>.json``."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import tempfile
from pathlib import Path

from tachograph.recording.registry import Registry

_PROBE_TIMEOUT = 0.2

_log = logging.getLogger("tachograph")


class TargetFile:
    """A target for Prometheus's file_sd, for as long as the endpoint serves.

    Where the store cannot be written nothing else happens: it is logged, and counted as an error at ``target_file``.

    Args:
        store: the folder of the store; made, for this user only, where there is none.
        address: host and port of the endpoint, such as ``127.0.0.1:9464``.
        registry: where errors are counted.
    """

    def __init__(self, store: Path, address: str, registry: Registry) -> None:
        host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
        self.path = store / "targets" / f"{host}-{os.getpid()}.json"
        try:
            store.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            self._write(json.dumps([{"targets": [address]}]))
            self._remove_stale(host)
        except OSError as error:
            registry.count_error("target_file")
            _log.warning("Prometheus will not find this process by itself: %s was not written: %s", self.path, error)

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
    """Tell whether somebody listens: a process of another container on this host has a pid that means nothing here."""
    try:
        host, _, port = json.loads(path.read_text())[0]["targets"][0].rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_TIMEOUT):
            return True
    except (OSError, ValueError, LookupError, TypeError):
        return False

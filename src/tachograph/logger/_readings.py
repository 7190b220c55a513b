"""Readings of the machine and its GPU, for a point that asks for them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from tachograph.identity.extra import install_command
from tachograph.recording import registry as registries
from tachograph.recording.interrupts import pass_on
from tachograph.recording.log import LogOnce

TAGS = ("gpu_name", "gpu_id")

_log_once = LogOnce()


def get_system_metrics() -> dict[str, int | float | str]:
    """Return recent values of ``cpu_usage`` (percent), ``mem_used`` and ``mem_total`` (MB); empty if unknown."""
    return _read("system_fields")


def get_gpu_metrics() -> dict[str, int | float | str]:
    """Return the ``gpu_*`` readings of the process's device, ``gpu_name`` and ``gpu_id``; empty without a device."""
    return _read("gpu_fields")


def _read(which: str) -> dict[str, int | float | str]:
    try:
        read: Callable[[], dict[str, int | float | str]] = getattr(import_module("tachograph.hardware.snapshot"), which)
        return read()
    except Exception as error:  # noqa: BLE001 - whatever the machine's libraries raise, the program goes on without
        pass_on(error)
        registries.default.count_error("hardware")
        _log_once(which, "could not read %s (%s): %r", which, install_command("hardware"), error)
        return {}

"""Which card of NVML a device of CUDA is, found without CUDA.

CUDA Programming Guide, "CUDA Environment Variables": CUDA_VISIBLE_DEVICES lists indices, or the beginnings of UUIDs;
the first entry that is none of them ends the list. NVML counts by PCI bus; where CUDA counts the fastest first, as it
does by default, the two agree on a machine whose cards are alike.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from tachograph.hardware._nvml import Card


def initialised_cuda() -> Any:
    """Return ``torch.cuda`` where the program has imported torch and initialised CUDA, else ``None``."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def chosen(device: int, environ: Mapping[str, str]) -> int | str | None:
    """Return NVML's index, or the beginning of the UUID, of CUDA's device; ``None`` where CUDA sees no such device."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return device
    entries: list[int | str] = []
    for part in visible.split(","):
        entry = part.strip()
        if entry.isascii() and entry.isdigit():
            entries.append(int(entry))
        elif entry.startswith(("GPU-", "MIG-")):
            entries.append(entry)
        else:
            break
    return entries[device] if 0 <= device < len(entries) else None


def find(cards: Iterable[Card], which: int | str | None) -> Card | None:
    """Return the card with this index or beginning of its UUID; ``None`` where there is none."""
    for card in cards:
        if isinstance(which, str) and card.uuid.startswith(which):
            return card
        if isinstance(which, int) and card.index == which and not card.parent:
            return card
    return None


def uuid_of(cuda: Any, device: int) -> str:
    """Return the UUID that NVML has for a device of an initialised ``torch.cuda``; empty where torch tells none."""
    uuid = getattr(cuda.get_device_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid is not None else ""

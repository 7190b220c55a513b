"""NVIDIA's management library, through nvidia-ml-py: the cards of this node and their MIG slices.

Any of its calls may block for seconds where a card has fallen off the bus: none belongs into a thread that others wait
for.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from tachograph.identity.extra import install_command


class MissingError(RuntimeError):
    """NVML cannot be used: nvidia-ml-py, the driver's library or the driver is missing; the message says which."""


# The fields that are read, with their scopes: all NVLinks together.
FIELDS = {
    "NVML_FI_DEV_MEMORY_TEMP": 0,
    "NVML_FI_DEV_PCIE_COUNT_TX_BYTES": 0,
    "NVML_FI_DEV_PCIE_COUNT_RX_BYTES": 0,
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": 0xFFFFFFFF,
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": 0xFFFFFFFF,
}
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # nvml.h, nvmlValueType_t


def _field(api: Any, name: str) -> tuple[int, int]:
    return getattr(api, name), FIELDS[name]


class Card:
    """A card, or a MIG slice of one.

    Attributes:
        api: the module ``pynvml``.
        handle: NVML's handle.
        index: of the card, by PCI bus; that of its parent for a slice.
        uuid: begins with ``GPU-`` or ``MIG-``.
        parent: the UUID of the card that this is a slice of; empty for a card.
        name: of the product.
    """

    def __init__(self, api: Any, handle: Any, index: int, *, parent: str = "") -> None:
        self.api = api
        self.handle = handle
        self.index = index
        self.parent = parent
        self.uuid: str = api.nvmlDeviceGetUUID(handle)
        self.name: str = api.nvmlDeviceGetName(handle)
        self._asked: dict[object, Any] = {}
        self._fields = tuple(_field(api, name) for name in FIELDS if hasattr(api, name))

    def anew(self) -> None:
        """Forget all answers: a new sample begins."""
        self._asked.clear()

    def ask(self, function: str, *arguments: Any) -> Any:
        """Return the answer of an ``nvmlDevice…`` function, asked once a sample."""
        key = function, arguments
        if key not in self._asked:
            self._asked[key] = getattr(self.api, function)(self.handle, *arguments)
        return self._asked[key]

    def ask_newest(self, functions: Sequence[str], *arguments: Any) -> Any:
        """Return the answer of the first function that this nvidia-ml-py and this driver both have."""
        for function in functions[:-1]:
            if hasattr(self.api, function):
                with contextlib.suppress(self.api.NVMLError_FunctionNotFound):
                    return self.ask(function, *arguments)
        return self.ask(functions[-1], *arguments)

    def memory(self) -> Any:
        """Return ``used``, ``free`` and ``total`` in bytes; used is without the driver's reserve, where that is known.

        These are the numbers of ``nvidia-smi``; drivers before 510 count the reserved memory as used.
        """
        try:
            return self.ask("nvmlDeviceGetMemoryInfo", self.api.nvmlMemory_v2)
        except self.api.NVMLError_FunctionNotFound:
            return self.ask("nvmlDeviceGetMemoryInfo")

    def field(self, name: str) -> int | float:
        """Return the value of one of the fields of FIELDS; all are asked for together.

        Raises:
            pynvml.NVMLError: this card or this driver has none.
            AttributeError: this nvidia-ml-py has none.
        """
        found = self.ask("nvmlDeviceGetFieldValues", self._fields)[self._fields.index(_field(self.api, name))]
        if found.nvmlReturn:
            raise self.api.NVMLError(found.nvmlReturn)
        value: int | float = getattr(found.value, _VALUES[found.valueType])
        return value


class Nvml:
    """One use of the library, until it is closed.

    Raises:
        Nvml.Missing: see :class:`MissingError`.
    """

    Missing = MissingError

    def __init__(self) -> None:
        try:
            self.api: Any = import_module("pynvml")
        except ImportError:
            raise MissingError(f"nvidia-ml-py is not installed: {install_command('hardware')}") from None
        try:
            self.api.nvmlInit()
        except (self.api.NVMLError, OSError) as error:
            raise MissingError(f"NVML cannot be used: {error}") from None

    def cards(self, refused: Callable[[int, Exception], None] = lambda _index, _error: None) -> list[Card]:
        """Return all cards, and after each its MIG slices.

        Args:
            refused: called with the index and the error of each card that does not answer.
        """
        api = self.api
        return [card for index in range(api.nvmlDeviceGetCount()) for card in self._card(index, refused)]

    def _card(self, index: int, refused: Callable[[int, Exception], None]) -> list[Card]:
        try:
            card = Card(self.api, self.api.nvmlDeviceGetHandleByIndex(index), index)
        except self.api.NVMLError as error:
            refused(index, error)
            return []
        slices = (self._slice(card, number) for number in range(self._most_slices(card)))
        return [card, *(found for found in slices if found is not None)]

    def _most_slices(self, card: Card) -> int:
        try:
            current, _ = self.api.nvmlDeviceGetMigMode(card.handle)
            return int(self.api.nvmlDeviceGetMaxMigDeviceCount(card.handle)) if current else 0
        except self.api.NVMLError:  # a card without MIG, or a driver that does not know of it
            return 0

    def _slice(self, card: Card, number: int) -> Card | None:
        try:
            handle = self.api.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, number)
            return Card(self.api, handle, card.index, parent=card.uuid)
        except self.api.NVMLError:  # there are fewer of them: their numbers have gaps
            return None

    def close(self) -> None:
        """Shut the library down; its errors are ignored, as this is the end."""
        try:
            self.api.nvmlShutdown()
        except self.api.NVMLError:
            return


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

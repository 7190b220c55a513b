"""GPU metrics: one table, read from NVML for each card; a MIG slice has the rows of its own.

Names and units are those of the OpenTelemetry semantic conventions for hardware (``hw.*``, "GPU metrics" and "Common
metrics"); a row marked as an extension has none there. Counters count since the driver was loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tachograph.hardware._nvml import Card
from tachograph.hardware._sampler import Reading, Sensor, Values, read

_GPU = {"hw.type": "gpu"}
_RARELY = 15  # turns: for values that hardly ever change, or are idle in a training
_LOST_RETRY = 60.0  # seconds: a lost card comes back after a reset only


def _utilization(card: Card) -> Values:
    yield {"hw.gpu.task": "general"}, card.ask("nvmlDeviceGetUtilizationRates").gpu / 100


def _encoder(card: Card) -> Values:
    yield {"hw.gpu.task": "encoder"}, card.ask("nvmlDeviceGetEncoderUtilization")[0] / 100


def _decoder(card: Card) -> Values:
    yield {"hw.gpu.task": "decoder"}, card.ask("nvmlDeviceGetDecoderUtilization")[0] / 100


def _memory_activity(card: Card) -> Values:
    yield {}, card.ask("nvmlDeviceGetUtilizationRates").memory / 100


def _memory_used(card: Card) -> Values:
    yield {}, card.memory().used


def _memory_total(card: Card) -> Values:
    yield {}, card.memory().total


def _memory_share(card: Card) -> Values:
    memory = card.memory()
    if memory.total:
        yield {}, memory.used / memory.total


def _pcie(card: Card) -> Values:
    yield {"network.io.direction": "transmit"}, card.field("NVML_FI_DEV_PCIE_COUNT_TX_BYTES")
    yield {"network.io.direction": "receive"}, card.field("NVML_FI_DEV_PCIE_COUNT_RX_BYTES")


def _nvlink(card: Card) -> Values:
    # In KiB: nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX.
    yield {"network.io.direction": "transmit"}, 1024 * card.field("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX")
    yield {"network.io.direction": "receive"}, 1024 * card.field("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX")


def _power(card: Card) -> Values:
    yield _GPU, card.ask("nvmlDeviceGetPowerUsage") / 1e3


def _power_limit(card: Card) -> Values:
    yield _GPU, card.ask("nvmlDeviceGetEnforcedPowerLimit") / 1e3


def _energy(card: Card) -> Values:
    yield _GPU, card.ask("nvmlDeviceGetTotalEnergyConsumption") / 1e3


def _temperature(card: Card) -> Values:
    value = card.ask_newest(("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"), card.api.NVML_TEMPERATURE_GPU)
    yield {**_GPU, "hw.sensor_location": "gpu"}, value


def _memory_temperature(card: Card) -> Values:
    yield {**_GPU, "hw.sensor_location": "memory"}, card.field("NVML_FI_DEV_MEMORY_TEMP")


def _slowdown_temperature(card: Card) -> Values:
    value = card.ask("nvmlDeviceGetTemperatureThreshold", card.api.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    yield {**_GPU, "hw.sensor_location": "gpu", "hw.limit_type": "throttled"}, value


def _ecc(card: Card) -> Values:
    api = card.api
    for kind, asked in (
        ("ecc.corrected", api.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ("ecc.uncorrected", api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    ):
        value = card.ask("nvmlDeviceGetTotalEccErrors", asked, api.NVML_VOLATILE_ECC)
        yield {**_GPU, "error.type": kind}, value


def _replays(card: Card) -> Values:
    yield {**_GPU, "error.type": "pcie.replay"}, card.ask("nvmlDeviceGetPcieReplayCounter")


def _clocks(card: Card) -> Values:
    api = card.api
    for name, asked in (("sm", api.NVML_CLOCK_SM), ("memory", api.NVML_CLOCK_MEM)):
        yield {"hw.gpu.clock": name}, card.ask("nvmlDeviceGetClockInfo", asked) * 1e6


_REASON_FUNCTIONS = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
_REASONS = (  # nvml.h, nvmlClocksEventReasons; an idle card's and a user's own clocks are no throttling
    ("sw_power_cap", 0x04),
    ("hw_slowdown", 0x08),
    ("sync_boost", 0x10),
    ("sw_thermal", 0x20),
    ("hw_thermal", 0x40),
    ("hw_power_brake", 0x80),
)


def _throttled(card: Card) -> Values:
    reasons = card.ask_newest(_REASON_FUNCTIONS)
    for name, bit in _REASONS:
        yield {"hw.gpu.throttle.reason": name}, int(bool(reasons & bit))


_UTILIZATION = "Share of the time the GPU was busy."
_TEMPERATURE = "Temperature."
_ERRORS = "Errors: ECC errors since the driver was loaded, PCIe replays, and XIDs since this process started."

TABLE: tuple[Sensor[Card], ...] = (
    Sensor("hw.gpu.utilization", "1", "gauge", _UTILIZATION, _utilization),
    Sensor("hw.gpu.utilization", "1", "gauge", _UTILIZATION, _encoder, every=_RARELY),
    Sensor("hw.gpu.utilization", "1", "gauge", _UTILIZATION, _decoder, every=_RARELY),
    Sensor("hw.gpu.memory.usage", "By", "gauge", "GPU memory in use.", _memory_used, slices=True),
    Sensor("hw.gpu.memory.limit", "By", "gauge", "Size of the GPU memory.", _memory_total, slices=True, every=_RARELY),
    Sensor("hw.gpu.memory.utilization", "1", "gauge", "Share of the GPU memory in use.", _memory_share, slices=True),
    Sensor("hw.gpu.io", "By", "counter", "Bytes transferred over PCIe.", _pcie),
    Sensor("hw.power", "W", "gauge", "Electrical power drawn.", _power),
    Sensor("hw.energy", "J", "counter", "Energy.", _energy),
    Sensor("hw.temperature", "Cel", "gauge", _TEMPERATURE, _temperature),
    Sensor("hw.temperature", "Cel", "gauge", _TEMPERATURE, _memory_temperature),
    Sensor(
        "hw.temperature.limit",
        "Cel",
        "gauge",
        "Temperature at which the GPU slows down.",
        _slowdown_temperature,
        every=_RARELY,
    ),
    Sensor("hw.errors", "{error}", "counter", _ERRORS, _ecc, every=_RARELY),
    Sensor("hw.errors", "{error}", "counter", _ERRORS, _replays, every=_RARELY),
    # Extensions: the conventions have no name for these.
    Sensor(
        "hw.gpu.memory.activity", "1", "gauge", "Share of the time the memory was read or written.", _memory_activity
    ),
    Sensor("hw.gpu.nvlink.io", "By", "counter", "Bytes transferred over all NVLinks.", _nvlink),
    Sensor(
        "hw.gpu.clock.frequency", "Hz", "gauge", "Clock frequency of the multiprocessors and of the memory.", _clocks
    ),
    Sensor("hw.gpu.throttled", "", "gauge", "1 while the GPU's clocks are throttled, by reason.", _throttled),
    Sensor("hw.power.limit", "W", "gauge", "Power limit of the GPU.", _power_limit, every=_RARELY),
)


_XID: Sensor[Card] = Sensor("hw.errors", "{error}", "counter", _ERRORS, lambda _card: ())


def attributes_of(card: Card) -> dict[str, str]:
    """Return the attributes that identify a card's series."""
    own = {"hw.id": card.uuid, "hw.name": card.name, "hw.vendor": "NVIDIA", "hw.gpu.index": str(card.index)}
    return {**own, "hw.parent": card.parent} if card.parent else own


class Gpu:
    """Reads the table for one card.

    A row that the card or its driver does not have is asked for once; a card that is lost, once a minute.

    Args:
        card: a card or a slice.
        left_out: called with the name of a row that is left out, and its error.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        card: Card,
        left_out: Callable[[str, Exception], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._card, self._left_out, self._clock = card, left_out, clock
        self._rows = [row for row in TABLE if row.slices or not card.parent]
        self._more = attributes_of(card)
        self._latest: dict[Sensor[Card], Reading] = {}
        self._turn = 0
        self._again = 0.0
        api = card.api
        # AttributeError: this nvidia-ml-py is older than the row.
        unknown = api.NVMLError_FunctionNotFound, api.NVMLError_InvalidArgument, AttributeError
        self._never = api.NVMLError_NotSupported, *unknown
        self._lost = api.NVMLError_GpuIsLost, api.NVMLError_ResetRequired, api.NVMLError_GpuNotFound

    def __call__(self) -> list[Reading] | None:
        """Return the readings of one sample; ``None`` while the card is lost."""
        if self._again > self._clock():
            return None
        self._card.anew()
        for at, row in enumerate(list(self._rows)):
            if row.every == 1 or row not in self._latest or not (self._turn + at) % row.every:
                self._row(row)
        self._turn += 1
        return list(self._latest.values())

    def _row(self, row: Sensor[Card]) -> None:
        try:
            self._latest[row] = read(row, self._card, self._more)
        except self._lost:
            self._again = self._clock() + _LOST_RETRY
            raise
        except self._never as error:
            self._rows.remove(row)
            self._left_out(row.name, error)
        except (self._card.api.NVMLError, OSError) as error:
            self._latest.pop(row, None)
            self._left_out(row.name, error)


class Xids:
    """Counts the critical errors (XID) that the driver reports after this process has registered for them.

    Args:
        cards: the watched cards, no slices.
        left_out: called with a card that cannot be watched, and its error.
    """

    def __init__(self, cards: list[Card], left_out: Callable[[str, Exception], None]) -> None:
        self._counts: dict[tuple[str, int], int] = {}
        self._cards: dict[str, dict[str, str]] = {}
        self._api = cards[0].api
        self._since = time.time_ns()
        self._set = self._api.nvmlEventSetCreate()
        for card in cards:
            self._watch(card, left_out)

    def _watch(self, card: Card, left_out: Callable[[str, Exception], None]) -> None:
        try:
            self._api.nvmlDeviceRegisterEvents(card.handle, self._api.nvmlEventTypeXidCriticalError, self._set)
            self._cards[card.uuid] = {**attributes_of(card), **_GPU}
        except self._api.NVMLError as error:
            left_out("hw.errors", error)

    def __call__(self) -> list[Reading]:
        """Return the count so far of each XID of each card."""
        for _ in range(100):  # at most a turn: a card in trouble reports without end
            try:
                event = self._api.nvmlEventSetWait_v2(self._set, 0)
            except self._api.NVMLError_Timeout:
                break
            key = self._api.nvmlDeviceGetUUID(event.device), int(event.eventData)
            self._counts[key] = self._counts.get(key, 0) + 1
        return list(self._readings())

    def _readings(self) -> Iterator[Reading]:
        for (uuid, number), count in self._counts.items():
            more = self._cards.get(uuid, {"hw.id": uuid})
            yield Reading(_XID, [({"error.type": f"xid.{number}"}, count)], more, self._since)

"""The program that ``peers.py`` kills: it logs a number each millisecond with one recorder, or reads the numbers back.

``python peer_program.py log RECORDER FOLDER NOTES HOW SECONDS``: ``HOW`` it ends itself after some seconds.
``python peer_program.py read RECORDER FOLDER``: prints the numbers that the recorder's own reader finds, as JSON.

It imports one recorder alone, as each has an environment of its own.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PERIOD = 0.001
NAME = "n"
RUN = "peer"
_AFTER = 2.0  # seconds after SIGTERM in which it goes on: a handler that ends it comes first


def _tensorboard(folder: Path) -> Callable[[int], object]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))
    return lambda number: writer.add_scalar(NAME, number, number)


def _wandb(folder: Path) -> Callable[[int], object]:
    import wandb

    run = wandb.init(mode="offline", project=RUN, dir=folder, settings=wandb.Settings(console="off", silent=True))
    return lambda number: run.log({NAME: number})


def _trackio(_folder: Path) -> Callable[[int], object]:
    import trackio

    trackio.init(project=RUN, name=RUN)
    return lambda number: trackio.log({NAME: number})


def _tachograph(_folder: Path) -> Callable[[int], object]:
    from tachograph import Metric

    metric = Metric(NAME, throttle=None)
    return lambda number: metric.record(float(number), at=number)


def _jsonl(folder: Path) -> Callable[[int], object]:
    import tachograph

    tachograph.start(metrics="none", logs=["jsonl"], jsonl=folder / "peer.jsonl", run_id=RUN)
    return _tachograph(folder)


def log(recorder: str, folder: Path, notes: Path, how: str, seconds: float) -> None:
    """Log until the end, and note when each number was logged."""
    record = _LOG[recorder](folder)
    file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    number, until, ended = 0, time.monotonic() + seconds, False
    while True:
        number += 1
        record(number)
        if not ended:
            os.write(file, struct.pack("<d", time.monotonic()))
        time.sleep(PERIOD)
        if time.monotonic() < until:
            continue
        if ended:
            os._exit(99)
        ended, until = True, time.monotonic() + _AFTER
        if how == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        elif how == "os._exit":
            os._exit(1)
        else:
            raise RuntimeError("the program's own error")


def _read_tensorboard(folder: Path) -> Iterator[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    if NAME in found.Tags()["scalars"]:
        yield from (point.step for point in found.Scalars(NAME))


def _read_wandb(folder: Path) -> Iterator[int]:
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    for path in folder.glob("wandb/offline-run-*/*.wandb"):
        store = DataStore()
        store.open_for_scan(str(path))
        while (data := _scanned(store)) is not None:
            record = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                items = [item for item in record.history.item if NAME in (item.key, *item.nested_key)]
                yield from (int(float(item.value_json)) for item in items)


def _scanned(store: Any) -> Any:
    try:
        return store.scan_data()
    except AssertionError:  # a record that is torn: its reader goes no farther
        return None


def _read_trackio(_folder: Path) -> Iterator[int]:
    from trackio.sqlite_storage import SQLiteStorage

    yield from (int(each[NAME]) for each in SQLiteStorage.get_logs(RUN, RUN))


def _read_tachograph(folder: Path) -> Iterator[int]:
    from tachograph import runs

    yield from (int(point.x) for point in runs.open(RUN, folder).points(NAME))


def _read_jsonl(folder: Path) -> Iterator[int]:
    from tachograph.exporters.otlp.json_text import events_of_json

    for line in (folder / "peer.jsonl").read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            events = [event for part in events_of_json(line) for event in part.events]
            yield from (int(event.attributes["x"]) for event in events if "x" in event.attributes)


_LOG: dict[str, Callable[[Path], Callable[[int], object]]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
    "tachograph": _tachograph,
    "jsonl": _jsonl,
}
_READ: dict[str, Callable[[Path], Iterator[int]]] = {
    "tensorboard": _read_tensorboard,
    "wandb": _read_wandb,
    "trackio": _read_trackio,
    "tachograph": _read_tachograph,
    "jsonl": _read_jsonl,
}

if __name__ == "__main__":
    if sys.argv[1] == "log":
        log(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5], float(sys.argv[6]))
    else:
        print(json.dumps(sorted(_READ[sys.argv[2]](Path(sys.argv[3])))))

"""The files that TensorBoard, W&B and MLflow write of a run, read back: what a bridge has to be like."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Logged = dict[str, list[tuple[float, float]]]  # step and value of each, by tag

_BLOCK = 32_768  # LevelDB's log format: blocks, of chunks with a checksum, a length and a type
_FILE_HEADER, _CHUNK_HEADER = 7, struct.Struct("<IHB")


def tensorboard_values(folder: Path) -> Logged:
    """Return the values of every event file in a folder and below it, as TensorBoard's own reader finds them.

    A folder below, as ``add_scalars`` makes one for each curve, is named before the tag.
    """
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found: Logged = {}
    for path in sorted(folder.rglob("*.tfevents.*")):
        below = path.parent.relative_to(folder).as_posix()
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    tag = value.tag if below == "." else f"{below}:{value.tag}"
                    found.setdefault(tag, []).append((float(event.step), value.simple_value))
    return found


def wandb_values(path: Path) -> Logged:
    """Return the values of the history in a run's offline file, by W&B's own messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: Logged = {}
    for message in _records(path.read_bytes()):
        record = Record.FromString(message)
        if record.WhichOneof("record_type") != "history":
            continue
        for item in record.history.item:
            key = item.key or ".".join(item.nested_key)
            value: Any = json.loads(item.value_json)
            if not key.startswith("_"):
                found.setdefault(key, []).append((float(record.history.step.num), float(value)))
    return dict(sorted(found.items()))  # W&B writes the keys of a step in any order


def mlflow_values(run: Path) -> Logged:
    """Return the values of a run's folder in MLflow's file store: a file a metric, with time, value and step a line."""
    found: Logged = {}
    for path in sorted(path for path in (run / "metrics").rglob("*") if path.is_file()):
        rows = [line.split(" ") for line in path.read_text().splitlines()]
        found[path.relative_to(run / "metrics").as_posix()] = [(float(row[2]), float(row[1])) for row in rows]
    return found


def mlflow_runs(folder: Path) -> dict[str, Path]:
    """Return the folders of the runs in MLflow's file store, by name."""
    return {path.read_text(): path.parents[1] for path in folder.glob("*/*/tags/mlflow.runName")}


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the messages of a LevelDB log, of which each is one chunk, or a first, middle ones and a last."""
    at, parts = _FILE_HEADER, b""
    while at + _CHUNK_HEADER.size <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _CHUNK_HEADER.size:
            at += left
            continue
        _, length, kind = _CHUNK_HEADER.unpack_from(data, at)
        at += _CHUNK_HEADER.size
        parts += data[at : at + length]
        at += length
        if kind in (1, 4):  # a whole one, or a last chunk
            yield parts
            parts = b""

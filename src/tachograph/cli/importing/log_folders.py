"""The log folders of TensorBoard below a folder: each is a run, with folders of its ranks in it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from tachograph.exporters.event_file import HPARAMS, EventFile
from tachograph.identity.environment import clean

_MARK = "tfevents"  # in the names of event files: TensorBoard takes no others
PART = re.compile(r"rank(?P<rank>\d{1,9})|(?P<agent>agent)")  # folders of the processes of one run
OF_HPARAMS = re.compile(r"\d{9,11}\.\d+")  # the folder that torch's add_hparams() makes in that of the run: its time
_DIGEST, _FIRST, _NAME = 4, 1024, 100  # bytes of a digest, and of a file's first record at most; characters


class LogFolder(NamedTuple):
    """A run as TensorBoard keeps it: a folder with event files, and those in it of its ranks and of add_hparams().

    Attributes:
        name: its path from where the search began; the folder's own name where it began there.
        path: of the folder.
        parts: names of folders in it, empty for itself, and their files in the order of their names.
    """

    name: str
    path: Path
    parts: Sequence[tuple[str, Sequence[Path]]]

    def run_id(self) -> str | None:
        """Return the id of the run: the same wherever the folder lies, and however many files it has got meanwhile.

        It follows from the first record, which has the time to the microsecond. None where none is written yet.

        Raises:
            OSError: a file cannot be read.
        """
        for first in chain.from_iterable(files for _, files in self.parts):
            with first.open("rb") as file:
                record = file.read(_FIRST)
            end = 16 + int.from_bytes(record[:8], "little")  # of the record: its length stands before it
            if record and (end <= len(record) or end > _FIRST):
                digest = hashlib.blake2b(first.name.encode(errors="surrogateescape"), digest_size=_DIGEST)
                digest.update(record[:end] if end <= _FIRST else b"")  # it is damaged
                return f"{clean(self.path.name)[:_NAME] or 'run'}-{digest.hexdigest()}"
        return None


def log_folders(root: Path, failed: Callable[[OSError], object]) -> list[LogFolder]:
    """Return the runs below a folder, by name; ``failed`` is told the folders that cannot be read."""
    found: dict[Path, dict[str, list[Path]]] = {}
    seen: set[str] = set()
    for where, folders, files in os.walk(root, followlinks=True, onerror=failed):
        real = os.path.realpath(where)
        if real in seen:  # a link to a folder above it
            folders.clear()
            continue
        seen.add(real)
        path = Path(where)
        events = sorted(path / name for name in files if _MARK in name)
        if events:
            is_part = path != root and bool(PART.fullmatch(path.name))
            if path.parent in found and OF_HPARAMS.fullmatch(path.name):
                is_part = _has_hparams(events[0])
            home, part = (path.parent, path.name) if is_part else (path, "")
            found.setdefault(home, {})[part] = events
    return [
        LogFolder(
            path.name if path == root else os.path.relpath(path, root),
            path,
            sorted(parts.items(), key=_place),
        )
        for path, parts in sorted(found.items())
    ]


def _place(part: tuple[str, object]) -> tuple[object, ...]:
    """Return the place of a part: the folder itself, ranks by their numbers, then folders of the end."""
    name, _ = part
    rank = PART.fullmatch(name)
    return bool(name) and not (rank and rank["rank"]), len(name), name


def _has_hparams(path: Path) -> bool:
    """Tell whether a file begins with hyperparameters, as one of add_hparams() does."""
    try:
        for event in islice(EventFile(path), 2):  # the first one has the version
            if any(value.metadata.plugin_data.plugin_name == HPARAMS.encode() for value in event.summary.value):
                return True
    except OSError:  # it is said where it is read
        pass
    return False

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
_LOOKED_AT = 100  # events of a file
_UNCLEAN = re.compile(r"[^-/\w.]")  # characters that tensorboardX replaces in a tag, as it does none in a folder
_DIGEST, _FIRST, _NAME = 4, 1024, 100  # bytes of a digest, and of a file's first record at most; characters


class Part(NamedTuple):
    """Event files of one folder of a run.

    Attributes:
        name: of the folder of the process: empty for the run's own folder.
        line: path from there of a folder that add_scalars() makes for one line of a chart; empty for no such folder.
        files: in the order of their names.
    """

    name: str
    line: str
    files: Sequence[Path]

    def tag(self, tag: str) -> str:
        """Return the tag of a scalar in these files: each line of add_scalars() has the tag of the chart there."""
        return f"{tag}/{self.line[len(tag) + 1 :]}" if self.is_line_of(tag) else tag

    def is_line_of(self, tag: str) -> bool:
        """Tell whether the folder is named as add_scalars() names that of a line in the chart of a tag.

        Sources: ``torch.utils.tensorboard.SummaryWriter.add_scalars``, which joins them by an underscore, and
        ``tensorboardX``, which makes two folders and replaces characters of the tag.
        """
        named = _UNCLEAN.sub("_", self.line)
        return named.startswith((f"{_UNCLEAN.sub('_', tag)}/", f"{_UNCLEAN.sub('_', tag).replace('/', '_')}_"))


class LogFolder(NamedTuple):
    """A run as TensorBoard keeps it: a folder with event files, and those in it of its ranks and of its writer.

    Attributes:
        name: its path from where the search began; the folder's own name where it began there.
        path: of the folder.
        parts: of itself, of its ranks, of add_hparams() and of add_scalars().
    """

    name: str
    path: Path
    parts: Sequence[Part]

    def run_id(self) -> str | None:
        """Return the id of the run: the same wherever the folder lies, and however many files it has got meanwhile.

        It follows from the first record, which has the time to the microsecond. None where none is written yet.

        Raises:
            OSError: a file cannot be read.
        """
        for first in chain.from_iterable(part.files for part in self.parts):
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
    found: dict[Path, list[Part]] = {}
    places: dict[Path, tuple[Path, str]] = {}  # of folders with events: that of the run, and the part's name
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
            writer = next((each for each in path.parents if each in places), None)
            line = Part("", path.relative_to(writer).as_posix(), events) if writer else None
            if writer and line and _is_line(line):
                home, name = places[writer]
                found[home].append(line._replace(name=name))
                continue
            is_part = path != root and bool(PART.fullmatch(path.name))
            if path.parent in found and OF_HPARAMS.fullmatch(path.name):
                is_part = _has_hparams(events[0])
            places[path] = home, name = (path.parent, path.name) if is_part else (path, "")
            found.setdefault(home, []).append(Part(name, "", events))
    return [
        LogFolder(
            path.name if path == root else os.path.relpath(path, root),
            path,
            sorted(parts, key=_place),
        )
        for path, parts in sorted(found.items())
    ]


def _place(part: Part) -> tuple[object, ...]:
    """Return the place of a part: the folder itself, ranks by their numbers, folders of the end, then lines."""
    rank = PART.fullmatch(part.name)
    return part.line, bool(part.name) and not (rank and rank["rank"]), len(part.name), part.name


def _is_line(part: Part) -> bool:
    """Tell whether a folder is one of add_scalars(): the first values of its files have no tag but the chart's."""
    try:
        values = [value for event in islice(EventFile(part.files[0]), _LOOKED_AT) for value in event.summary.value]
    except OSError:  # the import reports it
        return False
    return bool(values) and all(part.is_line_of(value.tag.decode("utf-8", "backslashreplace")) for value in values)


def _has_hparams(path: Path) -> bool:
    """Tell whether a file begins with hyperparameters, as one of add_hparams() does."""
    try:
        for event in islice(EventFile(path), 2):  # the first one has the version
            if any(value.metadata.plugin_data.plugin_name == HPARAMS.encode() for value in event.summary.value):
                return True
    except OSError:  # it is said where it is read
        pass
    return False

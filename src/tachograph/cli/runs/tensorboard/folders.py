"""Find the log folders of TensorBoard below a folder: each is a run, with the folders of its ranks and charts."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tensorboard.plugins.hparams.metadata import PLUGIN_NAME as HPARAMS

from tachograph.cli.runs.tensorboard.event_files import EventFile
from tachograph.identity.environment import clean

EVENT_FILE_MARK = "tfevents"  # TensorBoard reads no file without it in its name
PROCESS_FOLDER = re.compile(r"rank(?P<rank>\d{1,9})|(?P<agent>agent)")
HPARAMS_FOLDER = re.compile(r"\d{9,11}\.\d+")  # torch's add_hparams() makes it in the run's folder: its name is a time
_FIRST_EVENTS = 100  # enough to tell the folder of a chart's line from a run
_REPLACED = re.compile(r"[^-/\w.]")  # characters that tensorboardX replaces in a tag, but not in a folder's name
_MOST_HASHED = 1024  # bytes of the first record
_MOST_OF_NAME = 100  # characters


class Part(NamedTuple):
    """The event files of one folder, which belong to one process of a run.

    Attributes:
        process: the name of the process's folder; empty for the run's own folder.
        chart_line: the path from there to the folder that ``add_scalars`` makes for a line of a chart; or empty.
        files: in the order of their names.
    """

    process: str
    chart_line: str
    files: Sequence[Path]

    def full_tag(self, tag: str) -> str:
        """Return a tag of these files with the name of the chart's line, which ``add_scalars`` leaves out."""
        return f"{tag}/{self.chart_line[len(tag) + 1 :]}" if self.is_line_of(tag) else tag

    def is_line_of(self, tag: str) -> bool:
        """Tell whether the folder has the name that ``add_scalars`` gives to a line in the chart of a tag.

        Sources: ``torch.utils.tensorboard.SummaryWriter.add_scalars``, which joins both by an underscore, and
        ``tensorboardX``, which makes two folders and replaces characters of the tag.
        """
        line = _REPLACED.sub("_", self.chart_line)
        chart = _REPLACED.sub("_", tag)
        return line.startswith((f"{chart}/", f"{chart.replace('/', '_')}_"))


class LogFolder(NamedTuple):
    """The log folder of one run.

    Attributes:
        name: its path from where the search began, or the folder's own name if the search began there.
        path: of the folder.
        parts: its own event files, and those of its ranks, of ``add_hparams`` and of ``add_scalars``.
    """

    name: str
    path: Path
    parts: Sequence[Part]

    def run_id(self) -> str | None:
        """Return the id of the run, or None if nothing is written yet.

        It follows from the first record, which has the time to the microsecond. So a folder that was moved, or that
        has more files now, is the same run.

        Raises:
            OSError: a file cannot be read.
        """
        for file in (file for part in self.parts for file in part.files):
            with file.open("rb") as opened:
                start = opened.read(_MOST_HASHED)
            end = 16 + int.from_bytes(start[:8], "little")  # the length of the content stands before it
            if start and (end <= len(start) or end > _MOST_HASHED):
                digest = hashlib.blake2b(file.name.encode(errors="surrogateescape"), digest_size=4)
                digest.update(start[:end] if end <= _MOST_HASHED else b"")  # no first record is that long
                return f"{clean(self.path.name)[:_MOST_OF_NAME] or 'run'}-{digest.hexdigest()}"
        return None


def find_log_folders(root: Path, report_error: Callable[[OSError], object]) -> list[LogFolder]:
    """Return the runs in and below a folder, by name; errors of folders that cannot be read are reported."""
    parts: dict[Path, list[Part]] = {}
    places: dict[Path, tuple[Path, str]] = {}  # the run's folder and the process of each folder with event files
    visited: set[str] = set()
    for folder, subfolders, names in os.walk(root, followlinks=True, onerror=report_error):
        resolved = os.path.realpath(folder)
        if resolved in visited:  # a link to a folder above it
            subfolders.clear()
            continue
        visited.add(resolved)
        path = Path(folder)
        files = sorted(path / name for name in names if EVENT_FILE_MARK in name)
        if not files:
            continue
        writer = next((parent for parent in path.parents if parent in places), None)
        if writer is not None:
            run_folder, process = places[writer]
            line = Part(process, path.relative_to(writer).as_posix(), files)
            if _is_chart_line(line):
                parts[run_folder].append(line)
                continue
        is_process = path != root and bool(PROCESS_FOLDER.fullmatch(path.name))
        is_of_hparams = path.parent in parts and bool(HPARAMS_FOLDER.fullmatch(path.name)) and _has_hparams(files[0])
        places[path] = (path.parent, path.name) if is_process or is_of_hparams else (path, "")
        run_folder, process = places[path]
        parts.setdefault(run_folder, []).append(Part(process, "", files))
    return [
        LogFolder(path.name if path == root else os.path.relpath(path, root), path, sorted(own_parts, key=_order))
        for path, own_parts in sorted(parts.items())
    ]


def _order(part: Part) -> tuple[object, ...]:
    """Sort the run's own files first, then those of ranks by number, of other folders, and of chart lines."""
    match = PROCESS_FOLDER.fullmatch(part.process)
    is_rank = match is not None and match["rank"] is not None
    return part.chart_line, bool(part.process) and not is_rank, len(part.process), part.process


def _is_chart_line(part: Part) -> bool:
    """Tell whether a folder is one of ``add_scalars``: its first file has no tag but that of the chart."""
    try:
        tags = {value.tag for event in islice(EventFile(part.files[0]), _FIRST_EVENTS) for value in event.summary.value}
    except OSError:  # the import reports it
        return False
    return bool(tags) and all(map(part.is_line_of, tags))


def _has_hparams(path: Path) -> bool:
    """Tell whether a file begins with hyperparameters, as one of ``add_hparams`` does."""
    try:
        values = [value for event in islice(EventFile(path), 2) for value in event.summary.value]
    except OSError:  # the import reports it
        return False
    return any(value.metadata.plugin_data.plugin_name == HPARAMS for value in values)

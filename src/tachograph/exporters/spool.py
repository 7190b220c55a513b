"""The spool: requests that could not be sent, on disk, for this process or for a later one.

``spool/<destination>/<n>.spool`` under the store: segments, read in the order of their numbers and deleted when
everything in them has arrived. A segment only grows; :mod:`tachograph.exporters.spool_format` says what is in it.
The process that uses a segment holds a lock on it, which the system takes away when the process ends, however that
happens: then another one may take the segment over, and goes on from there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from tachograph.exporters.spool_format import SUFFIX, Framed, Position, SpoolFormat, SpoolRecord, after
from tachograph.identity.environment import setting
from tachograph.recording.own_metrics import Reason

LIMIT = 2**30
Sharing = Literal["destination", "run", "process"]
_SEGMENT = 4 * 2**20
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}


def spool_limit_of(environ: Mapping[str, str]) -> int | None:
    """Return the bytes that a process may keep for each destination: TACHOGRAPH_SPOOL_LIMIT, 0 for none.

    None where it is not set: then InfluxDB has 1 GiB (:data:`LIMIT`), and no other destination has any.

    Raises:
        ValueError: it is no number of bytes.
    """
    given = setting(environ, "", None, "TACHOGRAPH_SPOOL_LIMIT")
    if given is None:
        return None
    told = given.string()
    if not (told.isascii() and told.isdigit()):
        raise given.wrong("it must be a number of bytes, or 0 for no spool")
    return int(told)


class _Segment:
    """One file of the spool, whose lock we hold, unless its file system has none."""

    def __init__(self, path: Path, file: int, form: SpoolFormat, *, own: bool, locked: bool) -> None:
        self.path, self.file, self.form, self.own, self.locked = path, file, form, own, locked
        self.size = os.fstat(file).st_size
        self._is_torn = False  # its last record, which could not be taken back
        if own:
            self._write(form.header(Position(Framed.begins_at, 0)))
        said = form.begin(file, self.size)
        self.says_how_far = said is not None
        self.done = said or Position(0, 0)  # what has arrived
        self._read: deque[Position] = deque()  # ends of the records that were read and have not arrived

    @property
    def is_unread(self) -> bool:
        """Tell whether nothing was read that has not arrived."""
        return not self._read

    def append(self, record: SpoolRecord, framed: Framed) -> None:
        """Write a record at the end, whole or not at all.

        The number of items comes first: where the process is killed in between, the next one knows what is missing.
        """
        before = self.done.written or 0
        self._expect(before + record.items)
        try:
            self._write(framed.record(record, before))
        except OSError:
            self._expect(before)
            raise

    def _expect(self, items: int) -> None:
        self.done = self.done._replace(written=items)
        with contextlib.suppress(OSError):  # the next note says it, too
            self.note()

    def _write(self, data: bytes) -> None:
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self.file, data[written:], self.size + written)
        except OSError:
            self._is_torn = True
            os.ftruncate(self.file, self.size)
            self._is_torn = False
            raise
        self.size += len(data)

    @property
    def missing(self) -> int:
        """How many items were written and have not arrived; 0 where the file does not say how many were."""
        return max((self.done.written or 0) - self.done.before - self.done.items, 0)

    def is_as_left(self) -> bool:
        """Tell whether it is in its folder, and as long as its records are."""
        found = os.fstat(self.file)
        return bool(found.st_nlink) and found.st_size == self.size and not self._is_torn

    def next(self) -> SpoolRecord | None:
        """Return the next record that was not read yet.

        Raises:
            OSError: the file cannot be read.
        """
        place = self._read[-1] if self._read else self.done
        record = self.form.read(self.file, place, os.fstat(self.file).st_size)
        if record is None:
            return None
        self._read.append(after(place, record))
        return record._replace(own=self.own, uncertain=self.done.written is None)

    def unread(self) -> None:
        """Read the last record once more."""
        self._read.pop()

    def again(self) -> None:
        """Read again all that has not arrived."""
        self._read.clear()

    def advance(self, size: int, items: int) -> None:
        """Remember that records of so many bytes, and so many items after them, have arrived."""
        end, before = self.done.offset + size, self.done.before
        while self._read and self._read[0].offset <= end:
            before = self._read.popleft().before
        self.done = self.done._replace(offset=end, items=items, uncertain=False, before=before)

    def note(self) -> None:
        """Say in the file how far it has been delivered.

        Raises:
            OSError: the file does not take it; a process that takes the file over would send that again.
        """
        if self.says_how_far:
            os.pwrite(self.file, self.form.header(self.done), 0)

    def left(self, pace: Callable[[], None]) -> int:
        """Return how many items have not arrived, as far as the file can be read."""
        size = os.fstat(self.file).st_size
        return max(self.form.count(self.file, self.done, size, pace) - self.done.items, 0)

    def damage(self, framed: Framed, pace: Callable[[], None], is_late: Callable[[], bool]) -> int:
        """Return how many of its items cannot be read any more; another process does not count them again.

        Raises:
            OSError: the file cannot be read.
        """
        if not os.fstat(self.file).st_nlink:
            return self.missing
        size, place, found = os.fstat(self.file).st_size, self.done, 0
        while not is_late() and (record := framed.read(self.file, place, size)) is not None:
            following = after(place, record)
            if not record.payload and record.items:
                if following.offset >= size:
                    size = place.offset
                    break
                found += record.items - place.items
                self._mark(framed.gone(record, place.before), place)
            place = following
            pace()
        if place.offset >= size:  # what was after it cannot be read, or was cut off
            found += max((self.done.written or 0) - place.before - place.items, 0)
            self.done = self.done._replace(written=place.before + place.items)
            with contextlib.suppress(OSError):
                os.ftruncate(self.file, min(os.fstat(self.file).st_size, size))
        with contextlib.suppress(OSError):
            self.note()
        return found

    def _mark(self, head: bytes, place: Position) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self.file, head, place.offset)

    def remove(self) -> None:
        """Delete the file, and let go of its lock."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.close()

    def close(self) -> None:
        """Let go of the lock."""
        with contextlib.suppress(OSError):
            os.close(self.file)


class Spool:
    """A bounded queue of records on disk; used by one thread at a time.

    Args:
        folder: of the destination; made by the first record, readable by its owner alone.
        limit: bytes that this process may keep; beyond it the oldest segment goes.
        lose: called where a segment goes, with a number of items, a reason, and whether they are our own.
        pace: called between slices of work.
        of: processes that share the folder: all with this destination, those of one run, or this one alone. The folder
            of a run or a process goes with its last segment.
        formats: of files that other processes have left there, by their suffix: those of earlier versions.
        flock: locks a file, as :func:`fcntl.flock`.
    """

    def __init__(
        self,
        folder: Path,
        limit: int,
        lose: Callable[[int, Reason, bool], None] = lambda _count, _reason, _own: None,
        pace: Callable[[], None] = lambda: None,
        *,
        of: Sharing = "destination",
        formats: Mapping[str, Callable[[], SpoolFormat]] | None = None,
        flock: Callable[[int, int], object] = fcntl.flock,
    ) -> None:
        self.folder, self.limit, self.lose, self._flock = folder, limit, lose, flock
        self.of = of
        self._pace = pace
        self._formats: dict[str, Callable[[], SpoolFormat]] = {SUFFIX: Framed, **(formats or {})}
        self._framed = Framed()
        self._segments: list[_Segment] = []
        self._open: _Segment | None = None  # the one that is written to
        self._reading: _Segment | None = None

    @property
    def empty(self) -> bool:
        """Tell whether it holds nothing."""
        return not self._segments

    @property
    def is_reading(self) -> bool:
        """Tell whether something was taken, and nothing is decided yet: not after :meth:`close`."""
        return self._reading is not None

    @property
    def adoptable(self) -> bool:
        """Tell whether another process can take it over: not where there are no locks."""
        return all(segment.locked for segment in self._segments)

    def append(self, record: SpoolRecord) -> None:
        """Keep a record; one that is longer than the whole share is given up alone.

        Raises:
            OSError: it does not fit on the disk.
        """
        size = len(self._framed.record(record))
        if size + Framed.begins_at > self.limit:
            self.lose(record.items, "spool_full", True)
            return
        most = min(_SEGMENT, max(self.limit // 4, 1))
        if self._open is None or self._open.size + size > most or not self._open.is_as_left():
            self._open = self._begin()
            self._segments.append(self._open)
        is_oldest = self._open.done.offset == self._open.size
        self._open.append(record, self._framed)
        if record.uncertain and is_oldest:
            self._open.done = self._open.done._replace(uncertain=True)
            self._open.note()
        while sum(segment.size for segment in self._segments) > self.limit and self._drop_oldest():
            pass

    def _begin(self) -> _Segment:
        while True:
            for folder in reversed((self.folder / "file").absolute().parents):
                if not folder.exists():
                    folder.mkdir(mode=0o700, exist_ok=True)
            path = self.folder / f"{time.time_ns():020d}{SUFFIX}"
            try:
                return _segment(path, Framed(), own=True, flock=self._flock)
            except (FileExistsError, FileNotFoundError, BlockingIOError, _Gone):  # another process was quicker
                continue
            except OSError:
                with contextlib.suppress(OSError):
                    path.unlink()
                raise

    def _drop_oldest(self) -> bool:
        for segment in self._segments:
            if segment is not self._reading:  # what is on its way is counted where it arrives
                self.lose(segment.left(self._pace), "spool_full", segment.own)
                self._forget(segment)
                return True
        return False

    def _forget(self, segment: _Segment) -> None:
        self._segments.remove(segment)
        if segment is self._open:
            self._open = None
        segment.remove()

    def adopt(self) -> int:
        """Take over the segments of processes that have ended, and return how many there are."""
        held = {segment.path for segment in self._segments}
        found = 0
        for path in sorted(self.folder.glob("*")):
            if path in held or path.suffix not in self._formats:
                continue
            with contextlib.suppress(OSError):  # gone in between, in use, or another user's
                segment = _segment(path, self._formats[path.suffix](), own=False, flock=self._flock)
                if not segment.locked or (
                    path.suffix == SUFFIX and not segment.says_how_far and segment.size >= Framed.begins_at
                ):
                    segment.close()  # there is no telling whether it is in use; or a later version wrote it
                    continue
                is_there = segment.size > segment.done.offset and (path.suffix != SUFFIX or segment.says_how_far)
                if gone := segment.done.before if segment.done.written is None else segment.missing * (not is_there):
                    self.lose(gone, "damaged", False)
                if is_there:
                    self._segments.append(segment)
                    found += 1
                    segment.note()
                else:
                    segment.remove()
        self._segments.sort(key=lambda segment: segment.path.name)
        return found

    def take(self, items: int | None) -> tuple[list[SpoolRecord], int, bool]:
        """Return the oldest records that were not taken yet, from one segment.

        The taken records wait for :meth:`end` or :meth:`give_back`. A record of which nothing can be sent comes alone.

        Args:
            items: as many, or some more; None for one record.

        Returns:
            The records, how many items of the first have arrived already, and whether it may have arrived as a whole.

        Raises:
            OSError: the segment cannot be read; the others come before it from now on.
        """
        if self._reading is None:
            self._reading = next(iter(self._segments), None)
        segment = self._reading
        if segment is None:
            return [], 0, False
        is_first = segment.is_unread
        found: list[SpoolRecord] = []
        count = 0
        try:
            while (not found or count < (items or 0)) and (record := segment.next()) is not None:
                if found and not record.payload:
                    segment.unread()
                    break
                found.append(record)
                count += record.items
                if not record.payload:
                    break
                self._pace()
        except OSError:
            self._segments.sort(key=lambda segment: segment is self._reading)
            raise
        return found, segment.done.items if is_first else 0, segment.done.uncertain and is_first

    def trying(self, *, uncertain: bool) -> None:
        """Note that the first record is on its way, or that it has surely not arrived.

        Raises:
            OSError: the file does not take it.
        """
        segment = self._reading
        if segment is not None and segment.done.uncertain != uncertain:
            segment.done = segment.done._replace(uncertain=uncertain)
            segment.note()

    def advance(self, size: int, items: int) -> None:
        """Note that a part of the batch has arrived: it is never taken again, by another process neither.

        Args:
            size: bytes of whole records, since the last time.
            items: how many items of the record after them have arrived.

        Raises:
            OSError: it is noted in memory alone; the next process would take that part again.
        """
        if self._reading is not None:
            self._reading.advance(size, items)
            self._reading.note()

    def end(self) -> None:
        """Let go of the batch; a segment of which all has arrived is deleted, the rest is taken again."""
        segment, self._reading = self._reading, None
        if segment is None:
            return
        if segment.done.offset >= os.fstat(segment.file).st_size:
            if segment.missing:  # they are gone with a part of the file
                self.lose(segment.missing, "damaged", segment.own)
            self._forget(segment)
        else:
            segment.again()

    def give_back(self) -> None:
        """Have everything that was taken taken again, the next time."""
        segment, self._reading = self._reading, None
        if segment is not None:
            segment.again()

    def lose_what_is_gone(self, is_late: Callable[[], bool] = lambda: False) -> None:
        """Count, at the end, our items in files that were deleted, cut or overwritten.

        Args:
            is_late: tells that there is no more time; what is not looked at until then, the next process counts.
        """
        for segment in [each for each in self._segments if each.own]:
            with contextlib.suppress(OSError):
                if gone := segment.damage(self._framed, self._pace, is_late):
                    self.lose(gone, "damaged", True)
                if not segment.missing:
                    self._forget(segment)

    def close(self, *, tidy: bool = False) -> None:
        """Leave the files to the next process.

        Args:
            tidy: remove the folder of a run or a process where nothing is left in it.
        """
        segments, self._segments, self._open, self._reading = self._segments, [], None, None
        for segment in segments:
            segment.close()
        if tidy and self.of != "destination" and not segments:
            with contextlib.suppress(OSError):  # another process of the run has files in it
                self.folder.rmdir()


class _Gone(OSError):  # noqa: N818 - no error, another process was quicker
    """The file was deleted by the process that had it before."""


def _segment(path: Path, form: SpoolFormat, *, own: bool, flock: Callable[[int, int], object]) -> _Segment:
    """Return a segment, locked: a new one of our own, or another process's; see :func:`_lock`."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if own else 0), 0o600)
    try:
        return _Segment(path, file, form, own=own, locked=_lock(file, flock))
    except OSError:
        os.close(file)
        raise


def _lock(file: int, flock: Callable[[int, int], object]) -> bool:
    """Lock an open file; False where its file system has no locks.

    Raises:
        BlockingIOError: another process has it.
        _Gone: and now it is deleted.
        OSError: whatever else the file system says.
    """
    try:
        flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    if not os.fstat(file).st_nlink:
        raise _Gone
    return True

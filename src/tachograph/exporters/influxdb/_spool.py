"""The spool: what could not be sent, on disk, for this process or for the next one.

``spool/<destination>/<n>.jsonl`` under the store, one OTLP request a line; files are read in the order of their
numbers, and deleted when everything in them has been accepted. The first line of each says how much of it has been, see
:mod:`tachograph.exporters.influxdb.position`. Whoever uses a file holds a lock on it, which the system takes away when
the process ends, however that happens: then the next process of the destination takes the file over, and goes on from
there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tachograph.exporters.influxdb.position import SIZE, Position, first_line, position
from tachograph.exporters.influxdb.spooled import records
from tachograph.recording.own_metrics import Reason

_SEGMENT = 4 * 2**20
_AT_ONCE = 2**16
_PIECE = 2**20
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}


class _Segment:
    """One file of the spool, whose lock we hold, unless its file system has none."""

    def __init__(self, path: Path, file: int, *, own: bool, locked: bool) -> None:
        self.path = path
        self.file = file
        self.own = own
        self.locked = locked
        self.size = os.fstat(file).st_size
        said = position(os.pread(file, SIZE, 0), self.size)
        self.done = said or Position(0, 0)  # what was accepted
        self.says_how_far = said is not None
        self.is_torn = False  # its last line, which could not be taken back
        self._ours = 0  # records that we appended, in lines that are not accepted as a whole
        if own:
            self.done, self.says_how_far = Position(SIZE, 0), True
            self.append(first_line(self.done))
        self.taken = self.done.offset  # bytes that were read
        self._read: deque[tuple[int, int]] = deque()  # bytes and records of each line that was read and is not accepted
        self.buffer = b""

    def append(self, line: bytes) -> None:
        """Write a line at the end, whole or not at all."""
        written = 0
        try:
            while written < len(line):
                written += os.pwrite(self.file, line[written:], self.size + written)
        except OSError:
            self.is_torn = True
            os.ftruncate(self.file, self.size)
            self.is_torn = False
            raise
        self.size += len(line)
        self._ours += records(line)

    @property
    def ours(self) -> int:
        """How many records that we appended are not accepted."""
        return self._ours - self.done.records

    def is_as_left(self) -> bool:
        """Tell whether it is in its folder, and as long as what was appended."""
        found = os.fstat(self.file)
        return bool(found.st_nlink) and found.st_size == self.size and not self.is_torn

    def accept(self, done: Position) -> None:
        """Remember how far it has been delivered."""
        end, self.done = self.done.offset, done
        while end < done.offset and self._read:
            size, found = self._read.popleft()
            end, self._ours = end + size, self._ours - found

    def note(self) -> None:
        """Say in the file how far it has been delivered.

        Raises:
            OSError: the file does not take it; a process that takes the file over would send that again.
        """
        if self.says_how_far:
            os.pwrite(self.file, first_line(self.done), 0)

    def line(self) -> bytes:
        """Return the next line, with its end: without one where it is torn, and nothing at the end of the file."""
        parts: list[bytes] = []
        while True:
            end = self.buffer.find(b"\n") + 1
            if end:
                parts.append(self.buffer[:end])
                self.buffer = self.buffer[end:]
                break
            parts.append(self.buffer)
            position = self.taken + sum(map(len, parts))
            self.buffer = os.pread(self.file, _AT_ONCE, position)
            if not self.buffer:
                break
        line = b"".join(parts)
        self.taken += len(line)
        if line:
            self._read.append((len(line), records(line)))
        return line

    def again(self) -> None:
        """Read again what was not accepted."""
        self.taken, self.buffer = self.done.offset, b""
        self._read.clear()

    def left(self, pace: Callable[[], None]) -> int:
        """Return how many records are not accepted, as far as the file can be read."""
        (at, arrived), found, rest = self.done, 0, b""
        with contextlib.suppress(OSError):
            while piece := os.pread(self.file, _PIECE, at):
                at += len(piece)
                whole, _, rest = (rest + piece).rpartition(b"\n")
                found += records(whole)
                pace()
        return max(found + records(rest) - arrived, 0)

    def remove(self) -> None:
        """Delete the file, and let go of its lock."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.close()

    def close(self) -> None:
        """Let go of the lock."""
        with contextlib.suppress(OSError):
            os.close(self.file)


class Taken(NamedTuple):
    """A line of the spool.

    Attributes:
        line: with its end; without one where it is torn.
        own: whether this process wrote it.
        arrived: how many of its records have been accepted already.
    """

    line: bytes
    own: bool
    arrived: int


class Spool:
    """A bounded queue of lines on disk; used by one thread at a time.

    Args:
        folder: of the destination; made by the first line, readable by its owner alone.
        limit: bytes that this process may keep; beyond it the oldest file goes.
        lose: called where a file goes, with a number of points, a reason, and whether they are our own.
        pace: called between slices of work.
    """

    def __init__(
        self, folder: Path, limit: int, lose: Callable[[int, Reason, bool], None], pace: Callable[[], None]
    ) -> None:
        self.folder = folder
        self.limit = limit
        self._lose = lose
        self._pace = pace
        self._segments: list[_Segment] = []
        self._open: _Segment | None = None  # the one that is written to
        self._reading: _Segment | None = None

    @property
    def empty(self) -> bool:
        """Tell whether it holds nothing."""
        return not self._segments

    @property
    def adoptable(self) -> bool:
        """Tell whether another process would take over what it holds: not where there are no locks."""
        return all(segment.locked for segment in self._segments)

    def append(self, line: bytes) -> None:
        """Keep a line.

        Raises:
            OSError: it does not fit on the disk.
        """
        most = min(_SEGMENT, max(self.limit // 4, 1))
        if self._open is None or self._open.size + len(line) > most or not self._open.is_as_left():
            self._open = self._begin()
            self._segments.append(self._open)
        self._open.append(line)
        while sum(segment.size for segment in self._segments) > self.limit and self._drop_oldest():
            pass

    def _begin(self) -> _Segment:
        for folder in reversed((self.folder / "file").absolute().parents):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
        while True:
            path = self.folder / f"{time.time_ns():020d}.jsonl"
            try:
                return _segment(path, own=True)
            except (FileExistsError, BlockingIOError, _Gone):  # somebody adopts it in this moment
                continue
            except OSError:
                with contextlib.suppress(OSError):
                    path.unlink()
                raise

    def _drop_oldest(self) -> bool:
        for segment in self._segments:
            if segment is not self._reading:  # what is on its way is counted by whoever sends it
                self._lose(segment.left(self._pace), "spool_full", segment.own)
                self._forget(segment)
                return True
        return False

    def _forget(self, segment: _Segment) -> None:
        self._segments.remove(segment)
        if segment is self._open:
            self._open = None
        segment.remove()

    def adopt(self) -> int:
        """Take over the files of processes that have ended, and return how many there are."""
        held = {segment.path for segment in self._segments}
        found = 0
        for path in sorted(self.folder.glob("*.jsonl")):
            if path in held:
                continue
            with contextlib.suppress(OSError):  # gone in between, in use, or another user's
                segment = _segment(path, own=False)
                if not segment.locked:  # nobody can tell whether it is in use
                    segment.close()
                elif segment.size > segment.done.offset:
                    self._segments.append(segment)
                    found += 1
                else:
                    segment.remove()
        self._segments.sort(key=lambda segment: segment.path.name)
        return found

    def take(self) -> Taken | None:
        """Return the oldest line that was not taken yet; None where there is none.

        What was taken waits for :meth:`accept` or :meth:`give_back`. All lines until then come from one file.

        Raises:
            OSError: the file cannot be read; the others come before it from now on.
        """
        if self._reading is None:
            self._reading = next(iter(self._segments), None)
        if self._reading is None:
            return None
        done = self._reading.done
        arrived = done.records if self._reading.taken == done.offset else 0
        try:
            line = self._reading.line()
        except OSError:
            self._segments.sort(key=lambda segment: segment is self._reading)
            raise
        return Taken(line, self._reading.own, arrived) if line else None

    def advance(self, size: int, records: int) -> bool:
        """Note that part of what was taken has arrived: it is never taken again, by the next process neither.

        Args:
            size: bytes of whole lines, since the last time.
            records: how many records of the line after them have arrived.

        Returns:
            Whether it could be noted: not after :meth:`close`.

        Raises:
            OSError: it is noted in memory alone; the next process would take that part again.
        """
        if self._reading is None:
            return False
        self._reading.accept(Position(self._reading.done.offset + size, records))
        self._reading.note()
        return True

    def accept(self) -> None:
        """Forget what was taken: it has arrived. A file that is done is deleted."""
        segment, self._reading = self._reading, None
        if segment is None:
            return
        is_noted = segment.done == (segment.taken, 0)
        segment.accept(Position(segment.taken, 0))
        if segment.taken >= os.fstat(segment.file).st_size:
            if segment.ours > 0:  # they are gone with a part of the file
                self._lose(segment.ours, "damaged", True)
            self._forget(segment)
        elif not is_noted:
            segment.note()

    def give_back(self) -> None:
        """Take again, the next time, what was taken."""
        segment, self._reading = self._reading, None
        if segment is not None:
            segment.again()

    def lose_what_is_gone(self) -> None:
        """Count, at the end, what was ours in files that were deleted or cut: no other process will find it."""
        for segment in self._segments:
            if not segment.is_as_left():
                gone = segment.ours - (segment.left(self._pace) if os.fstat(segment.file).st_nlink else 0)
                if gone > 0:
                    self._lose(gone, "damaged", True)

    def close(self) -> None:
        """Leave the files to the next process."""
        segments, self._segments, self._open, self._reading = self._segments, [], None, None
        for segment in segments:
            segment.close()


class _Gone(OSError):  # noqa: N818 - no error, somebody was quicker
    """Who had the file before has deleted it."""


def _segment(path: Path, *, own: bool) -> _Segment:
    """Return a file, locked: a new one of our own, or another process's; see :func:`_lock`."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if own else 0), 0o600)
    try:
        return _Segment(path, file, own=own, locked=_lock(file))
    except OSError:
        os.close(file)
        raise


def _lock(file: int) -> bool:
    """Lock an open file; False where its file system has no locks.

    Raises:
        BlockingIOError: somebody else has it.
        _Gone: and now nobody has.
        OSError: whatever else the file system says.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    if not os.fstat(file).st_nlink:
        raise _Gone
    return True

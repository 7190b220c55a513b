"""One run's file: SQLite in WAL mode, which other processes may read while the hub writes."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

from tachograph.identity.run_id import file_safe
from tachograph.runs._schema import NewerSchema, check_tables, migrate
from tachograph.runs.file_lock import Claim
from tachograph.runs.open_stores import OpenStores

SUFFIX = ".db"
MOST_BYTES = 2 * 2**30  # of a run, beyond which its samples are thinned
_LOG_BYTES = 64 * 2**20
_FEW = 256  # pages of the log: a moment's writing
_LOG_PAGES = 4096  # 16 MiB
_PAGE_BYTES = 4096
_BUSY = 5.0  # seconds to wait for another process that writes

_NO_LOG = (0, 0, 0)
_HARMLESS = (sqlite3.OperationalError, sqlite3.IntegrityError, sqlite3.ProgrammingError)

_holders: WeakSet[object] = WeakSet()


class StoreError(OSError):
    """A run's file cannot be used; the message names the file and says why."""


class FileLocks:
    """The use of SQLite's locks by this process, until :meth:`release`, or while it is alive.

    A file that was read without locks takes all locks of this process on it along when it is closed (fcntl(2), "Record
    locking"). So it is read with them where the process holds any.
    """

    def __init__(self) -> None:
        _holders.add(self)

    def release(self) -> None:
        """End the use."""
        _holders.discard(self)

    @staticmethod
    def held() -> bool:
        """Tell whether this process holds any."""
        return bool(_holders)


class Store:
    """A run's file, opened, and made where there was none: readable by its owner only.

    If too many are open it is closed until it is used again. Writes of several threads go in one after the other.
    No committed write is lost when the process is killed, at any point (SQLite, "Write-Ahead Logging",
    "synchronous=NORMAL").

    Args:
        folder: the hub's store.
        run: the run's id.
        open_stores: bounds how many files are open at once; None for no bound.
        log_bytes: of SQLite's log on disk, unless a reader holds it for long.
        log_pages: of SQLite's log, from which on it begins anew.

    Attributes:
        shared: another hub used the file already when this one began.
        renewed: number of times that a new file took its place.

    Raises:
        StoreError: the folder or the file cannot be written, is damaged, or is of a newer version.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        open_stores: OpenStores | None = None,
        *,
        log_bytes: int = _LOG_BYTES,
        log_pages: int = _LOG_PAGES,
    ) -> None:
        self._log_bytes, self._log_pages = log_bytes, log_pages
        self.path = path_of(folder, run)
        self.shared = False
        self.renewed = 0
        self._known: tuple[int, int] | None = None  # device and inode of the file
        self._written = 0  # the file's time after our last write
        self._log_path = f"{self.path}-wal"
        self._log: tuple[int, int, int] | None = None  # the log's state after our last write; None for unknown
        self._synced: tuple[int, int, int] | None = None  # its state when it was last written to the disk
        self._is_timely = True  # the time of the log tells when it was written: not on each file system
        self._version = 0  # changes where others commit (SQLite, "PRAGMA data_version")
        self._suspect = self._damaged = False
        self._open_stores = open_stores or OpenStores()
        self._lock = threading.Lock()
        self._taking_over = threading.Lock()
        self._claim: Claim | None = None
        self._connection: sqlite3.Connection | None = None
        self._checkpoints: sqlite3.Connection | None = None
        self._closed = False
        self._locks = FileLocks()
        with self._lock:
            self._wake()
        self._open_stores.use(self)

    @property
    def is_open(self) -> bool:
        """True while the file is open."""
        return self._connection is not None

    def _wake(self) -> sqlite3.Connection:
        """Return the connection for everything; the file is opened where it is not. Hold the lock.

        Raises:
            StoreError: the file cannot be used.
        """
        if self._connection is not None:
            return self._connection
        if self._closed:
            raise StoreError(errno.EBADF, "the file is closed", str(self.path))
        if self._known is not None and (self._found() or (None,))[0] != self._known:  # see trouble()
            raise StoreError(errno.ENOENT, "the file was deleted while it was not in use", str(self.path))
        make_folder(self.path.parent, named=self.path)
        check_regular(self.path)
        try:
            if self._claim is None:
                self._claim = Claim(self.path)
                self.shared = self._claim.shared
            # SQLite gives its -wal and -shm files the permissions of this one.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            why = f"cannot write to the store: {error.strerror}"
            raise StoreError(error.errno, why, str(self.path)) from error
        try:
            with self._named_errors():
                self._connection, self._checkpoints = self._begin()
        except BaseException:
            self._release()
            raise
        found = self._found()
        if found is not None:
            self._known, self._written = found
        return self._connection

    def trouble(self) -> str:
        """Return a change of the file by another program: ``deleted``, ``damaged``, or empty for none.

        If another program has written into it, it is checked, which reads all of it; others write meanwhile.
        """
        with self._taking_over:
            if self._closed or self._known is None:
                return ""
            found = self._found()
            if found is None or found[0] != self._known:
                return "deleted"
            if not self._damaged and (self._suspect or found[1] != self._written):
                self._damaged = not _is_sound(self.path, or_failing=self._suspect)
                self._written = found[1]
                self._is_timely = self._is_timely and (self._damaged or not self._suspect)
                self._suspect, self._log = False, None
            return "damaged" if self._damaged else ""

    def _found(self) -> tuple[tuple[int, int], int] | None:
        """Return device and inode of the file, and the time of its last write; None where there is none."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return (found.st_dev, found.st_ino), found.st_mtime_ns

    def renew(self, forget: Callable[[], None]) -> Path | None:
        """Go on in a new file; return the path at which the old one is kept, None where there is none.

        Args:
            forget: called while no thread writes: forgets the row numbers of the old file.

        Raises:
            StoreError: no new file can be made.
        """
        with self._taking_over, self._lock:
            with _log_is_left(self.path) if self._damaged else contextlib.nullcontext():
                self._release()
            aside = None
            if self._damaged and self.path.exists():
                aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
                for suffix in ("", "-wal"):
                    with contextlib.suppress(OSError):
                        self.path.with_name(self.path.name + suffix).replace(aside.with_name(aside.name + suffix))
            with contextlib.suppress(OSError):
                self.path.with_name(self.path.name + "-shm").unlink()
            self._suspect = self._damaged = False
            self._known = None
            self.renewed += 1
            forget()
            self._wake()
            return aside

    def _begin(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        """Return the connection for everything, and the one for checkpoints."""
        connection = self._open()
        try:
            check_tables(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # checkpoint() does it, beside the writers
            connection.execute(f"PRAGMA journal_size_limit = {self._log_bytes}")  # once it begins anew
            migrate(connection)
            # Read the schema and the ends of the tables: damage there would show when it is too late for a message.
            connection.execute("SELECT max(id) FROM process").fetchone()
            connection.execute("SELECT max(rowid) FROM event").fetchone()
            connection.execute("SELECT max(id) FROM block").fetchone()
            return connection, self._open()
        except BaseException:
            connection.close()
            raise

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA synchronous = NORMAL")  # reads the file: one that is none is refused here
        except BaseException:
            connection.close()
            raise
        return connection

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except NewerSchema as error:
            why = (
                f"the file has schema version {error}, written by a newer Tachograph; use that version or another store"
            )
            raise StoreError(errno.EPROTO, why, str(self.path)) from None
        except sqlite3.DatabaseError as error:
            self._damaged = self._damaged or (self._known is not None and not isinstance(error, _HARMLESS))
            if isinstance(error, sqlite3.OperationalError):
                why = f"cannot use the file: {error}"
            else:
                why = f"the file is damaged; move it away to continue: {error}"
            raise StoreError(errno.EIO, why, str(self.path)) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection for one transaction: all of it is durable once the block is left, or none of it.

        Raises:
            StoreError: it could not be written.
        """
        with self._lent(to_write=True) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._log = self._found_log()

    @contextlib.contextmanager
    def _lent(self, *, to_write: bool = False) -> Iterator[sqlite3.Connection]:
        with self._lock:
            connection = self._wake()
            with self._named_errors():
                yield self._with_its_log(connection) if to_write else connection
        self._open_stores.use(self)

    def _with_its_log(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Return a connection whose log is as we left it, or as others did through SQLite.

        If the log was deleted, its content is still at hand, and goes into the file. If it was written into,
        nothing may follow until :meth:`trouble` has looked: transactions behind a gap are lost.

        Raises:
            StoreError: it was written into.
        """
        left, found = self._log, self._found_log()
        if left is None:
            ((self._version,),) = connection.execute("PRAGMA data_version")
        elif found == _NO_LOG:
            if self._taking_over.acquire(blocking=False):
                try:
                    _take_over(connection)
                    self._shut()
                    return self._wake()
                finally:
                    self._taking_over.release()
        elif found is not None and (found != left or self._suspect):
            ((version,),) = connection.execute("PRAGMA data_version")
            self._suspect = self._suspect or version == self._version
            self._version = version
            if self._suspect:
                why = "another program wrote to the log of the file, which is being checked"
                raise StoreError(errno.EIO, why, str(self.path))
        return connection

    def _found_log(self) -> tuple[int, int, int] | None:
        """Return inode, size and time of SQLite's log; :data:`_NO_LOG` where there is none, None for unknown."""
        try:
            found = os.stat(self._log_path)  # noqa: PTH116 - twice in each transaction
        except FileNotFoundError:
            return _NO_LOG
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns if self._is_timely else 0

    def write(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each row, in one transaction.

        Raises:
            StoreError: it could not be written.
        """
        with self.transaction() as connection:
            connection.executemany(statement, rows)

    def read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query.

        Raises:
            StoreError: the file is damaged.
        """
        with self._lent() as connection:
            return connection.execute(statement, values).fetchall()

    def size(self) -> int:
        """Return the bytes of the file's content, without its free pages."""
        ((pages, free, each),) = self.read(
            "SELECT page_count, freelist_count, page_size"
            " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
        )
        return int((pages - free) * each)

    def sync(self) -> None:
        """Write the log to the disk, so that a power cut undoes no commit; take a long one over: :meth:`checkpoint`.

        The writer that begins a log anew waits for the disk, and all that write after it: seconds where that is busy.
        A log that is only written to the disk goes on.

        Raises:
            StoreError: it could not be written.
        """
        found = self._found_log()
        if found is None or found[1] >= self._log_pages * _PAGE_BYTES:
            self.checkpoint()
            return
        with self._taking_over:
            if self._checkpoints is None or found == _NO_LOG or (found == self._synced and self._is_timely):
                return
            try:
                log = os.open(self._log_path, os.O_RDONLY | os.O_CLOEXEC)  # it has none of SQLite's locks
                try:
                    os.fsync(log)
                finally:
                    os.close(log)
            except OSError as error:
                why = f"cannot write the log of the file to the disk: {error.strerror}"
                raise StoreError(error.errno, why, str(self.path)) from error
            self._synced = found

    def checkpoint(self) -> None:
        """Take the log over into the file, first while others write, then the rest that they wrote meanwhile.

        The next writer begins the log anew only where nothing is left in it (SQLite, "Write-Ahead Logging",
        "Avoiding Excessively Large WAL Files"). A file that is not open has no log.

        Raises:
            StoreError: it could not be written.
        """
        with self._taking_over, self._named_errors():
            if self._checkpoints is None:
                return
            pages, left = _take_over(self._checkpoints)
            # More is left only while a reader holds it for long: holding up others is of no use then.
            if pages >= self._log_pages and left <= _FEW:
                with self._lock:
                    _take_over(self._checkpoints)
            self._noted()

    def _noted(self) -> None:
        """Note our write into the file, unless another file has taken its place."""
        found = self._found()
        if found is not None and found[0] == self._known:
            self._written = found[1]

    def rest(self) -> bool:
        """Close the file until it is used again, and keep the claim; False where it is in use just now."""
        return self._if_idle(self._shut)

    def let_go(self) -> bool:
        """Close the file until it is used again, and release the claim; False where it is in use just now."""
        return self._if_idle(self._release)

    def _if_idle(self, work: Callable[[], None]) -> bool:
        if not self._taking_over.acquire(blocking=False):
            return False
        try:
            if not self._lock.acquire(blocking=False):
                return False
            try:
                work()
            finally:
                self._lock.release()
        finally:
            self._taking_over.release()
        return True

    def close(self) -> None:
        """Close the file for good."""
        with self._taking_over, self._lock:
            self._closed = True
            self._release()
        self._open_stores.forget(self)
        self._locks.release()

    def _release(self) -> None:
        self._shut()
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def _shut(self) -> None:
        """Close the connections: the last one that is closed takes the log over into the file."""
        for connection in (self._checkpoints, self._connection):
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
        self._connection = self._checkpoints = self._log = None
        self._noted()


def _take_over(connection: sqlite3.Connection) -> tuple[int, int]:
    """Take the log over into the file; return its pages, and the number of those that a reader still needs."""
    _, pages, taken = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(pages), int(pages - taken)


def _is_sound(path: Path, *, or_failing: bool = False) -> bool:
    """Tell whether SQLite finds nothing wrong with a file, read anew.

    Args:
        path: of the file.
        or_failing: a file that cannot be read is not sound: its log is too short, for example.
    """
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_BUSY)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.OperationalError as error:
        return not or_failing or "locked" in str(error)  # then its state is unknown
    except sqlite3.DatabaseError:
        return False


@contextlib.contextmanager
def _log_is_left(path: Path) -> Iterator[None]:
    """Keep SQLite from taking the log over into a file while its last connections are closed in the block.

    A read-only connection does not take it over, and the connections that are closed before it are not the last ones.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(sqlite3.Error):
            reader = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
            stack.callback(reader.close)
            reader.execute("PRAGMA schema_version").fetchone()
        yield


def check_regular(path: Path) -> None:
    """Check that the file of a run, and those beside it, are regular ones: to open a FIFO may take for ever.

    Raises:
        StoreError: one of them is something else.
    """
    for ending in ("", "-wal", "-shm", "-journal", "-lock"):
        each = path.with_name(path.name + ending)
        try:
            mode = each.stat().st_mode
        except OSError:  # it is not there, or opening it will say what is wrong
            continue
        if not stat.S_ISREG(mode):
            raise StoreError(errno.EINVAL, "it is not a regular file", str(each))


def path_of(folder: Path, run: str) -> Path:
    """Return the file of a run."""
    return folder_of(folder) / (file_safe(run) + SUFFIX)


def folder_of(store: Path) -> Path:
    """Return the folder of a store's runs."""
    return store / "runs"


def make_folder(folder: Path, *, named: Path | None = None) -> None:
    """Make the folder of a store's runs where there is none, for this user only.

    Args:
        folder: of :func:`folder_of`.
        named: the path that an error names; by default the folder.

    Raises:
        StoreError: it cannot be made, or not be written.
    """
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        why = f"cannot write to the store: {error.strerror}"
        raise StoreError(error.errno, why, str(named or folder)) from error

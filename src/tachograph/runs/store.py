"""One run's file: SQLite in WAL mode, which other processes may read while the hub writes."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tachograph.identity.run_id import file_safe
from tachograph.runs._schema import create_schema, is_empty, schema_problem
from tachograph.runs._sqlite import connect, write_transaction
from tachograph.runs.file_lock import Claim
from tachograph.runs.open_stores import OpenStores

SUFFIX = ".db"
MOST_BYTES = 2 * 2**30  # of a run, beyond which its samples are thinned
_LOG_BYTES = 64 * 2**20
_FEW = 256  # pages of the log: a moment's writing
_LOG_PAGES = 4096  # 16 MiB
_PAGE_BYTES = 4096


class StoreError(OSError):
    """A run's file cannot be used; the message names the file and says why."""


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

    Raises:
        StoreError: the folder or the file cannot be written, is damaged, or has another schema.
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
        self._log_path = self.path.with_name(f"{self.path.name}-wal")
        self._identity: tuple[int, int] | None = None  # device and inode of the file
        self._open_stores = open_stores or OpenStores()
        self._lock = threading.Lock()
        self._checkpointing = threading.Lock()
        self._claim: Claim | None = None
        self._connection: sqlite3.Connection | None = None
        self._checkpoints: sqlite3.Connection | None = None
        self._closed = False
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
        if self.is_deleted():
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
        self._identity = _identity(self.path)
        return self._connection

    def is_deleted(self) -> bool:
        """Return whether the file was deleted or replaced since it was opened; SQLite keeps writing to the old one."""
        return self._identity is not None and _identity(self.path) != self._identity

    def _begin(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        """Return the connection for everything, and the one for checkpoints."""
        connection = self._open()
        try:
            if not is_empty(connection):
                check_schema(connection, self.path)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # checkpoint() does it, beside the writers
            connection.execute(f"PRAGMA journal_size_limit = {self._log_bytes}")  # once it begins anew
            create_schema(connection)
            # Damage at the ends of the tables must show now, while the hub can still say so and refuse the file.
            connection.execute("SELECT max(id) FROM process").fetchone()
            connection.execute("SELECT max(rowid) FROM event").fetchone()
            connection.execute("SELECT max(id) FROM block").fetchone()
            return connection, self._open()
        except BaseException:
            connection.close()
            raise

    def _open(self) -> sqlite3.Connection:
        connection = connect(self.path, "mode=rw")
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
        except sqlite3.DatabaseError as error:
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
        with self._lent() as connection, write_transaction(connection):
            yield connection

    @contextlib.contextmanager
    def _lent(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            connection = self._wake()
            with self._named_errors():
                yield connection
        self._open_stores.use(self)

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
        try:
            with self._checkpointing:
                if self._checkpoints is None:
                    return
                log = os.open(self._log_path, os.O_RDONLY | os.O_CLOEXEC)  # SQLite holds no locks on this file
                try:
                    is_long = os.fstat(log).st_size >= self._log_pages * _PAGE_BYTES
                    if not is_long:
                        os.fsync(log)
                finally:
                    os.close(log)
        except FileNotFoundError:  # nothing was written yet
            return
        except OSError as error:
            why = f"cannot write the log of the file to the disk: {error.strerror}"
            raise StoreError(error.errno, why, str(self.path)) from error
        if is_long:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Take the log over into the file, first while others write, then the rest that they wrote meanwhile.

        The next writer begins the log anew only where nothing is left in it (SQLite, "Write-Ahead Logging",
        "Avoiding Excessively Large WAL Files"). A file that is not open has no log.

        Raises:
            StoreError: it could not be written.
        """
        with self._checkpointing, self._named_errors():
            if self._checkpoints is None:
                return
            pages, left = _run_checkpoint(self._checkpoints)
            # More is left only while a reader holds it for long: holding up others is of no use then.
            if pages >= self._log_pages and left <= _FEW:
                with self._lock:
                    _run_checkpoint(self._checkpoints)

    def rest(self) -> bool:
        """Close the file until it is used again, and keep the claim; False where it is in use just now."""
        return self._if_idle(self._shut)

    def let_go(self) -> bool:
        """Close the file until it is used again, and release the claim; False where it is in use just now."""
        return self._if_idle(self._release)

    def _if_idle(self, work: Callable[[], None]) -> bool:
        if not self._checkpointing.acquire(blocking=False):
            return False
        try:
            if not self._lock.acquire(blocking=False):
                return False
            try:
                work()
            finally:
                self._lock.release()
        finally:
            self._checkpointing.release()
        return True

    def close(self) -> None:
        """Close the file for good."""
        with self._checkpointing, self._lock:
            self._closed = True
            self._release()
        self._open_stores.forget(self)

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
        self._connection = None
        self._checkpoints = None


def _run_checkpoint(connection: sqlite3.Connection) -> tuple[int, int]:
    """Take the log over into the file; return its pages, and the number of those that a reader still needs."""
    _, pages, taken = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(pages), int(pages - taken)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Check that a file is one of a run, with the schema of this version.

    Raises:
        StoreError: it has another schema, or none.
        sqlite3.DatabaseError: it is damaged.
    """
    if problem := schema_problem(connection):
        raise StoreError(errno.EPROTO, problem, str(path))


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

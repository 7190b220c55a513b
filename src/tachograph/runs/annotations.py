"""The words of a user about a run: its tags, its notes and its display name, changed at any time. The id never changes.

A run that a hub writes at the moment can be annotated, too: its file has many readers and one writer at a time.
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tachograph.identity.environment import Setting
from tachograph.identity.launch import MOST_TAGS, notes_of, tags_of
from tachograph.runs._sqlite import connect, write_transaction
from tachograph.runs.catalogue import id_of
from tachograph.runs.file_lock import Claim
from tachograph.runs.store import StoreError, check_schema

MOST_NAME = 200  # characters


class Change(NamedTuple):
    """A change of a run's annotations.

    Attributes:
        add: tags to add.
        remove: tags to remove.
        notes: the new notes; the empty string for none from now on, None for those that there are.
        name: the new display name; the empty string for none from now on, None for the one that there is.
    """

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    notes: str | None = None
    name: str | None = None


def change_of(add: Any = (), remove: Any = (), notes: Any = None, name: Any = None) -> Change:
    """Return a change, checked as ``tachograph run --tag … --notes …`` are; control characters of notes are replaced.

    Args:
        add: tags.
        remove: tags.
        notes: text, or None.
        name: text, or None; blanks around it are removed.

    Raises:
        TypeError: a tag, the notes or the name is no string.
        ValueError: one is too long or has control characters, or a tag is to be added and removed.
    """
    adds, removes = tags_of(Setting("add=", add)), tags_of(Setting("remove=", remove))
    if both := sorted({*adds} & {*removes}):
        raise ValueError(f"the tag {both[0]!r} is both added and removed")
    said = None if notes is None else notes_of(Setting("notes=", notes))
    return Change(adds, removes, said, None if name is None else name_of(Setting("name=", name)))


def name_of(given: Setting) -> str:
    """Return a display name without the blanks around it.

    Raises:
        TypeError: it is no string.
        ValueError: it is longer than 200 characters, or has control characters.
    """
    if not isinstance(given.value, str):
        raise given.wrong_type("a string")
    found = given.value.strip()
    if len(found) > MOST_NAME:
        raise ValueError(f"{given.source} has {len(found)} characters: a display name may have at most {MOST_NAME}")
    if not found.isprintable():
        raise given.wrong("a display name must have printable characters only")
    return found


def annotate(path: Path, change: Change, *, clock: Callable[[], int] = time.time_ns) -> None:
    """Change a run's annotations, all of it or nothing. A tag that is there already, or not there, is no error.

    A tag that is removed stays so, though the start of the run gave it: only a later start gives it again.

    Args:
        path: of the run's file.
        change: to be made.
        clock: nanoseconds since the epoch.

    Raises:
        FileNotFoundError: the run was deleted.
        StoreError: the file cannot be written, is damaged, or has another schema; an ``OSError``.
        ValueError: the run would have more than 64 tags.
    """
    with _transaction(path) as connection:
        now = clock()
        for tag in change.remove:
            connection.execute("DELETE FROM tag WHERE name = ?", (tag,))
            connection.execute("INSERT OR REPLACE INTO removed_tag VALUES (?, ?)", (tag, now))
        for tag in change.add:
            connection.execute("INSERT OR IGNORE INTO tag VALUES (?)", (tag,))
            connection.execute("DELETE FROM removed_tag WHERE name = ?", (tag,))
        ((count,),) = connection.execute("SELECT count(*) FROM tag")
        if change.add and count > MOST_TAGS:
            raise ValueError(
                f"the run {id_of(path)!r:.200} would have {count} tags: a run may have at most {MOST_TAGS}"
            )
        if change.notes is not None:
            connection.execute("INSERT OR REPLACE INTO notes VALUES (1, ?, ?)", (now, change.notes))
        if change.name is not None:
            connection.execute("INSERT OR REPLACE INTO display_name VALUES (1, ?)", (change.name,))


@contextlib.contextmanager
def _transaction(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "the run was deleted", str(path))
    try:
        claim = Claim(path)  # it is not deleted meanwhile
    except OSError as error:
        raise StoreError(error.errno, f"cannot change the run: {error.strerror}", str(path)) from error
    try:
        with contextlib.closing(connect(path, "mode=rw")) as connection:  # no file is made
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # a hub that writes it does that itself
            check_schema(connection, path)
            with write_transaction(connection):
                yield connection
    except sqlite3.Error as error:
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "the run was deleted", str(path)) from error
        raise StoreError(errno.EIO, f"cannot change the run: {error}", str(path)) from error
    finally:
        claim.release()

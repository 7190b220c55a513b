"""Writing into a run's file: everything that a hub stores goes through a :class:`RunWriter`."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from tachograph.identity.launch import MOST_TAGS
from tachograph.recording.points import AttributeValue
from tachograph.runs.curve_writer import CurveWriter
from tachograph.runs.kept_calls import keep_calls
from tachograph.runs.members import mapping
from tachograph.runs.queries import SeriesKey
from tachograph.runs.sequence_numbers import SequenceNumbers, read_sequence_numbers
from tachograph.runs.store import Store

_INSERT_SERIES = (
    "INSERT OR IGNORE INTO series (process, scope, name, unit, shape, attributes, description)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_FIND_SERIES = (
    "SELECT id FROM series WHERE process = ? AND scope = ? AND name = ? AND unit = ? AND shape = ? AND attributes = ?"
)
_INSERT_TAG = (
    "INSERT OR IGNORE INTO tag SELECT ? WHERE (SELECT count(*) FROM tag) < ?"
    " AND NOT EXISTS (SELECT 1 FROM removed_tag WHERE name = ? AND time >= ?)"
)


class StartKey(NamedTuple):
    """What identifies a start of a process: the number of the process, its pid, and its number of restarts."""

    process: int
    pid: int
    restart: int


class RunWriter:
    """Writes into a run's file within one transaction, see :func:`open_transaction`.

    Numbers that it returns are valid once the transaction is committed.

    Args:
        connection: in a transaction.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    # Processes and their starts.

    def add_process(self, instance: str, resource: Mapping[str, AttributeValue]) -> int:
        """Return the number of a process, which is added if it is new."""
        add = "INSERT OR IGNORE INTO process (instance, resource) VALUES (?, ?)"
        self._connection.execute(add, (instance, json.dumps(dict(resource))))
        ((number,),) = self._connection.execute("SELECT id FROM process WHERE instance = ?", (instance,))
        return int(number)

    def save_process(self, process: int, resource: Mapping[str, AttributeValue], times_lost: int) -> None:
        """Save the attributes of a process, and how often it was lost."""
        self._connection.execute(
            "UPDATE process SET resource = ?, times_lost = ? WHERE id = ?",
            (json.dumps(dict(resource)), times_lost, process),
        )

    def save_start(
        self,
        start: StartKey,
        *,
        announced: int,
        first_export: int,
        last_export: int,
        interval: int,
        ended: str,
        lost: bool,
    ) -> None:
        """Save a start of a process: see :class:`tachograph.runs.queries.StoredStart`."""
        self._connection.execute(
            "INSERT OR REPLACE INTO incarnation VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*start, announced, first_export, last_export, interval, ended, lost),
        )

    def save_failure(self, start: StartKey, time: int, type_name: str, message: str) -> None:
        """Save the exception that ended a start of a process; of several ones the latest stays."""
        insert = "INSERT OR REPLACE INTO failure VALUES (?, ?, ?, ?, ?, ?)"
        self._connection.execute(insert, (*start, time, type_name, message))

    def delete_failure(self, start: StartKey) -> None:
        """Delete the exception of a start that goes on after all."""
        self._connection.execute("DELETE FROM failure WHERE process = ? AND pid = ? AND restart = ?", start)

    def save_calls(self, start: StartKey, record: bytes) -> None:
        """Save the calls of profiled functions in a log record, in place of earlier ones of the same functions."""
        keep_calls(self._connection, start, record)

    # Series, their states and samples.

    def add_series(self, process: int, key: SeriesKey, description: str) -> int:
        """Return the number of a series, which is added if it is new."""
        self._connection.execute(_INSERT_SERIES, (process, *key, description))
        ((number,),) = self._connection.execute(_FIND_SERIES, (process, *key))
        return int(number)

    def save_states(self, states: Iterable[tuple[int, int, str]]) -> None:
        """Save the states of series: number, when it was last seen, and the state as JSON."""
        self._connection.executemany("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", states)

    def save_samples(self, samples: Iterable[tuple[int, int, float | None, float | None, bytes | None]]) -> None:
        """Save samples of series: the number of the series, and the fields of a ``StoredSample``."""
        self._connection.executemany("INSERT OR REPLACE INTO sample VALUES (?, ?, ?, ?, ?)", samples)

    # Streams, their events and points.

    def add_stream(self, name: str, process: int) -> int:
        """Return the number of a stream, which is added if it is new."""
        self._connection.execute("INSERT OR IGNORE INTO stream (name, process) VALUES (?, ?)", (name, process))
        ((number,),) = self._connection.execute("SELECT id FROM stream WHERE name = ?", (name,))
        return int(number)

    def read_sequence_numbers(self, stream: int) -> SequenceNumbers:
        """Return the numbers of a stream's records that have arrived."""
        return read_sequence_numbers(self._connection, stream)

    def save_sequence_numbers(self, stream: int, numbers: SequenceNumbers) -> None:
        """Save the numbers that have arrived since the last call."""
        numbers.save(self._connection, stream)

    def add_event(self, stream: int, event: tuple[int, int, int, str, str, bytes]) -> bool:
        """Add an event unless it is there already; tell whether it was new.

        Args:
            stream: the number of its stream.
            event: its number there, both times, name, scope, and the log record.
        """
        insert = "INSERT OR IGNORE INTO event VALUES (?, ?, ?, ?, ?, ?, ?)"
        return self._connection.execute(insert, (stream, *event)).rowcount == 1

    def has_event_after(self, stream: str, seq: int, name: str) -> bool:
        """Tell whether a stream has an event of a name with a number above ``seq``."""
        where = "stream.name = ? AND seq > ? AND event.name = ?"
        statement = f"SELECT 1 FROM event JOIN stream ON id = stream WHERE {where} LIMIT 1"
        return self._connection.execute(statement, (stream, seq, name)).fetchone() is not None

    def read_first_event(self, stream: int) -> tuple[int, bytes]:
        """Return the time and the log record of the first event of a stream that has some."""
        first = "SELECT time, record FROM event WHERE stream = ? ORDER BY seq LIMIT 1"
        ((time, record),) = self._connection.execute(first, (stream,))
        return time, record

    def curves(self, stream: int) -> CurveWriter:
        """Return the writer of a stream's curves."""
        return CurveWriter(self._connection, stream)

    def save_values(
        self, table: Literal["config", "summary"], stream: int, seq: int, values: Mapping[str, Any]
    ) -> None:
        """Save values of the run's configuration or summary; of two values of a key the one with the larger number.

        Args:
            table: the one of the two.
            stream: the number of the stream that has them.
            seq: the number of their record in it.
            values: as JSON can hold them, by their keys.
        """
        self._connection.executemany(
            f"INSERT INTO {table} VALUES (?, ?, ?, ?) ON CONFLICT (stream, key) DO UPDATE"
            " SET value = excluded.value, seq = excluded.seq WHERE excluded.seq > seq",
            [(stream, key, json.dumps(value), seq) for key, value in values.items()],
        )

    # The run itself.

    def add_description(self, time: int, tags: Iterable[str], notes: str) -> None:
        """Add tags to those of the run, as many as it may have, and set its notes unless it has newer ones.

        A tag that the user has removed since that time is not added.
        """
        self._connection.executemany(_INSERT_TAG, [(tag, MOST_TAGS, tag, time) for tag in tags])
        if notes:
            self._connection.execute(
                "INSERT INTO notes VALUES (1, ?, ?) ON CONFLICT (id) DO UPDATE"
                " SET time = excluded.time, text = excluded.text WHERE excluded.time >= time",
                (time, notes),
            )

    def save_launch(self, time: int, host: str, facts: Mapping[str, AttributeValue]) -> None:
        """Save the facts of a start by ``tachograph run``; those that are known already stay.

        A hub that was killed and started again may find another state of the working tree.
        """
        find = "SELECT program FROM launch WHERE time = ? AND host = ?"
        row = self._connection.execute(find, (time, host)).fetchone()
        facts = {**facts, **({} if row is None else mapping(row[0]))}
        self._connection.execute("INSERT OR REPLACE INTO launch VALUES (?, ?, ?)", (time, host, json.dumps(facts)))

    def save_job_end(self, time: int, status: int) -> None:
        """Save how the job has ended.

        Args:
            time: nanoseconds since the epoch.
            status: its exit code; negative for the number of the signal that killed it.
        """
        reason = "signal" if status < 0 else "exit"
        self._connection.execute("INSERT OR REPLACE INTO job_end VALUES (?, ?, ?)", (time, status, reason))


@contextlib.contextmanager
def open_transaction(store: Store) -> Iterator[RunWriter]:
    """Lend a writer for one transaction: everything is durable once the block is left, or none of it.

    Raises:
        StoreError: it could not be written.
    """
    with store.transaction() as connection:
        yield RunWriter(connection)

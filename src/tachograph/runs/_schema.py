"""The tables of a run's file, and the check that a file has them."""

from __future__ import annotations

import re
import sqlite3

from tachograph.runs._sqlite import write_transaction

APPLICATION_ID = 0x54414348  # "TACH", for file(1) and others that tell SQLite files apart
VERSION = 7  # PRAGMA user_version; files with 1 to 6 were written by versions before the first release

_SCRIPT = """
    CREATE TABLE process (
        id INTEGER PRIMARY KEY,
        instance TEXT NOT NULL UNIQUE,   -- service.instance.id
        resource BLOB NOT NULL,          -- attributes of its newest start, as JSON
        times_lost INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE incarnation (           -- one start of a process
        process INTEGER NOT NULL REFERENCES process (id),
        pid INTEGER NOT NULL,
        restart INTEGER NOT NULL,
        announced INTEGER NOT NULL,
        first_export INTEGER NOT NULL,   -- all times: nanoseconds since the epoch
        last_export INTEGER NOT NULL,
        interval INTEGER NOT NULL,
        ended TEXT NOT NULL,             -- the reason, or empty
        lost INTEGER NOT NULL,
        PRIMARY KEY (process, pid, restart)
    ) WITHOUT ROWID;
    CREATE TABLE failure (               -- the exception that ended a start of a process
        process INTEGER NOT NULL REFERENCES process (id),
        pid INTEGER NOT NULL,
        restart INTEGER NOT NULL,
        time INTEGER NOT NULL,           -- on the clock of the process
        type TEXT NOT NULL,
        message TEXT NOT NULL,
        PRIMARY KEY (process, pid, restart)
    ) WITHOUT ROWID;
    CREATE TABLE series (
        id INTEGER PRIMARY KEY,
        process INTEGER NOT NULL REFERENCES process (id),
        scope TEXT NOT NULL,
        name TEXT NOT NULL,
        unit TEXT NOT NULL,
        shape TEXT NOT NULL,             -- gauge, sum, counter or histogram
        attributes TEXT NOT NULL,        -- JSON: pairs, sorted by key
        description TEXT NOT NULL,
        UNIQUE (process, scope, name, unit, shape, attributes)
    );
    CREATE TABLE state (                 -- the last state of a series, from which a hub continues
        series INTEGER PRIMARY KEY REFERENCES series (id),
        seen INTEGER NOT NULL,
        data TEXT NOT NULL
    );
    CREATE TABLE sample (                -- thinned history; for histograms the difference to the previous sample
        series INTEGER NOT NULL REFERENCES series (id),
        time INTEGER NOT NULL,
        value REAL,                      -- for histograms the count; NaN is NULL
        total REAL,                      -- for histograms the sum
        spread BLOB,                     -- for histograms the values since the previous sample: see spread.py
        PRIMARY KEY (series, time)
    ) WITHOUT ROWID;
    CREATE TABLE stream (                -- what one start of a process logged
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,       -- tachograph.stream; for records without one, content: and the process
        process INTEGER NOT NULL REFERENCES process (id)
    );
    CREATE TABLE event (
        stream INTEGER NOT NULL REFERENCES stream (id),
        seq INTEGER NOT NULL,            -- tachograph.seq; for records without one, a digest of the content
        time INTEGER NOT NULL,
        observed INTEGER NOT NULL,
        name TEXT NOT NULL,
        scope TEXT NOT NULL,
        record BLOB NOT NULL,            -- the OTLP LogRecord as it came: attributes exact, NaN included
        PRIMARY KEY (stream, seq)
    );
    CREATE INDEX event_time ON event (time);
    CREATE TABLE arrived (               -- the numbers of a stream that have arrived: ranges
        stream INTEGER NOT NULL REFERENCES stream (id),
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        PRIMARY KEY (stream, first)
    ) WITHOUT ROWID;
    CREATE TABLE definition (            -- the latest definition of each metric
        stream INTEGER NOT NULL REFERENCES stream (id),
        execution INTEGER NOT NULL,      -- number of the task; 0 for the process
        scope TEXT NOT NULL,             -- the metric's group, or empty
        metric TEXT NOT NULL,
        seq INTEGER NOT NULL,
        time INTEGER NOT NULL,
        about TEXT NOT NULL,             -- its attributes as JSON
        PRIMARY KEY (stream, execution, scope, metric)
    ) WITHOUT ROWID;
    CREATE TABLE curve (
        id INTEGER PRIMARY KEY,
        stream INTEGER NOT NULL REFERENCES stream (id),
        execution INTEGER NOT NULL,
        scope TEXT NOT NULL,             -- the metric's group, or empty
        metric TEXT NOT NULL,
        attributes TEXT NOT NULL,        -- JSON: pairs, sorted by key
        UNIQUE (stream, execution, scope, metric, attributes)
    );
    CREATE TABLE block (                 -- points of a branch of a curve, packed: see blocks.py
        id INTEGER PRIMARY KEY,
        curve INTEGER NOT NULL REFERENCES curve (id),
        branch INTEGER NOT NULL,
        level INTEGER NOT NULL,          -- many blocks of a level are joined; 2 is final, 3 is thinned
        seq0 INTEGER NOT NULL,
        seq1 INTEGER NOT NULL,
        n INTEGER NOT NULL,
        t0 INTEGER NOT NULL,
        t1 INTEGER NOT NULL,
        x0 REAL NOT NULL,
        x1 REAL NOT NULL,
        min REAL,                        -- of finite values
        max REAL,
        nonfinite INTEGER NOT NULL,
        crc INTEGER NOT NULL,            -- CRC-32 of the three columns below: SQLite has no checksums
        form TEXT NOT NULL,
        pairs BLOB NOT NULL,
        rest BLOB NOT NULL
    );
    CREATE INDEX block_level ON block (curve, branch, level);
    CREATE INDEX block_order ON block (curve, seq0);
    CREATE TABLE kept_calls (            -- the slowest and the last failed calls of a profiled function
        process INTEGER NOT NULL REFERENCES process (id),
        pid INTEGER NOT NULL,
        restart INTEGER NOT NULL,
        scope TEXT NOT NULL,             -- its metric group
        function TEXT NOT NULL,
        calls TEXT NOT NULL,             -- JSON: see kept_calls.py
        PRIMARY KEY (process, pid, restart, scope, function)
    ) WITHOUT ROWID;
    CREATE TABLE config (                -- the newest value of each key of the configuration, per start of a process
        stream INTEGER NOT NULL REFERENCES stream (id),
        key TEXT NOT NULL,
        value TEXT NOT NULL,             -- JSON
        seq INTEGER NOT NULL,
        PRIMARY KEY (stream, key)
    ) WITHOUT ROWID;
    CREATE TABLE summary (               -- the same for its results
        stream INTEGER NOT NULL REFERENCES stream (id),
        key TEXT NOT NULL,
        value TEXT NOT NULL,             -- JSON
        seq INTEGER NOT NULL,
        PRIMARY KEY (stream, key)
    ) WITHOUT ROWID;
    CREATE TABLE launch (                -- each start by tachograph run
        time INTEGER NOT NULL,
        host TEXT NOT NULL,
        program TEXT NOT NULL,           -- facts by name, as JSON
        PRIMARY KEY (time, host)
    ) WITHOUT ROWID;
    CREATE TABLE job_end (               -- how the job has ended, each time
        time INTEGER PRIMARY KEY,
        status INTEGER NOT NULL,         -- its exit code; negative for the signal that killed it
        reason TEXT NOT NULL
    );
    CREATE TABLE display_name (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        text TEXT NOT NULL               -- empty for none
    );
    CREATE TABLE notes (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        time INTEGER NOT NULL,           -- when they were written
        text TEXT NOT NULL
    );
    CREATE TABLE tag (
        name TEXT PRIMARY KEY
    ) WITHOUT ROWID;
    CREATE TABLE removed_tag (           -- tags that no start of the run before that time adds again
        name TEXT PRIMARY KEY,
        time INTEGER NOT NULL
    ) WITHOUT ROWID;
"""

_TABLES = frozenset(re.findall(r"CREATE TABLE (\w+)", _SCRIPT))


def schema_problem(connection: sqlite3.Connection) -> str:
    """Return why a file is not one of a run with the schema of this version; empty if it is one.

    Raises:
        sqlite3.DatabaseError: it is damaged, or one of our tables is a view or virtual table, which may be endless.
    """
    ((version,),) = connection.execute("PRAGMA user_version")
    ((application,),) = connection.execute("PRAGMA application_id")
    if (version, application) != (VERSION, APPLICATION_ID):
        return _describe_schema(version, application, has_tables=not is_empty(connection))
    odd = "SELECT type, name FROM sqlite_schema WHERE type = 'view' OR sql LIKE 'CREATE VIRTUAL%'"
    for kind, name in connection.execute(odd):
        if str(name).lower() in _TABLES:
            raise sqlite3.DatabaseError(
                f"{name!r} is no plain table, but a {'virtual one' if kind == 'table' else kind}"
            )
    return ""


def create_schema(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty file, in one transaction, unless another process was faster.

    Raises:
        sqlite3.Error: the file is damaged, or cannot be written.
    """
    if not is_empty(connection):
        return
    with write_transaction(connection):
        if is_empty(connection):
            for statement in _statements(_SCRIPT):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")


def is_empty(connection: sqlite3.Connection) -> bool:
    """Return whether a file has no tables yet."""
    return connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None


def _describe_schema(version: int, application: int, *, has_tables: bool) -> str:
    if not has_tables:
        return "the file is empty"
    if application == 0 and 0 < version < VERSION:
        return f"the file has schema version {version}, written by a pre-release version of Tachograph"
    if application == APPLICATION_ID and version > VERSION:
        return f"the file has schema version {version}, written by a newer Tachograph; use that version"
    return "the file is an SQLite database, but not one of a Tachograph run"


def _statements(script: str) -> list[str]:
    """Split a script: ``executescript`` would commit the transaction that is open."""
    without_comments = "\n".join(line.partition("--")[0] for line in script.splitlines())
    return [statement for part in without_comments.split(";") if (statement := part.strip())]

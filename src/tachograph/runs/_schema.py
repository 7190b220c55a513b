"""The tables of a run's file, and the migrations of files of earlier versions."""

from __future__ import annotations

import contextlib
import re
import sqlite3

# Rows of version 1 as those of version 2: a metric's group was its curve's chart, or stood in its definition alone.
_SAID_1 = "CASE WHEN json_valid(about) AND json_type(about, '$.group') = 'text' THEN json_extract(about, '$.group') END"
_DEFINITION_1 = f"""
    SELECT stream, execution, coalesce(nullif(chart, ''), {_SAID_1}, '') AS scope, metric, seq, time, about
    FROM main.definition LEFT JOIN (SELECT stream, execution, metric, chart FROM main.curve)
    USING (stream, execution, metric)
"""  # noqa: S608 - constants
_CURVE_1 = f"""
    SELECT id, stream, execution, coalesce(nullif(chart, ''), {_SAID_1}, '') AS scope, metric, '[]' AS attributes
    FROM main.curve LEFT JOIN (SELECT stream, execution, metric, about FROM main.definition)
    USING (stream, execution, metric)
"""  # noqa: S608 - constants

# One script a version, in order; PRAGMA user_version is the number of those that a file has had. Never change a
# released one: add another.
MIGRATIONS = (
    """
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
    CREATE TABLE state (                 -- the last state of a series, from which a hub goes on
        series INTEGER PRIMARY KEY REFERENCES series (id),
        seen INTEGER NOT NULL,
        data TEXT NOT NULL
    );
    CREATE TABLE sample (                -- thinned history; of histograms the difference to the sample before
        series INTEGER NOT NULL REFERENCES series (id),
        time INTEGER NOT NULL,
        value REAL,                      -- of histograms the count; NaN is NULL
        total REAL,                      -- of histograms the sum
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
    CREATE TABLE definition (            -- the latest word on each metric
        stream INTEGER NOT NULL REFERENCES stream (id),
        execution INTEGER NOT NULL,      -- number of the task; 0 for the process
        metric TEXT NOT NULL,
        seq INTEGER NOT NULL,
        time INTEGER NOT NULL,
        about TEXT NOT NULL,             -- its attributes as JSON
        PRIMARY KEY (stream, execution, metric)
    ) WITHOUT ROWID;
    CREATE TABLE curve (
        id INTEGER PRIMARY KEY,
        stream INTEGER NOT NULL REFERENCES stream (id),
        execution INTEGER NOT NULL,
        metric TEXT NOT NULL,
        chart TEXT NOT NULL,             -- the metric's group, or empty
        UNIQUE (stream, execution, metric)
    );
    CREATE TABLE block (                 -- points of a branch of a curve, packed: see blocks.py
        id INTEGER PRIMARY KEY,
        curve INTEGER NOT NULL REFERENCES curve (id),
        branch INTEGER NOT NULL,
        level INTEGER NOT NULL,          -- many blocks of a level are joined; 2 is for good, 3 is thinned
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
        crc INTEGER NOT NULL,            -- CRC-32 of the three below: SQLite has no checksums
        form TEXT NOT NULL,
        pairs BLOB NOT NULL,
        rest BLOB NOT NULL
    );
    CREATE INDEX block_level ON block (curve, branch, level);
    CREATE INDEX block_order ON block (curve, seq0);
    """,
    f"""
    CREATE TABLE definition_2 (          -- the latest word on each metric
        stream INTEGER NOT NULL REFERENCES stream (id),
        execution INTEGER NOT NULL,      -- number of the task; 0 for the process
        scope TEXT NOT NULL,             -- the metric's group, or empty
        metric TEXT NOT NULL,
        seq INTEGER NOT NULL,
        time INTEGER NOT NULL,
        about TEXT NOT NULL,             -- its attributes as JSON
        PRIMARY KEY (stream, execution, scope, metric)
    ) WITHOUT ROWID;
    INSERT INTO definition_2 {_DEFINITION_1};
    CREATE TABLE curve_2 (
        id INTEGER PRIMARY KEY,
        stream INTEGER NOT NULL REFERENCES stream (id),
        execution INTEGER NOT NULL,
        scope TEXT NOT NULL,             -- the metric's group, or empty
        metric TEXT NOT NULL,
        attributes TEXT NOT NULL,        -- JSON: pairs, sorted by key
        UNIQUE (stream, execution, scope, metric, attributes)
    );
    INSERT INTO curve_2 {_CURVE_1};
    DROP TABLE definition;
    DROP TABLE curve;
    ALTER TABLE definition_2 RENAME TO definition;
    ALTER TABLE curve_2 RENAME TO curve;
    CREATE TABLE config (                -- the newest word of each start of a process on each key of its configuration
        stream INTEGER NOT NULL REFERENCES stream (id),
        key TEXT NOT NULL,
        value TEXT NOT NULL,             -- JSON
        seq INTEGER NOT NULL,
        PRIMARY KEY (stream, key)
    ) WITHOUT ROWID;
    CREATE TABLE summary (               -- the same of its results
        stream INTEGER NOT NULL REFERENCES stream (id),
        key TEXT NOT NULL,
        value TEXT NOT NULL,             -- JSON
        seq INTEGER NOT NULL,
        PRIMARY KEY (stream, key)
    ) WITHOUT ROWID;
    CREATE TABLE tag (
        name TEXT PRIMARY KEY
    ) WITHOUT ROWID;
    CREATE TABLE job_end (               -- how the job has ended, each time
        time INTEGER PRIMARY KEY,
        status INTEGER NOT NULL,         -- its exit code, or the number of the signal that killed it, negative
        reason TEXT NOT NULL
    );
    """,
    """
    CREATE TABLE notes (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        time INTEGER NOT NULL,           -- since which the run has them
        text TEXT NOT NULL
    );
    CREATE TABLE launch (                -- each start by tachograph run
        time INTEGER NOT NULL,
        host TEXT NOT NULL,
        program TEXT NOT NULL,           -- facts by name, as JSON
        PRIMARY KEY (time, host)
    ) WITHOUT ROWID;
    """,
    """
    ALTER TABLE sample ADD COLUMN spread BLOB;  -- of histograms the values since the sample before: see spread.py
    """,
    """
    CREATE TABLE display_name (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        text TEXT NOT NULL               -- empty for none
    );
    CREATE TABLE removed_tag (           -- tags that no start of the run before that time gives it again
        name TEXT PRIMARY KEY,
        time INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE failure (               -- the exception that ended a start of a process
        process INTEGER NOT NULL REFERENCES process (id),
        pid INTEGER NOT NULL,
        restart INTEGER NOT NULL,
        time INTEGER NOT NULL,           -- by the clock of the process
        type TEXT NOT NULL,
        message TEXT NOT NULL,
        PRIMARY KEY (process, pid, restart)
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE kept_calls (            -- the slowest and the last failed calls of a profiled function
        process INTEGER NOT NULL REFERENCES process (id),
        pid INTEGER NOT NULL,
        restart INTEGER NOT NULL,
        scope TEXT NOT NULL,             -- its metric group
        function TEXT NOT NULL,
        calls TEXT NOT NULL,             -- JSON: see kept_calls.py
        PRIMARY KEY (process, pid, restart, scope, function)
    ) WITHOUT ROWID;
    """,
)


# Views with which a reading connection sees a file of an older version as one of today's; the file is not changed:
# SQLite looks for a name among the connection's own views before it looks for a table.
_VIEWS_5 = {
    "kept_calls": "SELECT 0 AS process, 0 AS pid, 0 AS restart, '' AS scope, '' AS function, '' AS calls WHERE 0",
}
_VIEWS_4 = {
    **_VIEWS_5,
    "display_name": "SELECT 1 AS id, '' AS text WHERE 0",
    "removed_tag": "SELECT '' AS name, 0 AS time WHERE 0",
    "failure": "SELECT 0 AS process, 0 AS pid, 0 AS restart, 0 AS time, '' AS type, '' AS message WHERE 0",
}
_VIEWS_3 = {**_VIEWS_4, "sample": "SELECT series, time, value, total, NULL AS spread FROM main.sample"}
_VIEWS_2 = {
    **_VIEWS_3,
    "notes": "SELECT 1 AS id, 0 AS time, '' AS text WHERE 0",
    "launch": "SELECT 0 AS time, '' AS host, '' AS program WHERE 0",
}
_VIEWS: dict[int, dict[str, str]] = {
    1: {
        "definition": _DEFINITION_1,
        "curve": _CURVE_1,
        "config": "SELECT 0 AS stream, '' AS key, '' AS value, 0 AS seq WHERE 0",
        "summary": "SELECT 0 AS stream, '' AS key, '' AS value, 0 AS seq WHERE 0",
        "tag": "SELECT '' AS name WHERE 0",
        "job_end": "SELECT 0 AS time, 0 AS status, '' AS reason WHERE 0",
        **_VIEWS_2,
    },
    2: _VIEWS_2,
    3: _VIEWS_3,
    4: _VIEWS_4,
    5: _VIEWS_5,
}


def read_as_today(connection: sqlite3.Connection) -> int:
    """Let a connection read a file of any version up to today's as one of today's; return the file's version.

    Call it in a transaction, so that no hub changes the version afterwards.
    """
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    for name, select in _VIEWS.get(version, {}).items():
        connection.execute(f"CREATE TEMP VIEW {name} AS {select}")
    return version


_TABLES = frozenset(re.findall(r"CREATE TABLE (\w+)", "".join(MIGRATIONS)))


def check_tables(connection: sqlite3.Connection) -> None:
    """Check that each table of a run's file is one: a view in its place may be endless.

    Raises:
        sqlite3.DatabaseError: a table of ours is something else; the message names it.
    """
    odd = "SELECT type, name FROM sqlite_schema WHERE type = 'view' OR sql LIKE 'CREATE VIRTUAL%'"
    for kind, name in connection.execute(odd):
        if str(name).lower() in _TABLES:
            raise sqlite3.DatabaseError(
                f"{name!r} is no plain table, but a {'virtual one' if kind == 'table' else kind}"
            )


class NewerSchema(Exception):  # noqa: N818 - a finding; the store makes an error of it
    """The file's schema version is newer than this version of Tachograph knows."""


def migrate(connection: sqlite3.Connection) -> int:
    """Migrate a file to today's schema, each step in one transaction; return its version.

    Raises:
        NewerSchema: a newer version of Tachograph wrote it.
        sqlite3.Error: it is damaged, or cannot be written.
    """
    while True:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version > len(MIGRATIONS):
            raise NewerSchema(version)
        if version == len(MIGRATIONS):
            return version
        connection.execute("BEGIN IMMEDIATE")
        try:
            if connection.execute("PRAGMA user_version").fetchone()[0] == version:  # no other process was faster
                for statement in _statements(MIGRATIONS[version]):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # SQLite has rolled back itself where the disk failed
                connection.execute("ROLLBACK")
            raise


def _statements(script: str) -> list[str]:
    """Split a script: ``executescript`` would commit the transaction that is open."""
    without_comments = "\n".join(line.partition("--")[0] for line in script.splitlines())
    return [statement for part in without_comments.split(";") if (statement := part.strip())]

"""Write docs/bridges-conformance.md: what Tachograph records of the values that programs log with other libraries.

``python scripts/conformance.py [ARGUMENT …]`` runs the tests that have a row in the table, with the installed versions
of the libraries, and writes the page if all of them pass. It passes the arguments to pytest. ``--rows FILE`` prints the
table for the rows in a file.
"""
# ruff: noqa: INP001 - a script

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from textwrap import fill

ROOT = Path(__file__).resolve().parents[1]
ROWS = "TACHOGRAPH_TEST_ROWS"  # as in tests/bridged_rows.py
TESTS = [str(path) for path in sorted((ROOT / "tests" / "system").glob("test_bridges_*.py"))]
LIBRARIES = (
    *("torch", "tensorboard", "tensorboardX", "wandb", "mlflow-skinny", "trackio"),
    *("transformers", "accelerate", "lightning"),
)
_PAGE = """# Bridges: conformance

<!-- Made by `python scripts/conformance.py`; do not edit it here. -->

This page compares the values that a program logs with a library with those that Tachograph records. Each row is a test
that runs an unmodified program under `tachograph run` with the real libraries and random values. The test compares each
value with the library's own file (TensorBoard event files, W&B's offline file, or the stores of MLflow and trackio). If
a trainer logs to no library, it compares them with the trainer's history.

- **logged**: values in the library's file. With several libraries, each of them has this many.
- **stored**: points in the Tachograph run.
- **at their step**: stored points with the same name, x and value as in the library.
- **once**: values that occur in the run as often as in the library.
- **config**: configuration entries that the test expected, and how many of them were recorded.

If no value is lost, moved or duplicated, the first four numbers are equal. In the column *logs with*, *our class* is
Tachograph's own logger class for the trainer. W&B rejects steps that go back. Tachograph records those as a new branch
of the curve, which is not counted here.

`make test` and `make long` run these tests; a test fails if its result differs from its row. `make bridges-newest`
prints the table for the newest versions of the libraries. The versions used here are
{versions}.

{table}
See also: [bridges](bridges.md) · [names that are patched](patched.md)
"""
_HEAD = """| program | logs with | ranks | logged | stored | at their step | once | config | test |
|---|---|---|---|---|---|---|---|---|
"""


def table(rows: Path) -> str:
    """Return the table for the rows in a file, sorted by program."""
    return _HEAD + "".join(f"{line}\n" for line in sorted(set(rows.read_text(encoding="utf-8").splitlines())))


def versions() -> str:
    """Return the installed versions of the libraries."""
    sys.path.append(str(Path(sys.prefix) / "bridges"))  # see scripts/set_up.sh
    return fill(", ".join(f"{name} {version(name)}" for name in LIBRARIES), 120)


def main() -> int:
    """Run the tests and write the page."""
    if sys.argv[1:2] == ["--rows"]:
        sys.stdout.write(table(Path(sys.argv[2])))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows"
        command = [sys.executable, "-m", "pytest", "-m", "conforms", *sys.argv[1:], *TESTS]
        environ = {**os.environ, ROWS: str(rows)}
        code = subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode  # noqa: S603 - pytest
        if code == 0:
            page = _PAGE.format(versions=versions(), table=table(rows))
            (ROOT / "docs" / "bridges-conformance.md").write_text(page, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())

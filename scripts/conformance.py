"""Write docs/bridges-conformance.md: real programs and libraries, and what is recorded of the values that they log.

``python scripts/conformance.py [ARGUMENT …]`` runs the tests that have a row in the table, with the installed versions
of the libraries, and writes the page where all have passed; arguments are handed on to pytest. ``--rows FILE`` prints
the table of rows that are there already.
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

Unmodified programs under `tachograph run`, with the real libraries. Their values are random in each run. They are
compared one by one with the library's own file (TensorBoard's event files by its reader, W&B's offline file by its
messages, MLflow's and trackio's stores), and where a trainer logs nowhere, with its own history.

- **logged**: values in the library's file; with several libraries at once, in each of them.
- **stored**: points in the run. **At their step**: those of the same name, x and value. **Once**: values that the run
  has as often as the library. All four are the same number where nothing is lost, moved or doubled.
- **config**: entries of the configuration that were looked for, and are there.

W&B refuses a step that goes back. The run has it as a branch of the curve; it is not counted here.

`make test` and `make long` run the tests of the rows; one fails where its row is not as it stands here.
`make bridges-newest` prints the table of the newest versions. These are of
{versions}.

{table}
On: [bridges](bridges.md) · [names that are patched](patched.md)
"""
_HEAD = """| program | logs with | ranks | logged | stored | at their step | once | config | test |
|---|---|---|---|---|---|---|---|---|
"""


def table(rows: Path) -> str:
    """Return the table of rows in a file, in the order of the programs."""
    return _HEAD + "".join(f"{line}\n" for line in sorted(set(rows.read_text(encoding="utf-8").splitlines())))


def versions() -> str:
    """Return the versions of the libraries that are installed."""
    sys.path.append(str(Path(sys.prefix) / "bridges"))  # see scripts/set_up.sh
    return fill(", ".join(f"{name} {version(name)}" for name in LIBRARIES), 120)


def main() -> int:
    """Run the tests, and write the page."""
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

"""Count the lines of hidden wrappers under their file: ``tachograph.recording.wrapping`` adds a suffix to its name."""

# ruff: noqa: INP001 - a script

from __future__ import annotations

import sys
from pathlib import Path

from coverage import CoverageData

from tachograph.recording.wrapping import HIDDEN_SUFFIX


def main(path: str) -> None:
    """Rewrite a coverage database in place.

    Args:
        path: the combined database, such as ``.coverage``.
    """
    measured = CoverageData(path)
    measured.read()
    merged = CoverageData(f"{path}.merged")
    merged.update(measured, map_path=lambda file: file.removesuffix(HIDDEN_SUFFIX))
    merged.close()
    measured.close()
    Path(f"{path}.merged").replace(path)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Messages about a missing extra: the command in them works where they are printed."""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from places import PACKAGE
from tachograph.identity.extra import install_command

METADATA = """\
Metadata-Version: 2.4
Name: tachograph
Version: 1.0
Requires-Dist: requests<3,>=2.31
Requires-Dist: rich<16,>=13.9; extra == "top"
Requires-Dist: psutil<8,>=6; extra == 'hardware'
Requires-Dist: nvidia-ml-py<15,>=12.575; extra == 'hardware'
"""


def installed(folder: Path, **files: str) -> Distribution:
    """Return the distribution of a ``.dist-info`` folder, as installers write it."""
    info = folder / "tachograph-1.0.dist-info"
    info.mkdir()
    for name, text in {"METADATA": METADATA, **files}.items():
        (info / name.replace("_json", ".json")).write_text(text)
    return PathDistribution(info)


def test_from_an_index_it_has_the_name(tmp_path: Path) -> None:
    """Only what came from an index is asked for there by its name."""
    assert install_command("top", installed(tmp_path, INSTALLER="pip\n")) == "pip install 'tachograph[top]'"


@pytest.mark.parametrize(
    "origin",
    [
        '{"dir_info": {"editable": true}, "url": "file:///home/me/tachograph"}',
        '{"archive_info": {}, "url": "file:///tmp/tachograph-1.0-py3-none-any.whl"}',
        '{"vcs_info": {"vcs": "git", "commit_id": "1c990c8"}, "url": "https://git.example.org/tachograph"}',
    ],
)
def test_from_elsewhere_it_has_the_packages(tmp_path: Path, origin: str) -> None:
    """A checkout, a file and a repository are no index: the packages of the extra are named, and no others."""
    found = installed(tmp_path, direct_url_json=origin)
    assert install_command("hardware", found) == (
        "pip install 'psutil<8,>=6' 'nvidia-ml-py<15,>=12.575' # the extra 'hardware'"
    )


def test_an_environment_of_uv_has_no_pip(tmp_path: Path) -> None:
    """What uv has installed, uv installs."""
    assert install_command("top", installed(tmp_path, INSTALLER="uv")) == "uv pip install 'tachograph[top]'"


def test_nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that runs from the source is told so."""
    monkeypatch.setattr(sys, "path", [])
    assert install_command("top") == "pip install '.[top]' in Tachograph's checkout"


def test_no_message_names_an_index_by_itself() -> None:
    """No other file has such a command in its text."""
    found = [path.name for path in PACKAGE.rglob("*.py") if re.search(r"pip install '?tachograph", path.read_text())]
    assert found == []

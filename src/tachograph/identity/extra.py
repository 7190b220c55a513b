"""The command that installs an extra of this package, for messages about a missing one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_OF_AN_EXTRA = re.compile(r"([^;]+?)\s*;\s*extra == ['\"](.+)['\"]")


def install_command(extra: str, distribution: Distribution | None = None) -> str:
    """Return the shell command that brings an extra into this environment.

    The name of the package is in it only if that is where it came from: an index. To a checkout or a file, which may
    be gone by now, it names the packages of the extra, and in a comment the extra (``direct_url.json``, PEP 610).

    Args:
        extra: a name of ``[project.optional-dependencies]``.
        distribution: of this package; by default the one that is installed.
    """
    from importlib.metadata import Distribution, PackageNotFoundError  # only where something is missing

    try:
        installed = distribution or Distribution.from_name("tachograph")
    except PackageNotFoundError:  # run from its source
        return f"pip install '.[{extra}]' in Tachograph's checkout"
    pip = "uv pip install" if (installed.read_text("INSTALLER") or "").strip() == "uv" else "pip install"
    if not installed.read_text("direct_url.json"):
        return f"{pip} 'tachograph[{extra}]'"
    found = (_OF_AN_EXTRA.fullmatch(line) for line in installed.requires or ())
    packages = [f"'{each[1]}'" for each in found if each is not None and each[2] == extra]
    return " ".join([pip, *packages, f"# the extra {extra!r}"])

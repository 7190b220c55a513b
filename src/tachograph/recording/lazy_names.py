"""Names of a package that are loaded at their first use: its interface costs nothing until it is needed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any


def load_name(package: str, names: Mapping[str, Sequence[str]], name: str) -> Any:
    """Return a name of a package, for its ``__getattr__``; it is found without that from then on.

    Args:
        package: the full name of the package.
        names: the names that it offers, by the module of it that has them.
        name: the wanted one.

    Raises:
        AttributeError: the package does not offer the name.
    """
    module = next((module for module, offered in names.items() if name in offered), None)
    if module is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    found = getattr(import_module(f"{package}.{module}"), name)
    setattr(sys.modules[package], name, found)
    return found

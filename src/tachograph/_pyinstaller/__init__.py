"""Hooks for PyInstaller, which finds them by the entry point ``pyinstaller40``: a plain build of a program works."""

from __future__ import annotations

from pathlib import Path


def hook_directories() -> list[str]:
    """Return the folder with the hooks, as PyInstaller asks for it: its manual, "Provide hooks with your package"."""
    return [str(Path(__file__).parent)]

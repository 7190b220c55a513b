"""TensorBoard's log folders: import them as runs, and export runs as log folders.

The modules need the package ``tensorboard``, which the extra of that name brings.
"""

from __future__ import annotations

from tachograph.identity.extra import install_command


def explain_missing_extra(error: ModuleNotFoundError) -> str:
    """Return which package an import of these modules misses, and the command that installs it."""
    package = (error.name or "tensorboard").partition(".")[0]
    return f"event files need {package}: {install_command('tensorboard')}"

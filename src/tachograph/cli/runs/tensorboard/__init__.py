"""TensorBoard's log folders: import them as runs, and export runs as log folders.

The modules need the package ``tensorboard``, which the extra of that name brings.
"""

from __future__ import annotations

from importlib import import_module

from tachograph.identity.extra import install_command


def require_tensorboard() -> None:
    """Check that TensorBoard is installed, before the modules that need it are imported.

    Raises:
        ImportError: it is not; the message names the command that installs it.
    """
    try:
        import_module("tensorboard")
    except ImportError:
        raise ImportError(f"event files need tensorboard: {install_command('tensorboard')}") from None

"""The file system that holds a store: on one of a network SQLite is not safe."""

from __future__ import annotations

import logging
from pathlib import Path

_NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "gpfs", "lustre", "nfs", "nfs4"}
_NETWORK |= {"ncpfs", "pvfs2", "smb2", "smb3", "smbfs", "wekafs"}

_log = logging.getLogger("tachograph")


def warn_of_network(folder: Path) -> None:
    """Log a warning where the store is on a network file system, on which WAL is not safe (SQLite, "WAL")."""
    found = file_system(folder.absolute())
    if found in _NETWORK:
        _log.warning(
            "the store %s is on %s, where SQLite is not safe: set TACHOGRAPH_STORE to a folder on a local disk",
            folder,
            found,
        )


def file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Return the type of the file system that holds a path, by its name in Linux; empty where it is unknown."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    best, found = -1, ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:  # noqa: PLR2004 - device, folder, type: fstab(5)
            continue
        folder = fields[1].replace("\\040", " ")
        if (path == Path(folder) or Path(folder) in path.parents) and len(folder) >= best:
            best, found = len(folder), fields[2]
    return found

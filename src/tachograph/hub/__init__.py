"""The hub: one for all processes of a node. It receives and stores OTLP, and serves one page of metrics.

A request passes from the receiver into the index: runs, their processes, and series, which a decoder of each metric
stream fills. Metrics whose layout is known are read by offsets, everything else by protobuf. Records of the journal go
to the file of their run at once; series are saved there in slices, and shown on the page of the node.

Other packages import the names below, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tachograph.recording.lazy_names import load_name

if TYPE_CHECKING:
    from tachograph.hub.announcement import Announcement
    from tachograph.hub.forwarding import Forwarding, readable_elsewhere
    from tachograph.hub.guard import is_loopback, read_token
    from tachograph.hub.hub import Hub
    from tachograph.hub.lifetime import Lifetime, Node
    from tachograph.hub.server import HUB_PORT, HubServer, address_of, listen
    from tachograph.hub.studio_server import STUDIO_PORT, StudioServer

__all__ = [
    "HUB_PORT",
    "STUDIO_PORT",
    "Announcement",
    "Forwarding",
    "Hub",
    "HubServer",
    "Lifetime",
    "Node",
    "StudioServer",
    "address_of",
    "is_loopback",
    "listen",
    "read_token",
    "readable_elsewhere",
]

# By the module that has them; each is loaded at its first use.
_NAMES = {
    "announcement": ("Announcement",),
    "forwarding": ("Forwarding", "readable_elsewhere"),
    "guard": ("is_loopback", "read_token"),
    "hub": ("Hub",),
    "lifetime": ("Lifetime", "Node"),
    "server": ("HUB_PORT", "HubServer", "address_of", "listen"),
    "studio_server": ("STUDIO_PORT", "StudioServer"),
}


def __getattr__(name: str) -> Any:
    return load_name(__name__, _NAMES, name)

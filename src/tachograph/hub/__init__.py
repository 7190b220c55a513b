"""The hub: one for all processes of a node. It receives and stores OTLP, and serves one page of metrics.

Its public interface: ``hub`` is the state in memory and in the store, ``server`` its HTTP server with ``guard`` and
``forwarding``, ``studio_server`` serves a Studio alone, ``lifetime`` ends the hub, ``announcement`` reports its start
and end to the parent process.

A request passes from the receiver into the index: runs, their processes, and series, which a decoder of each metric
stream fills; metrics whose layout is known are read by offsets, all else is decoded by protobuf. Records of the journal
go to the file of their run at once; series are saved there in slices, and shown on the page of the node.
"""

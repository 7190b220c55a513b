"""The hub: one for all processes of a node. It receives OTLP, keeps it, and serves it as one page."""

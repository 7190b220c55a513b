"""``tachograph replay``: the contents of files, sent to any exporter."""

"""``tachograph replay``: what lies in files, to any exporter."""

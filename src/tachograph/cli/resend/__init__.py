"""``tachograph resend``: the contents of files, sent to any exporter."""

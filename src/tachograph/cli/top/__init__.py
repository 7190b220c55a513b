"""``tachograph top``: a run on a terminal, live."""

"""``tachograph diagnose``: why a run is slow, which rank hangs, and where its threads are."""

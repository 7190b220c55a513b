"""``tachograph runs import``: store runs that other programs have recorded."""

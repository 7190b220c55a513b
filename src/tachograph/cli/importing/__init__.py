"""``tachograph import``: runs that other programs have recorded, into the store."""

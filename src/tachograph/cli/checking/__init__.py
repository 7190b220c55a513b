"""``tachograph check``: one test point to everything that is configured."""

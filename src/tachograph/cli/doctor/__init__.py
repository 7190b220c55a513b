"""``tachograph doctor``: the checks and their test points."""

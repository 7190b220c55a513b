"""``/metrics``: the page, and the endpoint that serves it."""

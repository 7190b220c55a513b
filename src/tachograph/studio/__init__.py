"""The Studio: what a hub's pages read of runs, live and stored, and the pages themselves.

Its face: ``studio`` serves the pages and the API; ``overview``, ``charts`` and ``occurrences`` read runs for ``top``.
"""

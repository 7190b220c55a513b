"""The Studio: a hub's pages of runs, live and stored, and their API.

Its face: ``studio`` serves the pages and the API; ``overview``, ``charts``, ``faults`` and ``occurrences`` read runs
for ``top``; ``share`` makes the page of one run a file.
"""

"""The Studio: a hub's pages of runs, live and stored, and their API.

Its face: ``studio`` serves the pages and the API; ``snapshot`` gives ``top`` what the overview shows; ``occurrences``
has the hangs of a run for ``diagnose``; ``share`` makes the page of one run a file.
"""

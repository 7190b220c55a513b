"""``/metrics``: the page, and the endpoint that serves it.

- :mod:`.page`: the renderer of a process's page and of a hub's.
- :mod:`.family`: the families on a page, and the series that are left out because they clash.
- :mod:`.text`, :mod:`.sliced_text`: names, labels and numbers as text; text that is written in slices.
- :mod:`.format`: the format that a scraper is answered in.
- :mod:`.client`: the program's own metrics in prometheus_client, for the page.
- :mod:`.collector`: the other way round, everything recorded for prometheus_client's registry.
- :mod:`.endpoint`: the HTTP server of a process.
- :mod:`.target_file`: the file by which a Prometheus on this host finds a page.
"""

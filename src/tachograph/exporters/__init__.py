"""Exporters: the ways of metrics, spans and events out of the process.

The pipeline makes a :class:`~tachograph.exporters.batch.Batch` and gives it to each destination: ``otlp``,
``influxdb``, ``console``, ``jsonl``, ``tensorboard``, or any exporter of OpenTelemetry's. A request over a network
waits in a :class:`~tachograph.exporters.delivery_queue.DeliveryQueue`, and where it has to, in a
:class:`~tachograph.exporters.spool.Spool`. ``prometheus`` renders the registry as a page, at each scrape.
:mod:`~tachograph.exporters.external_provider` and :mod:`~tachograph.exporters.log_emitter` report to the providers that
the program has set up by itself.

Its face, by subject:

- batches: ``batch``, ``delivery_queue``, ``delivery``, ``spool`` with its ``spool_format``, ``standard_streams``;
- OpenTelemetry's types: ``producer``, ``spans``, ``otel_exporters``, ``reader_feed``, ``external_provider``,
  ``log_emitter``, ``handler_exporter``, ``windowed_reader``;
- ``otlp``: ``exporter`` with its ``settings``, ``http`` and ``grpc``; ``encoding``, ``logs``, ``values`` and
  ``json_text`` for its messages;
- ``influxdb`` with its ``server`` and ``old_spool``;
- ``prometheus``: ``page`` with its ``endpoint`` and ``collector``; ``format``, ``text``, ``sliced_text``, ``family``,
  and ``client`` for its text; ``target_file``, by which a Prometheus finds a page;
- files: ``console``, ``jsonl``, ``tensorboard``.
"""

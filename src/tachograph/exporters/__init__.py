"""Exporters: a batch on its way to each destination, and values on their way into the program's own providers.

The pipeline makes a :class:`~tachograph.exporters.batch.Batch` and gives it to each destination: ``otlp``,
``influxdb``, ``console``, ``jsonl``, ``tensorboard``, or any exporter of OpenTelemetry's. What goes over a network
waits in a :class:`~tachograph.exporters.delivery_queue.DeliveryQueue`, and where it has to, in a
:class:`~tachograph.exporters.spool.Spool`. ``prometheus`` renders what is recorded as a page, at each scrape.
:mod:`~tachograph.exporters.joined` and :mod:`~tachograph.exporters.log_emitter` report to the providers that the
program has set up by itself.
"""

"""InfluxDB: points as line protocol, to the v2 API and to the v1 ``/write?db=``; extra ``influxdb``."""

from __future__ import annotations

from tachograph.exporters.influxdb._exporter import InfluxDB, InfluxDBLogExporter

__all__ = ["InfluxDB", "InfluxDBLogExporter"]

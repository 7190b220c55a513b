"""InfluxDB: points as line protocol, to the v2 API and to the v1 ``/write?db=``; extra ``influxdb``."""

from __future__ import annotations

from tachograph.influxdb.exporter import InfluxDB
from tachograph.influxdb.sdk import InfluxDBLogExporter

__all__ = ["InfluxDB", "InfluxDBLogExporter"]

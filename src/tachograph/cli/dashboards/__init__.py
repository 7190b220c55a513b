"""Dashboards for Grafana: those that are the same for every job, and those of the charts of a run."""

"""Dashboards for Grafana: those that are the same for every job, and those made from what a run has defined."""

"""Metrics, logs and the status page."""

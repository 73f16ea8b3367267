"""Metrics of the process's own threads, alike for agent and controllers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mcagent import supervised


def thread_metrics() -> Iterator[Metric]:
    """Yield what is known of threads that broke."""
    yield GaugeMetricFamily(
        "mcagent_threads_dead", "Threads that should run and do not.", value=len(supervised.dead())
    )
    restarts = CounterMetricFamily("mcagent_thread_restarts", "Threads begun again.", labels=["thread"])
    for name, count in sorted(supervised.restarts().items()):
        restarts.add_metric([name], count)
    yield restarts

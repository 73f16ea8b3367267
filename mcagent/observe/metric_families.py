"""Makes Prometheus metric families from rows, for collectors that read numbers at scrape time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

Rows = Iterable[tuple[Sequence[str], float]]  # values of the labels, and the number


def gauge(name: str, text: str, labels: Sequence[str], rows: Rows) -> GaugeMetricFamily:
    """Make a gauge."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in rows:
        family.add_metric(values, float(number))
    return family


def counter(name: str, text: str, labels: Sequence[str], rows: Rows) -> CounterMetricFamily:
    """Make a counter; its samples are named NAME_total."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, number in rows:
        family.add_metric(values, float(number))
    return family


class Rising:
    """Counters that are sums of what flows or peers counted: they keep what a part had counted that is gone.

    A sum that fell would be a reset of the counter: rates would count all packets again. For many threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By metric and labels: the sum of the present parts, and what parts that are gone had counted.
        self._series: dict[str, dict[frozenset[tuple[str, str]], tuple[float, float]]] = {}

    def __call__(self, metric: Metric) -> Metric:
        """Return the metric with sums that do not fall. One without samples could not be read."""
        with self._lock:
            before, now = self._series.get(metric.name, {}), {}
            for place, sample in enumerate(metric.samples):
                labels = frozenset(sample.labels.items())
                last, gone = before.get(labels, (0.0, 0.0))
                gone += max(0.0, last - sample.value)
                now[labels] = sample.value, gone
                metric.samples[place] = sample._replace(value=sample.value + gone)
            self._series[metric.name] = now or before
        return metric


def single(name: str, text: str, number: float) -> GaugeMetricFamily:
    """Make a gauge without labels."""
    return gauge(name, text, (), [((), number)])


class Histogram(Protocol):
    """Buckets and sum of a histogram."""

    @property
    def total(self) -> float:
        """The sum of all values."""

    def buckets(self) -> Sequence[tuple[str, float]]:
        """Return cumulative counts by upper bound, "+Inf" last."""


def histogram(
    name: str, text: str, labels: Sequence[str], histograms: Mapping[tuple[str, ...], Histogram]
) -> HistogramMetricFamily:
    """Make a histogram; `histograms`: by values of the labels."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, counts in histograms.items():
        family.add_metric(values, counts.buckets(), counts.total)
    return family


def by_word(counts: Mapping[str, float]) -> Rows:
    """Make rows of a mapping whose keys are the values of one label, sorted."""
    return [([word], number) for word, number in sorted(counts.items())]

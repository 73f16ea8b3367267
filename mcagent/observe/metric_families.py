"""Makes Prometheus metric families from rows, for collectors that read numbers at scrape time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

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

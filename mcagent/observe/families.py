"""Prometheus metric families made of rows, for collectors that read their numbers at scrape time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

Rows = Iterable[tuple[Sequence[str], float]]  # values of the labels, and the number


def gauge(name: str, text: str, labels: Sequence[str], rows: Rows) -> GaugeMetricFamily:
    """Return a gauge."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in rows:
        family.add_metric(values, float(number))
    return family


def counter(name: str, text: str, labels: Sequence[str], rows: Rows) -> CounterMetricFamily:
    """Return a counter; its samples are called NAME_total."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, number in rows:
        family.add_metric(values, float(number))
    return family


def single(name: str, text: str, number: float) -> GaugeMetricFamily:
    """Return a gauge without labels."""
    return gauge(name, text, (), [((), number)])


class Histogram(Protocol):
    """A histogram that somebody else counts."""

    @property
    def total(self) -> float:
        """The sum of all values."""

    def buckets(self) -> Sequence[tuple[str, float]]:
        """Return cumulative counts by upper bound, "+Inf" last."""


def histogram(
    name: str, text: str, labels: Sequence[str], found: Mapping[tuple[str, ...], Histogram]
) -> HistogramMetricFamily:
    """Return a histogram, by values of its labels."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, counts in found.items():
        family.add_metric(values, counts.buckets(), counts.total)
    return family


def by_word(counts: Mapping[str, float]) -> Rows:
    """Return the rows of a mapping whose keys are the values of one label, sorted."""
    return [([word], number) for word, number in sorted(counts.items())]

"""Metrics by name, on their way to a Prometheus page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from wager.engine.stats import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """One engine's way to name and label: ``prefix`` without the colon, and the labels that every
    series carries. ``by_method``: what drafts did is told method by method."""

    prefix: str
    labels: Mapping[str, str]
    by_method: bool

    def counter(
        self, name: str, text: str, values: Mapping[Labels, float], more: Labels = ()
    ) -> Metric:
        """``values`` by the values of the labels ``more``; ``name`` without ``_total``."""
        metric = CounterMetricFamily(self._name(name), text, labels=self._labels(more))
        for own, value in values.items():
            metric.add_metric(self._values(own), value)
        return metric

    def gauge(
        self, name: str, text: str, values: Mapping[Labels, float], more: Labels = ()
    ) -> Metric:
        """As `counter`."""
        metric = GaugeMetricFamily(self._name(name), text, labels=self._labels(more))
        for own, value in values.items():
            metric.add_metric(self._values(own), value)
        return metric

    def histogram(
        self, name: str, text: str, values: Mapping[Labels, Histogram], more: Labels = ()
    ) -> Metric:
        """As `counter`."""
        metric = HistogramMetricFamily(self._name(name), text, labels=self._labels(more))
        for own, histogram in values.items():
            bounds = [*map(repr, map(float, histogram.bounds)), "+Inf"]
            reached = list(zip(bounds, accumulate(histogram.counts), strict=True))
            metric.add_metric(self._values(own), reached, histogram.total)
        return metric

    def _name(self, name: str) -> str:
        return f"{self.prefix}:{name}"

    def _labels(self, more: Labels) -> list[str]:
        return [*self.labels, *more]

    def _values(self, own: Labels) -> list[str]:
        return [*self.labels.values(), *own]


def one(value: float) -> dict[Labels, float]:
    """The only series of a metric."""
    return {(): value}


def known(value: float | None) -> dict[Labels, float]:
    """The only series of a metric, or none: what is not known is not shown."""
    return {} if value is None else {(): value}

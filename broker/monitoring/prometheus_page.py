"""Writes a broker's metrics in the format of Prometheus. Imported only if metrics.listener is set.

Owns: the translation of counters and gauges into prometheus_client's families, at the moment of the scrape; nothing
here runs otherwise. Leaves to others: the meaning of a metric (`metrics`).
"""

import typing
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from minibroker.broker.monitoring.metrics import API_LABELS, BrokerCounters, BrokerGauges, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "minibroker_"

Family = CounterMetricFamily | GaugeMetricFamily | InfoMetricFamily


def metrics_of(struct: type[Any]) -> dict[str, Metric]:
    """The metrics that a struct defines, by field."""
    hints = typing.get_type_hints(struct, include_extras=True)
    return {
        field: note
        for field, hint in hints.items()
        for note in getattr(hint, "__metadata__", ())
        if isinstance(note, Metric)
    }


class BrokerCollector(Collector):
    """Reads everything at each scrape."""

    def __init__(self, info: dict[str, str], counters: BrokerCounters, read_gauges: Callable[[], BrokerGauges]) -> None:
        self._info = info
        self._counters = counters
        self._read_gauges = read_gauges

    def describe(self) -> list[Family]:
        """Nothing is read at registration."""
        return []

    def collect(self) -> Iterator[Family]:
        yield InfoMetricFamily(PREFIX + "broker", "Identity of this broker.", value=self._info)
        gauges = self._read_gauges()
        for field, metric in metrics_of(BrokerGauges).items():
            yield GaugeMetricFamily(PREFIX + metric.name, metric.doc, value=getattr(gauges, field))
        for field, metric in metrics_of(BrokerCounters).items():
            yield CounterMetricFamily(PREFIX + metric.name, metric.doc, value=getattr(self._counters, field))
        yield from self._requests()

    def _requests(self) -> Iterator[Family]:
        count = CounterMetricFamily(PREFIX + "network_requests", "Requests answered.", labels=["api"])
        seconds = CounterMetricFamily(
            PREFIX + "network_request_seconds",
            "Time of the event loop spent on them, waiting not included.",
            labels=["api"],
        )
        for api_key, counter in self._counters.requests.items():
            label = [API_LABELS[api_key]]
            count.add_metric(label, counter.count)
            seconds.add_metric(label, counter.nanoseconds / 1e9)
        yield from (count, seconds)


def make_page(
    info: dict[str, str], counters: BrokerCounters, read_gauges: Callable[[], BrokerGauges], with_process: bool = True
) -> Callable[[], bytes]:
    """A function that renders the page at each call. `with_process`: also memory, CPU time and open files."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BrokerCollector(info, counters, read_gauges))
    if with_process:
        ProcessCollector(registry=registry)
    return lambda: generate_latest(registry)

"""Metrics of producers and consumers for Prometheus. Needs the extra ``prometheus``.

::

    from prometheus_client import start_http_server
    from reliamsg.prometheus import Collector

    Collector(producer, consumer)
    start_http_server(9100)
"""

from __future__ import annotations

from collections.abc import Iterable

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector as _Collector
except ImportError as error:
    raise ImportError("reliamsg.prometheus needs the extra: pip install 'reliamsg[prometheus]'") from error

from reliamsg.metrics.catalogue import BOUNDS_S, METRICS
from reliamsg.metrics.clients import Clients
from reliamsg.metrics.readings import Distribution, Readings
from reliamsg.version import VERSION

__all__ = ["Collector"]

_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
_UNITS = {"": "", "s": "seconds", "By": "bytes"}


class Collector(_Collector):
    """A Prometheus collector for any number of producers and consumers, blocking ones and those of ``reliamsg.aio``.

    It registers itself with `registry`; with None, register it yourself. A registry takes one such collector only
    (:class:`ValueError`): add further clients with :meth:`observe`.

    Counters start when a client is added, and never go backwards: those of a client that is closed stay. Gauges are
    read when metrics are scraped, and only from open clients. The collector does not keep clients open or in memory.
    docs/how-to/monitoring.md lists the metrics.
    """

    def __init__(self, *clients: object, registry: CollectorRegistry | None = REGISTRY) -> None:
        """Observe these clients, as :meth:`observe` does."""
        self._clients = Clients()
        self._clients.add(clients)
        if registry is not None:
            registry.register(self)

    def observe(self, *clients: object, name: str = "") -> None:
        """Observe more clients, from now on. Adding one again changes nothing.

        With `name`, all values of these clients have the label ``client`` with this name. Values of clients with the
        same name, or of all without one, are added up (of ages, the highest is shown). Choose from few names: every one
        stays in the metrics for as long as the process runs.

        Raises :class:`ConfigError` for anything that is no client, or that was added with another name,
        :class:`ClosedError` for a client that is not open, and :class:`ForkedError`.
        """
        self._clients.add(clients, name)

    def collect(self) -> Iterable[Metric]:
        """All metrics at this moment. Called by the registry for each scrape, on any thread."""
        return _families(self._clients.read())

    def describe(self) -> Iterable[Metric]:
        """All metrics without values."""
        return _families(Readings())


def _families(readings: Readings) -> Iterable[Metric]:
    yield InfoMetricFamily("reliamsg_build", "The version of reliamsg", {"version": VERSION})
    for name, metric in METRICS.items():
        family = _FAMILIES[metric.kind](metric.prometheus_name, metric.help, unit=_UNITS[metric.unit])
        for labels, value in readings.numbers[name].items():
            suffix = "_total" if metric.kind == "counter" else ""
            family.add_sample(metric.prometheus_name + suffix, dict(labels), value)
        for labels, distribution in readings.distributions[name].items():
            _add_histogram(family, dict(labels), distribution)
        yield family


def _add_histogram(family: Metric, labels: dict[str, str], distribution: Distribution) -> None:
    below = 0
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), distribution.buckets, strict=True):
        below += count
        family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, below)
    family.add_sample(f"{family.name}_count", labels, below)
    family.add_sample(f"{family.name}_sum", labels, distribution.sum_s)

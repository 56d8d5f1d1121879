"""Metrics for OpenTelemetry, through its API."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter

from reliamsg import forks
from reliamsg.metrics.catalogue import BOUNDS_S, METRICS, Metric
from reliamsg.metrics.clients import Clients
from reliamsg.metrics.readings import Distribution, Labels, Readings
from reliamsg.version import VERSION

__all__ = ["Metrics"]

_Callback = Callable[[CallbackOptions], Iterable[Observation]]


class Metrics:
    """Metrics of any number of producers and consumers, blocking ones and those of ``reliamsg.aio``.

    The instruments are made with `meter_provider`, or with the global one. Only one such object should exist for each
    provider: add further clients with :meth:`observe`.

    Counters start when a client is added, and never go backwards: those of a client that is closed stay. Gauges are
    read when metrics are collected, and only from open clients. The object does not keep clients open or in memory.
    docs/how-to/monitoring.md lists the metrics.

    The API has no asynchronous histogram, and recording each message would cost more than all else here. So each
    histogram is three counters: ``….bucket``, cumulative by its attribute ``le`` as in Prometheus, ``….sum`` and
    ``….count``.
    """

    def __init__(self, *clients: object, meter_provider: MeterProvider | None = None) -> None:
        """Observe these clients, as :meth:`observe` does."""
        self._clients = Clients()
        self._clients.add(clients)
        self._generation, self._lock = forks.generation, threading.Lock()
        self._readings = Readings()
        self._used: set[str] = set(_instruments())
        """Instruments that have used the readings. Each uses them once, so that one collection asks clients once."""
        self._create(get_meter("reliamsg", VERSION, meter_provider))

    def observe(self, *clients: object, name: str = "") -> None:
        """Observe more clients, from now on. Adding one again changes nothing.

        With `name`, all values of these clients have the attribute ``client`` with this name. Values of clients with
        the same name, or of all without one, are added up (of ages, the highest is shown). Choose from few names: every
        one stays in the metrics for as long as the process runs.

        Raises :class:`ConfigError` for anything that is no client, or that was added with another name,
        :class:`ClosedError` for a client that is not open, and :class:`ForkedError`.
        """
        self._clients.add(clients, name)

    def _create(self, meter: Meter) -> None:
        for metric in METRICS.values():
            name, unit = metric.otel_name, metric.unit
            if metric.kind == "gauge":
                meter.create_observable_gauge(
                    name, [self._callback(name, _numbers, metric)], unit, metric.help
                )
            elif metric.kind == "counter":
                meter.create_observable_counter(
                    name, [self._callback(name, _numbers, metric)], unit, metric.help
                )
            else:
                for part, (observe, part_unit) in _PARTS.items():
                    part_name = f"{name}.{part}"
                    callback = self._callback(part_name, observe, metric)
                    meter.create_observable_counter(part_name, [callback], part_unit, metric.help)

    def _callback(
        self, instrument: str, observe: Callable[[Readings, Metric], Iterator[Observation]], metric: Metric
    ) -> _Callback:
        return lambda _: list(observe(self._read(instrument), metric))

    def _read(self, instrument: str) -> Readings:
        """The readings of the current collection."""
        if (
            self._generation != forks.generation
        ):  # another thread of the parent process may have held the lock
            self._generation, self._lock = forks.generation, threading.Lock()
        with self._lock:
            if instrument in self._used:
                self._readings = self._clients.read()
                self._used.clear()
            self._used.add(instrument)
            return self._readings


def _instruments() -> Iterator[str]:
    for metric in METRICS.values():
        if metric.kind == "histogram":
            yield from (f"{metric.otel_name}.{part}" for part in _PARTS)
        else:
            yield metric.otel_name


def _numbers(readings: Readings, metric: Metric) -> Iterator[Observation]:
    for labels, value in readings.numbers[metric.name].items():
        yield Observation(value, dict(labels))


def _distributions(
    take: Callable[[Distribution, Labels], Iterator[Observation]], readings: Readings, metric: Metric
) -> Iterator[Observation]:
    for labels, distribution in readings.distributions[metric.name].items():
        yield from take(distribution, labels)


def _buckets(distribution: Distribution, labels: Labels) -> Iterator[Observation]:
    below = 0
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), distribution.buckets, strict=True):
        below += count
        yield Observation(below, {**dict(labels), "le": bound})


def _sum(distribution: Distribution, labels: Labels) -> Iterator[Observation]:
    yield Observation(distribution.sum_s, dict(labels))


def _count(distribution: Distribution, labels: Labels) -> Iterator[Observation]:
    yield Observation(distribution.count, dict(labels))


_PARTS = {
    "bucket": (partial(_distributions, _buckets), ""),
    "sum": (partial(_distributions, _sum), "s"),
    "count": (partial(_distributions, _count), ""),
}
"""The counters that stand for a histogram, and their units."""

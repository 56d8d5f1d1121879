"""An audit's results as OpenMetrics text, for a node exporter's directory or a web server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric, StateSetMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest

from reliamsg.files import replace_file

__all__ = ["as_openmetrics", "write_metrics"]

_VERDICTS = ("complete", "accepted", "unknown", "lost", "violated")
_QUANTILES = {"p50": "0.5", "p95": "0.95", "p99": "0.99", "max": "1"}


def as_openmetrics(verdict: Mapping[str, Any], now: float) -> bytes:
    """The content of ``verdict.json`` as OpenMetrics text. `now`: the time at which it was found, seconds since 1970.

    Names of groups and sites are labels, names of producers and topics are not: there may be any number of them.
    """
    registry = CollectorRegistry()
    registry.register(_Results(verdict, now))
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return text


def write_metrics(path: str | os.PathLike[str], verdict: Mapping[str, Any], now: float) -> None:
    """Write them to a file, which is replaced as a whole. Raises :class:`OSError`."""
    replace_file(Path(path).absolute(), as_openmetrics(verdict, now))


class _Results:
    def __init__(self, verdict: Mapping[str, Any], now: float) -> None:
        self._verdict, self._now = verdict, now

    def collect(self) -> Iterator[Metric]:
        verdict, window = self._verdict, self._verdict["window"]
        yield _gauge("audit_timestamp_seconds", "When the latest audit finished", self._now)
        yield _gauge("audit_duration_seconds", "How long it took", verdict["seconds"])
        yield _states("audit_verdict", "The verdict for all time", verdict["verdict"])
        yield _states("audit_window_verdict", "The verdict for the window", window["verdict"])
        if verdict["through"] is not None:
            yield _gauge(
                "audit_through_timestamp_seconds",
                "The time through which the evidence is whole and no message is open",
                _seconds(verdict["through"]),
            )
        counts = verdict["messages"]
        fates = GaugeMetricFamily("reliamsg_audit_messages", "Messages by fate", labels=["fate"])
        for fate, number in counts.items():
            if fate != "delivered":  # by group, below
                fates.add_metric([fate], number)
        yield fates
        if counts["enqueued"]:
            share = counts["proven"] / counts["enqueued"]
            yield _gauge("audit_proven_ratio", "The share of messages that are proven complete", share)
        delivered = GaugeMetricFamily("reliamsg_audit_delivered", "Messages by group", labels=["group"])
        for group, number in counts["delivered"].items():
            delivered.add_metric([group], number)
        yield delivered
        sites = GaugeMetricFamily("reliamsg_audit_site_messages", "Messages by site", labels=["site", "what"])
        for site, own in verdict["sites"].items():
            for what, number in own.items():
                sites.add_metric([site, what], number)
        yield sites
        incidents = GaugeMetricFamily("reliamsg_audit_incidents", "Incidents", labels=["scope"])
        incidents.add_metric(["all"], verdict["incidents_total"])
        incidents.add_metric(["window"], window["incidents"])
        incidents.add_metric(["accepted"], window["accepted"])
        yield incidents
        latency = GaugeMetricFamily(
            "reliamsg_audit_latency_seconds",
            "Quantiles of latency by hop, upper bounds",
            labels=["hop", "quantile"],
        )
        for hop, quantiles in verdict["latency"].items():
            for name, quantile in _QUANTILES.items():
                latency.add_metric([hop, quantile], quantiles[name])
        yield latency
        yield InfoMetricFamily("reliamsg_audit", "The time of the window", {"since": window["since"] or ""})


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"reliamsg_{name}", text, value)


def _states(name: str, text: str, current: str) -> Metric:
    return StateSetMetricFamily(f"reliamsg_{name}", text, {each: each == current for each in _VERDICTS})


def _seconds(text: str) -> float:
    """A time as :func:`~reliamsg.audit.times.as_time` writes it, in seconds since 1970."""
    if text.endswith(" µs"):
        return int(text[:-3]) / 1e6
    return datetime.fromisoformat(text).timestamp()

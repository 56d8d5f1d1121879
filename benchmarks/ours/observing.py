"""Metrics of a client under load: none, or served to Prometheus, or exported by OpenTelemetry every second."""

from __future__ import annotations

from typing import Any

__all__ = ["OTEL", "PROMETHEUS", "observe"]

PROMETHEUS, OTEL = "prometheus", "otel"
INTERVAL_MS = 1_000


def observe(client: object, how: str) -> dict[str, Any]:
    """Observe a client; `how` is empty for no metrics. For Prometheus, the result has the port that serves them."""
    if how == PROMETHEUS:
        from prometheus_client import CollectorRegistry, start_http_server

        from reliamsg.prometheus import Collector

        registry = CollectorRegistry()
        Collector(client, registry=registry)
        server, _ = start_http_server(0, "127.0.0.1", registry)
        return {"port": server.server_port}
    if how == OTEL:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import (
            MetricExporter,
            MetricExportResult,
            MetricsData,
            PeriodicExportingMetricReader,
        )

        from reliamsg.otel import Metrics

        class Discard(MetricExporter):
            """Stands for an exporter; a real one would also send the data."""

            def export(self, metrics_data: MetricsData, *_: object, **__: object) -> MetricExportResult:
                return MetricExportResult.SUCCESS

            def force_flush(self, timeout_millis: float = 10_000) -> bool:
                return True

            def shutdown(self, timeout_millis: float = 30_000, **_: object) -> None:
                """Nothing to end."""

        reader = PeriodicExportingMetricReader(Discard(), export_interval_millis=INTERVAL_MS)
        Metrics(client, meter_provider=MeterProvider([reader]))
    return {}

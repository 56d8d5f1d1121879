"""The same numbers through OpenTelemetry's SDK."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from reliamsg import Producer
from reliamsg.metrics.catalogue import METRICS
from reliamsg.otel import Metrics
from reliamsg.producer.status import ProducerStatus
from reliamsg.testing import MemoryNetwork
from tests.metrics.tools import Scraper, consumer, producer
from tests.patience import patient

WAIT = patient(20)


class Collected:
    """One collection of a provider."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        data = reader.get_metrics_data()
        assert data is not None
        self.metrics = {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def __call__(self, name: str, **attributes: str) -> float:
        points: Any = self.metrics[f"reliamsg.{name}"].data.data_points
        return float(next(point.value for point in points if dict(point.attributes) == attributes))


def test_the_numbers_are_those_of_prometheus(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with (
        MemoryNetwork("dc1", "dc2") as network,
        producer(network, tmp_path / "o.db") as sender,
        consumer(network, tmp_path / "i.db") as receiver,
    ):
        scrape = Scraper(sender, receiver)
        Metrics(sender, receiver, meter_provider=provider)
        network["dc1"].duplicate(1)
        sender.publish_many("orders", [b"x"] * 5).wait(WAIT)
        for _ in range(5):
            message = receiver.get(WAIT)
            assert message is not None
            message.ack(durable=True)
        scrape.until(
            lambda s: s("policy_met_total") == 5 and s("duplicates_total", site="dc1") == 5,
            "it is journalled",
        )
        found, text = Collected(reader), scrape()
        for metric in METRICS.values():
            for (name, labels), value in text.samples.items():
                attributes = dict(labels)
                if metric.kind == "histogram":
                    for part in ("bucket", "sum", "count"):
                        if name == f"{metric.prometheus_name}_{part}":
                            assert found(f"{metric.name}.{part}", **attributes) == pytest.approx(value)
                elif name == metric.prometheus_name + ("_total" if metric.kind == "counter" else ""):
                    assert found(metric.name, **attributes) == value, (metric.name, attributes)
        assert found("published", site="dc2", result="confirmed") == 5
    after = Collected(reader)
    assert after("enqueued") == 5
    assert "reliamsg.outbox.messages" not in after.metrics  # nobody is open


def test_one_collection_asks_each_client_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with MemoryNetwork("dc1") as network, producer(network, tmp_path / "o.db") as sender:
        asked = 0
        status = type(sender).status

        def counted(self: Producer) -> ProducerStatus:
            nonlocal asked
            asked += 1
            return status(self)

        monkeypatch.setattr(type(sender), "status", counted)
        Metrics(sender, meter_provider=provider)
        for collections in (1, 2, 3):
            Collected(reader)
            assert asked == collections
        sender.publish("orders", b"x")
        assert Collected(reader)("enqueued") == 1


def test_names_are_attributes(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    with MemoryNetwork("dc1") as network, producer(network, tmp_path / "o.db") as sender:
        Metrics(meter_provider=MeterProvider([reader])).observe(sender, name="orders")
        sender.publish("orders", b"x")
        assert Collected(reader)("enqueued", client="orders") == 1

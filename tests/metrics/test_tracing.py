"""Spans around publishing and processing, with the SDK's exporter in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanKind, StatusCode

from reliamsg import ClosedError, ConfigError, Consumer, Message, MessageTooLarge, Producer, Site, aio
from reliamsg.otel import Tracing, attributes
from reliamsg.testing import MemoryNetwork
from tests.consumer.tools import send
from tests.metrics.tools import Scraper, consumer, producer
from tests.patience import patient, wait_for

WAIT = patient(20)


class Spans:
    """A provider, and what it has exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(tracer_provider=self.provider)

    def __call__(self, name: str | None = None) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if name in (None, span.name)]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self(name)
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1", "dc2") as network:
        yield network


def identity(span: Any) -> tuple[int, int]:
    found = span if hasattr(span, "trace_id") else span.get_span_context()
    return found.trace_id, found.span_id


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [identity(link.context) for link in span.links]


def test_from_publishing_to_processing(spans: Spans, network: MemoryNetwork, tmp_path: Path) -> None:
    seen: list[Message] = []
    with (
        spans.tracing.producer(producer(network, tmp_path / "o.db")) as sender,
        spans.tracing.consumer(consumer(network, tmp_path / "i.db")) as reader,
    ):

        def handle(message: Message) -> None:
            seen.append(message)
            trace.get_current_span().add_event("within")
            reader.stop()

        with spans.provider.get_tracer("test").start_as_current_span("request") as request:
            receipt = sender.publish("orders", b"12345", key="secret", headers={"mine": "kept"})
        reader.run(handle)
    published, processed = spans.one("publish orders"), spans.one("process orders")
    assert published.parent is not None
    assert identity(published.parent) == identity(request)
    assert (published.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert linked(processed) == [identity(published)]
    assert processed.parent is None
    assert [event.name for event in processed.events] == ["within"]
    assert dict(published.attributes or {}) == {
        "messaging.system": "reliamsg", "messaging.operation.name": "publish", "messaging.operation.type": "send",
        "messaging.destination.name": "orders", "messaging.client.id": "p", "messaging.message.body.size": 5,
        "messaging.message.id": str(receipt.id),
    }  # fmt: skip
    assert dict(processed.attributes or {}) == {
        "messaging.system": "reliamsg", "messaging.operation.name": "process", "messaging.operation.type": "process",
        "messaging.destination.name": "orders", "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "billing", "messaging.message.id": str(receipt.id),
        "messaging.message.body.size": 5, "reliamsg.redelivered": False, "reliamsg.replayed": False,
    }  # fmt: skip
    assert seen[0].headers["mine"] == "kept"
    assert seen[0].headers["traceparent"].split("-")[2] == f"{identity(published)[1]:016x}"
    assert published.instrumentation_scope is not None
    assert published.instrumentation_scope.schema_url == attributes.SCHEMA_URL


def test_the_names_of_attributes_are_those_of_the_conventions() -> None:
    known = {value for name, value in vars(messaging_attributes).items() if name.startswith("MESSAGING_")}
    ours = {getattr(attributes, name) for name in attributes.__all__}
    assert {name for name in ours if name.startswith("messaging.")} <= known
    assert attributes.SCHEMA_URL in {schema.value for schema in Schemas}


def test_failures_mark_the_span_of_each_delivery(
    spans: Spans, network: MemoryNetwork, tmp_path: Path
) -> None:
    with (
        producer(network, tmp_path / "o.db") as sender,
        spans.tracing.consumer(consumer(network, tmp_path / "i.db")) as reader,
    ):
        sender.publish("orders", b"x")
        deliveries = 0

        def handle(message: Message) -> None:
            nonlocal deliveries
            deliveries += 1
            if deliveries == 1:
                raise ValueError("broken")
            reader.stop()

        reader.run(handle)
    failed, succeeded = spans("process orders")
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "ValueError"
    assert [event.name for event in failed.events] == ["exception"]
    assert succeeded.status.status_code is StatusCode.UNSET
    assert (succeeded.attributes or {})["reliamsg.redelivered"] is True
    assert linked(failed) == linked(succeeded) == []  # it was published without a span


def test_lists_have_one_span_with_links(spans: Spans, network: MemoryNetwork, tmp_path: Path) -> None:
    with (
        spans.tracing.producer(producer(network, tmp_path / "o.db")) as sender,
        spans.tracing.consumer(consumer(network, tmp_path / "i.db")) as reader,
    ):
        sender.publish_many("orders", [b"1", b"2"])
        sender.publish("orders", b"3").wait(WAIT)
        sizes: list[int] = []

        def handle(messages: list[Message]) -> None:
            sizes.append(len(messages))
            if sum(sizes) == 3:
                reader.stop()

        reader.run(handle, batch=10)
    published = [identity(span) for span in spans("publish orders")]
    assert (spans("publish orders")[0].attributes or {})["messaging.batch.message_count"] == 2
    assert [
        (span.attributes or {})["messaging.batch.message_count"] for span in spans("process orders")
    ] == sizes
    assert [link for span in spans("process orders") for link in dict.fromkeys(linked(span))] == published


def test_nothing_is_processed_while_it_is_held_back(
    spans: Spans, network: MemoryNetwork, tmp_path: Path
) -> None:
    with spans.tracing.consumer(consumer(network, tmp_path / "i.db")) as reader:
        for broker in network.brokers.values():
            send(broker, 1, 1)
            send(broker, 3, 3)
        message = reader.get(WAIT)
        with reader.process(message):
            pass
        wait_for(lambda: any(stream.held for stream in reader.status().streams.values()), "one is held back")
        assert len(spans()) == 1
        send(network["dc1"], 2, 2)
        filled_ns = spans()[0].end_time
        for _ in range(2):
            with reader.process(reader.get(WAIT)):
                pass
        assert filled_ns is not None
        assert all((span.start_time or 0) > filled_ns for span in spans()[1:])


def test_process_acknowledges_and_records_failures(
    spans: Spans, network: MemoryNetwork, tmp_path: Path
) -> None:
    with (
        spans.tracing.producer(producer(network, tmp_path / "o.db")) as sender,
        spans.tracing.consumer(consumer(network, tmp_path / "i.db")) as reader,
    ):
        scrape = Scraper(sender, reader)  # wrapped clients can be observed
        sender.publish_many("orders", [b"1", b"2", b"3"]).wait(WAIT)
        with suppress(ZeroDivisionError), reader.process(reader.get(WAIT)):
            1 / 0  # noqa: B018
        for messages in reader.batches(3, WAIT):
            with reader.process(messages) as given:
                assert given is messages
                assert [message.body for message in messages] == [b"1", b"2", b"3"]
            reader.stop()
        scrape.until(lambda s: s("acknowledged_total") == 3, "all are acknowledged")
    failed, succeeded = spans("process orders")
    assert failed.status.status_code is StatusCode.ERROR
    assert (succeeded.attributes or {})["messaging.batch.message_count"] == 3
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_baggage_is_there_while_a_message_is_processed(
    spans: Spans, network: MemoryNetwork, tmp_path: Path
) -> None:
    with (
        spans.tracing.producer(producer(network, tmp_path / "o.db")) as sender,
        spans.tracing.consumer(consumer(network, tmp_path / "i.db")) as reader,
    ):
        token = context.attach(baggage.set_baggage("tenant", "blau, grün"))
        sender.publish("orders", b"x")
        context.detach(token)
        for message in reader:
            with reader.process(message):
                assert baggage.get_baggage("tenant") == "blau, grün"
            assert baggage.get_baggage("tenant") is None
            reader.stop()


def test_a_publish_that_fails_marks_its_span(spans: Spans, network: MemoryNetwork, tmp_path: Path) -> None:
    sender = spans.tracing.producer(producer(network, tmp_path / "o.db"))
    sender.close()
    with pytest.raises(ClosedError):
        sender.publish("orders", b"x")
    assert (spans.one("publish orders").attributes or {})["error.type"] == "ClosedError"


def test_a_context_that_does_not_fit_is_left_out(
    spans: Spans, network: MemoryNetwork, tmp_path: Path
) -> None:
    full = {f"header-{number}": "x" for number in range(64)}
    with (
        spans.tracing.producer(producer(network, tmp_path / "o.db")) as sender,
        consumer(network, tmp_path / "i.db") as reader,
    ):
        sender.publish("orders", b"x", headers=full)
        message = reader.get(WAIT)
        assert message is not None
        assert message.headers == full
        with pytest.raises(MessageTooLarge):
            sender.publish("orders", b"x", headers={**full, "more": "x"})
        with pytest.raises(ConfigError):
            sender.publish("orders", b"x", headers=3)  # type: ignore[arg-type]


def test_in_an_event_loop(spans: Spans, network: MemoryNetwork, tmp_path: Path) -> None:
    async def main() -> None:
        sender = spans.tracing.producer(
            aio.Producer("p", network.sites, outbox=tmp_path / "o.db", groups={"orders": ["billing"]})
        )
        reader = spans.tracing.consumer(
            aio.Consumer("billing", network.sites, topics=["orders"], inbox=tmp_path / "i.db")
        )
        async with sender, reader:
            await asyncio.gather(*(sender.publish("orders", b"%d" % number) for number in range(3)))
            await sender.publish_many("orders", [b"3"])
            await sender.publish_nowait("orders", b"4")
            async for message in reader:
                async with reader.process(message):
                    pass
                break
            failed = False

            async def handle(message: Message) -> None:
                nonlocal failed
                await asyncio.sleep(0)
                if not failed:
                    failed = True
                    raise ValueError
                if message.body == b"4":
                    reader.stop()

            await reader.run(handle)

    asyncio.run(main())
    published = [identity(span) for span in spans("publish orders")]
    processed = spans("process orders")
    assert len(set(published)) == 5
    assert {link for span in processed for link in linked(span)} == set(published)
    assert [span.status.status_code for span in processed].count(StatusCode.ERROR) == 1
    assert len(processed) == 6


def test_handlers_that_would_not_run_are_refused(
    spans: Spans, network: MemoryNetwork, tmp_path: Path
) -> None:
    async def coroutine(message: Message) -> None: ...

    with (
        spans.tracing.consumer(consumer(network, tmp_path / "i.db")) as reader,
        pytest.raises(ConfigError, match="ordinary function"),
    ):
        reader.run(coroutine)  # type: ignore[arg-type]

    async def main() -> None:
        found = aio.Consumer("billing", network.sites, topics=["orders"], inbox=tmp_path / "i.db")
        async with spans.tracing.consumer(found) as reader:
            with pytest.raises(ConfigError, match="coroutine function"):
                await reader.run(3)  # type: ignore[arg-type]

    asyncio.run(main())
    with pytest.raises(ConfigError, match="not a producer or consumer"):
        spans.tracing.producer(3)  # type: ignore[call-overload]


def test_a_client_of_the_wrong_kind_is_refused(spans: Spans, network: MemoryNetwork, tmp_path: Path) -> None:
    with (
        producer(network, tmp_path / "o.db") as sender,
        pytest.raises(ConfigError, match="pass it to producer"),
    ):
        spans.tracing.consumer(sender)  # type: ignore[call-overload]
    with (
        consumer(network, tmp_path / "i.db") as reader,
        pytest.raises(ConfigError, match="pass it to consumer"),
    ):
        spans.tracing.producer(reader)  # type: ignore[call-overload]


@pytest.mark.parametrize("wire", ["batch", "plain"])
@pytest.mark.parametrize("broker", ["rabbit", "shared_mosquitto"])
def test_every_form_carries_the_context_through_real_brokers(
    spans: Spans, broker: str, wire: Any, request: pytest.FixtureRequest, unique: str, tmp_path: Path
) -> None:
    sites = [Site("dc1", request.getfixturevalue(broker).url)]
    with (
        spans.tracing.consumer(Consumer("g", sites, topics=[unique], inbox=tmp_path / "i.db")) as reader,
        Producer("p", sites, outbox=tmp_path / "o.db", groups={unique: ["g"]}, wire=wire) as plain,
    ):
        state = trace.TraceState([("vendor", "1")])
        remote = trace.SpanContext(1, 2, True, trace.TraceFlags(1), state)
        above = baggage.set_baggage(
            "tenant", "blau", trace.set_span_in_context(trace.NonRecordingSpan(remote))
        )
        token = context.attach(above)
        spans.tracing.producer(plain).publish(unique, b"x").wait(WAIT)
        context.detach(token)
        message = reader.get(WAIT)
        assert message is not None
        found = propagate.extract(message.headers, context.Context())
        origin = trace.get_current_span(found).get_span_context()
        assert identity(origin) == identity(spans.one(f"publish {unique}"))
        assert origin.trace_state == state
        assert baggage.get_all(found) == {"tenant": "blau"}

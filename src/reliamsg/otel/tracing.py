"""Spans around publishing and processing. The trace context travels in the messages' headers."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from opentelemetry import baggage, propagate, trace
from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.util.types import AttributeValue

from reliamsg.arguments import check_callback
from reliamsg.errors import ConfigError, ReliamsgError
from reliamsg.message import Message
from reliamsg.otel import attributes as names
from reliamsg.runtime.observation import Observed, client_name, observed
from reliamsg.version import VERSION
from reliamsg.wire.application import check_headers

if TYPE_CHECKING:
    from reliamsg import aio
    from reliamsg.consumer.api import Consumer
    from reliamsg.producer.api import Producer
    from reliamsg.producer.receipt import Receipt

__all__ = [
    "AsyncTracedConsumer",
    "AsyncTracedProducer",
    "Process",
    "TracedConsumer",
    "TracedProducer",
    "Tracing",
]

_SYSTEM = "reliamsg"

Given = TypeVar("Given", bound=Message | Sequence[Message])
Client = TypeVar("Client")
Headers = Mapping[str, str] | None


class Tracing:
    """Makes spans with `tracer_provider`, or with the global one, and carries their context with the global propagator:
    by default in the headers ``traceparent``, ``tracestate`` and ``baggage``.

    ::

        tracing = Tracing()
        producer = tracing.producer(producer)
        consumer = tracing.consumer(consumer)

    Nothing is patched: clients are wrapped, and untraced ones can be used beside them.
    """

    def __init__(self, *, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("reliamsg", VERSION, tracer_provider, names.SCHEMA_URL)

    @overload
    def producer(self, producer: Producer) -> TracedProducer: ...
    @overload
    def producer(self, producer: aio.Producer) -> AsyncTracedProducer: ...
    def producer(self, producer: Any) -> TracedProducer | AsyncTracedProducer:
        """A producer with spans ``publish {topic}``, of kind PRODUCER.

        A span lasts as long as the call: with ``publish()`` until the message is durable, not until sites have
        confirmed it. The messages of one ``publish_many()`` share one span. Headers of the application that have the
        same names as the propagator's are replaced. If the context does not fit into the limits of headers, the message
        is published without it.

        The result has all methods of the producer. It may be wrapped before ``async with``. Raises
        :class:`ConfigError` for anything but a producer.
        """
        publishing = _Publishing(self._tracer, client_name(producer))
        if not hasattr(producer, "publish"):
            raise ConfigError("a consumer can't publish: pass it to consumer()")
        if inspect.iscoroutinefunction(producer.publish):
            return AsyncTracedProducer(producer, publishing)
        return TracedProducer(producer, publishing)

    @overload
    def consumer(self, consumer: Consumer) -> TracedConsumer: ...
    @overload
    def consumer(self, consumer: aio.Consumer) -> AsyncTracedConsumer: ...
    def consumer(self, consumer: Any) -> TracedConsumer | AsyncTracedConsumer:
        """A consumer whose :meth:`~TracedConsumer.run` calls handlers in spans ``process {topic}``, of kind CONSUMER.

        Each span is linked to the spans in which its messages were published; with ``batch``, there is one for each
        list. An exception of the handler marks its span. Messages that wait, or are held back behind a gap, have no
        span. While a handler runs, the baggage of its message is attached, but not that of a list.

        The result has all methods of the consumer. Around messages from iteration, ``get()`` and ``batches()``, use its
        :meth:`~TracedConsumer.process`. It may be wrapped before ``async with``. Raises :class:`ConfigError` for
        anything but a consumer.
        """
        processing = _Processing(self._tracer, client_name(consumer))
        if not hasattr(consumer, "run"):
            raise ConfigError("a producer has no messages to process: pass it to producer()")
        if inspect.iscoroutinefunction(consumer.run):
            return AsyncTracedConsumer(consumer, processing)
        return TracedConsumer(consumer, processing)


class _Traced(Generic[Client]):
    """Has everything that the client has."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def __repr__(self) -> str:
        return repr(self._client)


@observed.register(_Traced)
def _observed(traced: _Traced[Any]) -> Observed:
    return observed(traced._client)


class _Blocking(_Traced[Client]):
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.__exit__(kind, error, traceback)  # type: ignore[attr-defined]


class _Async(_Traced[Client]):
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, traceback)  # type: ignore[attr-defined]


@contextmanager
def _current(span: Span) -> Iterator[None]:
    """The span is the current one, is marked by an exception, and ends."""
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except BaseException as error:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, str(error)))
            span.set_attribute(names.ERROR_TYPE, type(error).__qualname__)
            raise


# -- publishing ---------------------------------------------------------------------------------------------------


class _Publishing:
    """The spans of one producer."""

    def __init__(self, tracer: trace.Tracer, producer_id: str) -> None:
        self._tracer, self._producer_id = tracer, producer_id

    @contextmanager
    def span(self, topic: str, size: tuple[str, int], headers: Headers) -> Iterator[tuple[Span, Headers]]:
        """A span around a call, and the headers with its context. `size`: an attribute."""
        name, value = size
        span = self._tracer.start_span(
            f"publish {topic}",
            kind=SpanKind.PRODUCER,
            attributes={
                names.SYSTEM: _SYSTEM, names.OPERATION_NAME: "publish", names.OPERATION_TYPE: "send",
                names.DESTINATION: topic, names.CLIENT_ID: self._producer_id, name: value,
            },
        )  # fmt: skip
        with _current(span):
            yield span, _with_context(headers)


def _published(span: Span, receipt: Receipt | aio.Receipt) -> None:
    """Add what is known once the message is durable."""
    if span.is_recording() and receipt.id is not None:
        span.set_attribute(names.MESSAGE_ID, str(receipt.id))


def _with_context(headers: Headers) -> Headers:
    """The headers with the current context, if both are valid together. Else the headers alone, of which the producer
    says what is wrong with them."""
    if headers is not None and not isinstance(headers, Mapping):
        return headers
    carrier = dict(headers or {})
    propagate.inject(carrier)
    try:
        check_headers(carrier)
    except ReliamsgError:
        return headers
    return carrier or headers


def _size(body: object) -> tuple[str, int]:
    return names.BODY_SIZE, len(body) if isinstance(body, (bytes, bytearray)) else 0


class TracedProducer(_Blocking["Producer"]):
    """A producer with spans, see :meth:`Tracing.producer`. It has all methods of :class:`reliamsg.Producer`."""

    def __init__(self, producer: Producer, publishing: _Publishing) -> None:
        super().__init__(producer)
        self._publishing = publishing

    def publish(self, topic: str, body: bytes, *, key: str | None = None, headers: Headers = None) -> Receipt:
        """See :meth:`reliamsg.Producer.publish`."""
        with self._publishing.span(topic, _size(body), headers) as (span, carrier):
            receipt = self._client.publish(topic, body, key=key, headers=carrier)
            _published(span, receipt)
            return receipt

    def publish_nowait(
        self, topic: str, body: bytes, *, key: str | None = None, headers: Headers = None
    ) -> Receipt:
        """See :meth:`reliamsg.Producer.publish_nowait`. The span does not wait for the disk either."""
        with self._publishing.span(topic, _size(body), headers) as (_, carrier):
            return self._client.publish_nowait(topic, body, key=key, headers=carrier)

    def publish_many(
        self, topic: str, bodies: Iterable[bytes], *, key: str | None = None, headers: Headers = None
    ) -> Receipt:
        """See :meth:`reliamsg.Producer.publish_many`."""
        bodies = list(bodies)
        with self._publishing.span(topic, (names.BATCH_COUNT, len(bodies)), headers) as (span, carrier):
            receipt = self._client.publish_many(topic, bodies, key=key, headers=carrier)
            _published(span, receipt)
            return receipt

    def __enter__(self) -> TracedProducer:
        self._client.__enter__()
        return self


class AsyncTracedProducer(_Async["aio.Producer"]):
    """A producer with spans, see :meth:`Tracing.producer`. It has all methods of :class:`reliamsg.aio.Producer`."""

    def __init__(self, producer: aio.Producer, publishing: _Publishing) -> None:
        super().__init__(producer)
        self._publishing = publishing

    async def publish(
        self, topic: str, body: bytes, *, key: str | None = None, headers: Headers = None
    ) -> aio.Receipt:
        """See :meth:`reliamsg.aio.Producer.publish`."""
        with self._publishing.span(topic, _size(body), headers) as (span, carrier):
            receipt = await self._client.publish(topic, body, key=key, headers=carrier)
            _published(span, receipt)
            return receipt

    def publish_nowait(
        self, topic: str, body: bytes, *, key: str | None = None, headers: Headers = None
    ) -> aio.Receipt:
        """See :meth:`reliamsg.aio.Producer.publish_nowait`. The span does not wait for the disk either."""
        with self._publishing.span(topic, _size(body), headers) as (_, carrier):
            return self._client.publish_nowait(topic, body, key=key, headers=carrier)

    async def publish_many(
        self, topic: str, bodies: Iterable[bytes], *, key: str | None = None, headers: Headers = None
    ) -> aio.Receipt:
        """See :meth:`reliamsg.aio.Producer.publish_many`."""
        bodies = list(bodies)
        with self._publishing.span(topic, (names.BATCH_COUNT, len(bodies)), headers) as (span, carrier):
            receipt = await self._client.publish_many(topic, bodies, key=key, headers=carrier)
            _published(span, receipt)
            return receipt

    async def __aenter__(self) -> AsyncTracedProducer:
        await self._client.__aenter__()
        return self


# -- processing ---------------------------------------------------------------------------------------------------


class _Processing:
    """The spans of one consumer."""

    def __init__(self, tracer: trace.Tracer, group: str) -> None:
        self._tracer, self._group = tracer, group

    @contextmanager
    def span(self, given: Message | Sequence[Message]) -> Iterator[None]:
        """A span around the processing of a message, or of a list of them."""
        messages = (given,) if isinstance(given, Message) else given
        found = [propagate.extract(message.headers, Context()) for message in messages]
        topics = {message.topic for message in messages}
        span = self._tracer.start_span(
            f"process {topics.pop()}" if len(topics) == 1 else "process",
            kind=SpanKind.CONSUMER,
            attributes=self._attributes(given),
            links=_links(messages, found),
        )
        token = None
        if isinstance(given, Message):
            context = contexts.get_current()
            for name, value in baggage.get_all(found[0]).items():
                context = baggage.set_baggage(name, value, context)
            token = contexts.attach(context)
        try:
            with _current(span):
                yield
        finally:
            if token is not None:
                contexts.detach(token)

    def _attributes(self, given: Message | Sequence[Message]) -> dict[str, AttributeValue]:
        found: dict[str, AttributeValue] = {
            names.SYSTEM: _SYSTEM, names.OPERATION_NAME: "process", names.OPERATION_TYPE: "process",
            names.GROUP: self._group,
        }  # fmt: skip
        messages = (given,) if isinstance(given, Message) else given
        for name, values in (
            (names.DESTINATION, {message.topic for message in messages}),
            (names.PARTITION, {str(message.partition) for message in messages}),
        ):
            if len(values) == 1:
                found[name] = values.pop()
        if not isinstance(given, Message):
            return found | {names.BATCH_COUNT: len(given)}
        return found | {
            names.MESSAGE_ID: str(given.id), names.BODY_SIZE: len(given.body),
            names.REDELIVERED: given.redelivered, names.REPLAYED: given.replayed,
        }  # fmt: skip


def _links(messages: Sequence[Message], found: Sequence[Context]) -> list[Link]:
    """One to each span in which some of the messages were published."""
    links: dict[tuple[int, int], Link] = {}
    for message, context in zip(messages, found, strict=True):
        origin = trace.get_current_span(context).get_span_context()
        key = origin.trace_id, origin.span_id
        if origin.is_valid and key not in links:
            links[key] = Link(origin, {names.MESSAGE_ID: str(message.id)})
    return list(links.values())


class Process(Generic[Given]):
    """The context of processing a message or a list of them, see :meth:`TracedConsumer.process`. For ``with`` and
    ``async with``."""

    def __init__(self, given: Given, span: AbstractContextManager[None]) -> None:
        self._given, self._span = given, span
        self._stack = ExitStack()

    def __enter__(self) -> Given:
        with ExitStack() as stack:
            stack.enter_context(self._span)
            given = self._given
            for message in (given,) if isinstance(given, Message) else given:
                stack.enter_context(message.process())
            self._stack = stack.pop_all()
        return self._given

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Given:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


class TracedConsumer(_Blocking["Consumer"]):
    """A consumer with spans, see :meth:`Tracing.consumer`. It has all methods of :class:`reliamsg.Consumer`."""

    def __init__(self, consumer: Consumer, processing: _Processing) -> None:
        super().__init__(consumer)
        self._processing = processing

    def run(self, handler: Callable[[Any], None], *, batch: int | None = None, workers: int = 4) -> None:
        """See :meth:`reliamsg.Consumer.run`."""
        check_callback("handler", handler, optional=False)

        @wraps(handler)
        def traced(given: Any) -> None:
            with self._processing.span(given):
                return handler(given)  # the consumer refuses what was not run

        run: Any = self._client.run  # its overloads tell apart what is the same here
        run(traced, batch=batch, workers=workers)

    def process(self, given: Given) -> Process[Given]:
        """A span around processing a message, or a list of them, that :meth:`run` did not deliver. Like
        :meth:`reliamsg.Message.process`, it acknowledges on success, and records a failure of every message on an
        exception, which it re-raises."""
        return Process(given, self._processing.span(given))

    def __iter__(self) -> Iterator[Message]:
        """See :class:`reliamsg.Consumer`; use :meth:`process` for each message."""
        return iter(self._client)

    def __enter__(self) -> TracedConsumer:
        self._client.__enter__()
        return self


class AsyncTracedConsumer(_Async["aio.Consumer"]):
    """A consumer with spans, see :meth:`Tracing.consumer`. It has all methods of :class:`reliamsg.aio.Consumer`."""

    def __init__(self, consumer: aio.Consumer, processing: _Processing) -> None:
        super().__init__(consumer)
        self._processing = processing

    async def run(
        self, handler: Callable[[Any], Awaitable[None]], *, batch: int | None = None, concurrency: int = 100
    ) -> None:
        """See :meth:`reliamsg.aio.Consumer.run`."""
        if not callable(handler):
            raise ConfigError("handler must be a coroutine function: async def handle(message)")

        @wraps(handler)
        def traced(given: Any) -> Awaitable[None]:
            awaitable = handler(given)
            # The consumer refuses what can't be awaited.
            return self._await(awaitable, given) if inspect.isawaitable(awaitable) else awaitable

        run: Any = self._client.run
        await run(traced, batch=batch, concurrency=concurrency)

    async def _await(self, awaitable: Awaitable[None], given: Any) -> None:
        with self._processing.span(given):
            await awaitable

    def process(self, given: Given) -> Process[Given]:
        """A span around processing a message, or a list of them, that :meth:`run` did not deliver; for ``async with``.
        Like :meth:`reliamsg.Message.process`, it acknowledges on success, and records a failure of every message on an
        exception, which it re-raises."""
        return Process(given, self._processing.span(given))

    def __aiter__(self) -> AsyncIterator[Message]:
        """See :class:`reliamsg.aio.Consumer`; use :meth:`process` for each message."""
        return aiter(self._client)

    async def __aenter__(self) -> AsyncTracedConsumer:
        await self._client.__aenter__()
        return self

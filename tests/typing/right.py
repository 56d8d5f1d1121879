"""Correct uses of the public API: type checkers report nothing about this file. It never runs."""

# pyright: strict

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from reliamsg import Consumer, Message, Producer, Site


class Application:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, message: Message) -> None:
        self.bodies.append(message.body)

    def one(self, message: Message) -> None:
        self.bodies.append(message.body)

    def many(self, messages: list[Message]) -> None:
        self.bodies += [message.body for message in messages]


def one(message: Message) -> None:
    print(message.body)


def many(messages: list[Message]) -> None:
    print(len(messages))


def of_any_sequence(messages: Sequence[Message]) -> None:
    print(len(messages))


def of_anything(message: object) -> None:
    print(message)


def with_more(prefix: str, message: Message) -> None:
    print(prefix, message.body)


def counted(messages: Iterable[Message], limit: int = 10) -> None:
    print(limit, *messages)


def single(consumer: Consumer, application: Application, chosen: Callable[[Message], None]) -> None:
    consumer.run(one)
    consumer.run(one, workers=2)
    consumer.run(one, batch=None)
    consumer.run(handler=one)
    consumer.run(print)
    consumer.run(of_anything)
    consumer.run(application)
    consumer.run(application.one)
    consumer.run(partial(with_more, "got"))
    consumer.run(chosen)
    consumer.run(lambda message: application.bodies.append(message.body))


def batched(consumer: Consumer, application: Application, chosen: Callable[[list[Message]], None]) -> None:
    consumer.run(many, batch=100)
    consumer.run(many, batch=100, workers=2)
    consumer.run(of_any_sequence, batch=100)
    consumer.run(counted, batch=100)
    consumer.run(of_anything, batch=100)
    consumer.run(print, batch=100)
    consumer.run(application.many, batch=100)
    consumer.run(chosen, batch=100)
    consumer.run(lambda messages: application.bodies.extend(m.body for m in messages), batch=100)


def maybe_batched(consumer: Consumer, batch: int | None) -> None:
    consumer.run(of_anything, batch=batch)


def both(sites: Sequence[Site]) -> None:
    with (
        Producer("p", sites, outbox="p.db", groups={"t": ["g"]}) as producer,
        Consumer("g", sites, topics=["t"], inbox="g.db") as consumer,
    ):
        producer.publish("t", b"body", key="k", headers={"a": "b"}).wait(timeout=5)
        consumer.run(one)

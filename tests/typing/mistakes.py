"""Mistakes that type checkers find, one to a line, each with a mark. This file never runs."""

from __future__ import annotations

from collections.abc import Iterator

from reliamsg import Consumer, Message


def one(message: Message) -> None:
    print(message.body)


def many(messages: list[Message]) -> None:
    print(len(messages))


def of_none() -> None:
    print("called")


def of_two(message: Message, account: str) -> None:
    print(message.body, account)


def of_bytes(body: bytes) -> None:
    print(body)


async def later(message: Message) -> None:
    print(message.body)


async def all_later(messages: list[Message]) -> None:
    print(len(messages))


def bit_by_bit(message: Message) -> Iterator[bytes]:
    yield message.body


class Asynchronous:
    async def __call__(self, message: Message) -> None:
        print(message.body)


def single(consumer: Consumer, batch: int | None) -> None:
    consumer.run(many)  # wrong: a message is not a list of messages
    consumer.run(many, batch=None)  # wrong: the same
    consumer.run(of_none)  # wrong: it takes no message
    consumer.run(of_two)  # wrong: it takes more arguments
    consumer.run(of_bytes)  # wrong: a message is not its body
    consumer.run(later)  # wrong: the returned coroutine is never awaited
    consumer.run(Asynchronous())  # wrong: the same
    consumer.run(bit_by_bit)  # wrong: the returned generator is never iterated
    consumer.run("one")  # wrong: not a function
    consumer.run(one, workers="4")  # wrong: not a number
    consumer.run(one, batches=10)  # wrong: there is no such parameter
    consumer.run(many, batch=batch)  # wrong: it may be None
    consumer.run(lambda messages: print(messages[0]))  # wrong: a message has no elements


def batched(consumer: Consumer) -> None:
    consumer.run(one, batch=10)  # wrong: a list of messages is not a message
    consumer.run(later, batch=10)  # wrong: the same, and the coroutine is never awaited
    consumer.run(all_later, batch=10)  # wrong: the returned coroutine is never awaited
    consumer.run(many, batch="10")  # wrong: not a number
    consumer.run(many, batch=10.0)  # wrong: not an integer
    consumer.run(lambda message: print(message.body), batch=10)  # wrong: a list has no body
    consumer.run(many, 10)  # wrong: keyword-only

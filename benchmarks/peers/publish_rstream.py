"""rstream: publish N messages to one stream of one RabbitMQ node, until all are confirmed.

``send_batch`` with lists of raw bytes (no AMQP 1.0 encoding), so that many messages share a frame and are confirmed
together; up to WINDOW of them unconfirmed. Nothing is durable on the client, and RabbitMQ does not fsync streams. With
``sub`` as the last argument, batches are sent as sub-entries, each one entry with one confirm. With ``each``, every
message is a separate call of ``send``, as in the introduction of its documentation; rstream batches these again.
"""

from __future__ import annotations

import asyncio
import sys
import time

from rstream import ConfirmationStatus, Producer

from benchmarks.measured import say

BATCH = 1_000
WINDOW = 20_000


class Confirms:
    """Counts confirms, and lets the sender wait for room."""

    def __init__(self) -> None:
        self.sent = self.confirmed = 0
        self.changed = asyncio.Event()

    def confirm(self, status: ConfirmationStatus) -> None:
        if not status.is_confirmed:
            raise SystemExit("the broker refused a message")
        self.confirmed += 1
        self.changed.set()

    async def room(self, window: int) -> None:
        """Wait until at most `window` are unconfirmed."""
        while self.sent - self.confirmed > window:
            self.changed.clear()
            await self.changed.wait()


async def lists(producer: Producer, stream: str, messages: int, body: bytes, confirms: Confirms) -> None:
    for first in range(0, messages, BATCH):
        batch = [body] * min(BATCH, messages - first)
        confirms.sent += len(batch)
        await producer.send_batch(stream, batch, on_publish_confirm=confirms.confirm)
        await confirms.room(WINDOW)


async def entries(producer: Producer, stream: str, messages: int, body: bytes, confirms: Confirms) -> None:
    """One publishing id and one confirm per message. They are sent every half second."""
    for first in range(0, messages, BATCH):
        confirms.sent += 1
        batch = [body] * min(BATCH, messages - first)
        await producer.send_sub_entry(stream, batch, on_publish_confirm=confirms.confirm)


async def each(producer: Producer, stream: str, messages: int, body: bytes, confirms: Confirms) -> None:
    for number in range(messages):
        confirms.sent += 1
        await producer.send(stream, body, on_publish_confirm=confirms.confirm)
        if number % BATCH == 0:
            await confirms.room(WINDOW)


WAYS = {"": lists, "sub": entries, "each": each}


async def publish(stream: str, messages: int, size: int, port: int, kind: str) -> float:
    """Seconds that it took."""
    body, confirms = bytes(size), Confirms()
    async with Producer("127.0.0.1", port, username="guest", password="guest") as producer:
        await producer.create_stream(stream)
        await producer.send_wait(stream, body)  # connected
        start = time.perf_counter()
        await WAYS[kind](producer, stream, messages, body, confirms)
        await confirms.room(0)
        seconds = time.perf_counter() - start
        await producer.delete_stream(stream)
    return seconds


def main(stream: str, messages: int, size: int, port: int, kind: str) -> None:
    say(messages / asyncio.run(publish(stream, messages, size, port, kind)), messages)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), "".join(sys.argv[5:]))

"""aio-pika: publish N persistent messages to one site with publisher confirms, awaiting WINDOW of them together."""

from __future__ import annotations

import asyncio
import sys
import time

import aio_pika

from benchmarks.measured import say

EXCHANGE = "reliamsg"
WINDOW = 1_000


async def publish(topic: str, messages: int, size: int, url: str) -> float:
    """Seconds that it took."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        exchange = await channel.get_exchange(EXCHANGE)
        message = aio_pika.Message(bytes(size), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        start = time.perf_counter()
        for first in range(0, messages, WINDOW):
            count = min(WINDOW, messages - first)
            await asyncio.gather(*(exchange.publish(message, topic, mandatory=False) for _ in range(count)))
        return time.perf_counter() - start


def main(topic: str, messages: int, size: int, url: str) -> None:
    say(messages / asyncio.run(publish(topic, messages, size, url)), messages)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])

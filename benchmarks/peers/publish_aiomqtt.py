"""aiomqtt: publish N messages with QoS 1 to one broker, awaiting WINDOW of them together (paho does the work)."""

from __future__ import annotations

import asyncio
import sys
import time

import aiomqtt

from benchmarks.measured import say

WINDOW = 500


async def publish(topic: str, messages: int, size: int, port: int) -> float:
    """Seconds that it took."""
    body = bytes(size)
    async with aiomqtt.Client("127.0.0.1", port, max_concurrent_outgoing_calls=WINDOW) as client:
        client.pending_calls_threshold = 2 * WINDOW  # no warning for each
        start = time.perf_counter()
        for first in range(0, messages, WINDOW):
            count = min(WINDOW, messages - first)
            await asyncio.gather(*(client.publish(topic, body, 1) for _ in range(count)))
        return time.perf_counter() - start


def main(topic: str, messages: int, size: int, port: int) -> None:
    say(messages / asyncio.run(publish(topic, messages, size, port)), messages)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

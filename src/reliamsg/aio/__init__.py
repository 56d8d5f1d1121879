"""Producers and consumers for asyncio.

They mirror :class:`reliamsg.Producer` and :class:`reliamsg.Consumer`, run the same engines, and share their files: an
outbox or inbox can be opened by either. No call blocks the event loop on a disk or a network::

    async with reliamsg.aio.Producer("gateway-7", sites, outbox="outbox.db") as producer:
        await producer.publish("orders", b"42 widgets")  # durable here

    async with reliamsg.aio.Consumer("billing", sites, topics=["orders"], inbox="billing.db") as consumer:
        async for message in consumer:
            async with message.process():
                await bill(message.body)
"""

from __future__ import annotations

from reliamsg.aio.consumer import Consumer
from reliamsg.aio.producer import Producer
from reliamsg.aio.receipt import Receipt

__all__ = ["Consumer", "Producer", "Receipt"]

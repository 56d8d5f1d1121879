"""An application with a producer and a consumer that forks: ``python -m reliamsg.lab.chaos.forking CONFIG``.

It forks while published messages have not been handled yet. The child tries to use both clients, and must be refused.
The parent continues undisturbed.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from reliamsg.checker.applog import AppLog
from reliamsg.config import JournalExport, Site
from reliamsg.consumer.api import Consumer
from reliamsg.errors import ForkedError
from reliamsg.producer.api import Producer


def main(config: dict[str, Any]) -> None:
    """Publish half of the messages, handle some, fork, and continue with the rest."""
    sites = [Site(name, url, **options) for name, url, options in config["sites"]]
    topic, last = config["topic"], config["last"]
    journal = JournalExport(config["journal"], interval=1.0)
    with (
        Consumer(topic, sites, topics=[topic], inbox=config["inbox"], journal=journal) as consumer,
        Producer(topic, sites, outbox=config["outbox"], groups={topic: [topic]}, journal=journal) as producer,
        AppLog(config["published"], producer=topic) as published,
        AppLog(config["log"], group=topic, topics=[topic]) as delivered,
    ):
        handled = 0
        for number in range(1, last + 1):
            body = b"%d" % number
            published.publish("invoked", topic, number, body)
            receipt = producer.publish(topic, body)
            published.publish("ok", topic, number, body, id=receipt.id)
            if number == last // 2:
                handled += handle(consumer, delivered, number // 2)
                print(f"forks with {number - handled} messages under way", flush=True)
                fork(consumer, producer, topic)
        handle(consumer, delivered, last - handled)
        producer.flush(timeout=120)


def handle(consumer: Consumer, log: AppLog, count: int) -> int:
    """Handle the next `count` messages; returns their number."""
    for _ in range(count):
        message = consumer.get(timeout=120)
        if message is None:
            sys.exit("not everything was delivered")
        log.delivered(message)
        message.ack()
    return count


def fork(consumer: Consumer, producer: Producer, topic: str) -> None:
    """Fork a child that tries to use its parent's clients, and print how often it was refused."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        print(f"the child was refused {os.waitstatus_to_exitcode(status)} times", flush=True)
        return
    refused = 0
    calls = (
        lambda: producer.publish(topic, b"from the child"), producer.flush, consumer.status,
        lambda: consumer.get(timeout=1),
    )  # fmt: skip
    for call in calls:
        try:
            call()
        except ForkedError:
            refused += 1
    os._exit(refused)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

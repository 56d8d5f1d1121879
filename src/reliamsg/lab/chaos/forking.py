"""An application with a producer and a consumer that forks in the middle:
``python -m reliamsg.lab.chaos.forking CONFIG``.

It forks while messages are under way: published, and not all of them handled. The child tries to use both clients, and
must be refused; the parent goes on as if nothing had been.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from reliamsg.checker.applog import AppLog
from reliamsg.config import JournalExport, Site
from reliamsg.errors import ForkedError
from reliamsg.receiving.consumer import Consumer
from reliamsg.sending.producer import Producer


def main(config: dict[str, Any]) -> None:
    """Publish and consume half, fork, and then the other half."""
    sites = [Site(name, url, **options) for name, url, options in config["sites"]]
    topic, last = config["topic"], config["last"]
    journal = JournalExport(config["journal"], interval=1.0)
    with (
        Consumer(topic, sites, topics=[topic], inbox=config["inbox"], journal=journal) as consumer,
        Producer(topic, sites, outbox=config["outbox"], groups={topic: [topic]}, journal=journal) as producer,
        AppLog(config["published"], producer=topic) as published,
        AppLog(config["log"], group=topic, topics=[topic]) as handed,
    ):
        came = 0
        for number in range(1, last + 1):
            body = b"%d" % number
            published.publish("invoked", topic, number, body)
            receipt = producer.publish(topic, body)
            published.publish("ok", topic, number, body, id=receipt.id)
            if number == last // 2:
                came += handle(consumer, handed, number // 2)
                print(f"forks with {number - came} messages under way", flush=True)
                fork(consumer, producer, topic)
        handle(consumer, handed, last - came)
        producer.flush(timeout=120)


def handle(consumer: Consumer, handed: AppLog, count: int) -> int:
    """Handle the next `count` messages; returns how many that were."""
    for _ in range(count):
        message = consumer.get(timeout=120)
        if message is None:
            sys.exit("not everything came")
        handed.delivered(message)
        message.ack()
    return count


def fork(consumer: Consumer, producer: Producer, topic: str) -> None:
    """Have a child try to use what its parent has open; print how often it was refused."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        print(f"the child was refused {os.waitstatus_to_exitcode(status)} times", flush=True)
        return
    refused = 0
    calls = (
        lambda: producer.publish(topic, b"of the child"), producer.flush, consumer.status,
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

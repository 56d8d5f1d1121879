"""The counterpart of ``benchmarks/peers/latency_paho.py`` over two sites: ``publish``, durable when it returns, and
``subscribe``, which acknowledges each list of messages that it receives."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from benchmarks.measured import say
from benchmarks.paced import Arrivals, publish_paced
from benchmarks.sites import GROUP, work_directory
from reliamsg import Consumer, Message, Producer, Site

TOPIC = "latency"
BATCH = 256


def named(urls: list[str]) -> list[Site]:
    return [Site(f"dc{number}", url) for number, url in enumerate(urls, 1)]


def publish(urls: list[str], threads: int, rate: float, warm_up: float, seconds: float, size: int) -> None:
    with (
        work_directory() as place,
        Producer("bench", named(urls), outbox=Path(place) / "outbox.db", groups={TOPIC: [GROUP]}) as producer,
    ):
        while not all(site.connected for site in producer.status().sites.values()):
            time.sleep(0.02)
        total, _ = publish_paced(
            lambda body: producer.publish(TOPIC, body), threads, rate, warm_up, seconds, size
        )
        producer.flush(60)
    say(rate, total)


def subscribe(urls: list[str], which: list[float]) -> None:
    arrivals = Arrivals()

    def handle(messages: list[Message]) -> None:
        for message in messages:
            arrivals.came(message.body)

    with (
        work_directory() as place,
        Consumer(GROUP, named(urls), topics=[TOPIC], inbox=Path(place) / "inbox.db") as consumer,
    ):
        reader = threading.Thread(target=consumer.run, args=(handle,), kwargs={"batch": BATCH})
        reader.start()
        while any(site.state != "connected" for site in consumer.status().sites.values()):
            time.sleep(0.02)
        print("ready", flush=True)
        count = int(sys.stdin.readline())
        arrivals.wait(count, 60)
        consumer.stop()
        reader.join()
    say(arrivals.percentiles([99])["p99"], count, percentiles=arrivals.percentiles(which))


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    if sys.argv[1] == "publish":
        threads, rate, warm_up, seconds, size = sys.argv[3:]
        publish(given, int(threads), float(rate), float(warm_up), float(seconds), int(size))
    else:
        subscribe(given, json.loads(sys.argv[3]))

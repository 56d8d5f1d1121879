"""Two accounts, two groups, and a site that is killed in the middle with thousands of messages queued.

    python two_accounts.py --lab mosquitto
    python two_accounts.py --messages 60000 dc1=amqp://host1 dc2=amqp://host2

Producers A and B publish numbered messages with their account in a header; the groups `ledger` and `fraud` are slow, so
messages pile up at the sites. Midway, dc1 is killed, loses its messages, and returns empty. At the end each group must
have every number once, in order for each account. With --lab the brokers are started and killed here, and plain paho
runs through the same faults at one broker; with URLs you are asked to kill and restart your own.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from reliamsg import Consumer, Message, Producer, Site
from reliamsg.lab import Broker, Mosquitto, RabbitNode
from reliamsg.lab.paho import PahoPublisher, PahoSubscriber

TOPIC = "payments"
ACCOUNTS = ("A", "B")
GROUPS = ("ledger", "fraud")
SECONDS = 120.0
CHUNK = 20
COST = 0.0005
"""Seconds that a group spends on each message."""


class Group:
    """A consumer that records, in a thread, the numbers that it receives for each account."""

    def __init__(self, name: str, sites: list[Site], directory: Path) -> None:
        self.name = name
        self.numbers: dict[str, list[int]] = defaultdict(list)
        # A small inbox: messages that are not handled yet stay at the sites, where the fault can hit them.
        self.consumer = Consumer(
            name, sites, topics=[TOPIC], inbox=directory / f"{name}.db", max_inbox_bytes=64 * 1024
        )
        self.thread = threading.Thread(
            target=lambda: self.consumer.run(self.handle, batch=CHUNK), daemon=True
        )

    def __enter__(self) -> "Group":
        self.thread.start()
        # MQTT brokers keep messages only for groups that they know.
        wait(lambda: all(site.state == "connected" for site in self.consumer.status().sites.values()))
        return self

    def handle(self, messages: list[Message]) -> None:
        time.sleep(COST * len(messages))
        for message in messages:
            self.numbers[message.headers["account"]].append(int(message.body))

    def has(self, count: int) -> bool:
        return self.handled >= count

    @property
    def handled(self) -> int:
        return sum(map(len, self.numbers.values()))

    def __exit__(self, *exc: object) -> None:
        self.consumer.stop()
        self.thread.join()
        self.consumer.close()


def run(
    sites: list[Site], count: int, place: Path, kill: Callable[[], object], restore: Callable[[], object]
) -> bool:
    """Whether every group received every number once, in order for each account."""
    with ExitStack() as stack:
        groups = [stack.enter_context(Group(name, sites, place)) for name in GROUPS]
        producers = {
            account: stack.enter_context(
                Producer(account, sites, outbox=place / f"{account}.db", groups={TOPIC: list(GROUPS)})
            )
            for account in ACCOUNTS
        }
        publish(producers, range(1, count // 2 + 1))
        for producer in producers.values():
            producer.flush(SECONDS)
        waiting = [count // 2 * len(ACCOUNTS) - group.handled for group in groups]
        kill()
        print(f"dc1 is gone; not handled yet: {dict(zip(GROUPS, waiting, strict=True))}", flush=True)
        publish(producers, range(count // 2 + 1, count + 1))
        restore()
        print("dc1 is back, empty", flush=True)
        for producer in producers.values():
            producer.flush(SECONDS)
        every = list(range(1, count + 1))
        for group in groups:
            wait(partial(group.has, count * len(ACCOUNTS)))
            for account in ACCOUNTS:
                right = group.numbers[account] == every
                print(f"{group.name}: {len(group.numbers[account])} of account {account}, in order: {right}")
        return all(group.numbers[account] == every for group in groups for account in ACCOUNTS)


def publish(producers: dict[str, Producer], numbers: range) -> None:
    """Publish the numbers of all accounts, a chunk at a time; each chunk is on disk before the next."""
    for first in numbers[::CHUNK]:
        bodies = [b"%d" % number for number in range(first, min(first + CHUNK, numbers.stop))]
        for account, producer in producers.items():
            producer.publish_many(TOPIC, bodies, headers={"account": account})


def run_plain(broker: Broker, count: int) -> int:
    """The number of messages that the broker had confirmed and that plain paho's subscriber never received."""
    received: list[bytes] = []

    def handle(body: bytes) -> None:
        time.sleep(COST)
        received.append(body)

    subscriber = PahoSubscriber(broker.url, "plain", TOPIC, handle)
    subscriber.wait_subscribed(SECONDS)
    publisher = PahoPublisher(broker.url, "plain-accounts")
    confirmed = 0
    for part in (range(1, count // 2 + 1), range(count // 2 + 1, count + 1)):
        for number in part:
            for account in ACCOUNTS:
                publisher.publish(TOPIC, f"{account}{number}".encode(), number)
        while publisher.unconfirmed:
            confirmed += len(publisher.confirmed(1.0))
        if part.stop <= count:
            broker.kill()
            broker.start()
            subscriber.wait_subscribed(SECONDS)
    while True:  # until nothing more arrives
        before = len(received)
        time.sleep(2.0)
        if len(received) == before:
            break
    publisher.close()
    subscriber.close()
    return confirmed - len(set(received))


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"timed out after {SECONDS:g} s")
        time.sleep(0.05)


def with_lab(kind: str, count: int, place: Path) -> bool:
    """Both runs, on brokers that are started and killed here."""
    with ExitStack() as stack:
        dc1, control = (stack.enter_context(Mosquitto(place / name, name)) for name in ("dc1", "control"))
        place2 = place / "dc2"
        dc2: Broker = Mosquitto(place2, "dc2") if kind == "mosquitto" else RabbitNode(place2, "dc2")
        stack.callback(dc2.kill)
        dc2.start()
        # Mosquitto without persistence, as it is installed: killing it loses everything that it held.
        sites = [Site("dc1", dc1.url, prefetch=8, backoff_max=1.0), Site("dc2", dc2.url, prefetch=8)]
        right = run(sites, count, place, dc1.kill, dc1.start)
        print(f"plain paho at one Mosquitto: {run_plain(control, count)} confirmed messages lost")
        return right


def main() -> int:
    parser = argparse.ArgumentParser(description="Two accounts, two groups, and a site that is killed.")
    parser.add_argument("sites", nargs="*", metavar="NAME=URL")
    parser.add_argument(
        "--lab", choices=["mosquitto", "mixed"], help="start brokers here; mixed: dc2 is RabbitMQ"
    )
    parser.add_argument("--messages", type=int, default=5000, help="messages for each account")
    options = parser.parse_args()
    if bool(options.lab) == bool(options.sites):
        parser.error("give either sites or --lab")
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        if options.lab:
            right = with_lab(options.lab, options.messages, place)
        else:
            sites = [Site(*site.split("=", 1), prefetch=8) for site in options.sites]
            name = sites[0].name
            right = run(
                sites,
                options.messages,
                place,
                lambda: input(f"kill the broker of {name}, delete its data, press Enter: "),
                lambda: input(f"start the broker of {name} again, press Enter: "),
            )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

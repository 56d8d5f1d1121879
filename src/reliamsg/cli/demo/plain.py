"""The baseline of the demo: plain paho with one broker, the same faults and the same messages.

``python -m reliamsg.cli.demo.plain PLAN publish | subscribe``, in separate processes. The subscriber handles as
many messages a second as a group. Exits on SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import cast

from reliamsg.checker.applog import AppLog, AppRecord, sha256
from reliamsg.cli.demo.plan import PRODUCERS, SUBSCRIBED, TOPIC, Plan
from reliamsg.lab.paho import PahoPublisher, PahoSubscriber

_MOST_UNCONFIRMED = 5000
"""MQTT has 65,535 packet ids, and paho does not check whether one is in use."""
_SUBSCRIBE_SECONDS = 20.0
_SYNC_EVERY = 50


def parse(body: bytes) -> tuple[str, int]:
    """The account and number in a message's body."""
    words = body.decode().split()
    return words[4], int(words[1])


def publish(plan: Plan, stop: threading.Event) -> None:
    """Publish the messages of all accounts in turn, at the speed of all producers."""
    publisher = PahoPublisher(plan.plain_url, "plain-publisher")
    with AppLog(plan.plain_published, sync_every=_SYNC_EVERY) as log:

        def note(outcome: str, account: str, number: int) -> None:
            log.write(AppRecord("publish", outcome, producer=account, topic=TOPIC, n=number))

        def take(timeout: float) -> None:
            for found in publisher.confirmed(timeout):
                note("ok", *cast(tuple[str, int], found))

        started = time.monotonic()
        for number in range(1, plan.messages + 1):
            for account in PRODUCERS:
                note("invoked", account, number)
                publisher.publish(TOPIC, plan.body(account, number), (account, number))
            while not stop.is_set() and (
                time.monotonic() < started + number / plan.rate or publisher.unconfirmed > _MOST_UNCONFIRMED
            ):
                take(0.01)
        while publisher.unconfirmed and not stop.is_set():
            take(0.1)
    publisher.close()


def subscribe(plan: Plan, stop: threading.Event) -> None:
    """Log every message that arrives."""
    with AppLog(plan.plain_delivered, sync_every=_SYNC_EVERY) as log:
        seconds = plan.handling_seconds / len(PRODUCERS)
        due = time.monotonic()

        def handle(body: bytes) -> None:
            nonlocal due
            account, number = parse(body)
            log.write(
                AppRecord(
                    "delivered", group="plain", producer=account, topic=TOPIC, n=number, sha256=sha256(body)
                )
            )
            # Against a clock, because a sleep of less than a millisecond takes longer.
            now = time.monotonic()
            due = max(due, now - 0.05) + seconds
            time.sleep(max(0.0, due - now))

        subscriber = PahoSubscriber(plan.plain_url, "plain-subscriber", TOPIC, handle)
        subscriber.wait_subscribed(_SUBSCRIBE_SECONDS)
        log.write(AppRecord(SUBSCRIBED))
        stop.wait()
        subscriber.close()


def main(plan: Plan, part: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    {"publish": publish, "subscribe": subscribe}[part](plan, stop)


if __name__ == "__main__":
    main(Plan.from_json(sys.argv[1]), sys.argv[2])

"""A producer of the demo, in a separate process: ``python -m reliamsg.cli.demo.producing PLAN NAME``.

Publishes numbered messages and logs them, fsynced before and after each call. Then it stays open, so that a group that
is restarted can still hear from it, and exits on SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import threading
import time

from reliamsg.checker.applog import AppLog
from reliamsg.cli.demo.plan import GROUPS, TOPIC, Plan
from reliamsg.producer.api import Producer

_FLUSH_SECONDS = 300.0


def main(plan: Plan, name: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with (
        AppLog(plan.published(name), producer=name, sync_every=0) as log,
        Producer(name, plan.sites(), outbox=plan.outbox(name), groups={TOPIC: list(GROUPS)}) as producer,
    ):
        started = time.monotonic()
        for first in range(1, plan.messages + 1, plan.chunk):
            numbers = range(first, min(first + plan.chunk, plan.messages + 1))
            _publish(producer, log, name, [(number, plan.body(name, number)) for number in numbers])
            time.sleep(max(0.0, started + numbers[-1] / plan.rate - time.monotonic()))
        producer.flush(_FLUSH_SECONDS)
        stop.wait()


def _publish(producer: Producer, log: AppLog, name: str, messages: list[tuple[int, bytes]]) -> None:
    for number, body in messages:
        log.publish("invoked", TOPIC, number, body)
    log.flush()
    receipts = [producer.publish_nowait(TOPIC, body, headers={"account": name}) for _, body in messages]
    for (number, body), receipt in zip(messages, receipts, strict=True):
        receipt.wait(60.0, until="durable")
        log.publish("ok", TOPIC, number, body, id=receipt.id)
    log.flush()


if __name__ == "__main__":
    main(Plan.from_json(sys.argv[1]), sys.argv[2])

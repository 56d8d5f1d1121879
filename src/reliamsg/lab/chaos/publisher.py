"""The publishing application of the scenarios: ``python -m reliamsg.lab.chaos.publisher CONFIG``.

It creates the file `ready` once its outbox is open, publishes messages numbered `first` to `last`, or until the file
`enough` exists, and then creates the file `ended`. It logs each call and its outcome, with an fsync before and after
the call. It stops on SIGTERM; started again, it continues after the highest number in its log.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from reliamsg.checker.applog import AppLog, read_applog
from reliamsg.config import JournalExport, Site
from reliamsg.errors import OutboxFull, OutboxIndeterminate, OutboxWriteError
from reliamsg.injection import inject
from reliamsg.keys import KeyRing
from reliamsg.lab.chaos.failpoint import Failpoint
from reliamsg.lab.chaos.memory_limit import limit_memory
from reliamsg.producer.api import Producer

_SLICE_S = 0.05
"""A signal does not interrupt a sleep, so sleeps are short."""


class _Stop:
    """Whether SIGTERM was received. A threading.Event is no alternative: setting it in a signal handler can deadlock on
    a lock that the interrupted code holds."""

    def __init__(self) -> None:
        self.requested: bool = False
        signal.signal(signal.SIGTERM, self._notice)

    def _notice(self, *_: object) -> None:
        self.requested = True

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.requested and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE_S))


def main(config: dict[str, Any]) -> None:
    """Publish as configured."""
    run(config, _Stop())


def highest(path: str) -> int:
    """The highest number in the log."""
    if not Path(path).exists():
        return 0
    return max((record.n or 0 for record in read_applog(path).records), default=0)


def body(account: str, number: int, size: int) -> bytes:
    """The body of message `number`, at least `size` bytes long."""
    return f"{account}:{number}:".encode().ljust(size, b".")


def run(config: dict[str, Any], stop: _Stop) -> None:
    """Publish until everything is published, or SIGTERM."""
    sites = [Site(name, url, **options) for name, url, options in config["sites"]]
    account, topic, size = config["producer"], config["topic"], config.get("size", 100)
    first = max(config.get("first", 1), highest(config["log"]) + 1)
    log = AppLog(config["log"], producer=account, sync_every=0)
    with inject(probe=Failpoint(*config["probe"]) if config.get("probe") else None):
        producer = Producer(
            account,
            sites,
            outbox=config["outbox"],
            groups=config.get("groups"),
            journal=JournalExport(config["journal"], interval=1.0),
            keys=key_ring(config),
            **config.get("options", {}),
        )
    limit_memory(config.get("headroom_mb"))
    Path(config["ready"]).touch()
    chunk, rate, started = config.get("chunk", 50), config.get("rate", 0), time.monotonic()
    enough = Path(config.get("enough", "/nonexistent"))
    with log:
        number = first
        while number <= config["last"] and not stop.requested and not enough.exists():
            numbers = range(number, min(number + chunk, config["last"] + 1))
            publish(producer, log, topic, [(n, body(account, n, size)) for n in numbers], account)
            number = numbers.stop
            if rate:
                stop.wait(started + (number - first) / rate - time.monotonic())
        if "ended" in config:
            Path(config["ended"]).touch()
        if not stop.requested and config.get("confirm", True):
            producer.flush(timeout=config.get("flush", 120.0))
        while config.get("linger") and not stop.requested:
            stop.wait(1.0)
        producer.close(timeout=config.get("close", 10.0))


def key_ring(config: dict[str, Any]) -> KeyRing | None:
    """A key ring with the key in `config`, a secret in hexadecimal; None if there is none."""
    if not config.get("key"):
        return None
    return KeyRing({"chaos": bytes.fromhex(config["key"])}, sign_with="chaos")


def publish(
    producer: Producer, log: AppLog, topic: str, messages: list[tuple[int, bytes]], account: str
) -> None:
    """Publish these messages, and wait until they are durable."""
    for number, data in messages:
        log.publish("invoked", topic, number, data)
    log.flush()
    receipts = []
    for number, data in messages:
        try:
            receipts.append(
                (number, data, producer.publish_nowait(topic, data, headers={"account": account}))
            )
        except OutboxFull:
            log.publish("failed", topic, number, data)
    for number, data, receipt in receipts:
        try:
            receipt.wait(timeout=120, until="durable")
        except OutboxWriteError:
            log.publish("failed", topic, number, data)
        except OutboxIndeterminate:
            log.publish("indeterminate", topic, number, data)
            log.flush()
            raise
        else:
            log.publish("ok", topic, number, data, id=receipt.id)
    log.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

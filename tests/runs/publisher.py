"""The publishing application of the runs, in a process of its own: ``python -m tests.runs.publisher CONFIG``.

Publishes messages numbered `first` to `last`, or until the file `enough` exists, and then makes the file `ended`. It
writes what it asked for, and what it was told, to a log of its own, fsynced before and after each call. On SIGTERM it
stops; started again it goes on after the highest number in its log.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from reliamsg import JournalExport, Producer, Site
from reliamsg.cli.signals import StopRequest
from reliamsg.errors import OutboxFull, OutboxWriteError
from reliamsg.verify.applog import AppLog, read_applog
from tests.runs.failpoint import Failpoint


def highest(path: str) -> int:
    """The highest number that was ever tried."""
    if not Path(path).exists():
        return 0
    return max((record.n or 0 for record in read_applog(path).records), default=0)


def body(account: str, number: int, size: int) -> bytes:
    """What message `number` says; `size` bytes at least."""
    return f"{account}:{number}:".encode().ljust(size, b".")


def main(config: dict[str, Any]) -> None:
    # A threading.Event would not do: set in a handler, it may wait for the very lock that the handler interrupted.
    with StopRequest() as stop:
        run(config, stop)


def run(config: dict[str, Any], stop: StopRequest) -> None:
    sites = [Site(name, url, **options) for name, url, options in config["sites"]]
    account, topic, size = config["producer"], config["topic"], config.get("size", 100)
    first = max(config.get("first", 1), highest(config["log"]) + 1)
    log = AppLog(config["log"], producer=account, sync_every=0)
    probe = Failpoint(*config["probe"]) if config.get("probe") else None
    producer = Producer(
        account,
        sites,
        outbox=config["outbox"],
        groups=config.get("groups"),
        journal=JournalExport(config["journal"], interval=1.0),
        probe=probe,
        **config.get("options", {}),
    )
    chunk, rate, started = config.get("chunk", 50), config.get("rate", 0), time.monotonic()
    enough = Path(config.get("enough", "/nonexistent"))
    with log:
        number = first
        while number <= config["last"] and not stop and not enough.exists():
            numbers = range(number, min(number + chunk, config["last"] + 1))
            publish(producer, log, topic, [(n, body(account, n, size)) for n in numbers], account)
            number = numbers.stop
            if rate:
                stop.wait(max(0.0, started + (number - first) / rate - time.monotonic()))
        if "ended" in config:
            Path(config["ended"]).touch()
        if not stop and config.get("confirm", True):
            producer.flush(timeout=config.get("flush", 120.0))
        while config.get("linger") and not stop:
            stop.wait(1.0)
        producer.close(timeout=config.get("close", 10.0))


def publish(
    producer: Producer, log: AppLog, topic: str, messages: list[tuple[int, bytes]], account: str
) -> None:
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
        else:
            log.publish("ok", topic, number, data, id=receipt.id)
    log.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

"""The consuming application of the scenarios: ``python -m reliamsg.lab.chaos.subscriber CONFIG``.

It logs every message, with an fsync before the handler returns and so before the message is acknowledged. `delay` is
the time, in seconds, to handle a message until the file `hurry` exists. The handler raises on messages whose number is
a multiple of `poison`: `failures` times each, or always by default. It creates the file `ready` once its inbox is open,
and from then on exits on SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reliamsg.checker.applog import AppLog
from reliamsg.config import JournalExport, Site
from reliamsg.consumer.api import Consumer
from reliamsg.injection import inject
from reliamsg.lab.chaos.failpoint import Failpoint
from reliamsg.lab.chaos.memory_limit import limit_memory
from reliamsg.lab.chaos.publisher import key_ring
from reliamsg.message import Message


class Refused(Exception):
    """Raised by the handler on poison messages."""


def main(config: dict[str, Any]) -> None:
    """Handle messages as configured."""
    sites = [Site(name, url, **options) for name, url, options in config["sites"]]
    topics, group = config["topics"], config["group"]
    log = AppLog(config["log"], group=group, topics=topics, sync_every=0)
    with inject(probe=Failpoint(*config["probe"]) if config.get("probe") else None):
        consumer = Consumer(
            group,
            sites,
            topics=topics,
            inbox=config["inbox"],
            journal=JournalExport(config["journal"], interval=1.0),
            keys=key_ring(config),
            on_late=log.late,
            on_error=lambda error: print(repr(error), file=sys.stderr, flush=True),
            **config.get("options", {}),
        )
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    Path(config["ready"]).touch()
    limit_memory(config.get("headroom_mb"))
    with log:
        handle = handler(config, log)
        consumer.run(handle, batch=config.get("batch", 50), workers=config.get("workers", 4))
        consumer.close()


def handler(config: dict[str, Any], log: AppLog) -> Callable[[list[Message]], None]:
    """The function that handles messages."""
    delay, hurry = config.get("delay", 0.0), Path(config.get("hurry", "/nonexistent"))
    poison, failures = config.get("poison", 0), config.get("failures", sys.maxsize)
    raised: Counter[bytes] = Counter()

    def handle(messages: list[Message]) -> None:
        for message in messages:
            log.delivered(message)
        log.flush()
        if delay and not hurry.exists():
            time.sleep(delay * len(messages))
        for message in messages:
            if poison and int(message.body.split(b":")[1]) % poison == 0 and raised[message.body] < failures:
                raised[message.body] += 1
                raise Refused(f"message {message.seq} is poison")

    return handle


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

"""A consumer in a separate process: ``python -m tests.e2e.reader CONFIG``.

Writes a line for each message that its handler is called with: the time, its number, and whether it was flagged.
Creates a file when it reads, or listens at all sites. With ``die_in`` it kills itself in that call of its handler.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from reliamsg import Consumer, Message, Site


def ready(consumer: Consumer) -> bool:
    status = consumer.status()
    if status.role == "standby":
        return all(site.state == "listening" for site in status.sites.values())
    return status.role == "active"


def main(config: dict[str, Any]) -> None:
    sites = [Site(name, url, **options) for name, url, options in config["sites"]]
    out = os.open(config["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    topics = config.get("topics", [config.get("topic")])
    calls = itertools.count(1)
    consumer = Consumer("billing", sites, topics=topics, inbox=config["inbox"], **config["options"])
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())

    def watch() -> None:
        while not ready(consumer):
            time.sleep(0.01)
        Path(config["ready"]).touch()

    threading.Thread(target=watch, daemon=True).start()

    def handle(message: Message) -> None:
        line = f"{time.monotonic()} {int(message.body)} {int(message.redelivered)}\n"
        os.write(out, line.encode())
        if next(calls) == config.get("die_in"):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(config["delay"])

    try:
        consumer.run(handle, workers=1)
    finally:
        consumer.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

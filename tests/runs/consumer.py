"""The consuming application of the runs, in a process of its own: ``python -m tests.runs.consumer CONFIG``.

Every message goes to a log of its own, fsynced before the handler returns, and so before it is acknowledged.
`delay` is what a message costs, in seconds, until the file `hurry` exists. Makes the file `ready` when it is; ends on
SIGTERM then.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from reliamsg import Consumer, JournalExport, Message, Site
from reliamsg.verify.applog import AppLog
from tests.runs.failpoint import Failpoint


def main(config: dict[str, Any]) -> None:
    sites = [Site(name, url, **options) for name, url, options in config["sites"]]
    topics, group = config["topics"], config["group"]
    log = AppLog(config["log"], group=group, topics=topics, sync_every=0)
    probe = Failpoint(*config["probe"]) if config.get("probe") else None
    consumer = Consumer(
        group,
        sites,
        topics=topics,
        inbox=config["inbox"],
        journal=JournalExport(config["journal"], interval=1.0),
        probe=probe,
        on_late=log.late,
        on_error=lambda error: print(repr(error), file=sys.stderr, flush=True),
        **config.get("options", {}),
    )
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    if "ready" in config:
        Path(config["ready"]).touch()
    delay, hurry = config.get("delay", 0.0), Path(config.get("hurry", "/nonexistent"))

    def handle(messages: list[Message]) -> None:
        for message in messages:
            log.delivered(message)
        log.flush()
        if delay and not hurry.exists():
            time.sleep(delay * len(messages))

    with log:
        consumer.run(handle, batch=config.get("batch", 50), workers=config.get("workers", 4))
        consumer.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

"""A group of the demo, in a separate process: ``python -m reliamsg.cli.demo.consuming PLAN GROUP``.

Every message is fsynced to the application's own log before the handler returns, and thus before it is acknowledged.
Exits on SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path

from reliamsg.checker.applog import AppLog
from reliamsg.cli.demo.plan import PRODUCERS, TOPIC, Plan
from reliamsg.consumer.api import Consumer
from reliamsg.files import replace_file
from reliamsg.message import Message

_PREFETCH = 4
_HEARD_SECONDS = 0.25


def main(plan: Plan, group: str) -> None:
    with AppLog(plan.delivered(group), group=group, topics=[TOPIC], sync_every=0) as log:
        consumer = Consumer(
            group,
            plan.sites(prefetch=_PREFETCH),
            topics=[TOPIC],
            inbox=plan.inbox(group),
            max_inbox_bytes=plan.inbox_bytes,
            on_late=log.late,
        )
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        threading.Thread(target=_tell_heard, args=(consumer, plan.heard(group)), daemon=True).start()

        def handle(messages: list[Message]) -> None:
            for message in messages:
                log.delivered(message)
            log.flush()
            time.sleep(plan.handling_seconds * len(messages))

        consumer.run(handle, batch=plan.chunk, workers=len(PRODUCERS))
        consumer.close()


def _tell_heard(consumer: Consumer, path: Path) -> None:
    """Keep writing how far the producers' journals go, as far as the consumer has heard."""
    while True:
        heard = {name: known.lsn for name, known in consumer.status().producers.items()}
        replace_file(path, json.dumps(heard).encode())
        time.sleep(_HEARD_SECONDS)


if __name__ == "__main__":
    main(Plan.from_json(sys.argv[1]), sys.argv[2])

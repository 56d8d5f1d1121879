"""A client to be killed: ``python -m tests.export.client CONFIG``. Producer and group run in one process with the
in-memory network, so that only the files survive it; only `role`'s journal is exported.

Runs until it is killed, or until the file `stop` exists; then it closes. Prints a line once it is running.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from reliamsg import JournalExport
from reliamsg.export import heads as imported_heads
from reliamsg.lab.chaos.failpoint import Failpoint
from reliamsg.testing import MemoryNetwork
from tests.export.tools import TOPICS, consumer, producer

heads: Any = imported_heads
"""It imports the interval from elsewhere, which type checkers take for private."""


def main(config: dict[str, Any]) -> None:
    stop = Path(config["stop"])
    heads.LIVENESS_S = config.get("liveness", heads.LIVENESS_S)
    options: dict[str, Any] = {
        "journal": JournalExport(
            config["target"], interval=0.02, segment_rows=config.get("segment_rows", 20)
        ),
        "probe": Failpoint(*config["probe"]) if config.get("probe") else None,
    }
    sending, receiving = (options, {}) if config["role"] == "producer" else ({}, options)
    with (
        MemoryNetwork("dc1", "dc2") as network,
        producer(network, Path(config["outbox"]), **sending) as sender,
        consumer(network, Path(config["inbox"]), topics=TOPICS, **receiving) as reader,
    ):
        print("at work", flush=True)
        number = 0
        while not stop.exists():
            if number < config.get("messages", sys.maxsize):
                sender.publish(TOPICS[number % 7], b"%d" % number)
                number += 1
            message = reader.get(0)
            if message is not None:
                message.ack()
            time.sleep(0.001)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

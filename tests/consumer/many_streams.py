"""A consumer that meets many streams, each once: what memory and disk that takes.

``python -m tests.consumer.many_streams 1000000`` runs it and prints what was measured, as JSON; another number after
that is `max_streams` in the place of the default. Messages come from an
in-memory broker in the same process, whose memory counts as well.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from reliamsg import Consumer
from reliamsg.testing import MemoryNetwork
from tests.consumer.tools import GROUP, TOPIC, send

AT_ONCE = 2_000
"""Streams of which something is at the broker at a time."""


def memory_mib(line: str) -> float:
    """``VmRSS`` or ``VmHWM`` of this process."""
    for each in Path("/proc/self/status").read_text().splitlines():
        if each.startswith(f"{line}:"):
            return int(each.split()[1]) / 1024
    raise LookupError(line)


def run(streams: int, directory: Path, max_streams: int) -> dict[str, Any]:
    """Have a message of each of so many streams delivered and acknowledged."""
    inbox = directory / "inbox.db"
    network = MemoryNetwork("dc1")
    consumer = Consumer(GROUP, network.sites, topics=[TOPIC], inbox=inbox, max_streams=max_streams)
    base, began = memory_mib("VmRSS"), time.monotonic()
    samples: list[float] = []
    most = 0
    for first in range(0, streams, AT_ONCE):
        count = min(AT_ONCE, streams - first)
        for number in range(first, first + count):
            send(network["dc1"], 1, 1, producer=f"producer-{number}")
        for _ in range(count):
            message = consumer.get(timeout=120)
            assert message is not None, "a message did not come within two minutes"
            assert (message.seq, message.redelivered) == (1, False)
            message.ack()
        most = max(most, len(consumer._engine.shared.core.streams))
        if (first // AT_ONCE) % max(1, streams // AT_ONCE // 20) == 0:
            samples.append(round(memory_mib("VmRSS"), 1))
    took = time.monotonic() - began
    known = consumer._engine.shared.core.known_elsewhere + len(consumer._engine.shared.core.streams)
    consumer.close()
    network.close()
    return {
        "streams": streams, "known": known, "most_in_memory": most, "base_mib": round(base, 1),
        "peak_mib": round(memory_mib("VmHWM"), 1), "rss_mib": samples,
        "inbox_mib": round(os.path.getsize(inbox) / 2**20, 1),
        "seconds": round(took, 1),
    }  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        most = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
        print(json.dumps(run(int(sys.argv[1]), Path(directory), most)))

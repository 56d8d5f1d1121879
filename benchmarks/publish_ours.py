"""One run of ours: publish N messages to every site given, until each is confirmed by all of them."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.pairs import measured
from reliamsg import Producer, Site


def main(topic: str, messages: int, size: int, urls: list[str]) -> None:
    sites = [Site(f"dc{number}", url) for number, url in enumerate(urls, 1)]
    # Beside the working directory, not in /tmp, which may be a RAM disk without fsync.
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd()) as directory,
        Producer("bench", sites, outbox=Path(directory) / "outbox.db", groups={topic: ["bench"]}) as producer,
    ):
        producer.publish(topic, b"warm-up").wait(timeout=60)
        body = bytes(size)
        publish = producer.publish_nowait
        start = time.perf_counter()
        for _ in range(messages):
            publish(topic, body)
        producer.flush(timeout=120)
        seconds = time.perf_counter() - start
    measured(messages / seconds)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])

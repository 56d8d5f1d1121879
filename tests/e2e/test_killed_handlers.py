"""A consumer's process is killed while its handler has a message that is new to the group."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from reliamsg import Consumer, Producer, Site
from reliamsg.lab import Mosquitto
from tests.badinput.tools import take, wait_connected

DIE_IN = (1, 1, 3)
"""The calls of the handler in which the processes are killed."""
MESSAGES = 20


def killed_in(call: int, site: Site, topics: list[str], inbox: Path, out: Path) -> list[int]:
    """The messages that a process's handler received before it was killed in a call."""
    config = {
        "sites": [[site.name, site.url, {}]], "topics": topics, "inbox": str(inbox), "out": str(out),
        "ready": str(out.with_suffix(".ready")), "options": {}, "delay": 0.0, "die_in": call,
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "tests.e2e.reader", json.dumps(config)], check=False)
    assert done.returncode == -signal.SIGKILL
    return [int(line.split()[1]) for line in out.read_text().splitlines()]


def test_messages_of_a_killed_handler_are_redelivered_with_the_flag(
    mosquitto: Mosquitto, tmp_path: Path
) -> None:
    """That it may have been delivered is on disk before its delivery: each time in another stream, unknown to the
    inbox."""
    site, inbox = Site("dc1", mosquitto.url), tmp_path / "inbox.db"
    topics = [f"orders{number}" for number in range(len(DIE_IN))]
    with Consumer("billing", [site], topics=topics, inbox=inbox) as consumer:
        wait_connected(consumer)
    with Producer(
        "p", [site], outbox=tmp_path / "outbox.db", groups={topic: ["billing"] for topic in topics}
    ) as producer:
        for topic, call in zip(topics, DIE_IN, strict=True):
            producer.publish_many(topic, [b"%d" % n for n in range(1, MESSAGES + 1)]).wait(timeout=60)
            given = killed_in(call, site, topics, inbox, tmp_path / topic)
            assert given == list(range(1, call + 1))
            with Consumer("billing", [site], topics=topics, inbox=inbox) as consumer:
                flagged: dict[int, bool] = {}
                while MESSAGES not in flagged:
                    [message] = take(consumer, 1)
                    flagged[message.seq] = message.redelivered
            # Its acknowledgements may have been committed before it was killed: those messages need not be redelivered.
            first = min(flagged)
            assert first <= call
            assert sorted(flagged) == list(range(first, MESSAGES + 1))
            again = [number for number in given if number >= first]
            assert all(flagged[number] for number in again), f"{topic}, killed in call {call}: {flagged}"

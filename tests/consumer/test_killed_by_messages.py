"""Messages that kill the process whenever they are handled: SIGKILLs, life after life, until they are dead letters.

The sites are in memory, so each life has the messages delivered again, as brokers do that got no acknowledgement.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from reliamsg.store.inbox_view import read_dead_letters
from tests.children import run_child

pytestmark = pytest.mark.integrations
"""Each of them starts processes by the dozen."""

LIFE = """
import json, os, signal, sys, threading, time
from reliamsg import Consumer
from reliamsg.testing import MemoryNetwork
from tests.consumer.tools import GROUP, TOPIC, send, until

inbox, log, how, most, poisons = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5])

def handled(messages):
    with open(log, "a") as file:
        for message in messages:
            file.write(json.dumps([message.seq, message.redelivered]) + chr(10))
        file.flush()
        os.fsync(file.fileno())
    if any(message.seq in poisons for message in messages):
        os.kill(os.getpid(), signal.SIGKILL)

with MemoryNetwork("dc1") as network:
    consumer = Consumer(
        GROUP, network.sites, topics=[TOPIC], inbox=inbox, max_deliveries=most, takeover_timeout=2.0
    )
    until(lambda: consumer.status().sites["dc1"].state == "connected", "connected")
    send(network["dc1"], 1, 40)

    def watch():
        while True:
            streams = list(consumer.status().streams.values())
            if streams and streams[0].position == 41:
                consumer.stop()
                return
            time.sleep(0.02)

    threading.Thread(target=watch, daemon=True).start()
    if how == "run":
        consumer.run(lambda message: handled([message]))
    elif how == "batch":
        consumer.run(handled, batch=8)
    else:
        for message in consumer:
            handled([message])
            message.ack()
    consumer.close()
"""


@pytest.mark.parametrize("most", [1, 2, 3, 5])
@pytest.mark.parametrize("how", ["run", "batch", "iterate"])
def test_a_message_that_kills_its_handler_uses_up_its_deliveries(tmp_path: Path, how: str, most: int) -> None:
    """It, and it alone, becomes a dead letter, also where it is handled in batches. The first delivery counts only
    where it was journalled before the process ended (C7). Where only one is allowed, that holds for what was handled
    just before it, too, if its acknowledgement was not committed.
    """
    inbox, log = tmp_path / "inbox.db", tmp_path / "log"
    poisons = [7, 30]
    for life in range(2 * (most + 1) + 1):
        command = [sys.executable, "-c", LIFE, str(inbox), str(log), how, str(most), json.dumps(poisons)]
        done = run_child(command, text=True)
        if done.returncode == 0:
            break
        assert done.returncode == -9, (life, done.stderr)
    else:
        pytest.fail(f"after {life + 1} lives it still kills its handler")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    times = Counter(seq for seq, _ in lines)
    assert set(times) == set(range(1, 41))
    assert all(redelivered for i, (seq, redelivered) in enumerate(lines) if [seq, False] in lines[:i])
    letters = {letter.seq: letter for letter in read_dead_letters(inbox)}
    assert letters.keys() >= set(poisons)
    assert most == 1 or letters.keys() == set(poisons), "the others were handled"
    for seq, letter in letters.items():
        assert letter.attempts == most
        assert most - (most > 2) <= times[seq] <= most + 1, "the first may have cost the second one delivery"

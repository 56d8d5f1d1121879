"""The protocol's receiver alone: merge, drop duplicates, order, deliver, acknowledge, commit; on ranges, without a
disk.

``rate``: batches of B messages, each in order from both sites. ``memory``: bytes per stream after A and after B
messages.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import tracemalloc

from benchmarks.measured import say
from reliamsg.message import Stream
from reliamsg.protocol.receiver.events import CommitWanted
from reliamsg.protocol.receiver.group import GroupReceiver
from reliamsg.protocol.receiver.incoming import Incoming
from reliamsg.protocol.receiver.rules import Rules

SITES = {"dc1": 64, "dc2": 64}
EPOCH, INCARNATION = 10, 77


def through(core: GroupReceiver, stream: Stream, messages: int, batch: int, every: int) -> None:
    """Receive a stream's messages from both sites, deliver and acknowledge them until all are released. Commits after
    every `every` batches."""
    now, done = 1.0, 0
    for number, first in enumerate(range(1, messages + 1, batch), 1):
        last = min(messages, first + batch - 1)
        for site in SITES:
            core.receive(Incoming(site, stream, EPOCH, INCARNATION, None, first, last, number), now)
        state = core.streams[stream]
        while True:
            offered = state.offer(now, batch)
            if offered is None:
                if any(isinstance(event, CommitWanted) and event.urgent for event in core.take_events()):
                    # Deliveries are bounded by the committed mark.
                    core.committed(core.snapshot())
                    continue
                break
            state.take(offered, offered.last, now)
            core.streams[stream].acknowledge(EPOCH, offered.first, offered.last, now)
            done += offered.last - offered.first + 1
        if number % every == 0:
            core.committed(core.snapshot())
        core.take_events()
        now += 0.001
    core.committed(core.snapshot())
    if done != messages:
        raise SystemExit(f"{done} of {messages} messages were delivered")


def measure_rate(messages: int, batch: int) -> None:
    core = GroupReceiver(Rules(begin="latest"), SITES)
    start = time.perf_counter()
    through(core, Stream("p", "t"), messages, batch, 8)
    say(messages / (time.perf_counter() - start), messages)


def measure_memory(streams: int, counts: list[int]) -> None:
    """For each count: receive that many messages in each stream, then measure the bytes per stream."""
    found = {}
    for count in counts:
        gc.collect()
        tracemalloc.start()
        core = GroupReceiver(Rules(begin="latest", max_streams=streams), SITES)
        for number in range(streams):
            through(core, Stream(f"p{number}", "t"), count, 100, 1)
        gc.collect()
        found[count] = tracemalloc.get_traced_memory()[0] / streams
        tracemalloc.stop()
        del core
    say(
        0.0,
        streams * sum(counts),
        bytes_per_stream={str(count): round(size) for count, size in found.items()},
    )


if __name__ == "__main__":
    if sys.argv[1] == "rate":
        measure_rate(int(sys.argv[2]), int(sys.argv[3]))
    else:
        measure_memory(int(sys.argv[2]), json.loads(sys.argv[3]))

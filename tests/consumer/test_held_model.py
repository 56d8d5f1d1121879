"""Frames whose boundaries differ from site to site, between memory and the inbox: whatever happens, every number that
is held is in one of them, once, and in the end everything is delivered."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from reliamsg.consumer import commits
from reliamsg.consumer.buffer import DeliverySlice
from reliamsg.consumer.deliveries import GapItem
from reliamsg.errors import InboxWriteError
from reliamsg.message import Message, Stream
from reliamsg.store.inbox import Inbox, QuarantineChange
from reliamsg.wire.data import CONTENT_TYPE, open_frame
from tests.chance import examples
from tests.consumer.tools import TOPIC, Bench, body_of, frame

EPOCH = 10
STREAM = Stream("p", TOPIC, 0)
SITES = ("dc1", "dc2")
ADDRESS = "reliamsg/group"


class HeldModel(RuleBasedStateMachine):
    """One stream. Each site delivers its numbers in frames of its own, in any order and more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.published = 0
        self.unacknowledged: list[Message] = []
        self.delivered: list[tuple[int, bool]] = []
        self.declared: set[int] = set()
        self.failing = 0
        self.cached = commits.MAX_CACHED_BYTES

    @initialize(cached=st.sampled_from([0, 1_500, 8 * 1024 * 1024]), room=st.sampled_from([4_000, 10**6]))
    def open(self, cached: int, room: int) -> None:
        commits.MAX_CACHED_BYTES = cached
        self.bench = Bench(self.directory / "inbox.db", sites=SITES, gap_timeout=20.0, max_deliveries=100)
        self.bench.close()
        self.bench.settings["max_inbox_bytes"] = room
        self.bench.open()
        self.watch()

    def watch(self) -> None:
        """Have the inbox's next commits fail, as many as wanted."""
        inbox: Inbox = self.bench.inbox
        write = inbox.commit

        def commit(*arguments: Any) -> QuarantineChange:
            if self.failing:
                self.failing -= 1
                raise InboxWriteError("the disk is full")
            return write(*arguments)

        inbox.commit = commit  # type: ignore[assignment,method-assign]

    # -- what happens -----------------------------------------------------------------------------------

    @rule(count=st.integers(1, 40))
    def publish(self, count: int) -> None:
        self.published += count

    @precondition(lambda self: self.published)
    @rule(
        site=st.sampled_from(SITES),
        back=st.integers(0, 80),
        size=st.sampled_from([1, 3, 10, 25, 80]),
        cuts=st.lists(st.integers(1, 30), max_size=3),
        repair=st.booleans(),
    )
    def deliver(self, site: str, back: int, size: int, cuts: list[int], repair: bool) -> None:
        """A run of numbers, as one frame or as several."""
        first = max(1, self.published - back)
        last = min(self.published, first + size - 1)
        for cut in [*cuts, size]:
            end = min(last, first + cut - 1)
            if first <= end:
                data = frame(first, end, epoch=EPOCH, pad=30)
                if repair:
                    self.bench.engine.sites[site].repaired(ADDRESS, data)
                else:
                    self.bench.network[site].inject(TOPIC, data, content_type=CONTENT_TYPE)
            first = end + 1
        self.bench.settle(0.0)

    @rule(
        size=st.integers(10, 60),
        start=st.integers(0, 40),
        part=st.integers(1, 30),
        sites=st.permutations(SITES),
        repair=st.booleans(),
        most=st.sampled_from([0, 1, 100]),
        acked=st.booleans(),
    )
    def cross(
        self, size: int, start: int, part: int, sites: list[str], repair: bool, most: int, acked: bool
    ) -> None:
        """New numbers as one frame from one side, and some of them from the other; a few may have been handed out."""
        first = self.published + 1
        self.published += size
        self.deliver(sites[0], size - 1, size, [], repair)
        if most:
            self.take(most)
        if acked and self.unacknowledged:
            self.acknowledge(0, 1)
        start = min(first + start, self.published)
        self.deliver(sites[1], self.published - start, part, [], False)

    @rule(seconds=st.sampled_from([0.01, 0.03, 0.12, 0.3, 1.2]))
    def wait(self, seconds: float) -> None:
        self.bench.settle(seconds)

    @rule(most=st.sampled_from([1, 2, 7, 30]))
    def take(self, most: int) -> None:
        for _ in range(4):
            item = self.bench.engine.deliveries.take(1, most)
            if item is None:
                self.bench.settle(0.004)
            elif isinstance(item, GapItem):
                if self.bench.engine.deliveries.accept(item.gap):
                    assert item.gap.last is not None
                    self.declared.update(range(item.gap.first, item.gap.last + 1))
            else:
                self.read(item, most)
                return

    def read(self, item: object, most: int) -> None:
        assert isinstance(item, DeliverySlice), item
        while most and (message := item.next()) is not None:
            most -= 1
            assert message.body.startswith(body_of(EPOCH, message.seq) + b".")
            self.delivered.append((message.seq, message.redelivered))
            self.unacknowledged.append(message)
        self.bench.engine.deliveries.release(item)

    @precondition(lambda self: self.unacknowledged)
    @rule(pick=st.integers(0, 1000), most=st.sampled_from([1, 5, 50]))
    def acknowledge(self, pick: int, most: int) -> None:
        start = pick % len(self.unacknowledged)
        for message in self.unacknowledged[start : start + most]:
            message.ack()
        del self.unacknowledged[start : start + most]

    @precondition(lambda self: self.unacknowledged)
    @rule(pick=st.integers(0, 1000))
    def reject(self, pick: int) -> None:
        message = self.unacknowledged.pop(pick % len(self.unacknowledged))
        message.reject("no")

    @rule(times=st.integers(1, 3))
    def fail_commits(self, times: int) -> None:
        self.failing = times

    @rule(site=st.sampled_from(SITES))
    def disconnect(self, site: str) -> None:
        self.bench.network[site].cut()
        self.bench.settle(0.0)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.failing = 0
        self.unacknowledged.clear()
        self.bench.reopen(clean=clean)
        self.watch()

    # -- what must be so --------------------------------------------------------------------------------

    def rows(self) -> list[tuple[int, int, bytes]]:
        connection = self.bench.inbox._database.connection
        return connection.execute("SELECT first, last, frame FROM held ORDER BY first").fetchall()

    @invariant()
    def every_held_number_is_in_memory_or_in_the_inbox(self) -> None:
        shared = self.bench.engine.shared
        rows = self.rows()
        stored: set[int] = set()
        for first, last, data in rows:
            envelope = open_frame(data).envelope
            assert (envelope.seq, envelope.last) == (first, last), "a piece stores more than its numbers"
            assert stored.isdisjoint(range(first, last + 1)), "a number is stored twice"
            stored.update(range(first, last + 1))
        assert shared.inbox.held_bytes == sum(len(data) for _, _, data in rows)
        state = shared.core.streams.get(STREAM)
        if state is None:
            return
        memory: set[int] = set()
        cached = 0
        for holding in shared.buffers.of(STREAM)._batches.get(EPOCH, []):
            numbers = range(holding.first, holding.last + 1)
            assert memory.isdisjoint(numbers), "a number is in memory twice"
            memory.update(numbers)
            cached += holding.size if holding.persisted else 0
        assert shared.buffers.cached_bytes == cached
        known = state.epochs.live.get(EPOCH)
        if known is not None:
            held = {n for first, last in known.held for n in range(first, last + 1)}
            persisted = {n for first, last in known.persisted for n in range(first, last + 1)}
            assert held <= memory | stored, (
                f"neither in memory nor in the inbox: {sorted(held - memory - stored)}"
            )
            assert persisted & held <= stored

    def teardown(self) -> None:
        try:
            if hasattr(self, "bench"):
                self.everything_is_delivered_once_faults_end()
                self.bench.crash()
        finally:
            commits.MAX_CACHED_BYTES = self.cached
            shutil.rmtree(self.directory)

    def everything_is_delivered_once_faults_end(self) -> None:
        self.failing = 0
        for message in self.unacknowledged:
            message.ack()
        self.unacknowledged.clear()
        self.bench.settle(1.0)
        for site, size in (("dc1", 7), ("dc2", 11)):
            for first in range(1, self.published + 1, size):
                data = frame(first, min(first + size - 1, self.published), epoch=EPOCH, pad=30)
                self.bench.network[site].inject(TOPIC, data, content_type=CONTENT_TYPE)
        for _ in range(self.published + 50):
            before = len(self.delivered)
            self.take(100)
            for message in self.unacknowledged:
                message.ack()
            self.unacknowledged.clear()
            self.bench.settle(0.02 if len(self.delivered) > before else 0.3)
            self.every_held_number_is_in_memory_or_in_the_inbox()
            if self.position() > self.published:
                break
        assert self.position() == self.published + 1
        seen = {seq for seq, _ in self.delivered}
        joined = min(seen, default=1)
        missing = set(range(joined, self.published + 1)) - seen - self.declared
        assert not missing, f"never delivered: {sorted(missing)}"
        highest = 0
        for seq, redelivered in self.delivered:
            assert seq > highest or redelivered
            highest = max(highest, seq)
        assert sum(self.bench.queued().values()) == 0

    def position(self) -> int:
        state = self.bench.engine.shared.core.streams.get(STREAM)
        return 1 if state is None else state.epochs.position[1]


@pytest.mark.timeout(300)
def test_whatever_happens_what_is_held_is_somewhere() -> None:
    run_state_machine_as_test(HeldModel, settings=settings(max_examples=examples(20), stateful_step_count=25))

"""The consumer and what producers tell it, on a simulated clock: lost tails, requests, repairs, answers."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import NoReturn

import pytest

from reliamsg.consumer.deliveries import GapItem
from reliamsg.errors import InboxWriteError
from reliamsg.message import Message, Prev, Stream
from reliamsg.store.inbox import Inbox
from reliamsg.wire.address import call_address, group_address, producer_address, status_address
from tests.consumer.control_tools import FakeProducer, rows
from tests.consumer.tools import GROUP, TOPIC, Bench, frame, send, seqs


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "inbox.db", gap_timeout=5.0)


@pytest.fixture
def producer(bench: Bench) -> FakeProducer:
    return FakeProducer(bench)


def test_a_lost_tail_is_found_asked_for_and_repaired(bench: Bench, producer: FakeProducer) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    assert seqs(bench.take()) == list(range(1, 11))
    producer.streams()
    producer.status((1, 20))
    bench.settle(2.0)
    asked = [stream for stream in producer.streams() if stream.wanted]
    assert asked
    assert asked[0].position == (10, 11)
    assert asked[0].wanted == [(10, 11, 20)]
    producer.repair(11, 20)
    bench.settle(0.1)
    assert seqs(bench.take()) == list(range(11, 21))
    bench.settle(0.5)
    assert producer.streams()[-1].position == (10, 21)
    asked_first = rows(bench, "asked")[0]
    assert (asked_first.first, asked_first.last) == (11, 20)
    repaired = [(r.first, r.last, r.reason) for r in rows(bench, "received") if r.reason]
    assert repaired == [(11, 20, "repair")]
    bench.settle(30.0)
    assert bench.engine.deliveries.take(1, 10) is None
    assert rows(bench, "declared") == []


def test_a_stream_that_is_wholly_lost_is_repaired(bench: Bench, producer: FakeProducer) -> None:
    producer.status((1, 5))
    bench.settle(2.0)
    assert any(stream.wanted == [(10, 1, 5)] for stream in producer.streams())
    producer.repair(1, 5)
    bench.settle(0.1)
    assert seqs(bench.take()) == [1, 2, 3, 4, 5]


def test_every_status_is_answered_once_and_soon(bench: Bench, producer: FakeProducer) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    bench.take()
    bench.settle(1.0)
    producer.streams()
    producer.status((1, 10))
    bench.settle(0.3)
    answers = producer.states()
    assert {state.to for state in answers} == {producer_address("p")}
    assert [stream.position for state in answers for stream in state.streams] == [
        (10, 11)
    ] * 2  # at two sites
    assert all(state.inbox == bench.inbox.id for state in answers)
    bench.settle(60.0)
    assert producer.states() == []


def test_a_status_without_streams_is_answered_too(bench: Bench, producer: FakeProducer) -> None:
    producer.status()
    bench.settle(0.3)
    assert [state.streams for state in producer.states()] == [[], []]


def test_progress_is_told_when_it_is_committed_and_not_too_often(
    bench: Bench, producer: FakeProducer
) -> None:
    told = 0
    for first in range(1, 1_001, 10):
        send(bench.network["dc1"], first, first + 9)
        bench.settle(0.01)
        bench.take()
        states = producer.streams()
        told += len(states)
        assert all(stream.position <= (10, first + 10) for stream in states)
    bench.settle(0.5)
    assert producer.streams()[-1].position == (10, 1_001)
    assert told <= 40, "two sites, four times a second, for about three seconds"


def test_numbers_of_states_rise_over_a_restart(bench: Bench, producer: FakeProducer) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    bench.take()
    bench.settle(0.5)
    before = producer.states()[-1].number
    bench.reopen()
    bench.settle(0.5)
    assert producer.states()[0].number > before


def _full(*arguments: object) -> NoReturn:
    """In place of an inbox's commits."""
    raise InboxWriteError("the disk is full")


def test_a_state_names_no_opening_of_which_nothing_is_committed(
    bench: Bench, producer: FakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer journals what it is told, and whoever audits that looks for the opening: after a crash there would be
    no trace of it."""
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    bench.take()
    bench.settle(0.5)
    earlier, settled = bench.inbox.boot, rows(bench, "acknowledged")[-1].lsn
    bench.crash()

    with monkeypatch.context() as on_a_full_disk:
        on_a_full_disk.setattr(Inbox, "commit", _full)
        bench.open()
        producer.states()
        producer.status((1, 10))
        bench.settle(2.0)
        named = {state.journal for state in producer.states()}
        assert [(f"{boot:016x}", lsn >= settled) for boot, lsn in filter(None, named)] == [(earlier, True)]
    bench.settle(2.0)
    producer.status((1, 10))
    bench.settle(1.0)
    told = producer.states()[-1].journal
    assert told is not None
    assert f"{told[0]:016x}" == bench.inbox.boot
    assert told[1] >= rows(bench, "opened")[-1].lsn


def test_a_new_inbox_names_no_row_before_it_has_one(
    bench: Bench, producer: FakeProducer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Inbox, "commit", _full)
    bench.crash()
    bench.path = tmp_path / "new.db"
    bench.open()
    producer.states()
    producer.status((1, 10))
    bench.settle(2.0)
    assert {state.journal for state in producer.states()} == {None}


def test_numbers_of_states_rise_though_the_clock_is_set_back(bench: Bench, producer: FakeProducer) -> None:
    """A producer takes requests from no state that is older than the newest of the same inbox."""
    bench.close()
    bench.wall_offset_us = 200_000_000_000  # µs
    newest = -1
    for _ in range(4):
        bench.open()
        bench.settle(1.0)
        numbers = [state.number for state in producer.states("call", call_address(TOPIC))]
        assert numbers
        assert min(numbers) > newest
        newest = max(numbers)
        bench.close()
        bench.wall_offset_us -= 50_000_000_000


def test_numbers_of_states_rise_though_the_inbox_is_an_older_copy(
    bench: Bench, producer: FakeProducer, tmp_path: Path
) -> None:
    """With keys, producers take what is not higher for recordings, and answer no request in it."""
    bench.settle(1.0)
    bench.close()
    copy = tmp_path / "copy.db"
    shutil.copyfile(bench.path, copy)
    for _ in range(5):
        bench.open()
        bench.settle(1.0)
        bench.close()
    newest = producer.states("call", call_address(TOPIC))[-1].number
    shutil.copyfile(copy, bench.path)
    bench.open()
    bench.settle(1.0)
    assert producer.states("call", call_address(TOPIC))[0].number > newest


@pytest.fixture
def few_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only 20 numbers of states are reserved at a time."""
    for module in ("store.inbox", "consumer.state_numbers"):
        monkeypatch.setattr(f"reliamsg.{module}.STATES_RESERVED", 20)


@pytest.mark.usefixtures("few_numbers")
def test_more_numbers_are_reserved_before_they_run_out(bench: Bench, producer: FakeProducer) -> None:
    """They are durable before they are sent: the next opening uses none of them again."""
    bench.close()
    bench.wall_offset_us = 10_000_000_000  # µs
    bench.open()
    newest = 0
    for _ in range(3):
        bench.settle(300.0)
        numbers = [state.number for state in producer.heartbeats()]
        assert len(numbers) > 2 * 20
        assert max(Counter(numbers).values()) == 2, "one for each site"
        assert numbers[0] > newest
        newest = numbers[-1]
        bench.crash()
        bench.wall_offset_us -= 1_000_000_000  # µs
        bench.open()


@pytest.mark.usefixtures("few_numbers")
def test_states_that_have_no_number_of_their_own_are_not_sent(
    bench: Bench, producer: FakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be committed for so long that the numbers run out."""
    with monkeypatch.context() as on_a_full_disk:
        on_a_full_disk.setattr(bench.inbox, "commit", _full)
        bench.settle(600.0)
        told = {state.number for state in producer.heartbeats()}
        assert 10 <= len(told) <= 20
    bench.settle(300.0)
    again = {state.number for state in producer.heartbeats()}
    assert len(again) > 20
    assert min(again) > max(told)


def test_producers_are_called_on_every_connect(bench: Bench, producer: FakeProducer) -> None:
    producer.states("call", call_address(TOPIC))
    bench.network["dc2"].cut()
    bench.settle(0.5)
    for ear in producer.ears.values():
        ear.heard_frames.clear()
    bench.network["dc2"].cut()
    bench.settle(0.5)
    (call,) = producer.states("call", call_address(TOPIC))
    assert (call.group, call.producer, call.streams) == (GROUP, "", [])


def test_removed_messages_are_passed_with_their_reason(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", gap_timeout=5.0, skip_gaps=True)
    producer = FakeProducer(bench)
    send(bench.network["dc1"], 1, 10)
    send(bench.network["dc1"], 16, 20)
    bench.settle()
    assert seqs(bench.take()) == list(range(1, 11))
    producer.status((16, 20), removed=[(10, 11, 15)])
    bench.settle(1.0)
    assert seqs(bench.take()) == list(range(16, 21))
    assert [(r.first, r.last, r.reason) for r in rows(bench, "declared")] == [(11, 15, "removed")]


def test_removed_messages_are_raised_to_be_accepted(bench: Bench, producer: FakeProducer) -> None:
    send(bench.network["dc1"], 1, 10)
    send(bench.network["dc1"], 16, 20)
    bench.settle()
    bench.take()
    producer.status((16, 20), removed=[(10, 11, 15)])
    bench.settle(1.0)
    item = bench.engine.deliveries.take(1, 10)
    assert isinstance(item, GapItem)
    assert (item.gap.first, item.gap.last, item.gap.reason) == (11, 15, "removed")
    assert bench.engine.deliveries.accept(item.gap)
    assert seqs(bench.take()) == list(range(16, 21))


def test_a_consumer_that_crashes_in_the_middle_of_a_repair(bench: Bench, producer: FakeProducer) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    bench.take()
    producer.status((1, 40))
    bench.settle(2.0)
    producer.repair(11, 20)
    producer.repair(31, 40)
    bench.settle(1.5)  # what came out of order is in the inbox, and by now 11 to 20, which nobody has taken
    bench.reopen()
    producer.streams()
    producer.status((1, 40))
    bench.settle(2.0)
    wanted = {span for stream in producer.streams() for span in stream.wanted}
    assert wanted == {(10, 21, 30)}
    producer.repair(21, 30)
    bench.settle(0.1)
    assert seqs(bench.take()) == list(range(11, 41))


def test_a_clock_that_waits_for_a_repair_goes_on_after_a_crash(tmp_path: Path) -> None:
    """The producer says all the time that it holds what is missing, and does not send it."""
    bench = Bench(tmp_path / "inbox.db", gap_timeout=2.0, repair_timeout=10.0)
    producer = FakeProducer(bench)
    send(bench.network["dc1"], 1, 10)
    send(bench.network["dc1"], 21, 30)
    bench.settle()
    bench.take()
    for _ in range(8):
        producer.status((1, 30))
        bench.settle(1.0)
    bench.reopen()
    waited = 8.0
    while (item := bench.engine.deliveries.take(1, 10)) is None:
        producer.status((1, 30))
        bench.settle(1.0)
        waited += 1.0
    assert isinstance(item, GapItem)
    assert 12.0 <= waited <= 16.0, "twelve seconds without a crash"


def test_a_repair_that_is_damaged_or_for_another_topic_is_set_aside(
    bench: Bench, producer: FakeProducer
) -> None:
    body = bytearray(frame(1, 5))
    body[-1] ^= 1
    producer.tell(group_address(GROUP), bytes(body), "dc1")
    producer.tell(group_address(GROUP), frame(1, 5, topic="other"), "dc1")
    producer.tell(group_address(GROUP), b"nothing of the kind", "dc1")
    producer.tell(status_address(TOPIC), b"RMC1 and so on", "dc1")
    bench.settle(0.5)
    rejected = bench.engine.sites["dc1"].rejected
    assert sum(rejected.values()) == 4
    assert rejected["undecodable"] == rejected["wrong-topic"] == 1
    assert sum(r.detail["count"] for r in rows(bench, "rejected") if r.detail) == 4
    assert bench.take() == []


def test_repairs_are_bounded_while_nothing_can_be_written(
    bench: Bench, producer: FakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliamsg.consumer.admission.MAX_REPAIR_BYTES", 50_000)
    bench.settle()
    for first in range(2, 102):
        body = frame(first, first, pad=5_000)
        for ear in producer.ears.values():
            ear.transport.send_control(group_address(GROUP), body)
    bench.network.run_pending()  # nothing is written meanwhile
    lane = bench.engine.shared.buffers.by_stream[Stream("p", TOPIC)]
    held = lane.state.epochs.live[10].held.total
    assert 5 <= held <= 11
    bench.settle(1.0)


def test_repairs_of_which_some_are_large_are_bounded_by_their_sum(
    bench: Bench, producer: FakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliamsg.consumer.admission.MAX_REPAIR_BYTES", 50_000)
    bench.settle()
    for first in range(2, 42):  # many small ones say nothing of how large they are together
        producer.repair(first, first)
    body = frame(42, 42, pad=5_000)
    producer.tell(group_address(GROUP), body)
    bench.network.run_pending()
    assert bench.engine.shared.buffers.by_stream[Stream("p", TOPIC)].state.epochs.live[10].held.total == 41


def test_repairs_that_are_dealt_with_at_once_are_not_persisted(bench: Bench, producer: FakeProducer) -> None:
    send(bench.network["dc1"], 1, 1)
    bench.settle()
    assert seqs(bench.take()) == [1]
    producer.repair(2, 20)
    bench.settle(0.5)  # a broker's delivery would be persisted by now
    assert seqs(bench.take()) == list(range(2, 21))
    bench.settle(5.0)
    assert rows(bench, "buffered") == []
    producer.repair(21, 40)
    bench.settle(5.0)  # nobody takes them
    assert [(row.first, row.last) for row in rows(bench, "buffered")] == [(21, 40)]


def test_a_status_that_comes_at_two_sites_is_answered_once(bench: Bench, producer: FakeProducer) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    assert seqs(bench.take()) == list(range(1, 11))
    bench.settle(5.0)
    producer.streams()
    producer.status((1, 10), site="dc1")
    bench.settle(1.0)
    assert len(producer.streams()) == len(bench.network.sites)
    producer.number -= 1
    producer.status((1, 10), site="dc2")
    bench.settle(1.0)
    assert producer.streams() == []
    producer.status((1, 10), site="dc2")  # the same said again is another status
    bench.settle(1.0)
    assert len(producer.streams()) == len(bench.network.sites)


def full_behind_a_gap(path: Path, first: int, last: int) -> tuple[Bench, FakeProducer]:
    """An inbox that is full of `first` to `last`, and lacks what comes after 1."""
    bench = Bench(path, gap_timeout=60.0)
    bench.settings["max_inbox_bytes"] = 20_000
    bench.reopen(clean=True)
    producer = FakeProducer(bench)
    send(bench.network["dc1"], 1, 1)
    for number in range(first, last + 1):
        send(bench.network["dc1"], number, number, pad=2_000)
    bench.settle(0.5)
    assert seqs(bench.take()) == [1]
    assert bench.engine.shared.durability.inbox_full
    return bench, producer


def test_a_full_inbox_still_takes_what_fills_the_gap(tmp_path: Path) -> None:
    bench, producer = full_behind_a_gap(tmp_path / "inbox.db", 11, 40)
    producer.status((1, 60))
    bench.settle(2.0)
    wanted = {span for stream in producer.streams() for span in stream.wanted}
    assert (10, 2, 10) in wanted
    producer.repair(51, 60)  # there is no room for that
    bench.settle(0.1)
    producer.repair(2, 10)
    bench.settle(0.1)
    assert seqs(bench.take()) == list(range(2, 41))
    bench.settle(3.0)
    wanted = {span for stream in producer.streams() for span in stream.wanted}
    assert (10, 41, 60) in wanted
    producer.repair(41, 60)
    bench.settle(0.1)
    assert seqs(bench.take()) == list(range(41, 61))


def test_a_full_inbox_takes_a_repair_of_many_batches_at_once(tmp_path: Path) -> None:
    """Each follows on the one before, which need not have been handed out yet."""
    bench, producer = full_behind_a_gap(tmp_path / "inbox.db", 41, 60)
    for first in range(2, 41, 3):
        producer.repair(first, first + 2)
    bench.settle(0.1)
    assert seqs(bench.take()) == list(range(2, 61))


def test_what_producers_said_before_a_queue_was_seen_empty_is_journalled(
    bench: Bench, producer: FakeProducer
) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    bench.take()
    producer.status((1, 10), lsn=41)
    producer.status((1, 10), lsn=42)
    send(bench.network["dc2"], 1, 10)
    bench.settle(1.0)
    assert rows(bench, "heard") == [], "dc2 may have been asked before that"
    bench.settle(5.0)
    send(bench.network["dc2"], 1, 10)
    bench.settle(1.0)
    (heard,) = rows(bench, "heard")
    assert (heard.producer, heard.topic, heard.epoch, heard.detail) == ("p", "", 10, {"lsn": 42, "epoch": 10})
    told = [row for row in rows(bench, "drained") if row.detail and "heard" in row.detail]
    assert [(row.site, row.detail["heard"]) for row in told if row.detail] == [
        ("dc2", {"p": [42, f"{77:016x}"]})
    ]
    assert told[0].lsn > heard.lsn
    send(bench.network["dc2"], 1, 10)
    send(bench.network["dc1"], 1, 10)
    bench.settle(1.0)
    told = [row for row in rows(bench, "drained") if row.detail and "heard" in row.detail]
    assert {row.site for row in told} == {"dc1", "dc2"}
    assert len(rows(bench, "heard")) == 1


def test_a_consumer_at_rest_sends_nothing_but_heartbeats(bench: Bench, producer: FakeProducer) -> None:
    for number in range(50):
        send(bench.network["dc1"], 1, 3, producer=f"p{number}")
    bench.settle()
    bench.take()
    bench.settle(1.0)
    for ear in producer.ears.values():
        ear.heard_frames.clear()
    bench.settle(300.0)
    heard = [len(ear.heard_frames) for ear in producer.ears.values()]
    assert heard == [80, 80]  # an eighth of 30 s apart
    assert len(producer.heartbeats()) == 160


def test_producers_are_known_within_a_bound(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", max_streams=3)
    for number in range(10):
        FakeProducer(bench, f"p{number}").status((1, 5))
    bench.settle(1.0)
    assert len(bench.engine.statuses.by_producer) == 3
    assert len(bench.engine.shared.core.streams) == 3


@pytest.mark.parametrize("told", [True, False])
def test_what_arrived_before_a_crash_and_is_gone_keeps_no_stream_from_beginning(
    tmp_path: Path, told: bool
) -> None:
    bench = Bench(tmp_path / "inbox.db", gap_timeout=5.0, skip_gaps=True)
    bench.settings["max_inbox_bytes"] = 1_000
    bench.reopen()
    send(bench.network["dc1"], 1, 1, producer="full")
    bench.settle()
    bench.take()
    for seq in range(3, 30):
        send(bench.network["dc1"], seq, seq, producer="full")
    bench.settle(0.5)
    send(bench.network["dc1"], 5, 9)
    bench.settle(0.5)  # that the epoch is there is stored, and the messages are not: there is no room
    bench.crash()
    for broker in bench.network.brokers.values():
        broker.wipe()
    bench.open()
    bench.settle(1.0)
    assert list(bench.engine.shared.core.streams[Stream("p", TOPIC, 0)].epochs.live) == [10]
    send(bench.network["dc1"], 6, 8, epoch=20, prev=Prev(15, 3, 4))
    if told:
        FakeProducer(bench, epoch=20).status((6, 8), since={})
    got: list[Message] = []
    for _ in range(2 if told else 14):
        bench.settle(1.0)
        got += bench.take()
    assert [message.seq for message in got if message.producer == "p"] == [6, 7, 8]
    send(bench.network["dc1"], 9, 9, epoch=20, prev=Prev(15, 3, 4))
    send(bench.network["dc1"], 10, 10)
    bench.settle()
    assert [message.seq for message in bench.take() if message.producer == "p"] == [9]
    bench.reopen()
    assert list(bench.engine.shared.core.streams[Stream("p", TOPIC, 0)].epochs.live) == [20]


class TestNewQueue:
    """A queue that was lost and created again proves what was confirmed before."""

    @staticmethod
    def fail_to_connect(bench: Bench) -> None:
        bench.network["dc1"].refuse_login()
        bench.settle()
        bench.network["dc1"].refuse_login(False)
        bench.settle()

    @staticmethod
    def heard_at_last(bench: Bench) -> object:
        connected = [row.detail for row in rows(bench, "connected") if row.site == "dc1"]
        assert connected[-1] is not None
        assert connected[-1]["session_present"] is False
        return connected[-1].get("heard")

    def test_statuses_before_the_attempt_count_and_later_ones_do_not(
        self, bench: Bench, producer: FakeProducer
    ) -> None:
        send(bench.network["dc1"], 1, 10)
        bench.settle()
        producer.status((1, 10), lsn=40)
        bench.settle(1.0)
        bench.network["dc1"].down()
        bench.settle(1.0)
        producer.status((1, 10), lsn=41)
        bench.settle(1.0)
        self.fail_to_connect(bench)
        producer.status((1, 12), lsn=42)  # what it announces may be in the new queue
        bench.settle(1.0)
        bench.network["dc1"].up(lose=True)
        bench.settle()
        assert self.heard_at_last(bench) == {"p": [41, f"{77:016x}"]}
        heard = [row.detail for row in rows(bench, "heard")]
        assert {"lsn": 41, "epoch": 10} in heard
        assert {"lsn": 42, "epoch": 10} not in heard

    def test_an_empty_queue_proves_what_was_announced_before_it_was_seen_empty_before(
        self, bench: Bench, producer: FakeProducer
    ) -> None:
        """However often producers announce: of each, one status from before is kept."""
        send(bench.network["dc1"], 1, 10)
        bench.settle()
        for number in range(30):
            producer.status((1, 10), lsn=40 + number)
            send(bench.network["dc1"], 1, 10)
            bench.settle(1.0)
        found = [
            row.detail["heard"]["p"][0]
            for row in rows(bench, "drained")
            if row.detail and "heard" in row.detail
        ]
        assert found == sorted(found)
        assert len(found) > 20
        assert found[-1] == 68

    def test_a_restarted_consumer_had_a_queue_and_a_new_group_had_none(
        self, bench: Bench, producer: FakeProducer
    ) -> None:
        send(bench.network["dc1"], 1, 10)
        bench.settle()
        assert self.heard_at_last(bench) is None
        bench.take()
        bench.settle(1.0)
        bench.network["dc1"].down()
        bench.crash()
        bench.open()
        producer.status((1, 10), lsn=43)
        bench.settle(1.0)
        self.fail_to_connect(bench)
        bench.network["dc1"].up(lose=True)
        bench.settle()
        assert self.heard_at_last(bench) == {"p": [43, f"{77:016x}"]}

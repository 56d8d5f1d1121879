"""The judge of simulated runs alone: each event that it must notice is reported to it separately."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import pytest

from reliamsg.message import Gap, Message, MessageId, Settler, Stream
from reliamsg.simulation.announcements import Announcements, Member
from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.declarations import BeforeJoin
from reliamsg.simulation.incidents import Incidents
from reliamsg.simulation.oracle import Oracle
from reliamsg.simulation.stopwatch import Stopwatch
from reliamsg.wire.address import call_address, group_address
from reliamsg.wire.control import VERSION, State, encode_state

STREAM = Stream("p1", "orders", 0)
GAP_TIMEOUT = 5.0
LEASE = 8.0
OPENING = 77
"""An incarnation."""


def identity_of(epoch: int, seq: int) -> MessageId:
    return MessageId(STREAM.producer, epoch, STREAM.topic, STREAM.partition, seq)


class Nobody:
    """The target of a message's reports."""

    def acknowledge(self, message: Message, durable: bool) -> None: ...
    def reject(self, message: Message, reason: str) -> None: ...
    def failed(self, message: Message, error: BaseException) -> None: ...


NOBODY: Settler = Nobody()


def message(seq: int, redelivered: bool = False, epoch: int = 1) -> Message:
    return Message(*STREAM, epoch, seq, b"%d" % seq, None, {}, redelivered, False, NOBODY)


class Files:
    """A consumer's files: its quarantine contains everything or nothing; its journal has messages below a number as
    from before it joined (none if it did not), and rows about messages left to producers."""

    def __init__(self) -> None:
        self.quarantines = self.dropped = False
        self.joined = 0
        self.report: Callable[[], None] = lambda: None

    def is_quarantined(self, stream: Stream, epoch: int, seq: int) -> bool:
        return self.quarantines

    def was_dropped_unverified(self, stream: Stream, epoch: int, seq: int) -> bool:
        return self.dropped

    def came_before_join(self, stream: Stream, epoch: int, seq: int) -> bool:
        return seq < self.joined

    def has_joined(self, stream: Stream) -> bool:
        return self.joined > 0

    def report_left_messages(self) -> None:
        self.report()


class Judged:
    """A group with two consumers, and a producer whose messages one site has confirmed."""

    def __init__(self, latest: bool = False, consumers: int = 2, keepers: Sequence[str] = ()) -> None:
        self.scheduler = Scheduler(1_000.0)
        timeouts = {f"g1-{n + 1}": GAP_TIMEOUT for n in range(consumers)}
        begin_with_latest = ["g1"] if latest else []
        self.oracle = Oracle(self.scheduler, ["g1"], timeouts, {"p1": 1}, begin_with_latest, keepers)
        self.watch, self.files = Stopwatch(self.scheduler.now), Files()
        self.watch.update(self.scheduler.now, True)
        self.oracle.consumer_added("g1-1", self.watch, self.files)
        self.other = Files()
        self.oracle.consumer_added("g1-2", self.watch, self.other)

    @property
    def kinds(self) -> list[str]:
        return [violation.kind for violation in self.oracle.violations]

    def publish(self, seq: int, *, epoch: int = 1, confirmed: bool = True) -> MessageId:
        body = b"%d" % seq
        operation = self.oracle.invoked(STREAM, body)
        identity = identity_of(epoch, seq)
        self.oracle.durable(operation, identity)
        self.oracle.seen(identity, OPENING, body)
        if confirmed:
            self.oracle.confirmed_at("dc1", identity, OPENING)
        return identity

    def deliver(self, seq: int, redelivered: bool = False, *, epoch: int = 1, consumer: str = "g1-1") -> None:
        self.oracle.delivered("g1", consumer, message(seq, redelivered, epoch))

    def acknowledge(self, identity: MessageId) -> None:
        self.oracle.acknowledged("g1", "g1-1", identity)

    def open_inboxes(self, *inboxes: str) -> None:
        for inbox in inboxes:
            self.oracle.inbox_opened("g1", "g1-1", inbox, standby=False)

    def later(self, seconds: float) -> None:
        self.scheduler.run(self.scheduler.now + seconds)

    def expire(self, first: int, last: int) -> None:
        self.oracle.gap_accepted("g1", "g1-1", Gap(STREAM, 1, first, last, "expired"))


@pytest.fixture
def judged() -> Judged:
    return Judged()


def test_a_message_that_failed_is_not_overtaken(judged: Judged) -> None:
    first, _ = judged.publish(1), judged.publish(2)
    judged.deliver(1)
    judged.oracle.handler_failed("g1", "g1-1", first)
    judged.deliver(2)
    judged.deliver(1, redelivered=True)
    assert judged.kinds == ["out_of_order"]


@pytest.mark.parametrize("word", ["declared", "given", "none"])
def test_messages_declared_may_have_another_number_since(judged: Judged, word: str) -> None:
    """An older copy of the outbox assigns another number to a message that it does not know to be sent."""
    first, second = judged.publish(1), judged.publish(2)
    if word == "given":
        judged.deliver(1)
    judged.oracle.seen(first._replace(epoch=2), OPENING, b"1")
    judged.deliver(2)
    if word == "declared":
        judged.oracle.gap_skipped("g1", "g1-1", Gap(STREAM, 1, 1, 1, "expired"), judged.scheduler.now)
    judged.deliver(1, redelivered=True, epoch=2)
    judged.acknowledge(second)
    judged.oracle.judge()
    assert ("skipped" in judged.kinds) == (word == "none")


def test_acknowledged_messages_may_have_another_number_since(judged: Judged) -> None:
    """The outbox, an older copy, learns that the group was beyond it, and nothing is sent again."""
    first = judged.publish(1)
    judged.deliver(1)
    judged.acknowledge(first)
    moved = first._replace(epoch=2)
    judged.oracle.seen(moved, OPENING, b"1")
    assert not judged.oracle.open_for("g1")
    assert not judged.oracle.has_unpromised(lambda group: ["orders"])
    assert judged.oracle.is_dealt_with("g1", moved)


def test_a_message_that_failed_for_the_last_time_is_followed_by_others(judged: Judged) -> None:
    first, second = judged.publish(1), judged.publish(2)
    judged.oracle.consumer_terminated("g1", "g1-1", True)  # an attempt was counted, and not made
    judged.deliver(1)
    judged.oracle.handler_failed("g1", "g1-1", first, tries=2)
    judged.deliver(2)
    judged.oracle.dead_lettered(
        "g1", first, tries=2, together=1
    )  # the journal says so when that is committed
    judged.oracle.dead_letter_found("g1", first)
    judged.acknowledge(second)
    judged.oracle.judge()
    assert judged.kinds == []


def test_a_redelivered_message_is_followed_by_others(judged: Judged) -> None:
    first, second = judged.publish(1), judged.publish(2)
    judged.deliver(1)
    judged.oracle.handler_failed("g1", "g1-1", first)
    judged.deliver(1, redelivered=True)
    judged.deliver(2)
    judged.acknowledge(first)
    judged.acknowledge(second)
    judged.oracle.judge()
    assert judged.kinds == []


@pytest.mark.parametrize(("stopped", "early"), [(0.0, False), (0.5, False), (4.0, True)])
def test_time_in_which_a_consumer_was_stopped_is_no_gaps_time(
    judged: Judged, stopped: float, early: bool
) -> None:
    first = judged.publish(1)
    judged.publish(2)
    judged.deliver(1)
    judged.acknowledge(first)
    judged.later(GAP_TIMEOUT - stopped)
    judged.watch.update(judged.scheduler.now, False)
    judged.later(stopped)
    judged.watch.update(judged.scheduler.now, True)
    judged.expire(2, 2)
    assert judged.kinds == (["gap_too_early"] if early else [])


def test_the_time_of_a_gap_begins_when_everything_before_it_is_acknowledged(judged: Judged) -> None:
    first = judged.publish(1)
    judged.publish(2)
    judged.deliver(1)
    judged.later(1.0)
    judged.acknowledge(first)
    judged.later(GAP_TIMEOUT - 0.5)
    judged.expire(2, 2)
    assert judged.kinds == ["gap_too_early"]


@pytest.mark.parametrize("replaced", [True, False])
def test_positions_announced_to_an_older_copy_of_an_inbox_hold_up_no_gaps_clock(
    judged: Judged, replaced: bool
) -> None:
    first = judged.publish(1)
    judged.publish(2)
    judged.deliver(1)
    if replaced:
        judged.acknowledge(first)
        judged.open_inboxes("its own")
        judged.oracle.inbox_replaced("g1", "g1-1", judged.scheduler.now - 1.0)
        judged.deliver(1, redelivered=True)
    judged.later(1.0)
    judged.acknowledge(first)
    judged.later(GAP_TIMEOUT - 0.5)
    judged.expire(2, 2)
    assert judged.kinds == ([] if replaced else ["gap_too_early"])


@pytest.mark.parametrize("kept", [True, False])
def test_abandoned_messages_are_among_the_dead_letters(judged: Judged, kept: bool) -> None:
    first = judged.publish(1)
    judged.deliver(1)
    judged.oracle.rejected("g1", "g1-1", first)
    if kept:
        judged.oracle.dead_letter_found("g1", first)
    judged.oracle.judge()
    assert judged.kinds == ([] if kept else ["lost"])


def test_nothing_is_pending_only_when_enough_sites_have_confirmed(judged: Judged) -> None:
    first = judged.publish(1, confirmed=False)
    judged.deliver(1)
    judged.acknowledge(first)
    judged.oracle.judge()
    assert judged.kinds == ["published_unconfirmed"]


def test_durable_messages_that_were_never_sent_are_lost(judged: Judged) -> None:
    operation = judged.oracle.invoked(STREAM, b"1")
    operation.outcome = "ok"
    operation.confirmed.add("dc1")
    judged.oracle.judge()
    assert judged.kinds == ["lost"]


def test_messages_acknowledged_by_a_crashed_consumer_are_waited_for(judged: Judged) -> None:
    oracle, messages = judged.oracle, [judged.publish(seq) for seq in range(1, 6)]
    for message in messages:
        judged.deliver(message.seq)
        judged.acknowledge(message)
    assert not oracle.open_for("g1")
    oracle.settled_in_journal("g1", STREAM, 1, 1, 2)
    oracle.became_indeterminate("g1", messages)
    assert [each.message for each in oracle.open_for("g1")] == messages[2:]
    oracle.settled_in_journal("g1", STREAM, 1, 3, 4)
    assert [each.message for each in oracle.open_for("g1")] == messages[4:]
    judged.acknowledge(messages[4])
    assert not oracle.open_for("g1")


def test_failed_messages_need_no_redelivery_if_another_inbox_had_settled_them(judged: Judged) -> None:
    first, _ = judged.publish(1), judged.publish(2)
    judged.open_inboxes("one", "two")
    judged.deliver(1)
    judged.acknowledge(first)
    judged.deliver(1, redelivered=True)
    judged.oracle.handler_failed("g1", "g1-1", first)
    judged.deliver(2)
    assert not judged.kinds


def test_a_gap_without_an_end_names_nothing_of_later_epochs(judged: Judged) -> None:
    declarations = judged.oracle.declarations["g1"]
    declarations.declare(Gap(STREAM, 1, 3, None, "extent unknown"), 0.0, "g1-1")
    before, within = (identity_of(1, seq) for seq in (2, 3))
    later = identity_of(2, 1)
    assert [each in declarations for each in (before, within, later)] == [False, True, True]
    assert [declarations.was_known("g1-1", each, False) for each in (before, within, later)] == [
        False,
        True,
        False,
    ]


def test_before_join_is_blind_without_an_announcement(judged: Judged) -> None:
    declarations = judged.oracle.declarations["g1"]
    places = [(1, 9), (2, 2), (2, 3)]
    numbers = [identity_of(epoch, seq) for epoch, seq in places]
    declarations.joined(BeforeJoin(STREAM, 2, 1, 3, 0.0, "g1-1"))
    assert [declarations.came_before(each) for each in numbers] == [False, True, True]
    assert not any(map(declarations.was_blind, numbers))
    declarations.joined(BeforeJoin(STREAM, 2, 1, 2, 0.0, "g1-2", blind=True))
    assert [declarations.was_blind(each) for each in numbers] == [True, True, False]
    assert not judged.oracle.declarations["other"].was_blind(numbers[0])


def test_a_replaced_inbox_may_repeat_its_later_actions_and_nothing_else(judged: Judged) -> None:
    one, two = judged.publish(1), judged.publish(2)
    for seq, message in ((1, one), (2, two)):
        judged.deliver(seq)
        judged.acknowledge(message)
        judged.oracle.acknowledged_durably("g1", "g1-1", [message])
        judged.later(1.0)
    judged.oracle.consumer_terminated("g1", "g1-1")
    judged.oracle.inbox_replaced("g1", "g1-1", judged.scheduler.now - 1.5)
    judged.deliver(2)
    judged.publish(3)
    judged.deliver(3)
    assert judged.kinds == []
    judged.deliver(1)
    assert judged.kinds == ["duplicate", "redelivered_after_ack"]


@pytest.mark.parametrize(("back", "kinds"), [(1.5, []), (0.5, ["false_gap"])])
def test_messages_that_an_inbox_settled_after_its_copy_may_be_declared(
    judged: Judged, back: float, kinds: list[str]
) -> None:
    one = judged.publish(1)
    judged.deliver(1)
    judged.later(1.0)
    judged.acknowledge(one)
    judged.oracle.acknowledged_durably("g1", "g1-1", [one])
    judged.later(1.0)
    judged.oracle.consumer_terminated("g1", "g1-1")
    judged.oracle.inbox_replaced("g1", "g1-1", judged.scheduler.now - back)
    judged.later(10.0)
    judged.oracle.gap_skipped("g1", "g1-1", Gap(STREAM, 1, 1, 1, "expired"), judged.scheduler.now)
    assert judged.kinds == kinds


@pytest.mark.parametrize(
    ("since", "settled", "in_vain"), [(999.0, False, True), (1000.5, False, False), (1000.5, True, True)]
)
def test_waiting_is_in_vain_only_for_messages_lost_with_a_disk_or_settled(
    judged: Judged, since: float, settled: bool, in_vain: bool
) -> None:
    first = judged.publish(1)
    judged.later(1.0)
    second = judged.publish(2)
    gap = Gap(STREAM, 1, 1, 2, "expired")
    assert judged.oracle.is_owed("g1", gap)
    judged.oracle.outbox_replaced("p1", since, {first, second} if since < 1000.0 else {second})
    if settled:
        judged.deliver(1)
        judged.acknowledge(first)
    assert judged.oracle.is_owed("g1", gap) is not in_vain


def test_arrived_messages_are_not_missing_in_a_gap_of_unknown_extent(judged: Judged) -> None:
    judged.publish(1)
    open_gap = Gap(STREAM, 1, 2, None, "extent unknown")
    assert not judged.oracle.is_owed("g1", open_gap)
    body = b"later"
    judged.oracle.invoked(STREAM, body)
    judged.oracle.seen(MessageId("p1", 5, "orders", 0, 1), OPENING, body)
    assert judged.oracle.is_owed("g1", open_gap), "it may reach up to there"
    assert judged.oracle.is_owed("g1", open_gap, until=6)
    assert not judged.oracle.is_owed("g1", open_gap, until=5)


def test_waiting_is_in_vain_for_messages_in_progress_at_a_crash_and_lost_with_the_disk(
    judged: Judged,
) -> None:
    body = b"1"
    judged.oracle.invoked(STREAM, body)
    message = MessageId("p1", 1, "orders", 0, 1)
    judged.oracle.seen(message, OPENING, body)
    judged.oracle.outbox_replaced("p1", judged.scheduler.now + 1.0, {message})
    assert not judged.oracle.is_owed("g1", Gap(STREAM, 1, 1, 1, "expired"))


@pytest.mark.parametrize("how", ["declared", "joined", "forked"])
@pytest.mark.parametrize(
    "by", ["another", "itself", "both", "nobody", "its own order", "another, later", "its producer"]
)
def test_messages_that_another_inbox_passed_unannounced_arrive_in_this_ones_own_order(
    judged: Judged, by: str, how: str
) -> None:
    """One declared 2, joined behind it, or went on to the epoch of an older copy of the outbox, and received 3; the
    other one, which was not told so, receives 2."""
    later = 2 if how == "forked" else 1
    for seq in (1, 2, 3):
        judged.publish(seq, epoch=later if seq == 3 else 1)
    judged.deliver(1)

    def passes(consumer: str) -> None:
        declarations, now = judged.oracle.declarations["g1"], judged.scheduler.now
        if how == "forked":
            declarations.forked(STREAM, (1, 1), later, now, consumer)
        elif how == "joined":
            declarations.joined(BeforeJoin(STREAM, 1, 2, 2, now, consumer))
        else:
            declarations.declare(Gap(STREAM, 1, 2, 2, "removed"), now, consumer)

    if by in ("another", "itself", "both", "its own order"):
        passes("g1-1" if by == "itself" else "g1-2")
    if by == "both":
        passes("g1-1")
    judged.oracle.operations[b"2"].removed = by == "its producer"
    judged.deliver(3, consumer="g1-1" if by == "its own order" else "g1-2", epoch=later)
    judged.deliver(2)
    judged.later(1.0)
    if by == "another, later":
        passes("g1-2")
    judged.oracle.judge()
    wrong = [kind for kind in judged.kinds if kind != "skipped"]
    knew = by in ("itself", "both") and how == "declared"
    assert ("delivered_after_gap" in wrong) == knew
    assert ("out_of_order" in wrong) == (by != "another" and not (by == "both" and how == "forked"))


@pytest.mark.parametrize("by", ["another", "itself", "itself, after its copy was made", "another, notified"])
def test_an_inbox_that_knows_of_no_later_epoch_continues_in_publish_order(judged: Judged, by: str) -> None:
    """An outbox was lost, and continues in a lower epoch because its clock was set back; another inbox had received
    part of the one before."""
    judged.publish(1, epoch=5)
    judged.deliver(1, epoch=5, consumer="g1-1" if by.startswith("itself") else "g1-2")
    judged.later(1.0)
    if by.startswith("itself"):
        copied_at = judged.scheduler.now - 2.0 * ("after" in by)
        judged.oracle.consumer_terminated("g1", "g1-1")
        judged.oracle.inbox_replaced("g1", "g1-1", copied_at)
    judged.oracle.outbox_replaced("p1", judged.scheduler.now, set())
    judged.publish(2, epoch=4)
    if by == "another, notified":
        judged.oracle.readers.announced("g1-1", STREAM, (5, 2), (5, 2))
    judged.deliver(2, epoch=4)
    judged.oracle.judge()
    assert judged.kinds == (["out_of_order"] if by in ("itself", "another, notified") else [])


def test_only_messages_in_no_copy_were_lost_with_an_outbox(judged: Judged) -> None:
    """The copy has the first of two messages; that its publish() returned after the copy was made does not matter."""
    judged.later(1.0)
    copied, lost = judged.publish(1), judged.publish(2)
    unseen = lost._replace(seq=3)
    judged.oracle.outbox_replaced("p1", judged.scheduler.now - 0.5, {lost, unseen})
    judged.later(1.0)
    later = judged.publish(4)
    assert [judged.oracle.went_with_outbox(each) for each in (copied, lost, unseen, later)] == [
        False,
        True,
        True,
        False,
    ]
    judged.oracle.outbox_replaced("p1", judged.scheduler.now - 1.5, set())
    judged.oracle.judge()
    assert [violation.about for violation in judged.oracle.violations] == [("g1", copied), ("g1", later)]


def test_a_removal_goes_with_an_outbox_and_its_message_does_not(judged: Judged) -> None:
    """It is in the copy again, and owed as before."""
    first, second = judged.publish(1), judged.publish(2)
    judged.oracle.outbox_replaced("p1", judged.scheduler.now, set(), {second})
    assert [judged.oracle.went_with_outbox(each) for each in (first, second)] == [False, True]
    judged.oracle.judge()
    assert [violation.about for violation in judged.oracle.violations] == [("g1", first), ("g1", second)]


@pytest.mark.parametrize("durable", [True, False])
def test_a_gap_whose_acceptance_went_with_its_consumer_may_still_be_filled(
    judged: Judged, durable: bool
) -> None:
    judged.publish(1)
    judged.later(GAP_TIMEOUT)
    gap = Gap(STREAM, 1, 1, 1, "expired")
    judged.oracle.gap_accepted("g1", "g1-1", gap)
    judged.oracle.consumer_terminated("g1", "g1-1")
    if not durable:
        judged.oracle.acceptance_lost("g1", "g1-1", gap)
    judged.deliver(1)
    assert judged.kinds == (["delivered_after_gap"] if durable else [])


@pytest.mark.parametrize("durable", [True, False])
def test_a_gap_whose_acceptance_went_with_its_consumer_has_had_its_time(
    judged: Judged, durable: bool
) -> None:
    judged.publish(1)
    judged.publish(2)
    judged.later(GAP_TIMEOUT)
    gap = Gap(STREAM, 1, 1, 1, "expired")
    judged.oracle.gap_accepted("g1", "g1-1", gap)
    if not durable:
        judged.oracle.acceptance_lost("g1", "g1-1", gap)
    judged.expire(1 + durable, 1 + durable)
    assert judged.kinds == (["gap_too_early"] if durable else [])


def test_messages_declared_as_missed_by_joining_are_no_loss(judged: Judged) -> None:
    judged.publish(1)
    judged.oracle.gap_reported("g1", "g1-1", Gap(STREAM, 1, 1, 1, "joined late"))
    judged.oracle.judge()
    assert judged.kinds == []


@pytest.mark.parametrize("lost", [True, False])
def test_messages_lost_with_an_outbox_are_ordered_by_their_epochs_alone(judged: Judged, lost: bool) -> None:
    stored = {judged.publish(seq, epoch=7) for seq in (1, 2)}
    if lost:
        judged.oracle.outbox_replaced("p1", judged.scheduler.now - 1.0, stored)
    for seq in (3, 4):
        judged.publish(seq, epoch=5)  # the clock was set back
    judged.deliver(3, epoch=5)
    judged.deliver(1, epoch=7)
    assert judged.kinds == ([] if lost else ["out_of_order"])
    judged.oracle.violations.clear()
    judged.deliver(4, epoch=5)
    assert judged.kinds == ["out_of_order"]


class Standby:
    """A second consumer of the group, and its control frames."""

    def __init__(self, judged: Judged) -> None:
        judged.oracle.inbox_opened("g1", "g1-2", "two", standby=True)
        member = Member("g1", "g1-2", LEASE, has_standby=True)
        self.announcements = Announcements(
            member, judged.oracle, judged.scheduler, Incidents(), None, lambda *_: None
        )
        self.announcements.opened("two")

    def announces(self, role: Literal["active", "standby", "call"], number: int = 1) -> None:
        to = call_address("orders", 0) if role == "call" else group_address("g1")
        for frame in self.frames(role, number, to):
            self.announcements.sent(to, frame)

    def receives_own(self, number: int) -> None:
        self._receives("two", number)

    def receives_other(self) -> None:
        """The first consumer announces that it reads."""
        self._receives("one", 1)

    def _receives(self, inbox: str, number: int) -> None:
        for frame in self.frames("active", number, group_address("g1"), inbox):
            self.announcements.received(group_address("g1"), frame)

    def frames(
        self, role: Literal["active", "standby", "call"], number: int, to: str, inbox: str = "two"
    ) -> list[bytes]:
        return encode_state(State(VERSION, "g1", inbox, number, 0, to, "", role, b"n" * 8, []), None)


def test_messages_delivered_before_a_standby_took_over_are_flagged(judged: Judged) -> None:
    standby = Standby(judged)
    judged.publish(1)
    judged.deliver(1)
    judged.later(1.0)
    standby.announces("active")
    judged.deliver(1, consumer="g1-2")
    assert judged.kinds == ["duplicate"]


def test_messages_delivered_out_of_reach_of_a_reading_standby_are_not(judged: Judged) -> None:
    standby = Standby(judged)
    standby.announces("active")
    judged.later(1.0)
    standby.announces("call")
    judged.publish(1)
    judged.deliver(1)
    judged.deliver(1, consumer="g1-2")
    assert judged.kinds == []


@pytest.mark.parametrize("ends", [True, False])
def test_that_counts_no_more_when_the_standby_has_waited_or_ended_since(judged: Judged, ends: bool) -> None:
    standby = Standby(judged)
    standby.announces("active")
    judged.later(1.0)
    judged.publish(1)
    judged.deliver(1)
    judged.later(1.0)
    standby.announcements.terminated() if ends else standby.announces("standby")
    standby.announces("active")
    judged.deliver(1, consumer="g1-2")
    assert judged.kinds == ["duplicate"]


@pytest.mark.parametrize(("after", "kinds"), [(LEASE / 4, []), (LEASE, ["duplicate"])])
def test_two_that_hear_of_each_other_do_not_both_read_for_long(
    judged: Judged, after: float, kinds: list[str]
) -> None:
    standby = Standby(judged)
    standby.announces("active")
    judged.later(2 * LEASE)
    standby.receives_other()
    judged.later(after)
    standby.receives_other()
    judged.publish(1)
    judged.deliver(1)
    judged.deliver(1, consumer="g1-2")
    assert judged.kinds == kinds


def test_a_gap_of_unknown_extent_ends_where_the_journal_says_that_the_group_went_on() -> None:
    """The group's messages of later epochs are still to be delivered: they must not be considered passed."""
    judged = Judged()
    before, within, after = (judged.publish(1), judged.publish(2, epoch=2), judged.publish(3, epoch=3))
    gap = Gap(STREAM, 1, 1, None, "extent unknown")
    judged.oracle.gap_accepted("g1", "g1-1", gap)
    declarations = judged.oracle.declarations["g1"]
    assert judged.oracle.awaits_gap_ends
    declarations.end_before(STREAM, 1, 1, "g1-2", 2)  # another inbox's
    assert judged.oracle.awaits_gap_ends
    declarations.end_before(STREAM, 1, 1, "g1-1", 3)
    assert not judged.oracle.awaits_gap_ends
    assert before in declarations
    assert within in declarations
    assert [operation.message for operation in judged.oracle.open_for("g1")] == [after]


def test_attempts_that_were_counted_and_not_made_are_as_many_as_each_stream_counts_ahead() -> None:
    judged = Judged()
    other = STREAM._replace(topic="bills")
    judged.oracle.consumer_terminated("g1", "g1-1")
    for stream in (STREAM, other):
        judged.oracle.dead_lettered("g1", MessageId("p1", 1, *stream[1:], 1), tries=1, together=1)
    assert judged.kinds == []
    judged.oracle.dead_lettered("g1", MessageId("p1", 1, *other[1:], 2), tries=1, together=1)
    assert judged.kinds == ["lost"]


@pytest.mark.parametrize(("after", "kinds"), [(LEASE / 2, []), (LEASE, ["two_readers"])])
def test_a_returned_heartbeat_proves_for_the_time_of_a_lease_that_no_other_inbox_read(
    judged: Judged, after: float, kinds: list[str]
) -> None:
    standby = Standby(judged)
    standby.announces("active")
    standby.receives_own(1)
    judged.later(after)
    standby.announcements.delivered(message(1))
    assert judged.kinds == kinds


@pytest.mark.parametrize("again", [False, True])
def test_a_heartbeat_of_an_earlier_life_proves_nothing(judged: Judged, again: bool) -> None:
    standby = Standby(judged)
    standby.announces("active", 1)
    standby.announcements.terminated()
    standby.announcements.opened("two")
    judged.later(2 * LEASE)
    if again:
        standby.announces("active", 2)
        standby.receives_own(2)
    standby.receives_own(1)  # it was in progress when the process terminated
    judged.later(LEASE / 2)
    standby.announcements.delivered(message(1))
    assert judged.kinds == []
    judged.later(LEASE / 2)
    standby.announcements.delivered(message(1))
    assert judged.kinds == (["two_readers"] if again else [])


@pytest.mark.parametrize("flagged", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("event", ["", "crash", "copy"])
def test_messages_that_two_inboxes_delivered_without_a_flag(
    judged: Judged, flagged: tuple[bool, bool], event: str
) -> None:
    """After a crash a journal need not contain it; a copy from before does not, but what was exported may."""
    message = judged.publish(1)
    judged.later(1.0)
    for consumer, again in zip(("g1-1", "g1-2"), flagged, strict=True):
        judged.deliver(1, redelivered=again, consumer=consumer)
    if event == "copy":
        judged.oracle.inbox_replaced("g1", "g1-2", judged.scheduler.now - 0.5)
    elif event == "crash":
        judged.oracle.consumer_terminated("g1", "g1-2")
    firsts, apart = judged.oracle.first_deliveries["g1"], [] if any(flagged) else [message]
    assert list(firsts.delivered_apart(journalled=True)) == ([] if event else apart)
    assert list(firsts.delivered_apart(journalled=False)) == apart


@pytest.mark.parametrize(
    ("where", "wrong"),
    [("", []), ("g1", ["published_unconfirmed"]), (None, ["published_unconfirmed", "lost"])],
)
def test_messages_that_a_terminated_client_still_holds_are_not_lost(
    judged: Judged, where: str | None, wrong: list[str]
) -> None:
    """In an outbox, in the group's inbox, or nowhere."""
    message = judged.publish(1, confirmed=False)
    judged.oracle.excuse({("g1", STREAM)})
    if where is not None:
        judged.oracle.still_stored(where, [message])
    judged.oracle.judge()
    assert judged.kinds == wrong


def test_a_group_that_begins_with_the_latest_is_owed_what_follows_what_came_first() -> None:
    judged = Judged(latest=True)
    for seq in range(1, 5):
        judged.publish(seq)
    assert not judged.oracle.open_for("g1"), "nothing of the stream came yet"
    judged.deliver(2)
    owed = [operation.message for operation in judged.oracle.open_for("g1")]
    assert [message.seq for message in owed if message is not None] == [2, 3, 4]
    judged.deliver(4)
    judged.oracle.judge()
    assert judged.kinds == ["skipped", "lost"]
    assert all("/3 at g1" in violation.text for violation in judged.oracle.violations)


@pytest.mark.parametrize(("joined", "crashed"), [(1, False), (2, False), (1, True)])
def test_a_group_begins_with_the_first_message_that_it_accepted(joined: int, crashed: bool) -> None:
    """Unless it had joined behind that, or a process that is gone had accepted it."""
    judged = Judged(latest=True, consumers=1)
    judged.open_inboxes("one")
    judged.files.joined = joined
    first = judged.publish(1)
    judged.publish(2)
    if crashed:
        judged.oracle.consumer_terminated("g1", "g1-1")
    judged.oracle.released_at("dc1", "g1", first, OPENING)
    judged.open_inboxes("one")
    judged.deliver(2)
    judged.oracle.judge()
    assert judged.kinds == (["skipped", "lost"] if joined == 1 and not crashed else [])


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("latest", [False, True])
def test_before_the_place_of_joining_an_outbox_that_went_back_owes_nothing_to_a_group_that_begins_with_the_latest(
    latest: bool, replaced: bool
) -> None:
    """It continues before the epoch with which the group began, or behind that."""
    judged = Judged(latest=latest)
    first = judged.publish(1, epoch=5)
    judged.deliver(1, epoch=5)
    judged.acknowledge(first)
    judged.later(1.0)
    if replaced:
        judged.oracle.outbox_replaced("p1", judged.scheduler.now, set())
    before, behind = judged.publish(2, epoch=4), judged.publish(3, epoch=6)
    owed = [operation.message for operation in judged.oracle.open_for("g1")]
    assert owed == ([behind] if latest and replaced else [before, behind])
    assert judged.oracle.not_delivered("g1") == owed


@pytest.mark.parametrize("by", ["journal", "hand"])
@pytest.mark.parametrize("where", ["quarantine", "its own quarantine", "inbox", "only inbox"])
def test_messages_in_the_quarantine_of_one_of_several_inboxes_are_unknown_to_the_others(
    where: str, by: str
) -> None:
    judged = Judged(latest=True, consumers=1 if where == "only inbox" else 2)
    judged.files.quarantines = where != "inbox"
    first, second = judged.publish(1), judged.publish(2)
    judged.oracle.released_at("dc1", "g1", first, OPENING)
    owed = [operation.message for operation in judged.oracle.open_for("g1")]
    assert owed == [first, second], "it has to bring that"
    consumer = "g1-2" if where == "quarantine" else "g1-1"
    if by == "journal":
        judged.oracle.started_in_journal("g1", consumer, STREAM, 1, 2)
    judged.deliver(2, consumer=consumer)
    judged.oracle.judge()
    assert judged.kinds == ([] if where == "quarantine" else ["skipped", "lost"])


@pytest.mark.parametrize("orphaned", [True, False])
@pytest.mark.parametrize("replaced", [True, False])
def test_in_flight_messages_of_a_replaced_outbox_were_offered(
    judged: Judged, replaced: bool, orphaned: bool
) -> None:
    operation = judged.oracle.invoked(STREAM, b"1")
    first = MessageId("p1", 1, "orders", 0, 1)
    judged.oracle.durable(operation, first)
    if replaced:
        judged.oracle.outbox_replaced("p1", judged.scheduler.now, set())
    judged.oracle.seen(first, OPENING, b"1", orphaned=orphaned)
    assert judged.oracle.was_offered(first) == (replaced and orphaned)


def test_messages_lost_with_a_disk_under_an_earlier_identity_are_lost(judged: Judged) -> None:
    first = judged.publish(1)
    judged.oracle.seen(
        first._replace(epoch=2), OPENING, b"1"
    )  # it was renumbered before it was offered to any site
    judged.later(2.0)
    judged.oracle.outbox_replaced("p1", judged.scheduler.now - 1.0, {first._replace(epoch=2)})
    assert judged.oracle.open_for("g1"), "the copy has it, by its first name"
    judged.oracle.outbox_replaced("p1", 0.0, {first})
    assert not judged.oracle.open_for("g1")


@pytest.mark.parametrize(
    ("since", "consumers", "known", "owed"),
    [
        (1_000.0, 1, False, []),
        (1_000.0, 2, False, []),
        (1_000.0, 2, True, [1, 2]),
        (1_002.0, 1, False, [1, 2]),
    ],
)
def test_a_group_that_begins_with_the_latest_begins_anew_where_no_other_inbox_knows_the_stream(
    since: float, consumers: int, known: bool, owed: list[int]
) -> None:
    judged = Judged(latest=True, consumers=consumers)
    judged.other.joined = int(known)
    for seq in range(1, 3):
        judged.publish(seq)
    judged.later(1.0)
    judged.deliver(1)
    judged.later(2.0)
    judged.oracle.consumer_terminated("g1", "g1-1")
    judged.oracle.inbox_replaced("g1", "g1-1", since)
    found = [operation.message for operation in judged.oracle.open_for("g1")]
    assert [message.seq for message in found if message is not None] == owed
    judged.publish(3)
    judged.publish(4)
    judged.deliver(3)
    found = [operation.message for operation in judged.oracle.open_for("g1")]
    assert [message.seq for message in found if message is not None] == [*owed, 3, 4]


@pytest.mark.parametrize(
    ("inboxes", "declared_later", "last", "kinds"),
    [(1, False, 1, []), (1, False, 2, ["skipped"]), (2, False, 2, []), (1, True, 2, [])],
)
def test_nothing_after_a_delivered_message_is_from_before_joining(
    judged: Judged, inboxes: int, declared_later: bool, last: int, kinds: list[str]
) -> None:
    """Unless it is declared later: an epoch whose opening answers counts as never entered (E4)."""
    judged.open_inboxes(*map(str, range(inboxes)))
    for seq in range(1, 3):
        judged.publish(seq)
    judged.deliver(1)
    judged.later(1.0)
    judged.oracle.came_before_join("g1", STREAM, 1, 1, last, judged.scheduler.now)
    judged.later(1.0)
    if declared_later:
        gap = Gap(STREAM, 1, 2, 2, "superseded")
        judged.oracle.gap_skipped("g1", "g1-1", gap, judged.scheduler.now)
    judged.oracle.judge()
    assert [kind for kind in judged.kinds if kind == "skipped"] == kinds


@pytest.mark.parametrize(
    ("place", "by", "kinds"),
    [((1, 2), "g1-1", []), ((1, 2), "g1-2", ["out_of_order"]), ((1, 1), "g1-1", ["out_of_order"])],
)
def test_another_inbox_may_have_joined_behind_what_one_has_in_its_quarantine(
    judged: Judged, place: tuple[int, int], by: str, kinds: list[str]
) -> None:
    judged.open_inboxes("1", "2")
    for seq in (1, 2):
        judged.publish(seq)
    judged.oracle.declarations["g1"].started(STREAM, place, judged.scheduler.now, by)
    judged.later(1.0)
    judged.deliver(2, consumer="g1-1")
    judged.deliver(1, consumer="g1-2")
    judged.oracle.judge()
    assert [kind for kind in judged.kinds if kind == "out_of_order"] == kinds


@pytest.mark.parametrize(("kept", "kinds"), [(False, ["let_go_unsafe"]), (True, [])])
def test_what_could_not_be_read_is_safe_in_quarantine_though_it_is_declared(
    judged: Judged, kept: bool, kinds: list[str]
) -> None:
    judged.open_inboxes("1")
    first = judged.publish(1)
    if kept:
        judged.oracle.kept_unreadable("g1", STREAM, 1, 1, 1)
    judged.oracle.released_at("dc1", "g1", first, OPENING)
    judged.later(10.0)
    judged.oracle.gap_accepted("g1", "g1-1", Gap(STREAM, 1, 1, 1, "undecodable"))
    judged.oracle.judge()
    assert judged.kinds == kinds


def test_two_openings_may_have_the_same_epoch(judged: Judged) -> None:
    """Copies of one outbox whose clocks are behind choose the same epoch with a chance of 1 in 65,536."""
    first = judged.publish(1)
    other = judged.oracle.invoked(STREAM, b"other")
    judged.oracle.durable(other, first)
    judged.oracle.seen(first, OPENING + 1, b"other")
    judged.oracle.confirmed_at("dc1", first, OPENING + 1)
    assert other.confirmed == {"dc1"}
    judged.deliver(1)
    assert judged.kinds == []
    wrong = judged.oracle.invoked(STREAM, b"wrong")
    judged.oracle.durable(wrong, first)
    judged.oracle.seen(first, OPENING, b"wrong")
    assert judged.kinds == ["corrupt"], "one opening sends one message"


def test_an_application_gets_one_message_of_two_with_the_same_identity(judged: Judged) -> None:
    first = judged.publish(1)
    judged.oracle.durable(judged.oracle.invoked(STREAM, b"other"), first)
    judged.oracle.seen(first, OPENING + 1, b"other")
    judged.deliver(1)
    again = Message(*STREAM, 1, 1, b"other", None, {}, True, False, NOBODY)
    judged.oracle.delivered("g1", "g1-1", again)
    assert judged.kinds == ["corrupt"]


def test_a_run_continues_for_messages_that_a_group_reads_without_being_named() -> None:
    judged = Judged()
    judged.publish(1)
    assert not judged.oracle.has_unpromised(lambda group: ["orders"])
    next(iter(judged.oracle.operations.values())).groups = frozenset()
    assert judged.oracle.has_unpromised(lambda group: ["orders"])
    assert not judged.oracle.has_unpromised(lambda group: ["bills"])
    judged.deliver(1)
    judged.acknowledge(MessageId("p1", 1, "orders", 0, 1))
    assert not judged.oracle.has_unpromised(lambda group: ["orders"])


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("consumers", [1, 2])
def test_it_continues_where_a_group_with_latest_has_begun_according_to_its_journal(
    consumers: int, named: bool
) -> None:
    """Nothing was delivered or released by then. Even if the group is named, it is owed nothing of the stream."""
    judged = Judged(latest=True, consumers=consumers)
    judged.other.joined = 1
    for seq in (1, 2):
        judged.publish(seq)
    for operation in judged.oracle.operations.values():
        operation.groups = operation.groups if named else frozenset()
    open_ = [judged.oracle.has_unpromised(lambda group: ["orders"])]
    for first in (3, 2):
        judged.oracle.started_in_journal("g1", "g1-1", STREAM, 1, first)
        open_.append(judged.oracle.has_unpromised(lambda group: ["orders"]))
    judged.oracle.inbox_replaced("g1", "g1-1", 0.0)
    open_.append(judged.oracle.has_unpromised(lambda group: ["orders"]))
    assert open_ == [False, False, True, consumers == 2]


@pytest.mark.parametrize("where", ["quarantine", "dropped", ""])
def test_what_a_broker_was_allowed_to_delete_is_not_missing_unless_it_could_not_be_verified(
    where: str,
) -> None:
    judged = Judged(consumers=1)
    judged.open_inboxes("i1")
    identity = judged.publish(1)
    judged.files.quarantines, judged.files.dropped = where == "quarantine", where == "dropped"
    judged.oracle.released_at("dc1", "g1", identity, OPENING)
    judged.oracle.announced_missing("g1", "g1-1", STREAM, [(1, 1, 1)])
    assert judged.kinds == ([] if where else ["let_go_unsafe"])


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("reason", ["superseded", "expired"])
def test_quarantined_messages_may_be_of_a_finished_epoch(reason: str, replaced: bool) -> None:
    judged = Judged()
    judged.open_inboxes("inbox")
    if replaced:
        judged.oracle.outbox_replaced("p1", judged.scheduler.now, set())
    first = judged.publish(1)
    judged.oracle.released_at("dc1", "g1", first, OPENING)
    judged.later(GAP_TIMEOUT)
    judged.oracle.gap_skipped("g1", "g1-1", Gap(STREAM, 1, 1, 1, reason), judged.scheduler.now)
    judged.oracle.judge()
    assert ("let_go_unsafe" in judged.kinds) == (not (replaced and reason == "superseded"))

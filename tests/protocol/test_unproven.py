"""What reaches a group that has no position in a stream, with keys: an old backlog, a repair, or a recording.

Nothing in a frame tells them apart. So nothing is refused, all of it comes in order, and what the producer does not
vouch for is flagged.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Literal

import pytest

from reliamsg.protocol.announced import Announced
from tests.protocol.status_tools import STREAM, Group, Teller, all_of

GAP_TIMEOUT = 5.0
WHO = ("new", "lost", "older copy", "latest", "standby")
PRODUCER = ("answers", "silent", "gone")
WHAT = ("backlog", "recording", "repair")
Kind = Literal["earliest", "latest"]


def signed(**rules: Any) -> Group:
    return Group(**{"gap_timeout": GAP_TIMEOUT, "signed": True, **rules})


def old_producer() -> Teller:
    """It published 20 three weeks ago, and 30 today; of the former it holds none any more."""
    teller = Teller()
    teller.open(10)
    teller.publish(20)
    teller.open(20)
    teller.publish(30)
    teller.release(10, 20)
    return teller


def recorded(teller: Teller) -> Announced:
    """A status that was not made for this inbox."""
    return replace(teller.status(), late=True, reached=None)


def ask(group: Group, teller: Teller, producer: str) -> None:
    """The group's challenges reach the producer, which answers, or whose control frames do not come through."""
    for _ in group.core.challenges.due(group.now):
        if producer == "answers":
            group.hear(teller.status())


def run(group: Group, teller: Teller, producer: str, seconds: float = 4 * GAP_TIMEOUT) -> None:
    end = group.now + seconds
    while group.now < end:
        asks = group.step()
        ask(group, teller, producer)
        for request in asks if producer == "answers" else ():
            group.repair(teller, request.wanted)


def deliver(group: Group, teller: Teller, what: str) -> None:
    """What arrives first: both sites bring it, or the producer sends it again, or somebody else does."""
    if what == "repair":
        group.repair(teller, [(20, 1, 30)])
        return
    group.receive(teller, 10, 1, 20)
    if what == "backlog":
        group.receive(teller, 20, 1, 30, "dc2")
        group.receive(teller, 20, 1, 30)


def prepared(who: str, teller: Teller) -> Group:
    """A group as it begins to read. The producer counts it from the beginning of today's epoch."""
    group = signed(begin="latest" if who == "latest" else "earliest")
    if who in ("lost", "older copy"):  # it had settled 10 of today's, and may have handed out 5 more
        teller.reached = (20, 11), (20, 16)
    if who == "older copy":
        group.hear(replace(teller.status(), reached=None))
        group.wait(1.2)
        group.receive(teller, 20, 1, 4)
        group.crash()
    if who == "standby":
        group.core.succeed({})
    return group


@pytest.mark.parametrize(("who", "producer", "what"), list(itertools.product(WHO, PRODUCER, WHAT)))
def test_whoever_is_new_and_whatever_arrives(who: str, producer: str, what: str) -> None:
    teller = old_producer()
    teller.since = (20, 1)
    group = prepared(who, teller)
    before = len(group.got)
    deliver(group, teller, what)
    run(group, teller, producer)
    given = group.got[before:]
    # Everything that arrived is handed out once, in order: age alone rejects nothing.
    assert given == sorted(set(given))
    arrived = {"backlog": all_of(teller), "recording": [(10, n) for n in range(1, 21)], "repair": []}[what]
    if what == "repair":
        arrived = [(20, n) for n in range(1, 31)]
    if (
        who == "lost" and producer == "answers"
    ):  # the group had settled the first epoch, and its producer holds none of it
        arrived = [place for place in arrived if place >= (20, 1)]
    if who != "older copy":
        assert set(arrived) <= set(group.got)
    assert {place for place in given if place[0] == 20} >= {p for p in arrived if p[0] == 20 and p[1] > 4}
    if producer == "answers":  # it sends what it holds, and says what is new
        assert set(group.got) >= {(20, n) for n in range(1, 31)}
        new = {(20, n) for n in range(1, 31)}
        if who in ("lost", "older copy"):
            new = {(20, n) for n in range(16, 31)}
        if who == "standby":
            new = set()
        unflagged = set(given) - group.flagged
        assert unflagged <= new | ({(20, n) for n in range(1, 31)} if who == "older copy" else set())
        if who in ("new", "latest", "lost"):
            assert unflagged == new
    elif who != "older copy":
        assert set(given) <= group.flagged
        assert [note.reason for note in group.notes if note.kind == "joined"] == ["unproven"]


@pytest.mark.parametrize("begin", ["earliest", "latest"])
@pytest.mark.parametrize("counted", [True, False])
def test_the_very_first_message_comes_as_soon_as_the_producer_answers(begin: Kind, counted: bool) -> None:
    teller, group = Teller(), signed(begin=begin)
    teller.open(10)
    teller.publish(1)
    teller.since = (10, 1) if counted else None
    group.receive(teller, 10, 1, 1)
    assert group.got == []
    assert group.core.challenges.due(group.now) == [STREAM]
    group.hear(teller.status())
    group.work()
    assert group.got == [(10, 1)]
    # Whoever begins with the latest and is not counted can't know that it was published after it began.
    assert bool(group.flagged) is (begin == "latest" and not counted)


def test_without_keys_nothing_waits() -> None:
    teller, group = Teller(), Group()
    teller.open(10)
    teller.publish(1)
    group.receive(teller, 10, 1, 1)
    assert (group.got, group.flagged) == ([(10, 1)], set())
    assert group.core.challenges.deadline() is None


def test_recorded_statuses_join_nobody_before_the_time_is_up() -> None:
    teller, group = old_producer(), signed()
    group.hear(recorded(teller))
    group.receive(teller, 10, 1, 20)
    group.wait(GAP_TIMEOUT - 1.0)
    assert group.got == []
    group.wait(3 * GAP_TIMEOUT)
    assert set(group.got) <= group.flagged


def test_of_a_group_that_joined_unproven_nothing_is_flagged_that_is_published_after_an_answer() -> None:
    teller, group = old_producer(), signed()
    group.receive(teller, 20, 1, 30)
    run(group, teller, "gone")
    assert set(group.got) == group.flagged == {(20, n) for n in range(1, 31)}
    teller.publish(5)
    group.receive(teller, 20, 31, 35)
    assert (20, 35) in group.flagged
    group.hear(recorded(teller))
    assert group.core.challenges.due(group.now + 60.0) == [STREAM]
    group.hear(teller.status())
    teller.publish(5)
    group.receive(teller, 20, 36, 40)
    assert group.got[-5:] == [(20, n) for n in range(36, 41)]
    assert not group.flagged & {(20, n) for n in range(36, 41)}


def test_the_doubt_outlives_a_restart() -> None:
    teller, group = old_producer(), signed()
    group.receive(teller, 20, 1, 30)
    run(group, teller, "silent")
    group.crash()
    teller.publish(5)
    group.receive(teller, 20, 31, 35)
    assert set(group.got) == group.flagged


def test_an_answer_that_is_overtaken_by_a_later_status_proves_all_the_same() -> None:
    teller, group = old_producer(), signed()
    group.receive(teller, 20, 1, 30)
    answer = teller.status()
    group.hear(recorded(teller))
    group.hear(answer)
    group.wait(2.0)
    assert (len(group.got), group.flagged) == (30, set())


def test_with_keys_an_older_status_is_not_looked_at_however_long_ago_the_newer_one_was() -> None:
    for keys in (True, False):
        teller, group = Teller(), Group(signed=keys)
        teller.open(10)
        teller.publish(5)
        old = teller.status()
        teller.publish(5)
        group.hear(teller.status())
        group.wait(3_600.0 if not keys else 600.0)
        assert group.state.view is not None
        group.hear(old)
        assert (next(iter(group.state.view.owners.values())).latest.number == old.number) is not keys


def test_another_takeover_wants_another_answer() -> None:
    teller, group = old_producer(), signed()
    group.hear(teller.status())
    assert group.state.view.proof is not None
    group.core.succeed({})
    assert group.state.view.proof is None


def test_a_stream_leaves_memory_unless_the_group_is_about_to_join_it() -> None:
    """Recordings alone don't keep it there; once its producer has answered, it stays until it is joined."""
    teller = old_producer()
    group = signed()
    group.hear(recorded(teller))
    group.core.retire(group.now, 10, 0.0)
    assert STREAM in group.core.retiring
    group.hear(teller.status())
    group.commit()
    assert not group.core.forget(group.state, stored=False)
    group.core.retire(group.now, 10, 0.0)
    assert STREAM not in group.core.retiring
    group.wait(1.5)
    assert group.state.epochs.current is not None


def test_what_is_published_after_an_answer_that_held_nothing_and_reaches_no_site_is_repaired() -> None:
    teller, group = old_producer(), signed()
    teller.release(20, 30)
    group.hear(recorded(teller))
    ask(group, teller, "answers")
    group.wait(2.0)
    teller.publish(5)  # and every broker loses it, after it was confirmed
    group.hear(recorded(teller))
    assert group.core.challenges.due(group.now) == [STREAM]
    group.hear(teller.status())
    run(group, teller, "answers")
    assert (group.got, group.flagged) == ([(20, n) for n in range(31, 36)], set())


def test_recordings_of_what_an_answer_has_covered_cause_no_more_challenges() -> None:
    teller, group = old_producer(), signed()
    teller.release(20, 30)
    before = recorded(teller)
    group.hear(before)
    ask(group, teller, "answers")
    for _ in range(5):
        group.hear(before)
        group.wait(1.0)
        assert group.core.challenges.due(group.now) == []

"""Facts that the journals of a restored file can't prove are unknown, and nothing else is.

Uses the run of :mod:`tests.checker.test_mutants`, of which a part of a journal was lost with the disk, with and without
a broken promise in addition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from reliamsg.checker import Expect, check
from reliamsg.message import Prev, Stream
from reliamsg.store.journal import Entry
from tests.checker.histories import SITES, History, digest_of
from tests.checker.test_mutants import (
    E1,
    E2,
    INC,
    SETTLED_HERE,
    S,
    add_after,
    both,
    change,
    entry,
    find,
    given,
    history,
    keeps,
    swap_out,
)

E0, E3 = E1 - 10, E2 + 10
FOUND = frozenset[tuple[str, int | None, int | None, int | None]]


def restored_outbox(h: History) -> None:
    """The copy was made when 20 of the first epoch's 30 messages existed: only the group knows of the others."""
    h.logs.clear()
    before, after = h.producers["A"]
    _, at = find(h, "A", "enqueued", E1, 21)
    del before[at:]
    for boot, epoch in ((before, E1), (after, E2)):
        boot[0] = replace(boot[0], epoch=epoch, incarnation=INC[epoch])
    change("A", "epoch", E2, 0, detail={"prev": list(Prev(E1, INC[E1], 20))})(h)
    add_after(
        "g", "received", E2, 1, given("conflict", E2, 0, 0, reason="it says that the first ended at 20")
    )(h)


def found_in(h: History) -> FOUND:
    """Findings about messages; findings about missing journals are in :mod:`tests.checker.test_references`."""
    return frozenset(
        (f.kind, f.epoch, f.first, f.last)
        for f in h.check().findings
        if f.severity != "remark" and f.kind != "missing"
    )


UNPROVEN = ("unproven", E1, 21, 30)


def test_messages_that_an_outbox_lost_with_its_disk_are_unproven() -> None:
    h = history()
    restored_outbox(h)
    assert found_in(h) == {UNPROVEN}
    assert h.check().verdict == "unknown"


def test_epochs_between_two_openings_are_unproven() -> None:
    """The copy was older than the epoch of the group's messages."""
    h = history()
    restored_outbox(h)
    before = h.producers["A"][0]
    before[:] = [replace(before[0], epoch=E0, incarnation=0xA0), Entry("closed")]
    change("A", "epoch", E2, 0, detail={"prev": None})(h)
    assert found_in(h) == {("unproven", E1, 1, 30)}


@pytest.mark.parametrize("published", [False, True])
def test_the_copy_may_have_been_opened_before_without_publishing_to_the_stream(published: bool) -> None:
    """It is unknown which opening was the first after the copy. If one had published to the stream in between, a group
    that met it would have recorded that."""
    h = history()
    restored_outbox(h)
    between = [Entry("opened", epoch=E1 + 1, incarnation=0xB1)]
    if published:
        between += [
            Entry("epoch", S, E1 + 1, 0xB1, detail={"prev": list(Prev(E1, INC[E1], 20))}),
            Entry("enqueued", S, E1 + 1, 0xB1, 1, 1, digest=digest_of(S, E1 + 1, 1, 1)),
        ]
        change("A", "epoch", E2, 0, detail={"prev": list(Prev(E1 + 1, 0xB1, 1))})(h)
    h.producers["A"].insert(1, [*between, Entry("closed")])
    kind = "phantom" if published else "unproven"
    assert (kind, E1, 21, 30) in found_in(h)


KNOWN = {"known": [E1, f"{INC[E1]:016x}", 30]}


@pytest.mark.parametrize(
    ("detail", "unproven"),
    [
        (KNOWN, True),
        ({"known": [E1, f"{INC[E1]:016x}", 20]}, False),
        ({"known": [E1 + 5, f"{INC[E1]:016x}", 30]}, False),
        ({"known": [E1, "000000000000bad1", 30]}, False),
        ({"known": [E1, INC[E1], 30]}, False),
    ],
)
def test_what_an_opening_did_not_know_says_behind_which_one_the_copy_was_made(
    detail: dict[str, object], unproven: bool
) -> None:
    """Whatever was published in between: the journal of a group that recorded it may be lost with its inbox."""
    h = history()
    restored_outbox(h)
    between = [
        Entry("opened", epoch=E1 + 1, incarnation=0xB1),
        Entry("epoch", S, E1 + 1, 0xB1, detail={"prev": list(Prev(E1, INC[E1], 20))}),
        Entry("enqueued", S, E1 + 1, 0xB1, 1, 1, digest=digest_of(S, E1 + 1, 1, 1)),
    ]
    h.producers["A"].insert(1, between)
    change("A", "epoch", E2, 0, detail={"prev": list(Prev(E1 + 1, 0xB1, 1))})(h)
    change("g", "conflict", E2, 0, detail=detail)(h)
    _of_the_last_epoch(h)
    _of_an_epoch(h, E1 + 1, 0xB1, 2, 3)
    _of_an_epoch(h, E1 + 2, 0xB2, 1, 2)
    kind = "unproven" if unproven else "phantom"
    found = {each for each in found_in(h) if each[0] in ("phantom", "unproven")}
    # Nothing is missing behind the opening in between.
    anywhere = not unproven and detail["known"] != [E1, f"{INC[E1]:016x}", 20]
    after = "unproven" if anywhere else "phantom"
    entered = "unproven" if anywhere else "phantom"
    assert found == {
        (kind, E1, 21, 30), (after, E1 + 1, 2, 3), (entered, E1 + 2, 1, 2), ("phantom", E2, 21, 22)
    }  # fmt: skip


@pytest.mark.parametrize("fenced", [True, False])
def test_the_extent_of_a_higher_history_is_unknown(fenced: bool) -> None:
    """A client that it fenced receives no more from it. Even if nobody was fenced, its opening left no journal."""
    h = history()
    h.logs.clear()
    _of_a_later_epoch(h)
    if fenced:
        other = {"epoch": E2 + 5, "incarnation": f"{0xB5:016x}"}
        h.producers["A"][1].insert(-1, Entry("fenced", epoch=E2, incarnation=INC[E2], detail=other))
    _of_the_last_epoch(h)
    assert found_in(h) == {("unproven", E3, 1, 2), ("phantom", E2, 21, 22)}


def test_an_opening_that_was_closed_has_no_more_than_it_says() -> None:
    h = history()
    restored_outbox(h)
    change("g", "conflict", E2, 0, detail=KNOWN)(h)
    assert found_in(h) == {UNPROVEN}
    _closed(h)
    assert found_in(h) == {("phantom", E1, 21, 30)}


@pytest.mark.parametrize("began", [E1, E0])
def test_gaps_and_removals_that_went_with_the_disk_are_unproven(began: int) -> None:
    """Even if the opening then entered the epoch in which it ended (`began`: its first one)."""
    h = history()
    restored_outbox(h)
    _began_with(h, began)
    swap_out("g", "delivered", E1, 11)(h)
    swap_out("g", "redelivered", E1, 16, given("declared", E1, 11, 20, reason="removed"))(h)
    swap_out("g", "delivered", E1, 21, given("delivered", E1, 21, 28),
             given("declared", E1, 29, 30, reason="superseded"))(h)  # fmt: skip
    change("g", "acknowledged", E1, 1, last=10)(h)
    change("g", "acknowledged", E1, 16, first=21, last=28)(h)
    assert found_in(h) == {
        ("unproven", E1, 11, 28), ("unproven_gap", E1, 29, 30), ("declared_gap", E1, 11, 15),
        ("declared_gap", E1, 16, 20),
    }  # fmt: skip


def test_an_opening_that_was_closed_had_no_more_of_the_epoch_that_it_went_on_to() -> None:
    h = history()
    restored_outbox(h)
    _began_with(h, E0)
    assert found_in(h) == {UNPROVEN}
    _closed(h)
    assert found_in(h) == {("phantom", E1, 21, 30)}


def test_an_opening_that_left_no_journal_and_fenced_this_one_is_unproven() -> None:
    h = history()
    restored_outbox(h)
    del h.producers["A"][1]
    fenced = {"epoch": E2, "incarnation": f"{INC[E2]:016x}"}
    h.producers["A"][0] += [Entry("fenced", epoch=E1, incarnation=INC[E1], detail=fenced), Entry("closed")]
    found = found_in(h)
    assert ("unproven", E2, 1, 20) in found
    assert ("phantom", E1, 21, 30) in found, "its own actions are in its journal"


def test_a_status_that_announced_more_rows_shows_a_cut() -> None:
    """The stream had no messages since, so no group met another history."""
    h = history()
    restored_outbox(h)
    _not_met(h)
    heard = Entry("heard", Stream("A", ""), E1, INC[E1], detail={"lsn": 100, "epoch": E1})
    h.groups["g"][1].insert(1, heard)
    assert found_in(h) == {UNPROVEN}
    h.groups["g"][1][1] = replace(heard, detail={"lsn": 2, "epoch": E1})
    assert found_in(h) == {("phantom", E1, 21, 30)}


@pytest.mark.parametrize("known", [False, True])
def test_a_later_opening_shows_what_the_group_had_of_a_finished_epoch(known: bool) -> None:
    """Two openings have published since the copy was made; the group received the missing messages, and no group met
    the first one."""
    h = history()
    restored_outbox(h)
    _not_met(h)
    place = (S, E3, 0xB3)
    detail: dict[str, object] = {"position": [E1, 31], "entered": E1}
    if known:
        detail["known"] = [E1, f"{INC[E1]:016x}", 30]
    h.producers["A"].append([
        replace(h.producers["A"][1][0], epoch=E3, incarnation=0xB3),
        Entry("epoch", *place, detail={"prev": list(Prev(E2, INC[E2], 20))}),
        Entry("enqueued", *place, 1, 1, digest=digest_of(S, E3, 1, 1)),
        Entry("surpassed", *place, group="g", detail=detail),
        Entry("closed"),
    ])  # fmt: skip
    assert (UNPROVEN in found_in(h)) == known
    assert (("phantom", E1, 21, 30) in found_in(h)) != known


@pytest.mark.parametrize("teller", ["producer", "group", "nobody", "group that is wrong"])
def test_an_epoch_that_no_journal_has_was_between_those_before_and_after_it(teller: str) -> None:
    """Messages of the openings after the lost one never reached the group, so no group met these openings."""
    h = history()
    lost, place = E1 + 5, (S, E3, 0xB3)
    of_it = (S, lost, 0xB1, 1, 2)
    add_after("g", "delivered", E1, 21,
              Entry("delivered", *of_it, group="g", digest=digest_of(S, lost, 1, 2)),
              Entry("acknowledged", *of_it, group="g"))(h)  # fmt: skip
    told = Entry("surpassed", *place, group="g", detail={"position": [lost, 3], "entered": lost})
    h.producers["A"].append([
        replace(h.producers["A"][1][0], epoch=E3, incarnation=0xB3),
        Entry("epoch", *place, detail={"prev": list(Prev(E2, INC[E2], 20))}),
        Entry("enqueued", *place, 1, 1, digest=digest_of(S, E3, 1, 1)),
        *([told] if teller == "producer" else []), Entry("closed"),
    ])  # fmt: skip
    if teller.startswith("group"):
        known = [E1 if "wrong" in teller else lost, f"{0xB1:016x}", 2]
        h.groups["g"][1].append(Entry("conflict", *place, group="g", detail={"known": known}))
    found = found_in(h)
    assert (("unproven", lost, 1, 2) in found) == (teller in ("producer", "group")), found
    assert (("phantom", lost, 1, 2) in found) == (teller not in ("producer", "group")), found


def lost_with_its_clock(h: History, *, silent: bool = True) -> None:
    """Only a status referred to the opening after the first, and no journal has it. The copy was first opened with a
    clock that was behind, and published nothing, or something."""
    restored_outbox(h)
    _not_met(h)
    told = Entry("heard", Stream("A", ""), E1 + 5, 0xB1, detail={"lsn": 2, "epoch": E1 + 5})
    h.groups["g"][1].insert(1, told)
    opened = replace(h.producers["A"][0][0], epoch=E1 + 3, incarnation=0xB0)
    other = (Stream("A", "unread"), E1 + 3, 0xB0)
    entry = Entry("enqueued", *other, 1, 1, digest=digest_of(other[0], E1 + 3, 1, 1))
    boot = [opened] if silent else [opened, Entry("epoch", *other, detail={"prev": None}), entry]
    h.producers["A"].insert(1, [*boot, Entry("closed")])


@pytest.mark.parametrize("silent", [False, True])
def test_or_before_one_that_published_nothing_since_it_may_be_of_the_copy(silent: bool) -> None:
    h = history()
    lost_with_its_clock(h, silent=silent)
    assert (UNPROVEN in found_in(h)) == silent
    assert (("phantom", E1, 21, 30) in found_in(h)) != silent


@pytest.mark.parametrize("closed", [False, True])
def test_a_status_of_an_opening_that_left_no_journal_shows_a_cut_before_it(closed: bool) -> None:
    """Its messages are unknown, and so are the actions of the opening before it since the copy was made."""
    h = history()
    restored_outbox(h)
    _not_met(h)
    if closed:
        _closed(h)
    h.groups["g"][1].insert(
        1, Entry("heard", Stream("A", ""), E1 + 5, 0xB1, detail={"lsn": 2, "epoch": E1 + 5})
    )
    assert found_in(h) == {("phantom", E1, 21, 30) if closed else UNPROVEN}
    place = (S, E1 + 6, 0xB2, 1, 2)
    add_after("g", "delivered", E1, 21, Entry("delivered", *place, group="g", digest=digest_of(S, E1 + 6, 1, 2)),
              Entry("acknowledged", *place, group="g"))(h)  # fmt: skip
    assert ("unproven", E1 + 6, 1, 2) in found_in(h), "of a later opening that left no journal either"


def test_an_outbox_that_learned_of_it_shows_a_cut() -> None:
    """It published nothing since, so no group met another history."""
    h = history()
    restored_outbox(h)
    _not_met(h)
    told = Entry("surpassed", S, E2, INC[E2], group="g", detail={"position": [E1, 31]})
    h.producers["A"][1].insert(1, told)
    assert found_in(h) == {UNPROVEN}
    h.producers["A"][1][1] = replace(told, incarnation=0)
    assert found_in(h) == {("phantom", E1, 21, 30)}


@pytest.mark.parametrize("teller", ["group", "producer", "group that records what it knew"])
def test_a_copy_whose_clock_went_back_lacks_what_lies_beyond_its_own_epoch(teller: str) -> None:
    """The group had entered a later epoch than the copy, which learned of it; the copy's own epochs are complete."""
    h = history()
    restored_outbox(h)
    _not_met(h)
    _of_a_later_epoch(h)
    add_after("g", "delivered", E2, 11, given("delivered", E2, 21, 22))(h)
    change("g", "acknowledged", E2, 1, last=22)(h)
    detail = {"position": [E3, 3], "entered": E2 + 5}
    if teller == "producer":
        h.producers["A"][1].insert(1, Entry("surpassed", S, E2, INC[E2], group="g", detail=detail))
    else:
        known = KNOWN if "knew" in teller else {}
        h.groups["g"][1].insert(1, given("conflict", E2, 0, 0, detail={**detail, **known}))
    assert found_in(h) == {UNPROVEN, ("unproven", E3, 1, 2), ("phantom", E2, 21, 22)}


def restored_inbox(h: History) -> None:
    """The copy was made when the group had settled ten of the first epoch; its producer reports that the group had
    reached 21. No journal of the group has the messages between."""
    h.logs.clear()
    opened, after = h.groups["g"][0][0], h.groups["g"][1]
    h.groups["g"][0][:] = [
        opened, given("joined", E1, 1, 1), given("delivered", E1, 1, 10), given("acknowledged", E1, 1, 10)
    ]  # fmt: skip
    swap_out("g", "redelivered", E1, 16)(h)
    change("g", "acknowledged", E1, 16, first=21)(h)
    after.insert(1, given("behind", E1, 21, 21, detail={"from": [E1, 11]}))


def test_messages_settled_by_an_inbox_that_lost_its_disk_are_settled_unseen() -> None:
    h = history()
    restored_inbox(h)
    assert found_in(h) == {("settled_unseen", E1, 11, 20)}
    assert h.check().verdict == "unknown"


def test_the_announcements_of_a_lost_inbox_to_a_producer_are_no_lie() -> None:
    h = history()
    keeps(h)
    restored_inbox(h)
    assert found_in(h) == {("settled_unseen", E1, 11, 20)}


REPORTS: dict[str, tuple[dict[str, Any] | None, set[str], str]] = {
    "a row that the journal has": (SETTLED_HERE, {"consumed_unsettled", "lost"}, ""),
    "no row": (None, {"settled_unseen"}, ""),
    "nonsense": ({"journal": [f"{2:016x}"]}, {"settled_unseen"}, ""),
    "a row beyond its end": (
        {"journal": [f"{2:016x}", 1000]}, {"settled_unseen"},
        "the journal of the opening 0000000000000002 of group g lacks rows that it had",
    ),
    "an opening without a journal": (
        {"journal": [f"{0xC0:016x}", 1]}, {"settled_unseen"}, "no journal of the opening 00000000000000c0 of group g"
    ),
}  # fmt: skip
"""What a producer journalled as consumed names, and what is found: kinds, and a line about missing evidence."""


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("successor", [False, True])
def test_a_report_proves_what_the_journal_says_by_the_row_that_it_names(report: str, successor: bool) -> None:
    """The producer was told that the group has settled everything; no journal of the group has the last ten. It makes
    no difference whether another inbox of the group is known to be gone."""
    detail, kinds, line = REPORTS[report]
    h = history()
    h.logs.clear()
    keeps(h, detail)
    swap_out("g", "delivered", E2, 11)(h)
    change("g", "acknowledged", E2, 1, last=10)(h)
    if successor:
        behind = Entry("behind", Stream("B", "orders"), E1, 0, 8, 8, group="g", detail={"from": [E1, 3]})
        h.groups["g"][1].insert(1, behind)
    found = h.check().findings
    assert {f.kind for f in found if f.stream == S} == kinds
    assert {f.text for f in found if "of group g" in f.text} == ({line} if line else set())


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("joined", [False, True])
def test_a_stream_that_no_journal_joined_is_judged_by_the_same_rows(report: str, joined: bool) -> None:
    h = history()
    h.logs.clear()
    keeps(h, REPORTS[report][0])
    for boot in h.groups["g"]:
        boot[:] = [row for row in boot if row.stream is None or (joined and row.kind == "joined")]
    found = {f.kind for f in h.check().findings if f.stream == S}
    assert found == (REPORTS[report][1] if report != "a row beyond its end" else {"settled_unseen"})


@pytest.mark.parametrize("met", [False, True])
def test_nothing_is_known_of_a_stream_that_the_successor_never_met(met: bool) -> None:
    """The producer received no announcement, and an operator's decision is no evidence of the messages."""
    h = history()
    h.logs.clear()
    swap_out("g", "delivered", E2, 11)(h)
    change("g", "acknowledged", E2, 1, last=10)(h)
    behind = Entry("behind", Stream("B", "orders"), E1, 0, 8, 8, group="g", detail={"from": [E1, 3]})
    heard = [given("gap_opened" if met else "forgotten", E2, 11, 20)]
    h.groups["g"][-1].remove(h.groups["g"][-1][-1])
    h.groups["g"] += [[replace(h.groups["g"][0][0]), behind, *heard, Entry("closed")]]
    found = {(f.kind, f.first, f.last) for f in h.check().findings if f.stream == S}
    assert found == {("lost" if met else "settled_unseen", 11, 20)}


def test_at_the_end_existing_messages_may_have_been_settled_by_a_lost_inbox() -> None:
    """Of the last epoch, 18 messages existed when the inbox was told that it is behind; there need not be any row about
    those between. Later messages are lost."""
    h = history()
    h.logs.clear()
    swap_out("g", "delivered", E2, 11)(h)
    change("g", "acknowledged", E2, 1, last=10)(h)
    h.groups["g"][1].insert(1, given("behind", E1, 21, 21, detail={"from": [E1, 21], "existed": [E2, 19]}))
    assert found_in(h) == {("settled_unseen", E2, 11, 18), ("lost", E2, 19, 20)}


def test_existing_messages_are_not_skipped_because_of_that() -> None:
    h = history()
    restored_inbox(h)
    change("g", "behind", E1, 21, first=19, last=19, detail={"from": [E1, 11], "existed": [E1, 31]})(h)
    assert found_in(h) == {
        ("settled_unseen", E1, 11, 18), ("lost", E1, 19, 20), ("undeclared_gap", E1, 19, 20)
    }  # fmt: skip


def test_unsettled_messages_are_lost_next_to_a_restored_inbox() -> None:
    h = history()
    restored_inbox(h)
    change("g", "behind", E1, 21, first=19, last=19)(h)
    assert found_in(h) == {
        ("settled_unseen", E1, 11, 18), ("lost", E1, 19, 20), ("undeclared_gap", E1, 19, 20)
    }  # fmt: skip


def test_messages_delivered_before_the_copy_are_redelivered_or_were_settled() -> None:
    """The copy owes 6 to 10, and skips them as told; there is no evidence of 3 to 5."""
    h = history()
    restored_inbox(h)
    change("g", "acknowledged", E1, 1, last=2)(h)
    change("g", "behind", E1, 21, detail={"from": [E1, 6]})(h)
    assert found_in(h) == {
        ("settled_unseen", E1, 11, 20), ("not_redelivered", E1, 3, 5), ("unacknowledged", E1, 3, 10)
    }  # fmt: skip


def inbox_of_latest_gone(h: History, *, itself: bool = False, begin: str = "latest") -> None:
    """Another inbox had joined and settled everything before 21. Its journal is lost with it, and this one's begins
    there, or (`itself`) with the first message to arrive."""
    h.logs.clear()
    opened = replace(h.groups["g"][0][0], detail={"topics": ["orders"], "begin": begin, "sites": list(SITES)})
    first = 26 if itself else 21
    joined = [given("joined", E1, first, first, reason="" if itself else "took_over")]
    if itself:
        joined.insert(0, given("before_join", E1, 1, 25, reason="begin"))
    del h.groups["g"][0]
    h.groups["g"][0][:] = [
        opened, given("behind", E1, 21, 21, detail={"from": [0, 1]}), *joined, given("delivered", E1, first, 30),
        given("acknowledged", E1, first, 30), *h.groups["g"][0][5:],
    ]  # fmt: skip


@pytest.mark.parametrize("itself", [True, False])
def test_what_was_settled_before_a_group_joined_was_settled_by_an_inbox_that_is_gone(itself: bool) -> None:
    """Although nothing is owed to the group from before its position of joining: it had joined earlier."""
    h = history()
    inbox_of_latest_gone(h, itself=itself)
    assert found_in(h) == {("settled_unseen", E1, 1, 20)}
    at = next(at for at, row in enumerate(h.groups["g"][0]) if row.kind == "behind")
    del h.groups["g"][0][at]
    assert h.check().verdict == "complete"


def test_nor_is_it_known_for_messages_for_which_no_producer_counts_the_group() -> None:
    h = history()
    for boot in h.producers["A"]:
        boot[0] = replace(boot[0], detail={**(boot[0].detail or {}), "groups": {}})
    inbox_of_latest_gone(h, begin="earliest")
    assert found_in(h) == {("settled_unseen", E1, 1, 20)}


def test_removed_messages_may_have_been_delivered_by_a_lost_inbox() -> None:
    h = history()
    inbox_of_latest_gone(h)
    add_after("A", "enqueued", E1, 1, entry("removed", E1, 5, 6))(h)
    assert found_in(h) == {("settled_unseen", E1, 1, 20)}


@pytest.mark.parametrize("joined", [11, 21, 22])
def test_messages_from_before_a_group_whose_inboxes_all_have_journals(joined: int) -> None:
    """The first one joined, settled the messages that arrived then, if any, and announced its position."""
    h = history()
    inbox_of_latest_gone(h)
    other = [h.groups["g"][0][0], given("joined", E1, joined, joined)]
    if joined < 21:
        other += [given("delivered", E1, joined, 20), given("acknowledged", E1, joined, 20)]
    h.seconds["g"] = [[*other, Entry("closed")]]
    assert found_in(h) == (frozenset() if joined <= 21 else {("settled_unseen", E1, 1, 20)})


@pytest.mark.parametrize("spoil", ["twice", "lost"])
def test_a_broken_promise_beside_a_restored_inbox_is_convicted(spoil: str) -> None:
    h = history()
    restored_inbox(h)
    {"twice": _twice, "lost": _lost}[spoil](h)
    beside = {"twice": ("duplicate", E1, 25, 26), "lost": ("lost", E2, 20, 20)}[spoil]
    assert found_in(h) == {("settled_unseen", E1, 11, 20), beside}


def _began_with(h: History, epoch: int) -> None:
    boot = h.producers["A"][0]
    boot[0] = replace(boot[0], epoch=epoch)


def _closed(h: History) -> None:
    h.producers["A"][0].append(Entry("closed"))


def _not_met(h: History) -> None:
    boot, at = find(h, "g", "conflict", E2, 0)
    del boot[at]


def _met_another(h: History) -> None:
    change("g", "conflict", E2, 0, incarnation=0xBAD)(h)


def _of_the_last_epoch(h: History) -> None:
    both(
        add_after("g", "delivered", E2, 11, given("delivered", E2, 21, 22)),
        change("g", "acknowledged", E2, 1, last=22),
    )(h)


def _of_a_later_epoch(h: History) -> None:
    _of_an_epoch(h, E3, 0xA3, 1, 2)


def _of_an_epoch(h: History, epoch: int, incarnation: int, first: int, last: int) -> None:
    place = (S, epoch, incarnation, first, last)
    add_after("g", "acknowledged", E2, 1,
              Entry("delivered", *place, group="g", digest=digest_of(S, epoch, first, last)),
              Entry("acknowledged", *place, group="g"))(h)  # fmt: skip


def _twice(h: History) -> None:
    add_after("g", "delivered", E1, 21, given("delivered", E1, 25, 26))(h)


def _lost(h: History) -> None:
    both(
        change("g", "delivered", E2, 11, last=19, digest=digest_of(S, E2, 11, 19)),
        change("g", "acknowledged", E2, 1, last=19),
    )(h)


def _released_early(h: History) -> None:
    for boot in h.producers["A"]:
        boot[0] = replace(boot[0], detail={**(boot[0].detail or {}), "release": "consumed"})
    add_after("A", "published", E2, 11, entry("released", E2, 11, 20))(h)


VIOLATIONS: dict[str, tuple[Callable[[History], None], FOUND]] = {
    "an opening that was closed had no more": (_closed, frozenset({("phantom", E1, 21, 30)})),
    "no group met another history": (_not_met, frozenset({("phantom", E1, 21, 30)})),
    "the opening that was met is unknown": (_met_another, frozenset({("phantom", E1, 21, 30)})),
    "never published after the restore": (_of_the_last_epoch, frozenset({UNPROVEN, ("phantom", E2, 21, 22)})),
    "of an epoch beyond it": (_of_a_later_epoch, frozenset({UNPROVEN, ("unproven", E3, 1, 2)})),
    "delivered twice": (_twice, frozenset({UNPROVEN, ("duplicate", E1, 25, 26)})),
    "lost after the restore": (_lost, frozenset({UNPROVEN, ("lost", E2, 20, 20)})),
    "released early": (_released_early, frozenset({UNPROVEN, ("released_early", E2, 11, 20)})),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_broken_promise_beside_a_restore_is_convicted(name: str) -> None:
    spoil, expected = VIOLATIONS[name]
    h = history()
    restored_outbox(h)
    spoil(h)
    assert found_in(h) == expected, h.check().text()
    assert h.check().verdict in ({"unknown"} if name == "of an epoch beyond it" else {"violated", "lost"})


# -- an outbox that continued in a lower epoch --------------------------------------------------------------


def outbox_goes_on_below(h: History) -> None:
    """The outbox is lost while the clock is behind, and the group has not met the following epoch yet."""
    h.logs.clear()
    opened = replace(h.producers["A"][0][0], epoch=E0, incarnation=0xA0)
    sent = [Entry("confirmed", S, E0, 0xA0, 1, 5, site=site) for site in SITES]
    h.producers["A"][:] = [[
        opened, Entry("epoch", S, E0, 0xA0, detail={"prev": None}),
        Entry("enqueued", S, E0, 0xA0, 1, 5, digest=digest_of(S, E0, 1, 5)), *sent,
        Entry("published", S, E0, 0xA0, 1, 5), Entry("closed"),
    ]]  # fmt: skip
    assert h.groups["g"][-1].pop().kind == "closed"


def of_below(h: History) -> set[tuple[str, int | None, int | None]]:
    return {(kind, first, last) for kind, epoch, first, last in found_in(h) if epoch == E0}


def test_epochs_below_one_of_another_history_may_still_be_announced() -> None:
    h = history()
    outbox_goes_on_below(h)
    assert of_below(h) == {("undelivered", 1, 5)}
    h.groups["g"][-1].append(Entry("closed"))
    assert of_below(h) == {("lost", 1, 5)}, "unless everything has had its time"


def test_epochs_below_a_later_one_of_the_same_history_were_passed() -> None:
    h = history()
    later = [*h.producers["A"]]
    outbox_goes_on_below(h)
    h.producers["A"] += later
    assert of_below(h) == {("lost", 1, 5)}


@pytest.mark.parametrize("again", [False, True])
def test_histories_of_a_copied_inbox_share_their_first_openings(again: bool) -> None:
    """What those delivered was delivered once. What a later opening of the copy delivers unflagged was not."""
    h = history()
    h.logs.clear()
    whole = next(chain for chain in h.chains() if chain.role == "group")
    first, last = whole.boots
    tail = [replace(row, boot=f"{0xC0:016x}") for row in last.rows]
    if not again:
        tail = [row for row in tail if row.kind in ("opened", "closed")]
    copied = [replace(row, lsn=lsn) for lsn, row in enumerate((*first.rows, *tail), 1)]
    copy = replace(whole, source="copy.db", rows=copied)
    found = check([*h.chains(), copy], expect=Expect(drained=True)).of_kind("duplicate_apart")
    shared = {(row.epoch, row.first) for row in first.rows if row.kind == "delivered"}
    assert shared
    assert bool(found) == again
    assert shared.isdisjoint({(each.epoch, each.first) for each in found})

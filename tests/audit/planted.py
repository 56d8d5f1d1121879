"""For every kind of finding, a journal in which it was planted, and exactly the expected findings.

All are derived from one sound run: producer A in two epochs (30 and 20 messages to ``orders``), read by group g, which
was killed once. If a kind can't occur alone, `companions` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from reliamsg.checker.journals import Chain
from reliamsg.message import Prev, Stream, digest
from reliamsg.store.journal import Entry
from tests.audit.fleet import renamed
from tests.checker.histories import SITES, History, body_of, digest_of
from tests.checker.test_mutants import (
    E1,
    E2,
    INC,
    S,
    add_after,
    add_before,
    both,
    change,
    entry,
    find,
    given,
    history,
    keeps,
    name_openings,
    second_inbox,
    swap_out,
)
from tests.checker.test_restores import (
    E0,
    inbox_of_latest_gone,
    lost_with_its_clock,
    outbox_goes_on_below,
)

__all__ = ["ELSEWHERE", "MORE", "PLANTS", "Plant", "chains_of", "sound"]

ELSEWHERE = {"delivered_after_failed", "not_durable", "unjournalled", "unseen", "too_late"}
"""Kinds of the plain checker that need applications' logs, or a clock that all clients share."""
GAP_TIMEOUT = 30.0
UNREAD = Stream("A", "unread")
"""A topic that no group reads, so that no group lacks its messages."""

Found = tuple[str, str, str, str, int, tuple[tuple[int, int], ...]]
"""Kind, topic, group, site, epoch, ranges."""


@dataclass(frozen=True)
class Plant:
    """The change to the sound run, and the expected findings."""

    spoil: Callable[[History], None]
    found: frozenset[Found]
    companions: str = ""
    """The reason for findings of other kinds."""


def _found(kind: str, epoch: int, *ranges: tuple[int, int], group: str = "g", site: str = "") -> Found:
    return kind, "orders", group, site, epoch, ranges


def _alone(spoil: Callable[[History], None], *found: Found) -> Plant:
    return Plant(spoil, frozenset(found))


def sound() -> History:
    """The run before anything is planted."""
    run = history()
    run.logs.clear()
    for boot in run.groups["g"]:
        boot[0] = replace(boot[0], detail={**(boot[0].detail or {}), "gap_timeout": GAP_TIMEOUT})
    return run


def chains_of(kind: str, spoil: Callable[[History], None] | None = None) -> list[Chain]:
    """The journals with that kind planted, or changed by `spoil` instead; the kind is appended to each name."""
    run = sound()
    ((PLANTS | MORE)[kind].spoil if spoil is None else spoil)(run)
    return renamed(run.chains(), f"-{kind}")


def _unnamed(run: History) -> None:
    for boot in run.producers["A"]:
        boot[0] = replace(boot[0], detail={**(boot[0].detail or {}), "groups": {}})


def _declared_instead(**how: object) -> Callable[[History], None]:
    """21 and 22 of the first epoch are declared instead of delivered."""
    told = given("declared", E1, 21, 22, reason="expired", **how)
    return both(
        swap_out("g", "delivered", E1, 21, told, given("delivered", E1, 23, 30)),
        swap_out(
            "g", "acknowledged", E1, 16, given("acknowledged", E1, 16, 20), given("acknowledged", E1, 23, 30)
        ),
    )


def _second_producer(run: History, *groups: str) -> None:
    """Producer B, of whose stream g never saw anything. B names `groups`, and was told that they have settled
    everything."""
    place = (Stream("B", "orders"), E1, 0xB1, 1, 9)
    run.producers["B"] = [
        [
            Entry(
                "opened", detail={"groups": {"orders": list(groups)}, "sites": list(SITES), "confirm": "all"}
            ),
            Entry("epoch", *place[:3], detail={"prev": None}),
            Entry("enqueued", *place, digest=digest_of(place[0], E1, 1, 9)),
            *(Entry("confirmed", *place, site=site) for site in SITES),
            Entry("published", *place),
            *(Entry("consumed", *place, group=group) for group in groups),
            Entry("closed"),
        ]
    ]


def _inbox_gone(run: History) -> None:
    """Messages that g had settled without a row in any journal: of the second epoch, 11 to 15, which its producer was
    told, and 19 and 20, whose fate is unknown; of producer C's stream, which its inbox never met, everything; and all
    of producer B's stream, which B was told."""
    _second_producer(run, "g")
    for boot in run.producers["B"]:
        told = next(row for row in boot if row.kind == "consumed")
        unheard = [row for row in boot if row is not told]
        run.producers["C"] = [
            [row if row.stream is None else replace(row, stream=Stream("C", "orders")) for row in unheard]
        ]
    seen = Entry("received", Stream("B", "orders"), E1, 0xB1, 1, 1, group="g", site="dc1")
    behind = given("behind", E2, 16, 16, detail={"from": [E2, 11], "existed": [E2, 21]})
    both(
        swap_out("g", "delivered", E2, 11, behind, seen, given("delivered", E2, 16, 18)),
        change("g", "acknowledged", E2, 1, last=10),
        add_after("g", "acknowledged", E2, 1, given("acknowledged", E2, 16, 18)),
    )(run)


def _unread_with_a_hole(run: History) -> None:
    boot = run.producers["A"][0]
    boot.append(Entry("epoch", UNREAD, E1, INC[E1], detail={"prev": None}))
    for first, last in ((1, 3), (5, 8)):
        place = (UNREAD, E1, INC[E1], first, last)
        boot.append(Entry("enqueued", *place, digest=digest_of(UNREAD, E1, first, last)))
        boot += [Entry("confirmed", *place, site=site) for site in SITES]
        boot.append(Entry("published", *place))


def _open_end(run: History) -> None:
    """Killed before the last ten arrived, and not restarted."""
    both(
        swap_out("g", "delivered", E2, 11),
        change("g", "acknowledged", E2, 1, last=10),
    )(run)
    assert run.groups["g"][-1].pop().kind == "closed"


def _old_epoch(run: History) -> None:
    place = (E1, 31, 31)
    both(
        add_after(
            "A", "published", E2, 11,
            entry("enqueued", *place), *(entry("confirmed", *place, site=site) for site in SITES),
            entry("published", *place),
        ),
        add_after("g", "delivered", E1, 21, given("delivered", *place), given("acknowledged", *place)),
    )(run)  # fmt: skip


def _headless(run: History) -> None:
    assert run.groups["g"][1].pop(0).kind == "opened"


def _headless_producer(run: History) -> None:
    """Of a producer that names no groups: messages that its first boot did not journal can't be known."""
    assert run.producers["A"][1].pop(0).kind == "opened"
    add_after("g", "delivered", E2, 11, given("delivered", E2, 21, 22), given("acknowledged", E2, 21, 22))(
        run
    )


def _unclosed(run: History) -> None:
    assert run.producers["A"][1].pop().kind == "closed"


def _acknowledged_to_come(run: History) -> None:
    swap_out("g", "delivered", E2, 11)(run)
    assert run.groups["g"][-1].pop().kind == "closed"


def _no_producer(run: History) -> None:
    del run.producers["A"]


def _removed(run: History) -> None:
    both(
        swap_out("A", "published", E2, 11, entry("removed", E2, 11, 20)),
        swap_out("g", "delivered", E2, 11),
        change("g", "acknowledged", E2, 1, last=10),
    )(run)


def _pending(run: History) -> None:
    both(
        swap_out("A", "published", E2, 11),
        swap_out("g", "delivered", E2, 11),
        change("g", "acknowledged", E2, 1, last=10),
    )(run)


def _fenced(run: History) -> None:
    """It knows that another owner is alive before it enqueues the last ten."""
    boot, at = find(run, "A", "enqueued", E2, 11)
    other = {"epoch": E2 + 5, "incarnation": f"{0xF:016x}"}
    boot.insert(at, Entry("fenced", epoch=E2, incarnation=INC[E2], detail=other))


def _removed_in_words(run: History) -> None:
    """Declared as removed, although it was not."""
    _declared_instead()(run)
    change("g", "declared", E1, 21, reason="removed", detail={"heard": [1, f"{INC[E2]:016x}"]})(run)
    name_openings(run)


def _restored_outbox(run: History) -> None:
    """The copy was made when 20 messages of the first epoch existed, exactly the group's position. The group learns of
    ten more after the copy has been reopened, and has published in between."""
    before, after = run.producers["A"]
    _, at = find(run, "A", "enqueued", E1, 21)
    del before[at:]
    for boot, epoch in ((before, E1), (after, E2)):
        boot[0] = replace(boot[0], epoch=epoch, incarnation=INC[epoch])
    between, its = E1 + 1, 0xB1
    place = (S, between, its, 1, 2)
    added: dict[str, Any] = {"digest": digest_of(S, between, 1, 2)}
    run.producers["A"].insert(
        1,
        [
            replace(before[0], epoch=between, incarnation=its),
            Entry("epoch", S, between, its, detail={"prev": list(Prev(E1, INC[E1], 20))}),
            Entry("enqueued", *place, **added),
            *(Entry("confirmed", *place, site=site) for site in SITES),
            Entry("published", *place),
        ],
    )
    both(
        change("A", "epoch", E2, 0, detail={"prev": list(Prev(between, its, 2))}),
        swap_out("g", "delivered", E1, 21, Entry("delivered", *place, group="g", **added),
                 Entry("acknowledged", *place, group="g")),
        change("g", "acknowledged", E1, 16, last=20),
        add_after("g", "received", E2, 1,
                  given("conflict", E2, 0, 0, detail={"known": [E1, f"{INC[E1]:016x}", 30]}),
                  given("declared", E1, 21, 30, reason="superseded")),
    )(run)  # fmt: skip


_ABSENT: Found = ("missing", "", "", "", 0, ())
_ADMITTED = "declared messages are lost, and reported as lost"

PLANTS: dict[str, Plant] = {
    # Deliveries to a group
    "out_of_order": _alone(
        both(swap_out("g", "delivered", E2, 1), add_after("g", "delivered", E2, 11, given("delivered", E2, 1, 10))),
        _found("out_of_order", E2, (1, 10)),
    ),
    "duplicate": _alone(
        add_after("g", "delivered", E2, 11, given("delivered", E2, 5, 6)), _found("duplicate", E2, (5, 6))
    ),
    "redelivered_after_ack": _alone(
        change("g", "redelivered", E1, 16, first=15, digest=digest_of(S, E1, 15, 20)),
        _found("redelivered_after_ack", E1, (15, 15)),
    ),
    "acknowledged_twice": _alone(
        add_after("g", "acknowledged", E2, 1, given("acknowledged", E2, 7, 7)),
        _found("acknowledged_twice", E2, (7, 7)),
    ),
    "acknowledged_undelivered": _alone(
        add_after("g", "acknowledged", E2, 1, given("acknowledged", E2, 21, 21)),
        _found("acknowledged_undelivered", E2, (21, 21)),
    ),
    "not_redelivered": _alone(
        both(
            swap_out("g", "redelivered", E1, 16),
            change("g", "acknowledged", E1, 16, first=21),
            add_after("g", "acknowledged", E1, 21, given("acknowledged", E1, 16, 20)),
        ),
        _found("not_redelivered", E1, (16, 20)),
    ),
    "undeclared_gap": Plant(
        both(
            swap_out("g", "delivered", E1, 21, given("delivered", E1, 21, 24), given("delivered", E1, 26, 30)),
            swap_out("g", "acknowledged", E1, 16, given("acknowledged", E1, 16, 24), given("acknowledged", E1, 26, 30)),
        ),
        frozenset({_found("undeclared_gap", E1, (25, 25)), _found("lost", E1, (25, 25))}),
        "silently skipped messages are lost, if they ever existed",
    ),
    "declared_late": Plant(
        both(
            swap_out("g", "delivered", E1, 21, given("delivered", E1, 23, 30),
                     given("declared", E1, 21, 22, reason="superseded")),
            swap_out("g", "acknowledged", E1, 16, given("acknowledged", E1, 16, 20), given("acknowledged", E1, 23, 30)),
        ),
        frozenset({_found("declared_late", E1, (21, 22)), _found("declared_gap", E1, (21, 22))}),
        _ADMITTED,
    ),
    "delivered_after_gap": _alone(
        add_before("g", "delivered", E1, 21, given("declared", E1, 21, 22, reason="superseded")),
        _found("delivered_after_gap", E1, (21, 22)),
    ),
    "false_gap": _alone(
        add_after("g", "delivered", E2, 1, given("declared", E2, 5, 6, reason="superseded")),
        _found("false_gap", E2, (5, 6)),
    ),
    "phantom_gap": _alone(
        add_after("g", "delivered", E2, 11, given("declared", E2, 21, 2**62, reason="superseded")),
        _found("phantom_gap", E2, (21, 2**62)),
    ),
    "gap_closed_early": Plant(
        _declared_instead(detail={"elapsed": 12.0}),
        frozenset({_found("gap_closed_early", E1, (21, 22)), _found("declared_gap", E1, (21, 22))}),
        _ADMITTED,
    ),
    "gap_closed_late": Plant(
        _declared_instead(detail={"elapsed": 45.0}),
        frozenset({_found("gap_closed_late", E1, (21, 22)), _found("declared_gap", E1, (21, 22))}),
        _ADMITTED,
    ),
    "joined_unheard": _alone(
        both(
            swap_out("g", "joined", E1, 1, given("before_join", E1, 1, 3),
                     given("joined", E1, 4, 4, detail={"unheard": True})),
            change("g", "delivered", E1, 1, first=4, digest=digest_of(S, E1, 4, 10)),
            change("g", "acknowledged", E1, 1, first=4),
        ),
        _found("joined_unheard", E1, (1, 3)),
    ),
    "false_before_join": _alone(
        both(
            _unnamed,
            swap_out("g", "delivered", E2, 1, given("before_join", E2, 1, 3), given("delivered", E2, 4, 10)),
            swap_out("g", "acknowledged", E2, 1, given("acknowledged", E2, 4, 20)),
        ),
        _found("false_before_join", E2, (1, 3)),
    ),
    "false_replay": _alone(
        add_after("g", "delivered", E2, 11, given("replayed", E2, 3, 3)), _found("false_replay", E2, (3, 3))
    ),
    # Actions of a producer
    "seq_reused": _alone(
        add_after("A", "published", E2, 11, entry("enqueued", E2, 20, 20), entry("published", E2, 20, 20)),
        _found("seq_reused", E2, (20, 20), group=""),
    ),
    "seq_skipped": _alone(_unread_with_a_hole, ("seq_skipped", "unread", "", "", E1, ((4, 4),))),
    "old_epoch": _alone(_old_epoch, _found("old_epoch", E1, (31, 31), group="")),
    "wrong_prev": _alone(
        change("A", "epoch", E2, 0, detail={"prev": list(Prev(E1, INC[E1], 29))}), _found("wrong_prev", E2, group="")
    ),
    "confirmed_unknown": _alone(
        add_after("A", "published", E2, 11, entry("confirmed", E2, 21, 21, site="dc1")),
        _found("confirmed_unknown", E2, (21, 21), group="", site="dc1"),
    ),
    "published_unconfirmed": _alone(
        swap_out("A", "confirmed", E2, 11), _found("published_unconfirmed", E2, (11, 20), group="", site="dc1")
    ),
    # Both sides
    "two_incarnations": Plant(
        change("g", "delivered", E2, 11, incarnation=0xBAD),
        frozenset({("two_incarnations", "", "", "", E2, ()), _ABSENT}),
        "an opening of that incarnation left no journal",
    ),
    "phantom": _alone(
        both(
            add_after("g", "delivered", E2, 11, given("delivered", E2, 21, 22)),
            change("g", "acknowledged", E2, 1, last=22),
        ),
        _found("phantom", E2, (21, 22)),
    ),
    "enqueued_after_fence": Plant(
        _fenced,
        frozenset({_found("enqueued_after_fence", E2, (11, 20), group=""), ("fork", "", "", "", E2, ()), _ABSENT}),
        "who is fenced has a twin, which left no journal",
    ),
    "released_early": _alone(
        both(keeps, change("A", "consumed", E2, 1, last=15)), _found("released_early", E2, (16, 20))
    ),
    "consumed_unsettled": Plant(
        both(keeps, change("g", "acknowledged", E2, 1, last=18)),
        frozenset({_found("consumed_unsettled", E2, (19, 20)), _found("unacknowledged", E2, (19, 20))}),
        "delivered and unsettled messages may still be redelivered",
    ),
    "false_removal": Plant(
        _removed_in_words,
        frozenset({_found("false_removal", E1, (21, 22)), _found("declared_gap", E1, (21, 22))}),
        _ADMITTED,
    ),
    "corrupt": _alone(
        change(
            "g", "delivered", E2, 1,
            digest=digest_of(S, E2, 1, 8) + digest(9, body_of(S, E2, 10), None, None)
            + digest(10, body_of(S, E2, 9), None, None),
        ),
        _found("corrupt", E2, (1, 20)),  # one row, and thus one sum
    ),
    "lost": _alone(
        both(
            change("g", "delivered", E2, 11, last=19, digest=digest_of(S, E2, 11, 19)),
            change("g", "acknowledged", E2, 1, last=19),
        ),
        _found("lost", E2, (20, 20)),
    ),
    "declared_gap": _alone(_declared_instead(detail={"elapsed": GAP_TIMEOUT}), _found("declared_gap", E1, (21, 22))),
    "removed": _alone(_removed, _found("removed", E2, (11, 20))),
    "discarded": _alone(
        both(
            swap_out("g", "delivered", E2, 11, given("quarantined", E2, 11, 20, site="dc1", reason="held"),
                     given("quarantine_discarded", E2, 11, 20, site="dc1", reason="held")),
            swap_out("g", "received", E2, 1, given("received", E2, 1, 10, site="dc1")),
            change("g", "acknowledged", E2, 1, last=10),
        ),
        _found("discarded", E2, (11, 20)),
    ),
    # Unknown
    "pending": _alone(_pending, _found("pending", E2, (11, 20), group="")),
    "undelivered": Plant(
        _open_end,
        frozenset({_found("undelivered", E2, (11, 20)), ("unclosed", "", "", "", 0, ())}),
        "a journal that was closed leaves nothing open at the end of a run",
    ),
    "unacknowledged": _alone(
        change("g", "acknowledged", E2, 1, last=18), _found("unacknowledged", E2, (19, 20))
    ),
    "never_joined": _alone(both(_unnamed, _second_producer), _found("never_joined", E1, (1, 9))),
    "unproven": Plant(
        _headless_producer,
        frozenset({_found("unproven", E2, (21, 22)), ("broken", "", "", "", 0, ())}),
        "a producer whose journal is whole has published it or not",
    ),
    "settled_unseen": _alone(
        _inbox_gone, _found("settled_unseen", E1, (1, 9), (1, 9)), _found("settled_unseen", E2, (11, 15), (19, 20))
    ),
    "unproven_gap": Plant(
        _restored_outbox,
        frozenset({_found("unproven_gap", E1, (21, 30)), _found("fork", E2), _ABSENT}),
        "without a fork nothing shows that the outbox was restored, and its journal lacks the declared messages",
    ),
    "unverified": _alone(
        both(
            change("g", "redelivered", E1, 16, last=23, digest=digest_of(S, E1, 16, 23)),
            change("g", "delivered", E1, 21, first=24, digest=digest_of(S, E1, 24, 30)),
        ),
        _found("unverified", E1, (1, 30)),  # the producer has one sum for all of them
    ),
    "missing": _alone(_no_producer, _ABSENT),
    "broken": _alone(_headless, ("broken", "", "", "", 0, ())),
    "duplicate_apart": _alone(second_inbox, _found("duplicate_apart", E2, (5, 6))),
    "unclosed": _alone(_unclosed, ("unclosed", "", "", "", 0, ())),
    # Remarks
    "fork": _alone(
        both(
            add_after("g", "delivered", E2, 1, given("conflict", E2, 3, 4, site="dc1", reason="another incarnation")),
            add_after("g", "delivered", E2, 11, given("conflict", E1, 0, 0, reason="it follows on another one")),
        ),
        _found("fork", E2, (3, 4)), _found("fork", E1),
    ),
}  # fmt: skip

_UNCLOSED: Found = ("unclosed", "", "", "", 0, ())
MORE = {
    # Journals whose last segments have not arrived yet: an existing row was extended later, and then covered what they
    # contain.
    "published-grown": _alone(both(PLANTS["published_unconfirmed"].spoil, _unclosed), _UNCLOSED),
    "confirmed-grown": _alone(both(PLANTS["confirmed_unknown"].spoil, _unclosed), _UNCLOSED),
    "released-grown": _alone(both(PLANTS["released_early"].spoil, _unclosed), _UNCLOSED),
    "acknowledged-grown": _alone(_acknowledged_to_come, _found("undelivered", E2, (11, 20)), _UNCLOSED),
    # An outbox that was lost while its clock was behind.
    "below-to-come": _alone(
        outbox_goes_on_below,
        _found("undelivered", E0, (1, 5)),
        _found("unproven", E1, (1, 30)),
        _found("unproven", E2, (1, 20)),
        _UNCLOSED,
        _ABSENT,
    ),
    # An outbox that was restored, and opened with a clock that was behind.
    "unproven-behind": _alone(lost_with_its_clock, _found("unproven", E1, (21, 30)), _ABSENT),
    "phantom-behind": Plant(
        lambda run: lost_with_its_clock(run, silent=False),
        frozenset(
            {_found("phantom", E1, (21, 30)), ("pending", "unread", "", "", E1 + 3, ((1, 1),)), _ABSENT}
        ),
    ),
    # Journals that begin where a lost inbox had ended.
    "settled-adopted": _alone(inbox_of_latest_gone, _found("settled_unseen", E1, (1, 20))),
    "settled-anew": _alone(
        lambda run: inbox_of_latest_gone(run, itself=True), _found("settled_unseen", E1, (1, 20))
    ),
}
"""Kinds in other circumstances."""

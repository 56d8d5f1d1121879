"""Small runs with actions of the control plane: each client's journal, and the expected findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from reliamsg.checker import Chain
from reliamsg.message import Prev, Stream
from reliamsg.store.journal import Entry
from tests.checker.histories import EPOCH, SITES, digest_of, write

__all__ = ["SCENARIOS", "Scenario"]

S = Stream("A", "orders")
E1, E2, E3, E8, E9 = EPOCH, EPOCH + 10, EPOCH + 20, EPOCH + 80, EPOCH + 90
INC = {E1: 0xA1, E2: 0xA2, E3: 0xA3}
"""The boot that begins with the epoch; renumbered messages keep theirs."""


@dataclass(frozen=True)
class Scenario:
    """Journals, and the expected findings. Counts and sites that are not named must be 0."""

    chains: Callable[[], list[Chain]]
    verdict: str = "complete"
    found: frozenset[tuple[str, int, tuple[tuple[int, int], ...]]] = frozenset()
    """Kind, epoch, ranges."""
    counts: dict[str, int] = field(default_factory=dict)
    lost_after_confirm: dict[str, int] = field(default_factory=dict)
    why: dict[str, frozenset[str]] = field(default_factory=dict)
    """By kind, the text of findings beyond its meaning."""


def opened(epoch: int, groups: tuple[str, ...] = ("g",), **more: object) -> Entry:
    detail = {"groups": {"orders": list(groups)}, "sites": list(SITES), "confirm": "all", **more}
    return Entry("opened", epoch=epoch, incarnation=INC[epoch], detail=detail)


def entry(kind: str, epoch: int, first: int, last: int, incarnation: int = 0, **more: object) -> Entry:
    made = Entry(kind, S, epoch, incarnation or INC.get(epoch, 0), first, last, **more)  # type: ignore[arg-type]
    if kind in ("enqueued", "delivered", "redelivered"):
        made.digest = digest_of(S, epoch, first, last)
    return made


def entered(epoch: int, prev: Prev | None = None, incarnation: int = 0) -> Entry:
    return entry("epoch", epoch, 0, 0, incarnation, detail={"prev": list(prev) if prev else None})


def enqueued(epoch: int, first: int, last: int) -> Entry:
    return entry("enqueued", epoch, first, last)


def sent(epoch: int, first: int, last: int, incarnation: int = 0) -> list[Entry]:
    confirmed = [entry("confirmed", epoch, first, last, incarnation, site=site) for site in SITES]
    return [*confirmed, entry("published", epoch, first, last, incarnation)]


def published(epoch: int, first: int, last: int) -> list[Entry]:
    return [enqueued(epoch, first, last), *sent(epoch, first, last)]


def reading(inbox: str = "") -> Entry:
    detail = {"topics": ["orders"], "begin": "earliest", "sites": list(SITES), "inbox": inbox}
    return Entry("opened", detail=detail)


def given(kind: str, epoch: int, first: int, last: int, incarnation: int = 0, **more: object) -> Entry:
    return entry(kind, epoch, first, last, incarnation, group="g", **more)


def taken(epoch: int, first: int, last: int, incarnation: int = 0) -> list[Entry]:
    """Received, delivered and acknowledged."""
    return [
        given("received", epoch, first, last, incarnation, site="dc1"),
        given("delivered", epoch, first, last, incarnation),
        given("acknowledged", epoch, first, last, incarnation),
    ]


def producer(*boots: list[Entry]) -> Chain:
    return write(("producer", "A"), [*boots[:-1], [*boots[-1], Entry("closed")]])


def group(*boots: list[Entry]) -> Chain:
    return write(("group", "g"), [*boots[:-1], [*boots[-1], Entry("closed")]])


def again(chain: Chain, boot: str) -> Chain:
    """A chain whose last boot has another name: it shares everything before with another chain."""
    last = chain.boots[-1].name
    rows = [replace(row, boot=boot) if row.boot == last else row for row in chain.rows]
    return Chain(chain.role, chain.client, f"{chain.source}-{boot}", rows)


def moved(old: int, new: int, last: int, prev: Prev | None) -> list[Entry]:
    said = entry("renumbered", old, 1, last, detail={"epoch": new, "first": 1})
    return [entered(new, prev, INC[old]), said]


def renumbered_after(shift: int) -> list[Entry]:
    """Five messages in the second epoch, and five more once it is renumbered. `shift`: added to digests, to corrupt
    them."""
    # Digests cover sequence numbers and contents, whatever the epoch.
    first = replace(enqueued(E9, 1, 5), epoch=E2, incarnation=INC[E2])
    more = replace(entry("enqueued", E9, 6, 10, INC[E2]), digest=digest_of(S, E9, 6, 10) + shift)
    prev = Prev(E1, INC[E1], 10)
    return [entered(E2, prev), first, *moved(E2, E9, 5, prev), more, *sent(E9, 1, 10, INC[E2])]


def entry_in(epoch: int, content: int, first: int, last: int) -> Entry:
    """Enqueued in one epoch, with the contents with which it will be delivered in another."""
    return replace(enqueued(epoch, first, last), digest=digest_of(S, content, first, last))


def _renumbered(last: int = 10, shift: int = 0) -> list[Chain]:
    return [
        producer([opened(E1), entered(E1), *published(E1, 1, 10)], [opened(E2), *renumbered_after(shift)]),
        group([reading(), *taken(E1, 1, 10), *taken(E9, 1, last, INC[E2])]),
    ]


def _two_epochs_renumbered() -> list[Chain]:
    """The messages of two boots, neither of which could send anything."""
    first = Prev(E1, INC[E1], 10)
    return [
        producer(
            [opened(E1), entered(E1), *published(E1, 1, 10)],
            [opened(E2), entered(E2, first), entry_in(E2, E8, 1, 3)],
            [
                opened(E3), entered(E3, Prev(E2, INC[E2], 3)), entry_in(E3, E9, 1, 4),
                *moved(E2, E8, 3, first), *moved(E3, E9, 4, Prev(E8, INC[E2], 3)),
                replace(entry_in(E3, E9, 5, 6), epoch=E9), *sent(E8, 1, 3, INC[E2]), *sent(E9, 1, 6, INC[E3]),
            ],
        ),
        group([reading(), *taken(E1, 1, 10), *taken(E8, 1, 3, INC[E2]), *taken(E9, 1, 6, INC[E3])]),
    ]  # fmt: skip


def _groups_changed_before_the_move(change: Entry, *consumed: Entry) -> list[Chain]:
    """Messages for ``g`` move to another epoch after a change of the groups, and are sent and released. ``late`` begins
    behind them."""
    later = [
        replace(row, group="late") for row in (given("joined", E9, 1, 1, INC[E2]), *taken(E9, 1, 2, INC[E2]))
    ]
    got = taken(E8, 1, 3, INC[E1]) if consumed else []
    return [
        producer(
            [opened(E1, release="consumed"), entered(E1), entry_in(E1, E8, 1, 3)],
            [
                opened(E2, ("late",), release="consumed"), change, *moved(E1, E8, 3, None),
                entered(E9, Prev(E8, INC[E1], 3), INC[E2]), entry("enqueued", E9, 1, 2, INC[E2]),
                *sent(E8, 1, 3, INC[E1]), *sent(E9, 1, 2, INC[E2]), *consumed, entry("released", E8, 1, 3, INC[E1]),
            ],
        ),
        group([reading(), *got]),
        write(("group", "late"), [[reading(), *later, Entry("closed")]]),
    ]  # fmt: skip


def _renumbered_though_offered(*surpassed: Entry) -> list[Chain]:
    """Renumbered messages had been delivered to the group."""
    return [
        producer(
            [opened(E1), entered(E1), entry_in(E1, E9, 1, 5), Entry("closed")],
            [opened(E2), *surpassed, *moved(E1, E9, 5, None), *sent(E9, 1, 5, INC[E1])],
        ),
        group([reading(), *taken(E1, 1, 5), given("redelivered", E9, 1, 5, INC[E1]),
               given("acknowledged", E9, 1, 5, INC[E1])]),
    ]  # fmt: skip


def _restored() -> list[Chain]:
    """An outbox was copied after its first boot, and restored after its second, whose epoch is later."""
    start = [opened(E1), entered(E1), *published(E1, 1, 10)]
    prev = Prev(E1, INC[E1], 10)
    lower = replace(opened(E2), incarnation=INC[E2])
    met = given("conflict", E9, 0, 0, INC[E2], reason="it follows on the first, not on the third")
    return [
        producer(start, [opened(E3), entered(E3, prev), *published(E3, 1, 8)]),
        again(producer(start, [lower, *renumbered_after(0)]), "00000000000000c0"),
        group([reading(), *taken(E1, 1, 10), *taken(E3, 1, 8), met, *taken(E9, 1, 10, INC[E2])]),
    ]


def _twin_without_journal(*fence: Entry) -> list[Chain]:
    """The group received messages from the twin of an outbox, in two epochs that no journal has."""
    known = {"known": [E2, f"{INC[E2]:016x}", 3]}
    met = given("conflict", E9, 0, 0, 0xA9, reason="it follows on another one", detail=known)
    return [
        producer([opened(E1), entered(E1), *published(E1, 1, 5), *fence]),
        group([reading(), *taken(E1, 1, 5), *taken(E2, 1, 3), met, *taken(E9, 1, 2, 0xA9)]),
    ]


def _inbox_gone(*end: Entry, later: tuple[Entry, ...] = ()) -> list[Chain]:
    """An outbox and an inbox are restored from backups. Before that, the outbox had published 6 and 7, and in an
    opening that left no journal 1 and 2, which only that life of the inbox received. `end`: how the outbox's first
    opening ended. `later`: what that life of the inbox received afterwards."""
    began = [reading(), *taken(E1, 1, 3)]
    gone = [reading(), *taken(E1, 4, 7), *taken(E2, 1, 2), *later]
    flagged = [
        given("received", E1, 4, 5, site="dc1"),
        given("redelivered", E1, 4, 5),
        given("acknowledged", E1, 4, 5),
    ]
    return [
        producer(
            [opened(E1), entered(E1), *published(E1, 1, 5), *end],
            [opened(E3), entered(E3, Prev(E1, INC[E1], 5)), *published(E3, 1, 3)],
        ),
        group(began, gone),
        again(group(began, [reading(), *flagged, *taken(E3, 1, 3)]), "00000000000000c0"),
    ]


def _successor_joins_later(
    *end: Entry, place: tuple[int, int] = (E2, 1), told: tuple[Entry, ...] = ()
) -> list[Chain]:
    """An inbox is lost with what it did after 3, and its successor joins at `place` and delivers the second epoch.
    `end`: of the first one's journal. `told`: what the producer learned at the end."""
    first = write(("group", "g"), [[reading(), given("joined", E1, 1, 1), *taken(E1, 1, 3), *end]])
    joined = given("joined", place[0], place[1], place[1])
    return [
        producer(
            [opened(E1), entered(E1), *published(E1, 1, 6)],
            [opened(E2), entered(E2, Prev(E1, INC[E1], 6)), *published(E2, 1, 5), *told],
        ),
        replace(first, to_the_end=False),
        again(group([reading(), joined, *taken(E2, 1, 5)]), "00000000000000c0"),
    ]


def _told(last: int) -> Entry:
    """The successor of an inbox told the producer that its group had settled the first epoch up to `last`."""
    return entry("consumed", E1, 1, last, group="g", detail={"journal": ["00000000000000c0", 2]})


def _enters_at_the_end(*more: Entry, got: tuple[Entry, ...] = ()) -> list[Chain]:
    """An outbox that is an older copy enters an epoch, and its journal ends; or goes on with `more`. `got`: what the
    group received afterwards."""
    return [
        producer(
            [opened(E1), entered(E1), *published(E1, 1, 5)], [opened(E2), entered(E8, None, INC[E1]), *more]
        ),
        group([reading(), *taken(E1, 1, 5), *got]),
    ]


def _truncated(kind: str, rows: list[Entry]) -> Chain:
    """A group's journal that lacks the first row of this kind, and says so; it lacks none with ""."""
    (lsn,) = [row.lsn for row in group(rows).rows if row.kind == kind][:1] or [0]
    chain = group(
        [*rows, Entry("truncated", detail={"first_lsn": lsn, "last_lsn": lsn}) if lsn else reading()]
    )
    return replace(chain, rows=[row for row in chain.rows if row.lsn != lsn])


def _begins_late(lacks: str = "") -> list[Chain]:
    """A group joins at 9, and learns afterwards that it had been owed 2 to 8. `lacks`: the kind of the row that is
    missing in its journal."""
    begins = replace(reading(), detail={**(reading().detail or {}), "begin": "latest"})
    late = given("declared", E1, 2, 8, reason="joined late")
    return [
        producer([opened(E1), entered(E1), *published(E1, 1, 10)]),
        _truncated(lacks, [begins, given("joined", E1, 9, 9), *taken(E1, 9, 10), late]),
    ]


def _met_unseen(lacks: str) -> list[Chain]:
    """An inbox has seven messages of the first epoch, of which the restored outbox has five, and goes on to the second
    one. `lacks`: the kind of the row that is missing in its journal."""
    met = given("conflict", E2, 1, 1, detail={"prev": [E1, f"{INC[E1]:016x}", 5]})
    return [
        producer(
            [opened(E1), entered(E1), *published(E1, 1, 5)],
            [opened(E2), entered(E2, Prev(E1, INC[E1], 5)), *published(E2, 1, 2)],
        ),
        _truncated(lacks, [reading(), *taken(E1, 1, 7), met, *taken(E2, 1, 2)]),
    ]


def _leapt(extent_known: bool) -> list[Chain]:
    """An inbox has seven messages of the first epoch, of which the restored outbox has five. It never gets the next
    epoch, and goes on to the third one, over a gap whose extent it knows or does not know."""
    last, until = (8, None) if extent_known else (0, {"until_epoch": E2})
    gap = given("declared", E1, 8, last, reason="extent unknown", detail=until)
    return [
        producer(
            [opened(E1), entered(E1), *published(E1, 1, 5)],
            [opened(E2), entered(E2, Prev(E1, INC[E1], 5)), *published(E2, 1, 2)],
            [opened(E3), entered(E3, Prev(E2, INC[E2], 2)), *published(E3, 1, 2)],
        ),
        group([
            reading(), *taken(E1, 1, 7), gap, given("declared", E2, 1, 2, reason="extent unknown"), *taken(E3, 1, 2),
        ]),
    ]  # fmt: skip


def _replays(lacks: str = "", then: Iterable[Entry] = ()) -> list[Chain]:
    """A group gives up a message, and its operator replays it. `lacks`: the kind of the row that is missing in its
    journal. `then`: its last rows."""
    given_up = [
        given("received", E1, 5, 5, site="dc1"),
        given("delivered", E1, 5, 5),
        given("dead_lettered", E1, 5, 5, reason="rejected"),
    ]
    return [
        producer([opened(E1), entered(E1), *published(E1, 1, 5)]),
        _truncated(lacks, [reading(), *taken(E1, 1, 4), *given_up, given("replayed", E1, 5, 5), *then]),
    ]


def _owed_and_behind(own: int, began: int = 2) -> list[Chain]:
    """An inbox delivers 4 and terminates. It is told afterwards that its group has settled everything before number
    `began` of an epoch that follows on an earlier one, and goes on there. `own`: its position by then."""
    told = given("behind", E2, began, began, detail={"from": [E2, 1], "own": [E1, own]})
    first = [
        reading(),
        *taken(E1, 1, 3),
        given("received", E1, 4, 4, site="dc1"),
        given("delivered", E1, 4, 4),
    ]
    return [
        producer(
            [opened(E1), entered(E1), *published(E1, 1, 4)],
            [opened(E2), entered(E2, Prev(E1, INC[E1], 4)), *published(E2, 1, 5)],
        ),
        group(first, [reading(), told, *taken(E2, began, 5)]),
    ]


def _moved_after_settling(last: int, joined: bool = False) -> list[Chain]:
    """A group settles messages up to `last`, says so of all five, and an older copy of the outbox gives them another
    epoch. The group receives them again, and acknowledges three. `joined`: it had settled none, but joined behind
    them."""
    again_ = [given("received", E8, 1, 5, INC[E1], site="dc1"), given("redelivered", E8, 1, 5, INC[E1])]
    first = [
        given("received", E1, 1, 5, site="dc1"),
        given("delivered", E1, 1, 5),
        given("acknowledged", E1, 1, last),
    ]
    first[1] = replace(first[1], digest=digest_of(S, E8, 1, 5))
    if joined:
        first = [given("joined", E1, 6, 6)]
        again_[1] = replace(again_[1], kind="delivered")
    told = entry("consumed", E1, 1, 5, group="g", detail={"journal": [f"{1:016x}", 2 if joined else 4]})
    learned = entry("surpassed", E2, 0, 0, group="g", detail={"position": [E1, 6], "entered": E1})
    return [
        producer(
            [opened(E1), entered(E1), entry_in(E1, E8, 1, 5), told],
            [opened(E2), learned, *moved(E1, E8, 5, None), *sent(E8, 1, 5, INC[E1])],
        ),
        group([reading(), *first, *again_, given("acknowledged", E8, 1, 3, INC[E1])]),
    ]


def _grows(*end: Entry) -> list[Chain]:
    """A group says that it has settled five messages, by its newest row. In its journal, that row is from before.
    `end`: what follows there."""
    told = entry("consumed", E1, 1, 5, group="g", detail={"journal": [f"{1:016x}", 4]})
    got = taken(E1, 1, 5)
    got[2] = replace(got[2], last=3)
    return [
        producer([opened(E1), entered(E1), *published(E1, 1, 5), told]),
        replace(write(("group", "g"), [[reading(), *got, *end]]), to_the_end=False),
    ]


def _grows_at_producer(*end: Entry) -> list[Chain]:
    """A group hears from a producer, whose newest row is the seventh, that it has removed 4 and 5. In its journal, that
    row says so of 4. `end`: what follows there."""
    heard = {"heard": [7, f"{INC[E1]:016x}"]}
    sent_ = [opened(E1), entered(E1), *published(E1, 1, 5), entry("removed", E1, 4, 4)]
    return [
        replace(write(("producer", "A"), [[*sent_, *end]]), to_the_end=False),
        group([reading(), *taken(E1, 1, 3), given("declared", E1, 4, 5, reason="removed", detail=heard)]),
    ]


def _dropped_in_a_copy(went_on: int, copied: int, *then: Entry) -> list[Chain]:
    """An outbox publishes five messages for a group, and goes on in the epoch `went_on`. A copy from before that is
    opened in the epoch `copied`, removes the group, and does `then`. The group received what followed the five."""
    start = [opened(E1), entered(E1), *published(E1, 1, 5)]
    leaves = entry("group_removed", E1, 1, 1, group="g", detail={"position": [E1, 1]})
    after = [entered(went_on, Prev(E1, INC[E1], 5)), *published(went_on, 1, 2)]
    return [
        producer(start, [opened(went_on), *after]),
        again(producer(start, [opened(copied), leaves, *then]), "00000000000000c0"),
        group([reading(), given("joined", went_on, 1, 1), *taken(went_on, 1, 2)]),
    ]


def _moved_and_kept(*more: Entry) -> list[Chain]:
    """A group settles messages and says so, and an older copy of the outbox gives them another epoch, in which the
    group receives none."""
    told = entry("consumed", E1, 1, 5, group="g", detail={"journal": [f"{1:016x}", 4]})
    learned = entry("surpassed", E2, 0, 0, group="g", detail={"position": [E1, 6], "entered": E1})
    got = taken(E1, 1, 5)
    got[1] = replace(got[1], digest=digest_of(S, E8, 1, 5))
    return [
        producer(
            [opened(E1, release="consumed"), entered(E1), entry_in(E1, E8, 1, 5), told],
            [
                opened(E2, release="consumed"), learned, *moved(E1, E8, 5, None), *sent(E8, 1, 5, INC[E1]), *more,
            ],
        ),
        group([reading(), *got]),
    ]  # fmt: skip


def _silent(end: tuple[Entry, ...], *more: Entry) -> list[Chain]:
    """The group received messages that no journal has; the producer's last opening published nothing, so no group met
    it. `end`: of the one before."""
    return [
        producer([opened(E1), entered(E1), *published(E1, 1, 5), *end], [opened(E2)]),
        group([reading(), *taken(E1, 1, 7), *taken(E9, 1, 2, 0xA9), *more]),
    ]


def _passed_by(*end: Entry) -> list[Chain]:
    """The inbox had seven messages of the first epoch, of which the journal has five, and continues in the second one
    at the position of another inbox, which is lost with its journal. `end`: of the first opening."""
    prev = Prev(E1, INC[E1], 5)
    went_on = given("behind", E2, 4, 4, detail={"from": [E1, 8]})
    return [
        producer(
            [opened(E1), entered(E1), *published(E1, 1, 5), *end],
            [opened(E2), entered(E2, prev), *published(E2, 1, 5)],
        ),
        group([reading(), *taken(E1, 1, 7), went_on, *taken(E2, 4, 5)]),
    ]


def _begun_anew(*more: Entry) -> list[Chain]:
    """The group received three messages from an outbox that was lost and replaced by another."""
    return [
        producer([opened(E2), entered(E2), *published(E2, 1, 5)]),
        group([reading(), *taken(E1, 1, 3), *taken(E2, 1, 5), *more]),
    ]


def _fenced() -> list[Chain]:
    """The other clone is alive: unsent messages of this one stay in place."""
    start = [opened(E1), entered(E1), *published(E1, 1, 10)]
    prev = Prev(E1, INC[E1], 10)
    fence = Entry(
        "fenced", epoch=E2, incarnation=INC[E2], detail={"epoch": E3, "incarnation": f"{INC[E3]:016x}"}
    )
    return [
        producer(start, [opened(E3), entered(E3, prev), *published(E3, 1, 8)]),
        again(
            producer(start, [opened(E2), entered(E2, prev), enqueued(E2, 1, 4), fence]), "00000000000000c0"
        ),
        group([reading(), *taken(E1, 1, 10), *taken(E3, 1, 8)]),
    ]


def _added(begun: int) -> list[Chain]:
    """The group counts from the sixth message on, in the middle of a row."""
    since = Entry("group_added", S, E1, 0, 6, 6, group="g")
    joined = [given("before_join", E1, 1, begun - 1), given("joined", E1, begun, begun)]
    boot = [opened(E1, ()), entered(E1), enqueued(E1, 1, 5), since, enqueued(E1, 6, 10), *sent(E1, 1, 10)]
    return [producer(boot), group([reading(), *joined, *taken(E1, begun, 10)])]


def _dropped(again_at: int = 0, journalled: int = 5) -> list[Chain]:
    """The group is removed when it has five of ten, and possibly added again. `journalled`: how many of the five are in
    the journal of an inbox that was restored from a backup."""
    gone = Entry("group_removed", S, E1, 0, 1, 1, group="g", detail={"position": [E1, 6]})
    boot = [opened(E1), entered(E1), *published(E1, 1, 10), gone]
    if again_at:
        boot.append(Entry("group_added", S, E1, 0, again_at, again_at, group="g"))
    told = entry("consumed", E1, 1, 5, group="g")
    return [producer([*boot, told, *published(E1, 11, 12)]), group([reading(), *taken(E1, 1, journalled)])]


def _never_came(position: int) -> list[Chain]:
    """A group without a journal is named, and removed later."""
    gone = Entry("group_removed", S, E1, 0, 1, 1, group="h", detail={"position": [E1, position]})
    boot = [opened(E1, ("g", "h")), entered(E1), *published(E1, 1, 10), gone]
    return [producer(boot), group([reading(), *taken(E1, 1, 10)])]


def _kept(got: int, consumed: int = 0, released: int = 0) -> list[Chain]:
    """An outbox that keeps messages until they are consumed."""
    boot = [opened(E1, release="consumed"), entered(E1), *published(E1, 1, 10)]
    boot += [entry("consumed", E1, 1, consumed, group="g")] if consumed else []
    boot += [entry("released", E1, 1, released)] if released else []
    return [producer(boot), group([reading(), *taken(E1, 1, got)])]


def _lossy(proof: Entry, *before: Entry) -> list[Chain]:
    """Of twenty messages that both sites confirmed, dc1 had ten, dc2 the next five, and the rest were repaired through
    dc1."""
    boot = [opened(E1), entered(E1), *published(E1, 1, 20)]
    arrivals = [
        given("received", E1, 1, 10, site="dc1"), given("received", E1, 11, 15, site="dc2"), *before, proof,
        given("asked", E1, 16, 20), given("received", E1, 16, 20, site="dc1", reason="repair"),
        given("duplicate", E1, 16, 20, site="dc2", reason="repair"),
    ]  # fmt: skip
    heard = Entry("heard", Stream("A", "", 0), E1, INC[E1], detail={"lsn": 5, "epoch": E1})
    boot.append(entry("repaired", E1, 16, 20, site="dc1", group="g"))
    done = [given("delivered", E1, 1, 20), given("acknowledged", E1, 1, 20)]
    return [producer(boot), group([reading(), Entry("connected", site="dc1"), heard, *arrivals, *done])]


def _drained(lsn: int, incarnation: int = INC[E1]) -> Entry:
    return Entry("drained", site="dc1", detail={"count": 1, "heard": {"A": [lsn, f"{incarnation:016x}"]}})


def _reconnected(present: bool) -> Entry:
    heard = {"A": [6, f"{INC[E1]:016x}"]}
    return Entry("connected", site="dc1", detail={"session_present": present, "heard": heard})


def _taken_over(known: str = "one") -> list[Chain]:
    """A second inbox continues where the first was killed, and later the first continues again."""
    first = [
        reading("one"), given("received", E1, 1, 10, site="dc1"), given("delivered", E1, 1, 10),
        given("acknowledged", E1, 1, 5),
    ]  # fmt: skip
    over = Entry("took_over", detail={"from": known, "streams": 1, "inbox": "two"})
    second = [
        reading("two"), over, given("received", E1, 6, 15, site="dc1"), given("redelivered", E1, 6, 10),
        given("delivered", E1, 11, 15), given("acknowledged", E1, 6, 15),
    ]  # fmt: skip
    back = Entry("took_over", detail={"from": "two", "streams": 1, "inbox": "one"})
    other = again(group(second), "00000000000000b0")
    return [
        producer([opened(E1), entered(E1), *published(E1, 1, 20)]),
        group(first, [reading("one"), back, *taken(E1, 16, 20)]),
        replace(other, rows=[replace(row, wall_us=row.wall_us + 5) for row in other.rows]),
    ]


def _forged(*back: Entry) -> list[Chain]:
    """Two messages of a forged epoch were delivered between a producer's two. `back`: the row that sends the group
    back, if any."""
    prev = Prev(E1, INC[E1], 12)
    boots = [
        [opened(E1), entered(E1), *published(E1, 1, 12)],
        [opened(E2), entered(E2, prev), *published(E2, 1, 8)],
    ]
    made_up = taken(E9, 1, 2, 0xBAD)
    skipped = given("declared", E1, 11, 12, reason="superseded")
    read = [*taken(E1, 1, 10), skipped, *made_up, *back, *taken(E2, 1, 8)]
    return [producer(*boots), group([reading(), *read])]


def _back_to(last: int, reason: str = "forged", epoch: int = E1) -> Entry:
    return given("forgotten", epoch, last + 1, last + 1, reason=reason, detail={"dropped_epoch": E9})


def _never_met() -> list[Chain]:
    """Everything that a group with ``begin="latest"`` had met of the stream was forged."""
    begins = replace(reading(), detail={**(reading().detail or {}), "begin": "latest"})
    read = [
        given("joined", E9, 1, 1, 0xBAD), *taken(E9, 1, 2, 0xBAD), _back_to(-1, "unremembered", E9),
        given("joined", E1, 4, 4), *taken(E1, 4, 10),
    ]  # fmt: skip
    return [producer([opened(E1, ()), entered(E1), *published(E1, 1, 10)]), group([begins, *read])]


def _kept_aside(*more: Entry, named: tuple[str, ...] = ("g",)) -> list[Chain]:
    """Four of ten were quarantined, of a stream without any other message."""
    aside = given("quarantined", E1, 1, 4, site="dc1", reason="too-many-streams")
    boot = [opened(E1, named), entered(E1), *published(E1, 1, 4)]
    return [producer(boot), group([reading(), aside, *more])]


def _discarded(first: int, last: int) -> Entry:
    return given("quarantine_discarded", E1, first, last, site="dc1", reason="too-many-streams")


def _holding(*then: Entry) -> list[Chain]:
    """A gap holds the stream at the fourth of ten; of the messages behind it, three were received and one
    quarantined."""
    boot = [opened(E1), entered(E1), *published(E1, 1, 10)]
    held = [
        *taken(E1, 1, 3), given("received", E1, 6, 8, site="dc2"), given("buffered", E1, 6, 8, site="dc2"),
        given("gap_opened", E1, 4, 5), given("gap_held", E1, 4, 5, reason="expired"),
        given("quarantined", E1, 9, 9, site="dc2", reason="held"),
    ]  # fmt: skip
    return [producer(boot), group([reading(), *held, *then])]


def _declined(*said: Entry, stopped: bool = False) -> list[Chain]:
    """The last four of ten were never confirmed by all sites. `said`: the sites' responses, `stopped`: followed by
    another boot."""
    boot = [opened(E1), entered(E1), *published(E1, 1, 6), enqueued(E1, 7, 10), *said]
    boots = [boot, [replace(opened(E2), epoch=E1, incarnation=INC[E1])]] if stopped else [boot]
    return [producer(*boots), group([reading(), *taken(E1, 1, 6)])]


def _parked(kind: str = "parked", site: str = "dc2") -> Entry:
    return Entry(kind, S, site=site, reason="NO_ROUTE" if kind == "parked" else "")


def _found(
    kind: str, epoch: int, *ranges: tuple[int, int]
) -> frozenset[tuple[str, int, tuple[tuple[int, int], ...]]]:
    return frozenset({(kind, epoch, ranges)})


_MOVED = _found("fork", E2, (1, 5))
_MOVED_TWICE = (
    _found("fork", E1, (1, 5)) | _found("unproven", E1, (1, 5)) | _found("unacknowledged", E8, (4, 5))
)
_ABSENT = _found("missing", 0)
"""An opening without a journal."""
_MADE_UP = _found("unproven", E9, (1, 2)) | _found("declared_gap", E1, (11, 12)) | _ABSENT
_MADE_UP_COUNTS = {"declared_gaps": 2}
_SAVED = {"saved_by_repair": 5, "saved_by_second_site": 5}

SCENARIOS = {
    "messages get another epoch": Scenario(_renumbered, found=_MOVED),
    "messages get another epoch after a group was added behind them": Scenario(
        lambda: _groups_changed_before_the_move(
            entry("group_added", E2, 1, 1, group="late"), given("consumed", E8, 1, 3, INC[E1])
        ), "unknown", _found("fork", E1, (1, 3)) | _found("undelivered", E9, (1, 2)), {"before_join": 3, "pending": 2},
    ),
    "messages get another epoch after their group was removed, which was further": Scenario(
        lambda: _groups_changed_before_the_move(given("group_removed", E1, 1, 1, detail={"position": [E2, 4]})),
        "unknown", _found("fork", E1, (1, 3)) | _found("never_joined", E8, (1, 3)) | _found("never_joined", E9, (1, 2)),
        {"before_join": 3},
    ),
    "messages get another epoch after their group was removed, which had them under the old one": Scenario(
        lambda: _groups_changed_before_the_move(given("group_removed", E1, 1, 1, detail={"position": [E1, 4]})),
        "unknown", _found("fork", E1, (1, 3)) | _found("never_joined", E8, (1, 3)) | _found("never_joined", E9, (1, 2)),
        {"before_join": 3},
    ),
    "one of them is lost": Scenario(
        lambda: _renumbered(9), "lost", _found("lost", E9, (10, 10)) | _MOVED, {"lost": 1}
    ),
    "one of them is spoilt": Scenario(
        lambda: _renumbered(shift=1), "violated", _found("corrupt", E9, (1, 10)) | _MOVED
    ),
    "those of two epochs get others": Scenario(
        _two_epochs_renumbered, found=_found("fork", E2, (1, 3)) | _found("fork", E3, (1, 4))
    ),
    "a restored outbox": Scenario(_restored, found=_MOVED | _found("fork", E9)),
    "an outbox is fenced by its twin, which left no journal": Scenario(
        lambda: _twin_without_journal(
            entry("fenced", E1, 0, 0, detail={"epoch": E2, "incarnation": f"{INC[E2]:016x}"})
        ), "unknown",
        _found("unproven", E2, (1, 3)) | _found("unproven", E9, (1, 2)) | _found("fork", E1) | _found("fork", E9)
        | _ABSENT,
    ),
    "an outbox takes the place of one that was lost": Scenario(
        _begun_anew, "unknown", _found("unproven", E1, (1, 3)) | _ABSENT
    ),
    "the same, and a group receives messages that were never published": Scenario(
        lambda: _begun_anew(*taken(E2, 6, 7), *taken(E9, 1, 2, 0xBAD)), "violated",
        _found("unproven", E1, (1, 3)) | _found("phantom", E2, (6, 7)) | _found("unproven", E9, (1, 2)) | _ABSENT,
        {"phantom": 2},
    ),
    "an opening of an outbox was never met": Scenario(
        lambda: _silent(()), "unknown",
        _found("unproven", E1, (6, 7)) | _found("unproven", E9, (1, 2)) | _ABSENT,
    ),
    "the same, of one that had been closed": Scenario(
        lambda: _silent((Entry("closed"),), *taken(E2, 1, 1)), "violated",
        _found("phantom", E1, (6, 7)) | _found("unproven", E9, (1, 2)) | _found("phantom", E2, (1, 1)) | _ABSENT
        | _found("out_of_order", E2, (1, 1)),
        {"phantom": 3, "out_of_order": 1},
    ),
    "whoever met an older copy of an outbox is gone": Scenario(
        _passed_by, "unknown", _found("unproven", E1, (6, 7)) | _found("settled_unseen", E2, (1, 3)) | _ABSENT,
    ),
    "the same, and the outbox had been closed": Scenario(
        lambda: _passed_by(Entry("closed")), "violated",
        _found("phantom", E1, (6, 7)) | _found("settled_unseen", E2, (1, 3)) | _ABSENT, {"phantom": 2},
    ),
    "a group learns late of what it was owed": Scenario(
        _begins_late, "lost", _found("declared_gap", E1, (2, 8)),
        {"declared_gaps": 7, "before_join": 1},
    ),
    "the same, and the row in which it joined is truncated": Scenario(
        lambda: _begins_late("joined"), "lost", _found("declared_gap", E1, (2, 8)) | _found("broken", 0),
        {"declared_gaps": 7, "before_join": 1},
    ),
    "a replayed message was given up": Scenario(_replays, counts={"dead_lettered": 1}),
    "a replayed message was acknowledged": Scenario(
        lambda: _replays(then=[given("acknowledged", E1, 5, 5)])
    ),
    "the same, and the row that says so is truncated": Scenario(
        lambda: _replays("dead_lettered"), "unknown", _found("broken", 0),
    ),
    "no replayed message was given up": Scenario(
        lambda: [*_replays()[:1], group([reading(), *taken(E1, 1, 5), given("replayed", E1, 5, 5)])], "violated",
        _found("false_replay", E1, (5, 5)),
    ),
    "another inbox had settled what was owed": Scenario(
        lambda: _owed_and_behind(4), "unknown",
        _found("unacknowledged", E1, (4, 4)) | _found("settled_unseen", E2, (1, 1)),
    ),
    "another inbox had only entered the next epoch": Scenario(
        lambda: _owed_and_behind(4, began=1), "unknown", _found("unacknowledged", E1, (4, 4)),
    ),
    "what was owed is before what another inbox had settled": Scenario(
        lambda: _owed_and_behind(5), "violated",
        _found("unacknowledged", E1, (4, 4)) | _found("not_redelivered", E1, (4, 4))
        | _found("settled_unseen", E2, (1, 1)),
    ),
    "settled messages get another epoch": Scenario(
        lambda: _moved_after_settling(5), "unknown", _MOVED_TWICE,
    ),
    "messages from before a group joined get another epoch": Scenario(
        lambda: _moved_after_settling(0, joined=True), "unknown",
        _found("fork", E1, (1, 5)) | _found("unacknowledged", E8, (4, 5)),
    ),
    "messages are kept for a group that had settled them elsewhere": Scenario(
        _moved_and_kept, "unknown",
        _found("fork", E1, (1, 5)) | _found("unproven", E1, (1, 5)) | _found("undelivered", E8, (1, 5)),
        {"pending": 5},
    ),
    "the same, and then they are released": Scenario(
        lambda: _moved_and_kept(entry("released", E8, 1, 5, INC[E1])), "violated",
        _found("fork", E1, (1, 5)) | _found("unproven", E1, (1, 5)) | _found("released_early", E8, (1, 5))
        | _found("lost", E8, (1, 5)), {"lost": 5},
    ),
    "messages that are said to be settled get another epoch": Scenario(
        lambda: _moved_after_settling(4), "violated",
        _MOVED_TWICE | _found("consumed_unsettled", E8, (5, 5)) | _found("unacknowledged", E1, (5, 5)),
    ),
    "an inbox that was not closed is gone": Scenario(
        _successor_joins_later, "unknown", _found("settled_unseen", E1, (4, 6)) | _found("unclosed", 0),
    ),
    "the same, and its successor passes messages": Scenario(
        lambda: _successor_joins_later(place=(E1, 5)), "lost",
        _found("settled_unseen", E1, (4, 4)) | _found("lost", E1, (5, 6)) | _found("unclosed", 0), {"lost": 2},
    ),
    "the same, and the inbox was closed": Scenario(
        lambda: _successor_joins_later(Entry("closed")), "lost", _found("lost", E1, (4, 6)), {"lost": 3},
    ),
    "the same, and it was open, and its successor says that everything is settled": Scenario(
        lambda: _successor_joins_later(told=(_told(6),)), "unknown",
        _found("settled_unseen", E1, (4, 6)) | _found("unclosed", 0),
    ),
    "the same, and it was closed": Scenario(
        lambda: _successor_joins_later(Entry("closed"), told=(_told(6),)), "violated",
        _found("lost", E1, (4, 6)) | _found("consumed_unsettled", E1, (4, 6)), {"lost": 3},
    ),
    "a copy that goes on removes a group": Scenario(
        lambda: _dropped_in_a_copy(E2, E3), "complete", counts={"before_join": 5}
    ),
    "a copy that did not go on had removed a group": Scenario(
        lambda: _dropped_in_a_copy(E3, E2), "lost", _found("lost", E1, (1, 5)), {"lost": 5},
    ),
    "a copy that goes on removes a group and names it again": Scenario(
        lambda: _dropped_in_a_copy(E2, E3, entry("group_added", E1, 1, 1, group="g")), "lost",
        _found("lost", E1, (1, 5)), {"lost": 5},
    ),
    "a row was exported before it had grown": Scenario(
        _grows, "unknown", _found("unacknowledged", E1, (4, 5)) | _found("unclosed", 0),
    ),
    "no row grew any more": Scenario(
        lambda: _grows(Entry("closed")), "violated",
        _found("unacknowledged", E1, (4, 5)) | _found("consumed_unsettled", E1, (4, 5)),
    ),
    "a removal was exported before it had grown": Scenario(
        _grows_at_producer, "lost",
        _found("removed", E1, (4, 4)) | _found("declared_gap", E1, (5, 5)) | _found("unproven", E1, (5, 5))
        | _found("unclosed", 0), {"declared_gaps": 2},
    ),
    "no removal grew any more": Scenario(
        lambda: _grows_at_producer(Entry("closed")), "violated",
        _found("removed", E1, (4, 4)) | _found("declared_gap", E1, (5, 5)) | _found("false_removal", E1, (5, 5)),
        {"declared_gaps": 2},
    ),
    "a journal ends where an epoch is entered": Scenario(_enters_at_the_end),
    "messages are enqueued in an epoch that follows on nothing": Scenario(
        lambda: _enters_at_the_end(*published(E8, 1, 2), got=(*taken(E8, 1, 2),)), "violated",
        _found("wrong_prev", E8),
    ),
    "whoever received what an outbox lost is gone": Scenario(
        _inbox_gone, "unknown", _found("unproven", E1, (6, 7)) | _found("unproven", E2, (1, 2)) | _ABSENT,
    ),
    "the same, and the outbox had been closed then": Scenario(
        lambda: _inbox_gone(Entry("closed")), "violated",
        _found("phantom", E1, (6, 7)) | _found("unproven", E2, (1, 2)) | _ABSENT, {"phantom": 2},
    ),
    "the same, and it had continued where another inbox was": Scenario(
        lambda: _inbox_gone(
            later=(given("behind", E3, 1, 1, detail={"from": [E2, 3]}), given("redelivered", E3, 2, 3),
                   given("acknowledged", E3, 2, 3))
        ), "unknown", _found("unproven", E1, (6, 7)) | _found("unproven", E2, (1, 2)) | _ABSENT,
    ),
    "whoever received what was never published goes on": Scenario(
        lambda: _inbox_gone(later=tuple(taken(E3, 4, 4))), "violated",
        _found("phantom", E1, (6, 7)) | _found("phantom", E2, (1, 2)) | _found("phantom", E3, (4, 4)) | _ABSENT,
        {"phantom": 5},
    ),
    "whoever received what an outbox lost goes on, and what it met is truncated": Scenario(
        lambda: _met_unseen("conflict"), "unknown", _found("unproven", E1, (6, 7)) | _found("broken", 0) | _ABSENT,
    ),
    "whoever received what an outbox lost passes a gap of unknown extent": Scenario(
        lambda: _leapt(extent_known=False), "lost",
        _found("unproven", E1, (6, 7)) | _found("declared_gap", E2, (1, 2)) | _ABSENT, {"declared_gaps": 2},
    ),
    "whoever received what was never published passes a gap": Scenario(
        lambda: _leapt(extent_known=True), "violated",
        _found("phantom", E1, (6, 7)) | _found("phantom_gap", E1, (8, 8)) | _found("declared_gap", E2, (1, 2))
        | _ABSENT, {"phantom": 2, "declared_gaps": 2},
    ),
    "another file of the producer's begins before it": Scenario(
        lambda: [*_begun_anew(), again(producer([opened(E1), entered(E1), *published(E1, 1, 2)]), "00000000000000c0")],
        "violated", _found("phantom", E1, (3, 3)) | _ABSENT, {"phantom": 1},
    ),
    "a group meets messages that were never published": Scenario(
        _twin_without_journal, "unknown",
        _found("unproven", E2, (1, 3)) | _found("unproven", E9, (1, 2)) | _found("fork", E9) | _ABSENT,
    ),
    "an older copy of an outbox does not know what was offered": Scenario(
        lambda: _renumbered_though_offered(
            entry("surpassed", E2, 0, 0, group="g", detail={"position": [E1, 6], "entered": E1})
        ), "unknown", _found("unproven", E1, (1, 5)) | _found("fork", E1, (1, 5)),
    ),
    "offered messages are renumbered": Scenario(
        _renumbered_though_offered, "violated",
        _found("phantom", E1, (1, 5)) | _found("fork", E1, (1, 5)), {"phantom": 5},
    ),
    "a fenced clone": Scenario(_fenced, "unknown", _found("pending", E2, (1, 4)) | _found("fork", E2), {"pending": 4}),
    "a group is added": Scenario(lambda: _added(6), counts={"before_join": 5}),
    "a group is added and begins later": Scenario(
        lambda: _added(8), "lost", _found("lost", E1, (6, 7)), {"before_join": 5, "lost": 2}
    ),
    "a group is removed": Scenario(_dropped),
    "a group is removed and added again": Scenario(
        lambda: _dropped(9), "lost", _found("lost", E1, (9, 12)), {"lost": 4}
    ),
    "a group is removed, and its actions are not in its journal": Scenario(
        lambda: _dropped(journalled=2), "unknown", _found("settled_unseen", E1, (3, 5))
    ),
    "the same, and it is added again": Scenario(
        lambda: _dropped(9, 2), "lost", _found("settled_unseen", E1, (3, 5)) | _found("lost", E1, (9, 12)), {"lost": 4}
    ),
    "a group never came and is removed": Scenario(lambda: _never_came(1)),
    "a group left no journal and is removed": Scenario(
        lambda: _never_came(6), "unknown", frozenset({("missing", 0, ())})
    ),
    "consumed and released": Scenario(lambda: _kept(10, 10, 10)),
    "consumed, which the producer never learned": Scenario(lambda: _kept(10)),
    "not consumed, and held": Scenario(
        lambda: _kept(7, 7, 0), "unknown", _found("undelivered", E1, (8, 10)), {"pending": 3}
    ),
    "not consumed, and released": Scenario(
        lambda: _kept(7, 7, 9), "violated",
        _found("released_early", E1, (8, 9)) | _found("lost", E1, (8, 9)) | _found("undelivered", E1, (10, 10)),
        {"pending": 1, "lost": 2},
    ),
    "a site lost ten": Scenario(lambda: _lossy(_drained(6)), counts=_SAVED, lost_after_confirm={"dc1": 10}),
    "a site's session was gone": Scenario(
        lambda: _lossy(_reconnected(False)), counts=_SAVED, lost_after_confirm={"dc1": 10}
    ),
    "a site's session was there": Scenario(lambda: _lossy(_reconnected(True)), counts={"saved_by_repair": 5}),
    "ten that a site brought went into the quarantine": Scenario(
        lambda: _lossy(_drained(6), given("quarantined", E1, 11, 20, site="dc1", reason="held")),
        counts={"saved_by_repair": 5},
    ),
    "ten that a site brought were left to their producer": Scenario(
        lambda: _lossy(_drained(6), given("let_go", E1, 11, 20, site="dc1")), counts={"saved_by_repair": 5}
    ),
    "a queue was empty before the confirm": Scenario(lambda: _lossy(_drained(3)), counts={"saved_by_repair": 5}),
    "a queue was empty, says another boot": Scenario(
        lambda: _lossy(_drained(6, 0xBAD)), "unknown", _ABSENT, {"saved_by_repair": 5}
    ),
    "a stream is in quarantine": Scenario(
        _kept_aside, "unknown", _found("undelivered", E1, (1, 4)), {"pending": 4},
        why={"undelivered": frozenset({"in quarantine"})},
    ),
    "a stream that no producer names a group for is in quarantine": Scenario(
        lambda: _kept_aside(named=()), "unknown", _found("undelivered", E1, (1, 4)), {"pending": 4},
        why={"undelivered": frozenset({"in quarantine"})},
    ),
    "an operator discarded some of it": Scenario(
        lambda: _kept_aside(_discarded(2, 3)), "lost",
        _found("discarded", E1, (2, 3)) | _found("undelivered", E1, (1, 1), (4, 4)),
        {"declared_gaps": 2, "pending": 2}, why={"undelivered": frozenset({"in quarantine"})},
    ),
    "it is replayed": Scenario(lambda: _kept_aside(*taken(E1, 1, 4))),
    "it is replayed and comes to nothing": Scenario(
        lambda: _kept_aside(given("received", E1, 1, 4, site="dc1")), "lost", _found("lost", E1, (1, 4)), {"lost": 4}
    ),
    "a gap holds its stream": Scenario(
        _holding, "lost",
        _found("lost", E1, (4, 5), (10, 10)) | _found("undelivered", E1, (6, 9)), {"lost": 3, "pending": 4},
        why={"undelivered": frozenset({"in quarantine", "behind a gap that holds its stream"})},
    ),
    "a gap held its stream, and was filled": Scenario(
        lambda: _holding(*taken(E1, 4, 9)), "lost", _found("lost", E1, (10, 10)), {"lost": 1}
    ),
    "a gap held its stream, and the messages behind it were lost": Scenario(
        lambda: _holding(*taken(E1, 4, 5), given("delivered", E1, 9, 9), given("acknowledged", E1, 9, 9)), "violated",
        _found("undeclared_gap", E1, (6, 8)) | _found("lost", E1, (6, 8), (10, 10)), {"lost": 4},
    ),
    "sites take no more": Scenario(
        lambda: _declined(
            entry("nacked", E1, 7, 8, site="dc1", reason="full"), entry("confirmed", E1, 7, 7, site="dc1"),
            entry("returned", E1, 8, 9, site="dc2"), _parked(), _parked("resumed"),
        ), "unknown", _found("pending", E1, (7, 10)), {"pending": 4},
        why={"pending": frozenset({"", "nacked by dc1, returned by dc2", "returned by dc2"})},
    ),
    "a stream is parked": Scenario(
        lambda: _declined(_parked("resumed"), _parked(), _parked(site="dc1")), "unknown",
        _found("pending", E1, (7, 10)), {"pending": 4}, why={"pending": frozenset({"parked at dc1, dc2"})},
    ),
    "a stream was parked before the last opening": Scenario(
        lambda: _declined(_parked(), stopped=True), "unknown", _found("pending", E1, (7, 10)), {"pending": 4},
        why={"pending": frozenset({""})},
    ),
    "an operator had a made-up epoch forgotten": Scenario(
        lambda: _forged(_back_to(12)), "lost", _MADE_UP, _MADE_UP_COUNTS
    ),
    "no operator had it forgotten": Scenario(
        _forged, "violated", _MADE_UP | _found("out_of_order", E2, (1, 8)), {**_MADE_UP_COUNTS, "out_of_order": 8}
    ),
    "it was forgotten to make room": Scenario(
        lambda: _forged(_back_to(12, reason="")), "violated",
        _MADE_UP | _found("out_of_order", E2, (1, 8)), {**_MADE_UP_COUNTS, "out_of_order": 8},
    ),
    "it goes back further than it was sent": Scenario(
        lambda: _forged(_back_to(4, epoch=E2)), "violated",
        _MADE_UP | _found("out_of_order", E2, (1, 4)), {**_MADE_UP_COUNTS, "out_of_order": 4},
    ),
    "a group is sent back twice": Scenario(
        lambda: _forged(_back_to(12), _back_to(4, epoch=E2)), "lost", _MADE_UP, _MADE_UP_COUNTS
    ),
    "all that a group had met was made up": Scenario(
        _never_met, "unknown", _found("unproven", E9, (1, 2)) | _ABSENT, {"before_join": 3}
    ),
    "another inbox takes over": Scenario(_taken_over),
    "an inbox that left no journal": Scenario(
        lambda: _taken_over("three"), "unknown", frozenset({("broken", 0, ())})
    ),
}  # fmt: skip

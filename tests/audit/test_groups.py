"""A group's own journals: every kind alone, and random journals, judged like the plain checker.

Each journal belongs to another group.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from reliamsg.audit import context as audit_context
from reliamsg.audit.expect import Expect
from reliamsg.audit.fold import Fact
from reliamsg.audit.order import Bounds, follow
from reliamsg.audit.spans import LAST
from reliamsg.audit.streams import Judged
from reliamsg.checker.groups import GroupFacts, gather_group
from reliamsg.checker.journals import Chain
from reliamsg.checker.report import Finding
from reliamsg.checker.spans import Spans
from reliamsg.message import Stream
from reliamsg.store.journal import JournalRow
from tests.audit.equality import judged_streams

STREAM = Stream("p", "t", 0)
SECOND_US = 1_000_000

Found = dict[tuple[str, str, Stream, int], list[tuple[int, int]]]
"""By group, kind, stream and epoch: ranges."""


@dataclass
class Journal:
    """A group's journal, written row by row."""

    group: str = "g"
    rows: list[JournalRow] = field(default_factory=list)
    wall_us: int = 0
    file: int = 0
    """Openings of different files have different names."""
    boots: int = 0
    lsn: int = 0

    def boot(self, **detail: Any) -> Journal:
        self.boots += 1
        return self.add("opened", 0, 0, **detail)

    def add(
        self,
        kind: str,
        first: int,
        last: int | None = None,
        epoch: int = 1,
        *,
        stream: Stream = STREAM,
        reason: str = "",
        **detail: object,
    ) -> Journal:
        """A row, one second later; `lsn` advances even if the row is dropped."""
        self.lsn += 1
        self.wall_us += SECOND_US
        bare = kind in ("opened", "closed", "took_over")
        self.rows.append(
            JournalRow(
                self.lsn, f"{self.file:08x}{self.boots:08x}", kind, self.wall_us, self.wall_us, self.wall_us,
                "" if bare else stream.producer, "" if bare else stream.topic, 0 if bare else stream.partition,
                0 if bare else epoch, 0, first, first if last is None else last, "", self.group, reason,
                None, None, dict(detail) or None,
            )
        )  # fmt: skip
        return self

    def chain(self) -> Chain:
        return Chain("group", self.group, f"{self.group}.db", self.rows)


def gather(chains: Iterable[Chain]) -> dict[str, tuple[GroupFacts, list[Finding]]]:
    """The plain checker's findings by group."""
    by_group: dict[str, list[Chain]] = {}
    for chain in chains:
        by_group.setdefault(chain.client, []).append(chain)
    return {name: gather_group(name, own, None, 1.0) for name, own in by_group.items()}


def expected(plain: dict[str, tuple[GroupFacts, list[Finding]]]) -> Found:
    spans: dict[tuple[str, str, Stream, int], Spans] = {}
    for name, (_, found) in plain.items():
        for each in found:
            assert each.stream is not None
            assert each.epoch is not None
            assert each.first is not None
            assert each.last is not None
            key = (name, each.kind, each.stream, each.epoch)
            spans.setdefault(key, Spans()).add(each.first, min(each.last, LAST))
    return {key: list(ranges) for key, ranges in spans.items()}


OWN = frozenset(
    {
        "out_of_order", "duplicate", "duplicate_apart", "redelivered_after_ack", "acknowledged_twice",
        "acknowledged_undelivered", "not_redelivered", "undeclared_gap", "declared_late", "delivered_after_gap",
        "false_gap", "gap_closed_early", "gap_closed_late", "false_before_join", "false_replay",
    }
)  # fmt: skip
"""The kinds that a group's own journals show."""


def judged_chains(chains: Sequence[Chain]) -> list[Judged]:
    return judged_streams([_closed(chain) for chain in chains], Expect(drained=True))[1]


def _closed(chain: Chain) -> Chain:
    """The audit reads no files: a file that was read to its end is like a journal that was closed."""
    rows = list(chain.rows)
    if chain.to_the_end and not chain.finished:
        rows.append(
            replace(rows[-1], lsn=rows[-1].lsn + 1, kind="closed", first=0, last=0, topic="", producer="")
        )
    return replace(chain, rows=rows, to_the_end=False)


def observed(streams: Iterable[Judged]) -> Found:
    found: Found = {}
    for judged in streams:
        for each in judged.findings:
            if each.kind in OWN:
                assert each.stream is not None
                assert each.epoch is not None
                assert each.first is not None
                assert each.last is not None
                key = (each.group, each.kind, Stream(*each.stream), each.epoch)
                found.setdefault(key, []).append((each.first, each.last))
    return {key: sorted(ranges) for key, ranges in found.items()}


def planted() -> dict[str, tuple[Journal, list[tuple[str, int, int]]]]:
    """For each case, a journal and all of its errors: kind, first, last."""
    gaps = {"gap_timeout": 10.0}

    def new(**detail: object) -> Journal:
        return Journal().boot(**detail)

    return {
        "in order": (
            new().add("joined", 1).add("delivered", 1, 5).add("acknowledged", 1, 3).boot()
            .add("redelivered", 4, 5).add("delivered", 6, 9).add("acknowledged", 4, 9).add("delivered", 1, 2, 2),
            [],
        ),
        "out_of_order": (
            new().add("delivered", 1, 5).add("delivered", 8, 9).add("delivered", 6, 7),
            [("out_of_order", 6, 7)],
        ),
        "duplicate": (new().add("delivered", 1, 5).add("delivered", 4, 7), [("duplicate", 4, 5)]),
        "redelivered_after_ack": (
            new().add("delivered", 1, 5).add("acknowledged", 1, 3).boot().add("redelivered", 2, 5),
            [("redelivered_after_ack", 2, 3)],
        ),
        "redelivered after an acknowledgement that may have grown": (
            new().add("delivered", 1, 5).add("acknowledged", 1, 3).add("redelivered", 1, 5),
            [("redelivered_after_ack", 1, 1)],
        ),
        "acknowledged_twice": (
            new().add("delivered", 1, 5).add("acknowledged", 1, 5).boot().add("acknowledged", 5, 5),
            [("acknowledged_twice", 5, 5)],
        ),
        "acknowledged_undelivered": (
            new().add("delivered", 1, 5).add("acknowledged", 1, 6),
            [("acknowledged_undelivered", 6, 6)],
        ),
        "not_redelivered": (
            new().add("delivered", 1, 5).add("acknowledged", 1, 3).boot().add("redelivered", 5, 5)
            .add("delivered", 6, 6),
            [("not_redelivered", 4, 4)],
        ),
        "dead-lettered instead of given again": (
            new().add("delivered", 1, 5).boot().add("redelivered", 1, 4).add("dead_lettered", 5).add("delivered", 6),
            [],
        ),
        "undeclared_gap": (new().add("delivered", 1, 5).add("delivered", 8, 9), [("undeclared_gap", 6, 7)]),
        "undeclared_gap at the start of an epoch": (
            new().add("delivered", 1, 5).add("delivered", 3, 9, 2),
            [("undeclared_gap", 1, 2)],
        ),
        "declared by a leap over epochs": (
            new().add("delivered", 1, 5).add("declared", 6, 0, until_epoch=4).add("delivered", 3, 9, 2),
            [],
        ),
        "declared_late": (
            new().add("delivered", 1, 5).add("delivered", 8, 9).add("declared", 6, 7),
            [("declared_late", 6, 7)],
        ),
        "before_join in the order in which it came": (
            new().add("before_join", 1, 2).add("before_join", 5, 6).add("before_join", 3, 4).add("delivered", 7, 8),
            [],
        ),
        "delivered_after_gap": (
            new().add("delivered", 1, 5).add("declared", 6, 7).add("delivered", 8).add("delivered", 7),
            [("delivered_after_gap", 7, 7)],
        ),
        "false_gap": (
            new().add("delivered", 1, 5).add("declared", 4, 6).add("delivered", 7, 8),
            [("false_gap", 4, 5)],
        ),
        "false_gap without an end": (new().add("delivered", 1, 5).add("declared", 5, 4), [("false_gap", 5, 5)]),
        "declared instead of given again": (
            new().add("delivered", 1, 5).add("acknowledged", 1, 3).boot().add("declared", 4, 6).add("delivered", 7)
            .boot().add("redelivered", 7).add("delivered", 8),
            [],
        ),
        "false_gap of acknowledged messages": (
            new().add("delivered", 1, 5).add("acknowledged", 1, 4).boot().add("declared", 4, 5).add("delivered", 6),
            [("false_gap", 4, 4)],
        ),
        "false_gap of redelivered messages": (
            new().add("delivered", 1, 5).boot().add("redelivered", 1, 4).add("declared", 4, 5).add("delivered", 6),
            [("false_gap", 4, 4)],
        ),
        "false_gap of skipped messages": (
            new().add("delivered", 1, 5).add("acknowledged", 1, 4).boot().add("delivered", 6).boot()
            .add("declared", 5).add("redelivered", 6).add("delivered", 7),
            [("false_gap", 5, 5), ("not_redelivered", 5, 5)],
        ),
        "delivered_after_gap of messages declared instead": (
            new().add("delivered", 1, 5).add("acknowledged", 1, 3).boot().add("declared", 4, 5).add("redelivered", 4)
            .add("delivered", 6),
            [("delivered_after_gap", 4, 4)],
        ),
        "gap_closed_early": (
            new(**gaps).add("delivered", 1, 2).add("declared", 3, 4, reason="expired", elapsed=2.5),
            [("gap_closed_early", 3, 4)],
        ),
        "gap_closed_early by no reading of its own": (
            new(**gaps).add("delivered", 1, 2).add("gap_opened", 3, 4)
            .add("declared", 3, 4, reason="expired").add("delivered", 5),
            [("gap_closed_early", 3, 4)],
        ),
        "gap_closed_late": (
            new(**gaps).add("delivered", 1, 2).add("declared", 3, 4, reason="expired", elapsed=12),
            [("gap_closed_late", 3, 4)],
        ),
        "a gap in time": (
            new(**gaps).add("delivered", 1, 2).add("declared", 3, 4, reason="expired", elapsed=10.5),
            [],
        ),
        "false_before_join": (
            new().add("joined", 3).add("before_join", 1, 2).add("delivered", 3, 4).add("before_join", 5, 6),
            [("false_before_join", 5, 6)],
        ),
        "from before joining, in any order": (
            new().add("joined", 1, None, 2).add("before_join", 6, 8).add("before_join", 2, 3)
            .add("delivered", 1, 3, 2).add("before_join", 1),
            [],
        ),
        "false_replay": (
            new().add("delivered", 1, 3).add("dead_lettered", 2).add("replayed", 2, 3).add("delivered", 4),
            [("false_replay", 3, 3)],
        ),
        "joined at the latest": (new(begin="latest").add("joined", 7).add("delivered", 7, 9), []),
        "joined at the latest, and went back": (
            new(begin="latest").add("joined", 7).add("delivered", 5, 9),
            [("out_of_order", 5, 6)],
        ),
    }  # fmt: skip


def planted_in_several() -> dict[str, tuple[list[Journal], list[tuple[str, int, int]]]]:
    """The same for groups with several chains, such as clones: the first of each pair begins first."""

    def pair() -> tuple[Journal, Journal]:
        return Journal().boot(), Journal(wall_us=1000 * SECOND_US, file=1).boot()

    one, two = pair()
    cases = {
        "duplicate in another chain": (
            [one.add("delivered", 1, 5), two.add("delivered", 3, 7)],
            [("duplicate_apart", 3, 5)],
        )
    }
    copies = Journal().boot(), Journal().boot()
    cases["in an opening that the histories of a copied file share"] = (
        [each.add("delivered", 1, 5).boot().add("redelivered", 3, 5) for each in copies],
        [],
    )
    one, two = pair()
    cases["acknowledged by each that gave it"] = (
        [
            one.add("delivered", 1, 5).add("acknowledged", 1, 5),
            two.add("redelivered", 4, 5).add("acknowledged", 4, 5).add("delivered", 6, 6),
        ],
        [],
    )
    one, two = pair()
    cases["given by two, of which one flagged it"] = (
        [one.add("redelivered", 1, 5).add("delivered", 6, 6), two.add("delivered", 1, 6)],
        [("duplicate_apart", 6, 6)],
    )
    one, two = pair()
    cases["given twice without a flag by one of two"] = (
        [one.add("delivered", 1, 5), two.add("redelivered", 2, 3).add("delivered", 3, 4)],
        [("duplicate", 3, 3), ("duplicate_apart", 4, 4)],
    )
    one, two = pair()
    cases["acknowledged by one that did not give it"] = (
        [
            one.add("delivered", 1, 5).add("acknowledged", 1, 5),
            two.add("redelivered", 1, 3).add("acknowledged", 2, 4),
        ],
        [("acknowledged_undelivered", 4, 4)],
    )
    one, two = pair()
    cases["passed over after a restart, and set aside by another that took over"] = (
        [
            one.add("delivered", 1, 5).add("acknowledged", 1, 3).boot().add("delivered", 6, 7),
            two.add("took_over", 0).add("redelivered", 4, 5).add("dead_lettered", 5),
        ],
        [("not_redelivered", 4, 4)],
    )
    one, two = pair()
    cases["a hole that another chain fills"] = (
        [
            one.add("delivered", 1, 2).add("delivered", 6, 7),
            two.add("delivered", 3, 4).add("acknowledged", 3, 4),
        ],
        [("undeclared_gap", 5, 5)],
    )
    one, two = pair()
    one.add("delivered", 1, 5).add("acknowledged", 1, 3)
    one.lsn += 1
    cases["passed over after a restart, or dealt with in rows that are missing"] = (
        [one.boot().add("delivered", 6, 7), two.add("took_over", 0)],
        [],
    )
    one, two = pair()
    one.lsn += 1
    cases["holes and acknowledgements of a chain that misses rows"] = (
        [one.add("delivered", 6, 7).add("acknowledged", 1, 7), two.add("delivered", 2, 3)],
        [("undeclared_gap", 1, 1)],
    )
    return cases


PLANTED = {name: ([journal], wrong) for name, (journal, wrong) in planted().items()} | planted_in_several()


@pytest.fixture(scope="module")
def judged() -> tuple[Found, Found]:
    """All planted journals: judged by the audit and by the plain checker."""
    chains = []
    for name, (journals, _) in PLANTED.items():
        for journal in journals:
            journal.group = name
            chains.append(journal.chain())
    return observed(judged_chains(chains)), expected(gather(chains))


@pytest.mark.parametrize("case", PLANTED)
def test_each_kind_alone_is_found_and_nothing_else(case: str, judged: tuple[Found, Found]) -> None:
    for found in judged:
        of_case = [
            (kind, first, last)
            for (group, kind, _, _), ranges in found.items()
            if group == case
            for first, last in ranges
        ]
        assert sorted(of_case) == sorted(PLANTED[case][1])


def random_chains(seed: int) -> Iterator[Chain]:
    """One to three chains of a group that violates every rule, over a few numbers, so that rows often overlap."""
    dice = random.Random(seed)
    tame = dice.random() < 0.3
    streams = [STREAM, Stream("p", "t", 1)][: dice.choice((1, 1, 2))]
    for number in range(dice.choice((1, 1, 1, 2, 3))):
        journal = Journal(f"g{seed}", wall_us=number * 1000 * SECOND_US)
        kinds = ["delivered"] * 6 + ["acknowledged"] * 4 + ["redelivered"] * 3
        if not tame:
            kinds += ["declared", "declared", "before_join", "dead_lettered", "replayed", "late", "joined"]
            kinds += ["gap_opened", "received"]
        cursor = dict.fromkeys(streams, 0)
        for _ in range(dice.randint(1, 4)):
            opened: dict[str, object] = {"begin": dice.choice(("latest", "earliest"))}
            if dice.random() < 0.6:
                opened["gap_timeout"] = dice.choice((2, 3.5))
            journal.boot(**opened)
            for _ in range(dice.randint(0, 9)):
                _random_row(dice, journal, dice.choice(kinds), dice.choice(streams), cursor)
        chain = journal.chain()
        if len(chain.rows) > 3 and dice.random() < 0.15:
            del journal.rows[dice.randrange(1, len(journal.rows))]
            chain = journal.chain()
            assert chain.broken or chain.rows[-1].lsn < journal.lsn
        yield replace(chain, to_the_end=dice.random() < 0.7)


def _random_row(
    dice: random.Random, journal: Journal, kind: str, stream: Stream, cursor: dict[Stream, int]
) -> None:
    epoch = dice.choice((1, 1, 1, 1, 2, 2, 3))
    first = dice.randint(1, 9)
    if kind == "delivered" and dice.random() < 0.7:
        first = cursor[stream] + 1 + (dice.randint(1, 2) if dice.random() < 0.2 else 0)
    last = first + dice.choice((0, 0, 1, 2, 4))
    if kind in ("delivered", "redelivered"):
        cursor[stream] = max(cursor[stream], last)
    detail: dict[str, object] = {}
    reason = ""
    if kind in ("declared", "before_join"):
        if dice.random() < 0.1:
            last = 0
            if dice.random() < 0.5:
                detail["until_epoch"] = epoch + dice.choice((0, 1, 2))
        elif kind == "declared" and dice.random() < 0.6:
            reason = "expired"
            if dice.random() < 0.5:
                detail["elapsed"] = dice.choice((0.5, 2, 2.5, 4.75))
    journal.add(kind, first, last, epoch, stream=stream, reason=reason, **detail)


@pytest.fixture(scope="module")
def crowd() -> list[Chain]:
    return [chain for seed in range(600) for chain in random_chains(seed)]


def test_random_journals_are_judged_as_by_the_plain_checker(crowd: list[Chain]) -> None:
    plain, streams = gather(crowd), judged_chains(crowd)
    found, wanted = observed(streams), expected(plain)
    wrong = {
        key: (found.get(key), wanted.get(key)) for key in found | wanted if found.get(key) != wanted.get(key)
    }
    assert wrong == {}
    kinds = {kind for _, kind, _, _ in wanted}
    assert len(kinds) == 15, kinds  # the journals are sufficiently random
    counted: dict[str, tuple[int, int]] = {}
    for judged in streams:
        for group, account in judged.accounts.items():
            duplicates, out_of_order = counted.get(group, (0, 0))
            counted[group] = (duplicates + account.duplicates, out_of_order + account.out_of_order)
    sums = {name: (facts.duplicates, facts.out_of_order) for name, (facts, _) in plain.items()}
    assert {name: counted.get(name, (0, 0)) for name in sums} == sums


def test_where_streams_began_and_how_far_they_got(crowd: list[Chain]) -> None:
    bounds: dict[tuple[str, Stream], Bounds] = {}
    for chain in crowd:
        boots = {row.boot: [row.lsn] for row in reversed(chain.rows)}
        opened = {boot.rows[0].lsn: boot.opened for boot in chain.boots}
        journal = audit_context.Journal("group", chain.client, "", 1, False, True, boots, opened, [], {})
        for stream in {stream_of(row) for row in chain.rows if row.topic}:
            facts = [fact_of(row) for row in chain.rows if stream_of(row) == stream]
            own = bounds.setdefault((chain.client, stream), Bounds())
            own.add(follow(journal, facts).bounds)
    found = {key: (own.joined, own.reached, own.lowest, own.leaps) for key, own in bounds.items()}
    wanted = {}
    for facts_of_group, _ in gather(crowd).values():
        told = {
            stream for stream, _ in (*facts_of_group.delivered, *facts_of_group.dead, *facts_of_group.late)
        }
        known = facts_of_group
        for stream in known.joined.keys() | known.reached.keys() | known.skipped_epochs.keys() | told:
            reached = known.reached.get(stream)
            handed = [
                (epoch, spans.lowest)
                for (of, epoch), spans in known.delivered.items()
                if of == stream and spans
            ]
            wanted[known.group, stream] = (
                known.joined.get(stream),
                reached and (reached[0], min(reached[1], LAST)),
                min(handed, default=None),
                set(known.skipped_epochs.get(stream, ())),
            )
    nothing: tuple[None, None, None, set[object]] = (None, None, None, set())
    assert {
        key: (found.get(key), wanted.get(key))
        for key in found | wanted
        if found.get(key, nothing) != wanted.get(key, nothing)
    } == {}


def stream_of(row: JournalRow) -> Stream:
    return Stream(row.producer, row.topic, row.partition)


def fact_of(row: JournalRow) -> Fact:
    return Fact(
        row.kind, row.epoch, row.first, row.last, row.lsn, row.boot, f"{row.incarnation:016x}", row.site, row.group,
        row.reason, detail=row.detail,
    )  # fmt: skip

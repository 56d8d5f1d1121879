"""Mutations of rows, with every name and chain as it has to be: only what other rows say shows them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.spoilt.edits import (
    CLIENTS,
    Case,
    behind,
    blank,
    fill,
    forget,
    insert,
    last_of,
    spare,
    spread,
    trim,
)
from tests.spoilt.effects import COMPLETE, LOST, UNKNOWN, VIOLATED, Effect, Found
from tests.spoilt.originals import GROUPS, PRODUCERS, SITES
from tests.spoilt.reader import Client, Journals, Message, Row, messages_of

__all__ = ["CASES"]

_Change = Callable[[Journals, Client, str], Effect]
"""Changes what a group has of a producer's stream."""


def at(kind: str, group: str, messages: set[Message], site: str = "") -> set[Found]:
    return {(kind, group, site, message) for message in messages}


def other(names: tuple[str, ...], name: str) -> str:
    return next(each for each in names if each != name)


def epochs(client: Client, producer: str, kind: str = "delivered") -> list[int]:
    return sorted({row["epoch"] for row in client.of(kind) if row["producer"] == producer})


def of_epoch(client: Client, kind: str, producer: str, epoch: int) -> list[Row]:
    return [row for row in client.of(kind) if (row["producer"], row["epoch"]) == (producer, epoch)]


def all_of(rows: list[Row]) -> set[Message]:
    return set().union(*map(messages_of, rows))


# -- losses --------------------------------------------------------------------------------------------------


def end_never_came(journals: Journals, group: Client, producer: str) -> Effect:
    gone = messages_of(last_of(group, "delivered", producer))
    forget(journals, group.name, gone)
    return Effect(LOST, found=at("lost", group.name, gone))


def first_epoch_never_came(journals: Journals, group: Client, producer: str) -> Effect:
    """No row of the group shows that it knew of the epoch."""
    epoch = epochs(group, producer)[0]
    gone = all_of(of_epoch(group, "delivered", producer, epoch))
    forget(journals, group.name, gone)
    return Effect(LOST, found=at("lost", group.name, gone))


def last_epoch_never_came(journals: Journals, group: Client, producer: str) -> Effect:
    epoch = epochs(group, producer)[-1]
    gone = all_of(of_epoch(group, "delivered", producer, epoch))
    forget(journals, group.name, gone)
    return Effect(LOST, found=at("lost", group.name, gone))


def end_never_left_the_group(journals: Journals, group: Client, producer: str) -> Effect:
    """It was received, and never delivered."""
    gone = messages_of(last_of(group, "delivered", producer))
    trim(group, gone, "delivered", "acknowledged")
    group.chain()
    for each in journals.producers:
        trim(each, gone, "consumed", group=group.name)
        each.chain()
    return Effect(LOST, found=at("lost", group.name, gone))


def end_declared(journals: Journals, group: Client, producer: str) -> Effect:
    row = last_of(group, "delivered", producer)
    gone, like = messages_of(row), copy.deepcopy(row)
    forget(journals, group.name, gone)
    fill(row, "declared", like, reason="expired", detail={"elapsed": 30.0}, digest=None, latency=None)
    group.chain()
    return Effect(LOST, found=at("declared_gap", group.name, gone))


def epoch_declared(journals: Journals, group: Client, producer: str) -> Effect:
    """In the middle of what it delivered."""
    epoch = epochs(group, producer)[0]
    rows = of_epoch(group, "delivered", producer, epoch)
    likes = [copy.deepcopy(row) for row in rows]
    gone = all_of(rows)
    forget(journals, group.name, gone)
    for row, like in zip(rows, likes, strict=True):
        fill(row, "declared", like, reason="expired", detail={"elapsed": 30.0}, digest=None, latency=None)
    group.chain()
    return Effect(LOST, found=at("declared_gap", group.name, gone))


def end_declared_too_early(journals: Journals, group: Client, producer: str) -> Effect:
    row = last_of(group, "delivered", producer)
    gone, like = messages_of(row), copy.deepcopy(row)
    forget(journals, group.name, gone)
    fill(row, "declared", like, reason="expired", detail={"elapsed": 3.0}, digest=None, latency=None)
    group.chain()
    found = at("declared_gap", group.name, gone) | at("gap_closed_early", group.name, gone)
    return Effect(VIOLATED, found=found)


def end_declared_too_late(journals: Journals, group: Client, producer: str) -> Effect:
    row = last_of(group, "delivered", producer)
    gone, like = messages_of(row), copy.deepcopy(row)
    forget(journals, group.name, gone)
    fill(row, "declared", like, reason="expired", detail={"elapsed": 300.0}, digest=None, latency=None)
    group.chain()
    found = at("declared_gap", group.name, gone) | at("gap_closed_late", group.name, gone)
    return Effect(VIOLATED, found=found)


def joined_behind_the_first(journals: Journals, group: Client, producer: str) -> Effect:
    """It counts from the first message on, and says that it joined behind some."""
    row = of_epoch(group, "delivered", producer, epochs(group, producer)[0])[0]
    gone, like = messages_of(row), copy.deepcopy(row)
    forget(journals, group.name, gone)
    fill(row, "before_join", like, digest=None, latency=None)
    joined = next(each for each in group.of("joined") if each["producer"] == producer)
    joined["first"] = joined["last"] = max(number for *_, number in gone) + 1
    group.chain()
    return Effect(LOST, found=at("lost", group.name, gone))


def end_discarded(journals: Journals, group: Client, producer: str) -> Effect:
    row = last_of(group, "delivered", producer)
    gone, like = messages_of(row), copy.deepcopy(row)
    received = last_of(group, "received", producer)
    forget(journals, group.name, gone)
    blank(received)
    fill(received, "quarantined", like, site="dc1", reason="undecodable", digest=None, latency=None)
    fill(row, "quarantine_discarded", like, site="dc1", digest=None, latency=None)
    group.chain()
    return Effect(LOST, found=at("discarded", group.name, gone))


def end_removed(journals: Journals, group: Client, producer: str) -> Effect:
    """By its producer, after it had been published; no group of those that have it minds."""
    gone = messages_of(last_of(group, "delivered", producer))
    forget(journals, group.name, gone)
    own = journals.client("producer", producer)
    row = last_of(own, "published", producer)
    fill(
        behind(journals, own, row),
        "removed",
        row,
        first=min(n for *_, n in gone),
        last=max(n for *_, n in gone),
        latency=None,
    )
    own.chain()
    return Effect(LOST, found=at("removed", group.name, gone))


_LOSSES: dict[str, _Change] = {
    "the end of the stream never came": end_never_came,
    "the last epoch never came": last_epoch_never_came,
    "the first epoch never came": first_epoch_never_came,
    "the end of the stream was received only": end_never_left_the_group,
    "the end of the stream is declared": end_declared,
    "the first epoch is declared": epoch_declared,
    "it joined behind the first": joined_behind_the_first,
    "the end of the stream is discarded": end_discarded,
    "the end of the stream is removed": end_removed,
}


# -- violations ----------------------------------------------------------------------------------------------


def end_acknowledged_undelivered(journals: Journals, group: Client, producer: str) -> Effect:
    row = last_of(group, "delivered", producer)
    gone = messages_of(row)
    blank(row)
    group.chain()
    return Effect(
        VIOLATED, found=at("lost", group.name, gone) | at("acknowledged_undelivered", group.name, gone)
    )


def middle_skipped(journals: Journals, group: Client, producer: str) -> Effect:
    """The beginning of an epoch of which it has more."""
    rows = next(
        rows
        for epoch in epochs(group, producer)
        if len(rows := of_epoch(group, "delivered", producer, epoch)) > 1
    )
    gone = messages_of(rows[0])
    forget(journals, group.name, gone)
    return Effect(VIOLATED, found=at("lost", group.name, gone) | at("undeclared_gap", group.name, gone))


def delivered_again(journals: Journals, group: Client, producer: str) -> Effect:
    row = last_of(group, "delivered", producer)
    fill(behind(journals, group, row), "delivered", row, latency=None)
    group.chain()
    again = messages_of(row)
    return Effect(VIOLATED, found=at("duplicate", group.name, again), counts=Counter(duplicates=len(again)))


def redelivered_after_all(journals: Journals, group: Client, producer: str) -> Effect:
    """In a later opening, although it had been acknowledged."""
    first = of_epoch(group, "delivered", producer, epochs(group, producer)[0])[0]
    later = next(row for row in group.rows if row["boot"] == group.boots[1] and row["kind"] == "connected")
    fill(later, "redelivered", first, latency=None)
    group.chain()
    return Effect(VIOLATED, found=at("redelivered_after_ack", group.name, messages_of(first)))


def acknowledged_again(journals: Journals, group: Client, producer: str) -> Effect:
    row = last_of(group, "acknowledged", producer)
    fill(behind(journals, group, row), "acknowledged", row, latency=None)
    group.chain()
    return Effect(VIOLATED, found=at("acknowledged_twice", group.name, messages_of(row)))


def other_content(journals: Journals, group: Client, producer: str) -> Effect:
    row = last_of(group, "delivered", producer)
    row["digest"] = f"{int(row['digest'], 16) ^ 1:016x}"
    group.chain()
    return Effect(VIOLATED, about={("corrupt", group.name): messages_of(row)})


def phantom(journals: Journals, group: Client, producer: str) -> Effect:
    row = last_of(group, "delivered", producer)
    more = {(producer, row["epoch"], row["last"] + number) for number in (1, 2, 3)}
    acknowledged = last_of(group, "acknowledged", producer)
    row["last"] += 3
    acknowledged["last"] = row["last"]
    group.chain()
    return Effect(VIOLATED, found=at("phantom", group.name, more))


def phantom_gap(journals: Journals, group: Client, producer: str) -> Effect:
    row = last_of(group, "delivered", producer)
    first, last = row["last"] + 1, row["last"] + 2
    fill(
        behind(journals, group, row), "declared", row, first=first, last=last, reason="expired",
        detail={"elapsed": 30.0}, digest=None, latency=None,
    )  # fmt: skip
    group.chain()
    more = {(producer, row["epoch"], number) for number in (first, last)}
    return Effect(VIOLATED, found=at("phantom_gap", group.name, more))


def declared_after_delivery(journals: Journals, group: Client, producer: str) -> Effect:
    row = last_of(group, "delivered", producer)
    fill(
        behind(journals, group, row),
        "declared",
        row,
        reason="expired",
        detail={"elapsed": 30.0},
        digest=None,
        latency=None,
    )
    group.chain()
    return Effect(VIOLATED, found=at("false_gap", group.name, messages_of(row)))


def delivered_after_declaration(journals: Journals, group: Client, producer: str) -> Effect:
    row = last_of(group, "delivered", producer)
    insert(
        journals,
        group,
        row,
        "declared",
        reason="expired",
        detail={"elapsed": 30.0},
        digest=None,
        latency=None,
    )
    return Effect(VIOLATED, found=at("delivered_after_gap", group.name, messages_of(row)))


def consumed_unsettled(journals: Journals, group: Client, producer: str) -> Effect:
    """Its producer was told more than the group had done."""
    own = journals.client("producer", producer)
    told = all_of([row for row in own.of("consumed") if row["group"] == group.name])
    row = [
        each
        for each in group.of("acknowledged")
        if messages_of(each) <= told and each["producer"] == producer
    ][-1]
    gone = messages_of(row)
    blank(row)
    group.chain()
    found = at("consumed_unsettled", group.name, gone) | at("unacknowledged", group.name, gone)
    if row["boot"] != group.boots[-1]:  # after which it delivered others
        found |= at("not_redelivered", group.name, gone)
    return Effect(VIOLATED, found=found)


def two_incarnations(journals: Journals, group: Client, producer: str) -> Effect:
    row = last_of(group, "delivered", producer)
    row["incarnation"] = "1234567890abcdef"
    group.chain()
    return Effect(
        VIOLATED, found={("two_incarnations", "", "", ("", row["epoch"], 0))},
        missing=[f"no journal of the opening 1234567890abcdef of producer {producer}"],
    )  # fmt: skip


_VIOLATIONS: dict[str, _Change] = {
    "the end is acknowledged and was never delivered": end_acknowledged_undelivered,
    "the beginning of an epoch is skipped": middle_skipped,
    "the end is delivered again": delivered_again,
    "the first is delivered after a restart that followed its acknowledgement": redelivered_after_all,
    "the end is acknowledged again": acknowledged_again,
    "the end has other content": other_content,
    "it delivered more than there was": phantom,
    "a gap beyond the end is declared": phantom_gap,
    "the end is delivered and then declared": declared_after_delivery,
    "the end is declared and then delivered": delivered_after_declaration,
    "the end is declared too early": end_declared_too_early,
    "the end is declared too late": end_declared_too_late,
    "its producer believes that more is done": consumed_unsettled,
    "the end is of another owner": two_incarnations,
}


# -- open questions, and nothing -----------------------------------------------------------------------------


def unacknowledged(journals: Journals, group: Client, producer: str) -> Effect:
    gone = messages_of(last_of(group, "acknowledged", producer))
    trim(group, gone, "acknowledged")
    group.chain()
    for each in journals.producers:
        trim(each, gone, "consumed", group=group.name)
        each.chain()
    return Effect(UNKNOWN, found=at("unacknowledged", group.name, gone))


def in_quarantine(journals: Journals, group: Client, producer: str) -> Effect:
    row = last_of(group, "delivered", producer)
    gone, like = messages_of(row), copy.deepcopy(row)
    forget(journals, group.name, gone)
    fill(row, "quarantined", like, site="dc1", reason="undecodable", digest=None, latency=None)
    group.chain()
    return Effect(UNKNOWN, found=at("undelivered", group.name, gone))


def dead_lettered(journals: Journals, group: Client, producer: str) -> Effect:
    for row in [each for each in group.of("acknowledged") if each["producer"] == producer]:
        later = all_of([each for each in group.of("delivered") if each["lsn"] > row["lsn"]])
        if messages_of(row) & later:  # it was extended, as no row about what is set aside would be
            continue
        row["kind"] = "dead_lettered"
        row.pop("latency", None)
    group.chain()
    return Effect(COMPLETE)


def only_one_site(journals: Journals, group: Client, producer: str) -> Effect:
    """One site lost everything of a stream, and the other had it."""
    for row in [
        each for each in group.of("received", "duplicate", "buffered") if each["producer"] == producer
    ]:
        if row["site"] == "dc1":
            blank(row)
    group.chain()
    return Effect(COMPLETE)


def from_repairs(journals: Journals, group: Client, producer: str) -> Effect:
    """Both sites lost the last epoch, and its producer sent it again."""
    epoch = epochs(group, producer)[-1]
    messages = all_of(of_epoch(group, "delivered", producer, epoch))
    for row in of_epoch(group, "received", producer, epoch) + of_epoch(group, "duplicate", producer, epoch):
        row["reason"] = "repair"
    group.chain()
    return Effect(COMPLETE, counts=Counter(saved_by_repair=len(messages)))


def late_copies(journals: Journals, group: Client, producer: str) -> Effect:
    """Messages that had been delivered came again."""
    row = last_of(group, "delivered", producer)
    fill(behind(journals, group, row), "late", row, site="dc2", digest=None, latency=None)
    group.chain()
    return Effect(COMPLETE)


def not_compared(journals: Journals, group: Client, producer: str) -> Effect:
    """No sum of the last epoch."""
    rows = of_epoch(group, "delivered", producer, epochs(group, producer)[-1])
    for row in rows:
        del row["digest"]
    group.chain()
    return Effect(UNKNOWN, found=at("unverified", group.name, all_of(rows)))


_OTHERS: dict[str, _Change] = {
    "the end is not acknowledged": unacknowledged,
    "the end is in quarantine": in_quarantine,
    "nothing has a sum in the last epoch": not_compared,
    "everything is set aside": dead_lettered,
    "only one site had it": only_one_site,
    "repairs brought the last epoch": from_repairs,
    "the end comes again": late_copies,
}


def _of_group(what: str, change: _Change, group: str, producer: str) -> Case:
    def mutate(journals: Journals) -> Effect:
        return change(journals, journals.client("group", group), producer)

    return Case(
        f"rows: group {group} of {producer}: {what}", mutate,
        clients=frozenset({("group", group), ("producer", producer)}),
    )  # fmt: skip


# -- producers -----------------------------------------------------------------------------------------------

_ProducerChange = Callable[[Journals, Client], Effect]


def enqueued_twice(journals: Journals, own: Client) -> Effect:
    row = last_of(own, "enqueued", own.name)
    fill(behind(journals, own, row), "enqueued", row, latency=None)
    own.chain()
    return Effect(VIOLATED, found=at("seq_reused", "", messages_of(row)))


def confirmed_more(journals: Journals, own: Client) -> Effect:
    row = last_of(own, "confirmed", own.name)
    row["last"] += 2
    own.chain()
    more = {(own.name, row["epoch"], row["last"] - number) for number in (0, 1)}
    return Effect(VIOLATED, found=at("confirmed_unknown", "", more, row["site"]))


def unconfirmed(journals: Journals, own: Client) -> Effect:
    row = last_of(own, "confirmed", own.name)
    gone = messages_of(row)
    blank(row)
    own.chain()
    return Effect(
        VIOLATED, found=at("published_unconfirmed", "", gone, row.get("site", "") or _site_of(own, gone))
    )


def _site_of(own: Client, gone: set[Message]) -> str:
    has = {row["site"] for row in own.of("confirmed") if gone <= messages_of(row)}
    return next(site for site in SITES if site not in has)


def unpublished(journals: Journals, own: Client) -> Effect:
    row = last_of(own, "published", own.name)
    gone = messages_of(row)
    blank(row)
    own.chain()
    return Effect(UNKNOWN, found=at("pending", "", gone))


def wrong_prev(journals: Journals, own: Client) -> Effect:
    row = own.of("epoch")[-1]
    row["detail"] = {"prev": [row["epoch"] - 1, "1234567890abcdef", 3]}
    own.chain()
    return Effect(VIOLATED, found={("wrong_prev", "", "", (own.name, row["epoch"], 0))})


def other_originals(journals: Journals, own: Client) -> Effect:
    row = last_of(own, "enqueued", own.name)
    row["digest"] = f"{int(row['digest'], 16) ^ 1:016x}"
    own.chain()
    return Effect(VIOLATED, about={("corrupt", group): messages_of(row) for group in GROUPS})


def never_enqueued(journals: Journals, own: Client) -> Effect:
    """The last row and all that depends on it; the groups have the messages nevertheless."""
    row = last_of(own, "enqueued", own.name)
    gone, epoch = messages_of(row), row["epoch"]
    trim(own, gone)
    own.chain()
    found = at("phantom", "archive", gone) | at("phantom", "billing", gone)
    return Effect(
        VIOLATED, found=found,
        missing=[f"the journal of epoch {epoch} of producer {own.name} lacks messages to which others refer"],
        streams=2,
    )  # fmt: skip


def fenced(journals: Journals, own: Client) -> Effect:
    """It knew that another one was alive, and went on."""
    row = last_of(own, "enqueued", own.name)
    boot = [each for each in own.rows if each["boot"] == row["boot"]]
    target = next(each for each in boot if each["kind"] == "connected")
    fill(
        target, "fenced", row, first=None, last=None, digest=None, latency=None,
        detail={"epoch": row["epoch"] + 5, "incarnation": "1234567890abcdef"},
    )  # fmt: skip
    own.chain()
    after = all_of([each for each in boot if each["kind"] == "enqueued" and each["lsn"] > target["lsn"]])
    return Effect(
        VIOLATED, found=at("enqueued_after_fence", "", after) | {("fork", "", "", ("", row["epoch"], 0))},
        missing=[f"no journal of the opening 1234567890abcdef of producer {own.name}"],
    )  # fmt: skip


def skipped(journals: Journals, own: Client) -> Effect:
    """The first row of the last epoch that has several is gone, and nothing else."""
    row = of_epoch(own, "enqueued", own.name, epochs(own, own.name, "enqueued")[-1])[0]
    rest = of_epoch(own, "enqueued", own.name, row["epoch"])[1:]
    gone, epoch = messages_of(row), row["epoch"]
    blank(row)
    own.chain()
    found = at("phantom", "archive", gone) | at("phantom", "billing", gone)
    found |= {each for site in SITES for each in at("confirmed_unknown", "", gone, site)}
    effect = Effect(VIOLATED, found=found)
    if rest:
        effect.found |= at("seq_skipped", "", gone)
    else:
        effect.missing = [
            f"the journal of epoch {epoch} of producer {own.name} lacks messages to which others refer"
        ]
    return effect


_OF_PRODUCERS: dict[str, _ProducerChange] = {
    "the end is enqueued twice": enqueued_twice,
    "more is confirmed than there was": confirmed_more,
    "the end is published without a confirm": unconfirmed,
    "the end is not published": unpublished,
    "the last epoch follows another one": wrong_prev,
    "the end had other content": other_originals,
    "the end was never there": never_enqueued,
    "it went on although it was fenced": fenced,
    "numbers are left out": skipped,
}


def _of_producer(what: str, change: _ProducerChange, producer: str) -> Case:
    def mutate(journals: Journals) -> Effect:
        return change(journals, journals.client("producer", producer))

    return Case(f"rows: producer {producer}: {what}", mutate, clients=frozenset(CLIENTS))


# -- rows that say nothing about fates -----------------------------------------------------------------------

_NOTHING: dict[str, dict[str, Any]] = {
    "a row of a kind that nobody knows": {"kind": "noted"},
    "frames were rejected": {"kind": "rejected", "reason": "unsigned", "detail": {"count": 3}, "site": "dc1"},
    "a site was lost": {"kind": "disconnected", "site": "dc1", "reason": "reset"},
    "a site came back": {"kind": "connected", "site": "dc1", "detail": {"session_present": True}},
}


def _with_nothing(client: tuple[str, str], what: str, row: Row) -> Case:
    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        blank(target := spare(own, own.rows[0]))
        target |= copy.deepcopy(row)
        own.chain()
        return Effect(COMPLETE)

    return Case(f"rows: {client[0]} {client[1]}: {what}", mutate, clients=frozenset({client}))


def _declined(producer: str, kind: str) -> Case:
    def mutate(journals: Journals) -> Effect:
        own = journals.client("producer", producer)
        row = last_of(own, "enqueued", producer)
        fill(behind(journals, own, row), kind, row, site="dc1", reason="full", digest=None, latency=None)
        own.chain()
        return Effect(COMPLETE)

    return Case(
        f"rows: producer {producer}: {kind} at first", mutate, clients=frozenset({("producer", producer)})
    )


def _truncated(client: tuple[str, str], detail: Row, line: str) -> Case:
    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        blank(target := spare(own, own.rows[0]))
        target |= {"kind": "truncated", "detail": detail}
        own.chain()
        return Effect(UNKNOWN, broken=[line])

    return Case(
        f"rows: {client[0]} {client[1]} discarded some: {detail}", mutate, clients=frozenset({client})
    )


def _cases() -> Iterator[Case]:
    everybody = [(group, producer) for group in GROUPS for producer in PRODUCERS]
    for number, (what, change) in enumerate((_LOSSES | _VIOLATIONS | _OTHERS).items()):
        for at, (group, producer) in enumerate(everybody):
            yield replace(
                _of_group(what, change, group, producer), full=at not in ((0, 3), (1, 2))[number % 2]
            )
    yield from spread(
        *([_of_producer(what, change, each) for each in PRODUCERS] for what, change in _OF_PRODUCERS.items()),
        *([_with_nothing(each, what, row) for each in CLIENTS] for what, row in _NOTHING.items()),
        [
            _truncated(each, {"rows": 7}, "7 rows were discarded by the client: its file could not be written")
            for each in CLIENTS
        ],
        [
            _truncated(
                each, {"first_lsn": 3, "last_lsn": 4},
                "rows 3 to 4 were discarded by the client: its target was unreachable",
            )
            for each in CLIENTS
        ],
        *(
            [_declined(each, kind) for each in PRODUCERS]
            for kind in ("nacked", "returned", "refused", "repaired", "parked")
        ),
    )  # fmt: skip


CASES = list(_cases())

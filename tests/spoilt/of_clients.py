"""Mutations of openings, of chains, of whole clients and of their clocks."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.spoilt.edits import CLIENTS, Case, blank, boots_of, forget, insert, last_of, named, spare, spread
from tests.spoilt.effects import COMPLETE, LOST, UNKNOWN, VIOLATED, Effect
from tests.spoilt.of_files import useless
from tests.spoilt.originals import GROUPS, PRODUCERS, TOPIC
from tests.spoilt.reader import Client, Id, Journals, Row, Segment, messages_of

__all__ = ["CASES"]

_HOUR_US = 3_600_000_000


def _latest_us(journals: Journals) -> int:
    latest: int = max(row["wall_last_us"] for each in journals.clients.values() for row in each.rows)
    return latest


def _row(boot: str, lsn: int, kind: str, wall_us: int, **more: object) -> Row:
    return {
        "lsn": lsn, "boot": boot, "kind": kind, "wall_us": wall_us, "wall_last_us": wall_us, "mono_us": lsn, **more,
    }  # fmt: skip


def _added(journals: Journals, role: str, name: str, rows: list[Row]) -> Client:
    """A further client."""
    own = Client(role, name)
    header = {"format": "reliamsg.journal", "version": 2, "role": role, "client": name}
    own.segments.append(Segment(header, rows, f"{own.directory}/date=2026-01-01"))
    own.chain()
    journals.clients[own.id] = own
    return own


# -- openings ------------------------------------------------------------------------------------------------


def _last_opening_gone(client: Id) -> Case:
    """Every opening that is left was closed."""

    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        if own.role == "group":
            _tell_little_of_the_last(journals, own)
        boot, gone = list(boots_of(own).items())[-1]
        incarnation = gone[0].rows[0].get("incarnation")
        own.segments = [each for each in own.segments if each not in gone]
        effect = Effect(UNKNOWN)
        enqueued = journals.about("enqueued", role="producer")
        if own.role == "producer":
            effect.missing = [f"no journal of the opening {incarnation} of producer {own.name}"]
            for group in journals.groups:
                stray = journals.about("delivered", name=group.name) - enqueued
                effect.found |= {("unproven", group.name, "", each) for each in stray}
        else:
            effect.missing = [f"no journal of the opening {boot} of group {own.name}"]
            left = enqueued - journals.about("delivered", name=own.name)
            told = set().union(
                *(messages_of(row) for each in journals.producers for row in each.of("consumed")
                  if row["group"] == own.name)
            )  # fmt: skip
            effect.found |= {("settled_unseen", own.name, "", each) for each in left & told}
            effect.found |= {("undelivered", own.name, "", each) for each in left - told}
        return effect

    return Case(f"boots: the last of {named(client)} is gone", mutate, clients=frozenset(CLIENTS))


def _tell_little_of_the_last(journals: Journals, group: Client) -> None:
    """Of what a group settled in its last opening, producers know one message."""
    boot = group.boots[-1]
    for producer in journals.producers:
        for row in producer.of("consumed"):
            if row["detail"]["journal"][0] == boot:
                blank(row)
        producer.chain()
    east = journals.client("producer", "east")
    row = next(row for row in group.of("acknowledged") if row["boot"] == boot and row["producer"] == "east")
    about = {name: row[name] for name in ("producer", "topic", "part", "epoch", "incarnation", "group")}
    insert(
        journals, east, east.of("closed")[-1], "consumed", **about, first=row["first"], last=row["first"],
        detail={"journal": [boot, row["lsn"]]},
    )  # fmt: skip


def _first_opening_gone(client: Id) -> Case:
    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        gone = next(iter(boots_of(own).values()))
        own.segments = [each for each in own.segments if each not in gone]
        return useless(journals, own, gone)

    return Case(f"boots: the first of {named(client)} is gone", mutate, clients=frozenset(CLIENTS))


def _killed(client: Id) -> Case:
    """The first opening was not closed, and the next one followed."""

    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        blank(own.of("closed")[0])
        own.chain()
        return Effect(COMPLETE)

    return Case(f"boots: the first of {named(client)} was killed", mutate, clients=frozenset({client}))


def _never_closed(client: Id) -> Case:
    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        blank(own.of("closed")[-1])
        own.chain()
        return Effect(UNKNOWN, unclosed=[f"({named(client)}): a journal ends without being closed"])

    return Case(f"boots: the last of {named(client)} was not closed", mutate, clients=frozenset({client}))


def _retired(client: Id) -> Case:
    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        last = own.rows[-1]
        row = _row(last["boot"], last["lsn"] + 1, "retired", last["wall_last_us"], detail={"pending": 0})
        own.segments.append(Segment(dict(own.segments[-1].header), [row], own.segments[-1].directory))
        own.chain()
        return Effect(COMPLETE)

    return Case(f"boots: {named(client)} is retired", mutate, clients=frozenset({client}))


def _not_opened(client: Id) -> Case:
    """The last opening begins with something else."""

    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        blank(row := own.of("opened")[-1])
        own.chain()
        line = f"boot {row['boot']} begins with 'noted' at row {row['lsn']}, not with 'opened'"
        effect = useless(journals, own, [])
        effect.broken = [line]
        return effect

    return Case(f"boots: the last of {named(client)} has no beginning", mutate, clients=frozenset(CLIENTS))


# -- chains --------------------------------------------------------------------------------------------------


def _idle_copy(client: Id, *, closed: bool) -> Case:
    """A copy of the file, made after its first opening, was opened once, and did nothing."""

    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        first = next(iter(boots_of(own).values()))
        shared = Client(own.role, own.name, list(first))
        last, boot, wall_us = first[-1].rows[-1], "c0de" * 4, _latest_us(journals) + 1
        opened = copy.deepcopy(first[0].rows[0]) | _row(boot, last["lsn"] + 1, "opened", wall_us)
        if own.role == "producer":
            opened |= {"epoch": opened["epoch"] + 1, "incarnation": "c0de" * 4}
        rows = [opened, _row(boot, last["lsn"] + 2, "closed", wall_us)][: 2 if closed else 1]
        segment = Segment(dict(first[0].header), rows, first[0].directory)
        segment.encode(first[-1].digest)
        journals.others[segment.path] = segment.data
        shared.segments.append(segment)
        effect = Effect(COMPLETE, chains=[(shared, closed)])
        if not closed:
            effect.verdict = UNKNOWN
            effect.unclosed = [f"({named(client)}): a journal ends without being closed"]
        return effect

    return Case(
        f"chains: a copy of {named(client)} did nothing, and was {'' if closed else 'not '}closed", mutate,
        clients=frozenset(CLIENTS),
    )  # fmt: skip


def _copied_at_the_root(client: Id) -> Case:
    """The copy's segment lies where nobody expects it."""
    base = _idle_copy(client, closed=True)

    def mutate(journals: Journals) -> Effect:
        before = set(journals.others)
        effect = base.mutate(journals)
        (path,) = set(journals.others) - before
        journals.others[path.rpartition("/")[2]] = journals.others.pop(path)
        effect.chains[0][0].segments[-1].kept = path.rpartition("/")[2]
        return effect

    return Case(
        f"chains: a copy of {named(client)} did nothing, at the root", mutate, clients=frozenset(CLIENTS)
    )


def _last_segment_in_other_words(client: Id) -> Case:
    """The same rows in other bytes: one is a copy of the other."""

    def mutate(journals: Journals) -> Effect:
        segment = journals.client(*client).segments[-1]
        lines = [json.dumps(each) for each in (segment.header, *segment.rows)]
        other = Segment(
            segment.header, segment.rows, segment.directory, "".join(f"{x}\n" for x in lines).encode()
        )
        journals.others[other.path] = other.data
        return Effect(COMPLETE)

    return Case(
        f"chains: the last of {named(client)} in other words, too", mutate, clients=frozenset({client})
    )


def _other_parent(client: Id) -> Case:
    """A segment in the middle follows one that there is not."""

    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        middle = len(own.segments) // 2
        parent = "0" * 64
        for segment in own.segments[middle:]:
            segment.encode(parent)
            parent = segment.digest
        first = own.segments[middle].header["first_lsn"]
        effect = useless(journals, own, [])
        effect.broken = [f"the rows from {first} on do not continue the rows before them"]
        return effect

    return Case(f"chains: one of {named(client)} continues another", mutate, clients=frozenset(CLIENTS))


def _without_a_row(client: Id) -> Case:
    """A row is left out, and the numbers show it."""

    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        segment = next(each for each in own.segments[1:] if len(each.rows) > 1)
        row = segment.rows.pop(0) if segment.rows[0]["kind"] != "opened" else segment.rows.pop()
        own.chain()
        kept = Segment({"first_lsn": row["lsn"], "last_lsn": row["lsn"]}, [], "")
        return useless(journals, own, [kept])

    return Case(f"chains: a row of {named(client)} is left out", mutate, clients=frozenset(CLIENTS))


# -- clients -------------------------------------------------------------------------------------------------


def _never_named(group: str) -> Case:
    """No producer names it; it reads everything nevertheless."""

    def mutate(journals: Journals) -> Effect:
        for producer in journals.producers:
            for row in producer.of("opened"):
                row["detail"]["groups"][TOPIC].remove(group)
            producer.chain()
        return Effect(COMPLETE)

    return Case(f"clients: group {group} is named by nobody", mutate)


def _another_named() -> Case:
    def mutate(journals: Journals) -> Effect:
        own = journals.client("producer", "east")
        own.of("opened")[-1]["detail"]["groups"][TOPIC].append("invoices")
        own.chain()
        return Effect(UNKNOWN, missing=["no journal of group invoices"])

    return Case(
        "clients: a group that left nothing is named", mutate, clients=frozenset({("producer", "east")})
    )


def _idle_producer() -> Case:
    def mutate(journals: Journals) -> Effect:
        wall_us = _latest_us(journals)
        opened = _row(
            "a" * 16, 1, "opened", wall_us, epoch=5, incarnation="a" * 16,
            detail={"groups": {TOPIC: list(GROUPS)}, "sites": ["dc1"], "confirm": "all", "release": "confirmed"},
        )  # fmt: skip
        _added(journals, "producer", "north", [opened, _row("a" * 16, 2, "closed", wall_us)])
        return Effect(COMPLETE)

    return Case("clients: a producer that did nothing", mutate, clients=frozenset())


def _deaf_group(topic: str) -> Case:
    def mutate(journals: Journals) -> Effect:
        wall_us = _latest_us(journals)
        opened = _row(
            "b" * 16, 1, "opened", wall_us, group="invoices",
            detail={"topics": [topic], "sites": ["dc1"], "begin": "earliest", "gap_timeout": 30.0, "on_gap": "hold",
                    "inbox": "b" * 16},
        )  # fmt: skip
        _added(
            journals, "group", "invoices", [opened, _row("b" * 16, 2, "closed", wall_us, group="invoices")]
        )
        if topic != TOPIC:
            return Effect(UNKNOWN, missing=[f"no journal of any producer of topic {topic}"])
        enqueued = journals.about("enqueued", role="producer")
        return Effect(UNKNOWN, found={("never_joined", "invoices", "", each) for each in enqueued})

    return Case(f"clients: a group of {topic} that received nothing", mutate, clients=frozenset())


def _unknown_producer(group: str) -> Case:
    """A group received from a producer that left nothing."""

    def mutate(journals: Journals) -> Effect:
        own = journals.client("group", group)
        row = last_of(own, "received", "east")
        target = spare(own, row)
        kept = {name: target[name] for name in ("lsn", "boot", "wall_us", "wall_last_us", "mono_us")}
        target.clear()
        target |= row | kept | {"producer": "south"}
        own.chain()
        gone = messages_of(target)
        effect = Effect(UNKNOWN, missing=["no journal of producer south"])
        effect.shown = {target["site"]: {"received": journals.counts()["sites"][target["site"]]["received"]}}
        assert gone
        return effect

    return Case(
        f"clients: group {group} received from a stranger", mutate, clients=frozenset({("group", group)})
    )


def _abandoned(group: str) -> Case:
    def mutate(journals: Journals) -> Effect:
        own = journals.client("group", group)
        blank(target := spare(own, own.of("opened")[-1]))
        target |= {
            "kind": "took_over",
            "group": group,
            "detail": {"from": "f" * 16, "streams": 2, "inbox": "f" * 15},
        }
        own.chain()
        effect = useless(journals, own, [])
        effect.broken = [f"inbox {'f' * 16}, from which it took over, left no journal"]
        return effect

    return Case(f"clients: group {group} took over from an inbox that left nothing", mutate)


# -- clocks --------------------------------------------------------------------------------------------------


def _moved(client: Id | None, by_us: int) -> Case:
    def mutate(journals: Journals) -> Effect:
        for own in journals.clients.values():
            if client in (None, own.id):
                for row in own.rows:
                    row["wall_us"] += by_us
                    row["wall_last_us"] += by_us
                own.chain()
        return Effect(COMPLETE)

    who = "all" if client is None else named(client)
    return Case(
        f"clocks: that of {who} is {by_us // 1_000_000} s ahead", mutate,
        clients=frozenset(CLIENTS if client is None else {client}),
    )  # fmt: skip


def _stepped(client: Id, by_us: int) -> Case:
    """A clock was set in the middle, and the client says so."""

    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        target = spare(own, own.rows[len(own.rows) // 2])
        blank(target)
        at = target["wall_us"]
        target |= {"kind": "clock_step", "detail": {"from_us": at, "to_us": at + by_us}}
        own.chain()
        return Effect(COMPLETE)

    return Case(
        f"clocks: that of {named(client)} is set by {by_us // 1_000_000} s",
        mutate,
        clients=frozenset({client}),
    )


def _backwards(client: Id) -> Case:
    """The stamps of one row, in the middle, are an hour too early."""

    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        row = spare(own, own.rows[len(own.rows) // 2])
        row["wall_us"] -= _HOUR_US
        row["wall_last_us"] -= _HOUR_US
        own.chain()
        return Effect(COMPLETE)

    return Case(f"clocks: that of {named(client)} ran backwards", mutate, clients=frozenset({client}))


def _judged_at(share: float) -> Case:
    """The clock of the judge shows a time within the run."""

    def mutate(journals: Journals) -> Effect:
        walls = sorted(row["wall_us"] for each in journals.clients.values() for row in each.rows)
        return Effect(COMPLETE, now_us=walls[int(share * (len(walls) - 1))])

    return Case(f"clocks: the judge's is at {share:.0%} of the run", mutate, clients=frozenset())


def _until_the_future() -> Case:
    def mutate(journals: Journals) -> Effect:
        effect = Effect(UNKNOWN, until_us=_latest_us(journals) + _HOUR_US, drained=False)
        effect.unclosed = [
            f"({named(each)}): a journal ends before the time up to which" for each in journals.clients
        ]
        return effect

    return Case("clocks: the end that is asked for is later than every journal", mutate, clients=frozenset())


def _until_later_than_now() -> Case:
    def mutate(journals: Journals) -> Effect:
        effect = Effect(UNKNOWN, until_us=2**60 + 5, drained=False)
        effect.unclosed = [
            f"({named(each)}): a journal ends before the time up to which" for each in journals.clients
        ]
        effect.unclosed.append("is later than the clock of this machine")
        return effect

    return Case("clocks: the end that is asked for is later than now", mutate, clients=frozenset())


# -- while it runs -------------------------------------------------------------------------------------------


def _untouched(run: str) -> Case:
    return Case(f"nothing is spoilt: {run}", lambda _: Effect(COMPLETE), run, frozenset())


def _head(own: Client, by_us: int, **changes: Any) -> tuple[str, bytes]:
    last = own.rows[-1]
    head = {
        "format": "reliamsg.journal.head", "version": 2, "role": own.role, "client": own.name, "boot": last["boot"],
        "lsn": last["lsn"], "digest": own.segments[-1].digest, "wall_us": last["wall_us"] + by_us,
    } | changes  # fmt: skip
    line = json.dumps(head, separators=(",", ":")).encode()
    data = line + b'\n{"sha256":"%s"}\n' % hashlib.sha256(line).hexdigest().encode()
    return f"{own.directory}/head-{last['boot']}.json", data


def _heads(clients: tuple[Id, ...], run: str) -> Case:
    def mutate(journals: Journals) -> Effect:
        for client in clients:
            path, data = _head(journals.client(*client), _HOUR_US)
            journals.others[path] = data
        return Effect(COMPLETE)

    return Case(
        f"heads: {run}, of {', '.join(map(named, clients))}", mutate, run, frozenset(clients)
    )  # fmt: skip


_HEAD_DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda data: data[:40], "not a journal's head"),
    "empty": (lambda _: b"", "not a journal's head"),
    "edited": (
        lambda data: data.replace(b'"lsn":', b'"lsn":1', 1),
        "edited or damaged: its content does not match",
    ),
    "newer": (
        lambda data: data.replace(b'"version":2', b'"version":3'),
        "written by a newer version (format 3): upgrade reliamsg",
    ),
}


def _damaged_head(client: Id, what: str) -> Case:
    change, line = _HEAD_DAMAGE[what]

    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        path, data = _head(own, _HOUR_US)
        journals.others[path] = change(data)
        effect = useless(journals, own, [])
        effect.broken = [f"{path.rpartition('/')[2]}: {line}"]
        return effect

    return Case(f"heads: that of {named(client)} is {what}", mutate, "running", frozenset(CLIENTS))


def _still_open() -> Case:
    def mutate(journals: Journals) -> Effect:
        lines = [f"({named(each)}): a journal ends without being closed" for each in journals.clients]
        return Effect(UNKNOWN, drained=True, unclosed=lines)

    return Case("running: it should be over", mutate, "running")


def _end_open(group: str, producer: str) -> Case:
    """The end is not there yet: that is no loss, and nothing is open before it."""

    def mutate(journals: Journals) -> Effect:
        gone = messages_of(last_of(journals.client("group", group), "delivered", producer))
        forget(journals, group, gone)
        return Effect(COMPLETE, found={("undelivered", group, "", each) for each in gone})

    return Case(
        f"running: the end of {producer} did not reach group {group} yet", mutate, "running",
        frozenset({("group", group), ("producer", producer)}),
    )  # fmt: skip


def _middle_lost(group: str, producer: str, *, declared: bool) -> Case:
    def mutate(journals: Journals) -> Effect:
        own = journals.client("group", group)
        rows = [row for row in own.of("delivered") if row["producer"] == producer]
        epoch = rows[-1]["epoch"]
        rows = [row for row in rows if row["epoch"] == epoch]
        assert len(rows) > 1
        row, like = rows[0], copy.deepcopy(rows[0])
        gone = messages_of(row)
        forget(journals, group, gone)
        if not declared:
            found = {(kind, group, "", each) for each in gone for kind in ("lost", "undeclared_gap")}
            return Effect(VIOLATED, found=found)
        row.clear()
        row |= like | {"kind": "declared", "reason": "expired", "detail": {"elapsed": 30.0}}
        del row["digest"]
        own.chain()
        return Effect(LOST, found={("declared_gap", group, "", each) for each in gone})

    what = "declared" if declared else "skipped"
    return Case(
        f"running: the beginning of {producer}'s last epoch is {what} by group {group}", mutate, "running",
        frozenset({("group", group), ("producer", producer)}),
    )  # fmt: skip


def _judged_before(run: str) -> Case:
    def mutate(journals: Journals) -> Effect:
        first = min(row["wall_us"] for each in journals.producers for row in each.of("enqueued"))
        return Effect(UNKNOWN if run == "running" else COMPLETE, now_us=first - 1)

    return Case(f"clocks: the judge's is before the run: {run}", mutate, run, frozenset())


def _one_more(client: Id) -> Case:
    """A further row in front of another one, with everything renumbered."""

    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        insert(journals, own, own.of("connected")[0], "disconnected", detail=None)
        return Effect(COMPLETE)

    return Case(f"rows: {named(client)}: one more, and all numbers follow", mutate)


def _cases() -> Iterator[Case]:
    for run in ("finished", "running"):
        yield _untouched(run)
        yield _judged_before(run)
    of_all: list[Callable[[Id], Case]] = [
        _first_opening_gone, _killed, _never_closed, _retired, _not_opened,
        partial(_idle_copy, closed=True), partial(_idle_copy, closed=False), _copied_at_the_root,
        _last_segment_in_other_words, _other_parent, _without_a_row, _one_more,
        partial(_moved, by_us=24 * _HOUR_US), partial(_moved, by_us=-24 * _HOUR_US),
        partial(_stepped, by_us=_HOUR_US), partial(_stepped, by_us=-_HOUR_US), _backwards,
        lambda each: _heads((each,), "running"), lambda each: _heads((each,), "finished"),
        *(partial(_damaged_head, what=what) for what in _HEAD_DAMAGE),
    ]  # fmt: skip
    yield from spread(*(map(make, CLIENTS) for make in of_all))
    yield from map(_last_opening_gone, CLIENTS)
    yield _heads(CLIENTS, "running")
    yield _moved(None, 24 * _HOUR_US)
    yield _moved(None, -365 * 24 * _HOUR_US)
    for share in (0.25, 0.5, 0.75):
        yield _judged_at(share)
    yield _until_the_future()
    yield _until_later_than_now()
    yield _another_named()
    yield _idle_producer()
    yield _deaf_group(TOPIC)
    yield _deaf_group("nothing")
    yield _still_open()
    everybody = [(group, producer) for group in GROUPS for producer in PRODUCERS]
    yield from spread(
        *(map(make, GROUPS) for make in (_never_named, _unknown_producer, _abandoned)),
        [_end_open(*each) for each in everybody],
        [_middle_lost(*each, declared=True) for each in everybody],
        [_middle_lost(*each, declared=False) for each in everybody],
    )


CASES = list(_cases())

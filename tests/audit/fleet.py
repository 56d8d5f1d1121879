"""Many small journals that are judged together: each with separate clients and topics, so that they are independent."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from reliamsg.checker.journals import Chain, Role
from reliamsg.message import digest
from reliamsg.simulation.journals import renamed_row
from reliamsg.store.journal import JournalRow

T = 1_700_000_000_000_000
"""The time of the first row, in µs since 1970."""
SECOND_US = 1_000_000


def sum_of(seed: str, first: int, last: int) -> int:
    return sum(digest(seq, f"{seed}/{seq}".encode(), None, None) for seq in range(first, last + 1)) % 2**64


@dataclass
class Writer:
    """A client's journal, written row by row at intervals of a second."""

    role: Role
    client: str
    rows: list[JournalRow] = field(default_factory=list)
    wall_us: int = T
    boot_name: str = ""

    @property
    def begun_us(self) -> int:
        return self.rows[0].wall_us if self.rows else self.wall_us + SECOND_US

    def boot(self, **detail: Any) -> Writer:
        boots = len({row.boot for row in self.rows})
        self.boot_name = f"{self.client}-{self.begun_us}-{boots}"
        return self.add("opened", **detail)

    def add(
        self,
        kind: str,
        first: int = 0,
        last: int | None = None,
        epoch: int = 0,
        *,
        stream: tuple[str, str] = ("", ""),
        incarnation: int = 0,
        site: str = "",
        reason: str = "",
        digest: int | None = None,
        latency: dict[int, int] | None = None,
        **detail: Any,
    ) -> Writer:
        self.wall_us += SECOND_US
        self.rows.append(
            JournalRow(
                len(self.rows) + 1, self.boot_name, kind, self.wall_us, self.wall_us, self.wall_us - T,
                *stream, 0, epoch, incarnation, first, first if last is None else last, site,
                self.client if self.role == "group" else "", reason, digest, latency, detail or None,
            )
        )  # fmt: skip
        return self

    def chain(self) -> Chain:
        return Chain(self.role, self.client, f"{self.client}.db", self.rows, to_the_end=False)


def renamed(chains: Iterable[Chain], suffix: str) -> list[Chain]:
    """The same journals of other clients: `suffix` is appended to every client, group and topic."""
    return [
        Chain(
            chain.role,
            chain.client + suffix,
            chain.source,
            [renamed_row(row, suffix) for row in chain.rows],
            to_the_end=False,
        )
        for chain in chains
    ]


def soup(seed: int) -> list[Chain]:
    """Journals in which nearly everything may be wrong, with few numbers so that rows often overlap."""
    rng = random.Random(seed)
    topics = [f"t{seed}", f"u{seed}"][: rng.randint(1, 2)]
    producers = [f"p{seed}", f"q{seed}"][: rng.randint(1, 2)]
    groups = [f"g{seed}", f"h{seed}"][: rng.randint(1, 2)]
    tidy = rng.random() < 0.6
    chains = [_producer(rng, name, topics, groups, tidy) for name in producers[: rng.choice((1, 2, 2))]]
    chains += [_group(rng, name, topics, producers, tidy) for name in groups]
    if rng.random() < 0.1:
        chains.append(_group(rng, groups[0], topics, producers, tidy))
    if rng.random() < 0.1:
        chains.append(_producer(rng, producers[0], topics, groups, tidy))
    return chains


def _end(rng: random.Random, writer: Writer) -> Chain:
    if rng.random() < 0.6:
        writer.add("closed")
    if rng.random() < 0.1:
        del writer.rows[rng.randrange(len(writer.rows))]
    if not writer.rows:
        writer.boot()
    return writer.chain()


def _sum(rng: random.Random, name: str, first: int, last: int, doubtful: float) -> int | None:
    total = sum_of(name, first, last)
    chance = rng.random()
    return None if chance < doubtful else (total + 1) % 2**64 if chance < 2 * doubtful else total


def _producer(rng: random.Random, name: str, topics: list[str], groups: list[str], tidy: bool) -> Chain:
    writer = Writer("producer", name, wall_us=T + rng.randrange(10**6))
    tips: dict[str, tuple[int, int, int]] = {}
    boots = rng.randint(1, 2)
    for epoch in range(1, boots + 1):
        sites = rng.choice((["dc1", "dc2"], ["dc1"], []))
        named = {topic: groups[: rng.randint(0, len(groups))] for topic in topics}
        writer.boot(groups=named, sites=sites, confirm=rng.choice(("all", "all", "any")))
        for topic in topics:
            stream, incarnation = (name, topic), epoch + 40
            if rng.random() < 0.8:
                prev: Any = tips.get(topic)
                if prev and rng.random() < 0.5:
                    prev = (prev[0], f"{prev[1]:016x}", prev[2])
                if rng.random() < 0.05:
                    prev = (epoch - 1, 7, 3)
                writer.add(
                    "epoch", stream=stream, epoch=epoch, incarnation=incarnation, prev=prev and list(prev)
                )
            last = 0
            for _ in range(rng.randint(0, 4)):
                first = last + 1 if rng.random() < (0.95 if tidy else 0.6) else rng.randint(1, 9)
                last = first + rng.randint(0, 3)
                real = epoch if tidy or rng.random() < 0.9 else rng.randint(1, 2)
                place: dict[str, Any] = {"epoch": real, "stream": stream}
                total = _sum(rng, f"{name}{topic}", first, last, 0.01 if tidy else 0.1)
                writer.add(
                    "enqueued", first, last, incarnation=incarnation, digest=total, latency={9: 1}, **place
                )
                tips[topic] = max((tips.get(topic) or (0, 0, 0)), (real, incarnation, last))
                for site in ("dc1", "dc2"):
                    if rng.random() < 0.9:
                        at = rng.choice((first, first, first + 1))
                        writer.add("confirmed", at, last, site=site, latency={rng.randint(0, 40): 2}, **place)
                if rng.random() < 0.8:
                    writer.add("published", first, last + (rng.random() < 0.1), **place)
            for _ in range(rng.choice((0, 0, 1))):
                first = rng.randint(1, 9)
                if rng.random() < 0.3:
                    old, new = rng.randint(1, 2), rng.randint(2, 4)
                    writer.rows.append(
                        replace(
                            writer.add("renumbered", 1, last, old, stream=stream).rows.pop(),
                            detail={"epoch": new},
                        )
                    )
                    continue
                kind = rng.choice(("removed", "renumbered", "confirmed", "published", "enqueued", *_DECLINED))
                writer.add(
                    kind, first, first + rng.randint(0, 3), rng.randint(1, 2), stream=stream, site="dc1"
                )
    return _end(rng, writer)


_DECLINED = ("nacked", "returned", "refused", "parked", "parked", "resumed")
_SAID = (
    "acknowledged", "acknowledged", "declared", "before_join", "late", "dead_lettered", "replayed", "buffered",
    "joined", "received", "duplicate", "delivered", "redelivered",
)  # fmt: skip


def _group(rng: random.Random, name: str, topics: list[str], producers: list[str], tidy: bool) -> Chain:
    writer = Writer("group", name, wall_us=T + rng.randrange(10**6))
    for _ in range(rng.randint(1, 2)):
        writer.boot(
            topics=topics[: rng.randint(0, len(topics))], begin=rng.choice(("earliest", "earliest", "latest"))
        )
        for producer in producers:
            for topic in topics:
                _read(rng, writer, (producer, topic), tidy)
    return _end(rng, writer)


def _read(rng: random.Random, writer: Writer, stream: tuple[str, str], tidy: bool) -> None:
    for epoch in (1, 2)[: rng.randint(0, 2)]:
        if rng.random() < 0.6:
            writer.add("joined", rng.choice((0, 1, 1, 4)), epoch=epoch, stream=stream)
        last = rng.choice((0, 0, 0, 3))
        for _ in range(rng.randint(0, 4)):
            first = last + 1 if rng.random() < (0.9 if tidy else 0.5) else rng.randint(1, 9)
            last = first + rng.randint(0, 4)
            place: dict[str, Any] = {"epoch": epoch, "stream": stream}
            for site in ("dc1", "dc2"):
                if rng.random() < 0.6:
                    writer.add("received", first, last, site=site, **place)
            kind = rng.choice(("delivered", "delivered", "delivered", "redelivered"))
            if tidy or rng.random() < 0.8:
                total = _sum(rng, "".join(stream), first, last, 0.02 if tidy else 0.1)
                writer.add(kind, first, last, digest=total, latency={rng.randint(0, 60): 3}, **place)
            if rng.random() < 0.7:
                writer.add("acknowledged", first, last, **place)
        for _ in range(rng.choice((0, 0, 1, 3)) if not tidy else rng.choice((0, 0, 0, 1))):
            first = rng.randint(1, 12)
            end = rng.choice((first, first + 2, first + 5))
            detail: dict[str, Any] = {}
            said = rng.choice(_SAID)
            if said in ("declared", "before_join") and rng.random() < 0.2:
                end = 0
            if rng.random() < 0.15:
                _operate(rng, writer, stream, first, end)
            if said == "declared" and rng.random() < 0.2:
                detail["until_epoch"] = rng.randint(1, 3)
            writer.add(
                said, first, end, rng.choice((0, 1, 1, 2)) if said == "declared" else epoch, stream=stream,
                site=rng.choice(("dc1", "dc2")) if said in ("received", "duplicate", "buffered") else "",
                digest=sum_of("".join(stream), first, end) if said in ("delivered", "redelivered") else None,
                **detail,
            )  # fmt: skip


def _operate(rng: random.Random, writer: Writer, stream: tuple[str, str], first: int, last: int) -> None:
    """Messages that wait for an operator, and decisions of an operator."""
    kind = rng.choice(
        ("forgotten", "forgotten", "quarantined", "quarantined", "quarantine_discarded", "gap_held")
    )
    reason = rng.choice(("", "forged", "forged", "unremembered")) if kind == "forgotten" else "held"
    site = rng.choice(("dc1", "dc2")) if kind.startswith("quarantine") else ""
    writer.add(kind, first, last, rng.choice((1, 1, 2)), stream=stream, reason=reason, site=site)

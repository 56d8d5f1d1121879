"""Correct histories of a run, made from a seed, and the means to corrupt them.

A history is the entries of each client's journal, boot by boot, in order; :meth:`History.chains` writes them with the
real journal, so that rows are extended as in a client. Mutants change entries, not rows.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from reliamsg.checker import ApplicationLog, AppRecord, Chain, Expect, Report, check, sha256
from reliamsg.message import Prev, Stream, digest
from reliamsg.store.database import migrations, statements
from reliamsg.store.journal import Entry, Journal, read_journal

SITES = ("dc1", "dc2")
EPOCH = 1_700_000_000_000


def body_of(stream: Stream, epoch: int, seq: int) -> bytes:
    return f"{stream}/{epoch}/{seq}".encode()


def digest_of(stream: Stream, epoch: int, first: int, last: int) -> int:
    return sum(digest(seq, body_of(stream, epoch, seq), None, None) for seq in range(first, last + 1))


@dataclass
class History:
    """Entries by client and boot, and the applications' records by log."""

    producers: dict[str, list[list[Entry]]] = field(default_factory=dict)
    groups: dict[str, list[list[Entry]]] = field(default_factory=dict)
    seconds: dict[str, list[list[Entry]]] = field(default_factory=dict)
    """The second inbox of each group with two."""
    logs: dict[str, list[AppRecord]] = field(default_factory=dict)
    torn: set[str] = field(default_factory=set)
    """Clients whose last boot was never closed."""

    def chains(self) -> list[Chain]:
        chains = [write(("producer", name), boots) for name, boots in self.producers.items()]
        chains += [write(("group", name), boots) for name, boots in self.groups.items()]
        return chains + [
            write(("group", name), boots, first_boot=100) for name, boots in self.seconds.items()
        ]

    def applogs(self) -> list[ApplicationLog]:
        return [ApplicationLog(name, records) for name, records in self.logs.items()]

    def check(self, expect: Expect | None = None) -> Report:
        return check(self.chains(), self.applogs(), expect or Expect(drained=True))

    def boots(self, client: str) -> list[list[Entry]]:
        return self.producers[client] if client in self.producers else self.groups[client]

    def entries(self, client: str, kind: str) -> list[tuple[list[Entry], int]]:
        """The (boot, index) pairs of a kind's entries."""
        return [
            (boot, i) for boot in self.boots(client) for i, entry in enumerate(boot) if entry.kind == kind
        ]


@cache
def _empty(kind: Literal["outbox", "inbox"]) -> sqlite3.Connection:
    """To be copied: creating the tables takes longer than writing a journal."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    for statement in statements(migrations(kind)[0]):
        connection.execute(statement)
    return connection


def write(
    client: tuple[str, str], boots: list[list[Entry]], step_us: int = 1000, first_boot: int = 1
) -> Chain:
    """Write a client's entries with the real journal and read the rows back."""
    role, name = client
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        _empty("outbox" if role == "producer" else "inbox").backup(connection)
        clock = 1_700_000_000_000_000
        for number, boot in enumerate(boots, first_boot):
            journal = Journal(f"{number:016x}")
            for entry in boot:
                clock += step_us
                # Tests of gap clocks need to set the time.
                clock += int((entry.detail or {}).get("after_s", 0) * 1e6)
                journal.write(connection, [replace(entry)], clock, clock)
                journal.settle(True)
        rows = list(read_journal(connection))
    finally:
        connection.close()
    return Chain("producer" if role == "producer" else "group", name, f"{name}.db", rows)


def make(seed: int, *, size: int = 60, boots: int = 3, logs: bool = True) -> History:
    """A faultless run, crashes included."""
    rng = random.Random(seed)
    history = History()
    topics = ["orders", "audit"][: rng.randint(1, 2)]
    groups = ["primary", "secondary"]
    published: dict[Stream, list[tuple[int, int, int]]] = {}
    for name in ("A", "B"):
        _make_producer(rng, history, name, topics, groups, published, size, rng.randint(1, boots))
    for group in groups:
        _Consumer(rng, history, group, topics, published).run(rng.randint(1, boots), logs)
    if logs:
        for name in ("A", "B"):
            history.logs[f"publish-{name}"] = list(_publisher_log(name, published))
    return history


def _make_producer(
    rng: random.Random,
    history: History,
    name: str,
    topics: list[str],
    groups: list[str],
    published: dict[Stream, list[tuple[int, int, int]]],
    size: int,
    boots: int,
) -> None:
    history.producers[name] = []
    tips: dict[Stream, Prev] = {}
    for number in range(boots):
        epoch, incarnation = EPOCH + number * 10, rng.getrandbits(64) | 1
        boot = [
            Entry("opened", detail={"groups": dict.fromkeys(topics, groups), "sites": list(SITES),
                                    "confirm": "all", "version": "0.1.0"})
        ]  # fmt: skip
        boot += [Entry("connected", site=site) for site in SITES]
        for topic in topics:
            stream = Stream(name, topic)
            count = rng.randint(5, size)
            prev = tips.get(stream)
            boot.append(
                Entry("epoch", stream, epoch, incarnation, detail={"prev": list(prev) if prev else None})
            )
            seq = 1
            while seq <= count:
                last = min(count, seq + rng.randint(0, 15))
                place = (stream, epoch, incarnation, seq, last)
                boot.append(
                    Entry("enqueued", *place, digest=digest_of(stream, epoch, seq, last), latency={8: 1})
                )
                boot += [Entry("confirmed", *place, site=site) for site in SITES]
                boot.append(Entry("published", *place))
                seq = last + 1
            tips[stream] = Prev(epoch, incarnation, count)
            published.setdefault(stream, []).append((epoch, incarnation, count))
        if number == boots - 1:
            boot.append(Entry("closed", detail={"pending": 0}))
        history.producers[name].append(boot)


class _Consumer:
    """A group that reads everything, with crashes on the way."""

    def __init__(
        self,
        rng: random.Random,
        history: History,
        group: str,
        topics: list[str],
        published: dict[Stream, list[tuple[int, int, int]]],
    ) -> None:
        self.rng = rng
        self.group = group
        self.topics = topics
        self.places = {
            stream: [(epoch, inc, seq) for epoch, inc, count in epochs for seq in range(1, count + 1)]
            for stream, epochs in published.items()
        }
        self.given = dict.fromkeys(self.places, 0)
        """How many messages of each stream were delivered, according to the journal."""
        self.settled = dict.fromkeys(self.places, 0)
        self.history = history
        self.boots: list[list[Entry]] = []
        self.log = [AppRecord("opened", group=group, topics=topics, t=1.0)]

    def run(self, boots: int, logs: bool) -> None:
        for number in range(boots):
            final = number == boots - 1
            self.boots.append(
                [Entry("opened", detail={"topics": self.topics, "sites": list(SITES), "begin": "earliest"})]
            )
            self.boots[-1] += [
                Entry("connected", site=site, detail={"session_present": number > 0}) for site in SITES
            ]
            self._redeliver()
            self._deliver(final)
            if final:
                self.boots[-1].append(Entry("closed"))
        self.history.groups[self.group] = self.boots
        if logs:
            self.history.logs[f"consume-{self.group}"] = self.log

    def _redeliver(self) -> None:
        """Unacknowledged messages are redelivered, possibly with those whose delivery the crash kept from the
        journal."""
        for stream, places in self.places.items():
            beyond = self.rng.choice((0, 0, 3)) if self.given[stream] > self.settled[stream] else 0
            stop = min(len(places), self.given[stream] + beyond)
            self._hand("redelivered", stream, self.settled[stream], self.given[stream])
            # A separate row; otherwise no sum could be compared across the place where the journal was interrupted.
            self._hand("redelivered", stream, self.given[stream], stop, reason="unrecorded")
            self.given[stream] = stop

    def _deliver(self, final: bool) -> None:
        streams = list(self.places)
        while any(self.given[s] < len(self.places[s]) for s in streams):
            stream = self.rng.choice(streams)
            start = self.given[stream]
            stop = min(len(self.places[stream]), start + self.rng.randint(1, 20))
            if start < stop:
                if start == 0:
                    epoch, inc, seq = self.places[stream][0]
                    self.boots[-1].append(Entry("joined", stream, epoch, inc, seq, seq, group=self.group))
                self._receive(stream, start, stop)
                self._hand("delivered", stream, start, stop)
                self.given[stream] = stop
            if self.rng.random() < 0.5:
                self._acknowledge(stream)
            if not final and self.rng.random() < 0.2:
                return
        if final:
            for stream in streams:
                self._acknowledge(stream, everything=True)
            self.boots[-1] += [Entry("drained", site=site) for site in SITES]

    def _receive(self, stream: Stream, start: int, stop: int) -> None:
        for place in self._runs(stream, start, stop):
            first, second = self.rng.sample(SITES, 2)
            self.boots[-1].append(Entry("received", *place, site=first, group=self.group))
            if self.rng.random() < 0.8:
                self.boots[-1].append(Entry("duplicate", *place, site=second, group=self.group))

    def _hand(self, kind: str, stream: Stream, start: int, stop: int, reason: str = "") -> None:
        for place in self._runs(stream, start, stop):
            _, epoch, _, first, last = place
            total = digest_of(stream, epoch, first, last)
            self.boots[-1].append(Entry(kind, *place, group=self.group, digest=total, reason=reason))
        for epoch, _, seq in self.places[stream][start:stop]:
            self._log("delivered", stream, epoch, seq, kind == "redelivered")

    def _acknowledge(self, stream: Stream, everything: bool = False) -> None:
        start, given = self.settled[stream], self.given[stream]
        stop = given if everything else self.rng.randint(start, given)
        for place in self._runs(stream, start, stop):
            self.boots[-1].append(Entry("acknowledged", *place, group=self.group))
        for epoch, _, seq in self.places[stream][start:stop]:
            self._log("acknowledged", stream, epoch, seq, False)
        self.settled[stream] = stop

    def _runs(self, stream: Stream, start: int, stop: int) -> Iterator[tuple[Stream, int, int, int, int]]:
        """Places `start` to `stop` as ranges within an epoch."""
        run: list[tuple[int, int, int]] = []
        for place in self.places[stream][start:stop]:
            if run and run[-1][0] != place[0]:
                yield (stream, run[0][0], run[0][1], run[0][2], run[-1][2])
                run = []
            run.append(place)
        if run:
            yield (stream, run[0][0], run[0][1], run[0][2], run[-1][2])

    def _log(self, op: str, stream: Stream, epoch: int, seq: int, redelivered: bool) -> None:
        self.log.append(
            AppRecord(op, group=self.group, producer=stream.producer, topic=stream.topic, epoch=epoch, seq=seq,
                      redelivered=redelivered, durable=op == "acknowledged",
                      sha256=sha256(body_of(stream, epoch, seq)) if op == "delivered" else "", t=2.0)
        )  # fmt: skip


def _publisher_log(name: str, published: dict[Stream, list[tuple[int, int, int]]]) -> Iterator[AppRecord]:
    yield AppRecord("opened", producer=name, t=1.0)
    for stream, epochs in published.items():
        if stream.producer != name:
            continue
        n = 0
        for epoch, _, count in epochs:
            for seq in range(1, count + 1):
                n += 1
                hashed = sha256(body_of(stream, epoch, seq))
                base = AppRecord(
                    "publish", "invoked", producer=name, topic=stream.topic, n=n, sha256=hashed, t=2.0
                )
                yield base
                # The very last call may have been cut short by a crash, with its message stored nevertheless.
                if (epoch, seq) == (epochs[-1][0], epochs[-1][2]):
                    yield _with(base, outcome="indeterminate")
                else:
                    yield _with(base, outcome="ok", epoch=epoch, seq=seq)


def _with(record: AppRecord, **changes: object) -> AppRecord:
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return AppRecord(**{**fields, **changes})


Mutant = Callable[[History], None]

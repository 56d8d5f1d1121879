"""Journals of any size, written straight into segments, and the truth about them.

They are what clients journal that publish and consume in order over two sites: nine rows for each range of messages.
Some streams are disturbed in ways that harm nobody (an outage of a site, repairs, redeliveries after a restart, copies
that come late, a group that is added in the middle), and some have a planted fault. If any is disturbed, a copy of the
group's inbox was opened once elsewhere, so that its journal has two histories.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Traffic", "Truth", "write_journals"]

EPOCH = 1_790_000_000_000
INCARNATION = "30c664c568b2744a"
WALL_US = 1_790_000_000_000_000
SITES = ("dc1", "dc2")
GROUP, ADDED = "group", "added"
DISTURBANCES = ("outage", "repairs", "restart", "copies", "added")
FAULTS = (
    "lost", "declared_gap", "duplicate", "corrupt", "removed", "unacknowledged", "pending", "phantom", "out_of_order",
)  # fmt: skip


@dataclass(frozen=True)
class Traffic:
    """The traffic of some producers to one group. `size`: messages in a range; `ranges`: of each stream."""

    streams: int
    ranges: int
    size: int
    producers: int = 1
    segment_rows: int = 10_000
    site_gaps: bool = False
    """Every second range never reaches the second site."""
    apart: bool = False
    """Each row is followed by one of another kind that keeps it from being joined to the next."""
    disturbed: float = 0.0
    """The share of streams that are disturbed."""
    faults: int = 0
    """The number of streams with a fault, among the disturbed ones."""


@dataclass
class Truth:
    """What an audit must find."""

    messages: int = 0
    rows: int = 0
    delivered: int = 0
    """To the group that reads everything."""
    found: list[tuple[str, str, str, int, str, int, int]] = field(default_factory=list)
    """Kind, producer, topic, partition, group and range of each finding."""

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(vars(self)) + "\n", encoding="utf-8")


class _Client:
    """The journal of one client."""

    def __init__(self, place: Path, role: str, name: str, rows: int) -> None:
        self._place = place / f"role={role}" / f"client={name}" / "date=2026-09-21"
        self._place.mkdir(parents=True)
        self._role, self.name, self._most = role, name, rows
        self._boots = 0
        self._boot = ""
        self._lines: list[str] = []
        self._parent = "null"
        self._first = 1
        self.lsn = 0

    def boot(self, rest: str) -> None:
        """Begin the next opening."""
        self.flush()
        self._boots += 1
        self._boot = hashlib.sha256(f"{self._role}/{self.name}/{self._boots}".encode()).hexdigest()[:16]
        self.row("opened", rest)

    def fork(self, rest: str) -> int:
        """A copy of the file is opened and closed elsewhere, and does nothing. Returns the number of its rows, with
        those that it shares."""
        self.flush()
        here = self._boot, self._parent, self._first, self.lsn
        self._boot = hashlib.sha256(f"{self._role}/{self.name}/copy".encode()).hexdigest()[:16]
        self.row("opened", rest)
        self.row("closed", f',"group":"{self.name}"')
        self.flush()
        rows = self.lsn
        self._boot, self._parent, self._first, self.lsn = here
        return rows

    def row(self, kind: str, rest: str) -> None:
        """Add a row; `rest` are its other fields as JSON, each after a comma."""
        self.lsn = lsn = self.lsn + 1
        at = WALL_US + lsn * 1_000
        self._lines.append(
            f'{{"lsn":{lsn},"boot":"{self._boot}","kind":"{kind}","wall_us":{at},"wall_last_us":{at},'
            f'"mono_us":{lsn * 1_000}{rest}}}'
        )
        if len(self._lines) >= self._most:
            self.flush()

    def flush(self) -> None:
        """Write the segment."""
        if not self._lines:
            return
        header = (
            f'{{"format":"reliamsg.journal","version":1,"role":"{self._role}","client":"{self.name}",'
            f'"boot":"{self._boot}","first_lsn":{self._first},"last_lsn":{self.lsn},"rows":{len(self._lines)},'
            f'"parent":{self._parent}}}'
        )
        data = "\n".join([header, *self._lines, ""]).encode()
        digest = hashlib.sha256(data).hexdigest()
        (self._place / f"{self._boot}-{self._first:019}-{digest}.ndjson").write_bytes(data)
        self._parent, self._first, self._lines = f'"{digest}"', self.lsn + 1, []


@dataclass
class _Stream:
    """One stream, with its clients."""

    producer: _Client
    group: _Client
    added: _Client | None
    topic: str
    part: int
    traffic: Traffic
    disturbance: str = ""
    fault: str = ""

    def range(self, number: int) -> tuple[int, int]:
        size = self.traffic.size
        return number * size + 1, (number + 1) * size

    def fields(self, number: int, beyond: int = 0) -> str:
        first, last = self.range(number)
        return (
            f',"producer":"{self.producer.name}","topic":"{self.topic}","part":{self.part},"epoch":{EPOCH},'
            f'"incarnation":"{INCARNATION}","first":{first + beyond},"last":{last + beyond}'
        )

    def begin(self) -> None:
        stream = (
            f',"producer":"{self.producer.name}","topic":"{self.topic}","part":{self.part},"epoch":{EPOCH}'
        )
        self.producer.row("epoch", f'{stream},"incarnation":"{INCARNATION}","detail":{{"prev":null}}')
        self.group.row("joined", f'{stream},"first":1,"last":1,"group":"{GROUP}"')

    def publish(self, number: int) -> None:
        """The producer's rows about a range."""
        traffic, row, own = self.traffic, self.producer.row, self.fields(number)
        size = traffic.size
        is_last = number == traffic.ranges - 1
        row("enqueued", f'{own},"digest":"{size:016x}","latency":{{"31":{size}}}')
        if self.fault == "pending" and is_last:
            return
        for site in self._sites(number):
            row("confirmed", f'{own},"site":"{site}","latency":{{"51":{size}}}')
        row("published", own)
        if self.disturbance == "repairs" and number == traffic.ranges // 3:
            row("repaired", f'{own},"site":"dc1","group":"{GROUP}"')
        if self.fault == "removed" and number == self._place:
            row("removed", own)
        elif not (self.fault in ("lost", "declared_gap") and number == self._place) and not (
            self.fault == "unacknowledged" and is_last
        ):
            row("consumed", f'{own},"group":"{GROUP}"')
        if traffic.apart:
            row("nacked", f'{own},"site":"dc3","reason":"full"')

    def consume(self, number: int) -> None:
        """The group's rows about a range."""
        traffic, row, own = self.traffic, self.group.row, self.fields(number)
        is_last = number == traffic.ranges - 1
        if self.fault == "pending" and is_last:
            return
        if self.disturbance == "repairs" and number == traffic.ranges // 3:
            row("asked", f'{own},"group":"{GROUP}"')
            row("received", f'{own},"site":"dc1","group":"{GROUP}","reason":"repair"')
        else:
            for site in self._sites(number):
                row("received", f'{own},"site":"{site}","group":"{GROUP}"')
        if self.disturbance == "copies" and number % 7 == 3:
            row("duplicate", f'{self.fields(number - 1)},"site":"dc2","group":"{GROUP}"')
        if number == self._place and self.fault in ("lost", "removed", "declared_gap"):
            if self.fault != "lost":
                reason = "removed" if self.fault == "removed" else "refused"
                row("declared", f'{own},"group":"{GROUP}","reason":"{reason}"')
            return
        if self.fault == "out_of_order" and number in (self._place, self._place + 1):
            if number == self._place + 1:
                self._deliver(number)
                self._deliver(number - 1)
            return
        self._deliver(number)
        if self.fault == "duplicate" and number == self._place:
            row("delivered", f'{own},"group":"{GROUP}","digest":"{traffic.size:016x}"')
        if self.fault == "phantom" and is_last:
            beyond = self.fields(number, traffic.size)
            row("delivered", f'{beyond},"group":"{GROUP}","digest":"{traffic.size:016x}"')
            row("acknowledged", f'{beyond},"group":"{GROUP}"')
        if traffic.apart:
            row("gap_closed", f'{own},"group":"{GROUP}","reason":"filled"')

    def _deliver(self, number: int) -> None:
        traffic, row, own = self.traffic, self.group.row, self.fields(number)
        size = traffic.size
        digest = size + (self.fault == "corrupt" and number == self._place)
        row("delivered", f'{own},"group":"{GROUP}","digest":"{digest:016x}","latency":{{"71":{size}}}')
        is_last = number == traffic.ranges - 1
        interrupted = self.disturbance == "restart" and number == traffic.ranges // 2 - 1
        if not interrupted and not (self.fault == "unacknowledged" and is_last):
            row("acknowledged", f'{own},"group":"{GROUP}"')
        if self.added is not None and number >= traffic.ranges // 2:
            self.added.row("delivered", f'{own},"group":"{ADDED}","digest":"{size:016x}"')
            self.added.row("acknowledged", f'{own},"group":"{ADDED}"')

    def restart(self) -> None:
        """The group was opened again before the middle: what it had not acknowledged comes again."""
        if self.disturbance == "restart":
            own = self.fields(self.traffic.ranges // 2 - 1)
            self.group.row("redelivered", f'{own},"group":"{GROUP}","digest":"{self.traffic.size:016x}"')
            self.group.row("acknowledged", f'{own},"group":"{GROUP}"')

    def add_group(self) -> None:
        """The second group counts from the middle on."""
        if self.added is not None:
            first, _ = self.range(self.traffic.ranges // 2)
            place = (
                f',"producer":"{self.producer.name}","topic":"{self.topic}","part":{self.part},"epoch":{EPOCH},'
                f'"first":{first},"last":{first},"group":"{ADDED}"'
            )
            self.producer.row("group_added", place)
            self.added.row("joined", place)

    def truth(self) -> Iterator[tuple[str, str, str, int, str, int, int]]:
        """What its fault leads to."""
        place = (
            self._place
            if self.fault not in ("unacknowledged", "pending", "phantom")
            else self.traffic.ranges - 1
        )
        first, last = self.range(place)
        if self.fault == "phantom":
            first, last = first + self.traffic.size, last + self.traffic.size
        kinds = ("undeclared_gap", "lost") if self.fault == "lost" else (self.fault,)
        for kind in kinds if self.fault else ():
            group = "" if kind == "pending" else GROUP
            yield kind, self.producer.name, self.topic, self.part, group, first, last

    @property
    def undelivered(self) -> int:
        """The number of its messages that never reach the group."""
        return self.traffic.size * (self.fault in ("lost", "declared_gap", "removed", "pending"))

    @property
    def _place(self) -> int:
        """The range with the fault."""
        return self.traffic.ranges * 3 // 4

    def _sites(self, number: int) -> tuple[str, ...]:
        ranges = self.traffic.ranges
        is_out = self.disturbance == "outage" and ranges // 3 <= number < ranges // 2
        return SITES[:1] if is_out or (self.traffic.site_gaps and number % 2) else SITES


def write_journals(place: Path, traffic: Traffic) -> Truth:
    """Write segments below `place`, and ``truth.json``."""
    rows = traffic.segment_rows
    group = _Client(place, "group", GROUP, rows)
    producers = [_Client(place, "producer", f"p{number}", rows) for number in range(traffic.producers)]
    disturbed = _disturbed(traffic)
    added = (
        _Client(place, "group", ADDED, rows) if "added" in {kind for kind, _ in disturbed.values()} else None
    )
    streams = []
    for number in range(traffic.streams):
        kind, fault = disturbed.get(number, ("", ""))
        topic = "added" if kind == "added" else f"t{number // traffic.producers // 100}"
        streams.append(
            _Stream(
                producers[number % traffic.producers], group, added if kind == "added" else None, topic,
                number // traffic.producers % 100 if topic != "added" else number, traffic, kind, fault,
            )
        )  # fmt: skip
    copied = _run(streams, producers, group, added)
    truth = Truth(traffic.streams * traffic.ranges * traffic.size)
    for stream in streams:
        truth.found += stream.truth()
    truth.delivered = truth.messages - sum(stream.undelivered for stream in streams)
    truth.delivered += sum(traffic.size for stream in streams if stream.fault == "phantom")
    truth.rows = copied + sum(each.lsn for each in (group, *producers, *([added] if added else [])))
    truth.write(place / "truth.json")
    return truth


def _disturbed(traffic: Traffic) -> dict[int, tuple[str, str]]:
    """Disturbances and faults by the number of the stream. Those with faults are not disturbed otherwise."""
    count = round(traffic.streams * traffic.disturbed)
    step = traffic.streams // count if count else 1
    found = {}
    for number in range(count):
        fault = FAULTS[number % len(FAULTS)] if number < traffic.faults else ""
        found[number * step] = ("" if fault else DISTURBANCES[number % len(DISTURBANCES)], fault)
    return found


def _run(streams: list[_Stream], producers: list[_Client], group: _Client, added: _Client | None) -> int:
    """Write all rows; returns the number of those in the history of a copy."""
    topics = sorted({stream.topic for stream in streams})
    named = json.dumps({topic: [GROUP] for topic in topics})
    for producer in producers:
        producer.boot(
            f',"epoch":{EPOCH},"incarnation":"{INCARNATION}","detail":{{"groups":{named},"sites":["dc1","dc2"],'
            f'"confirm":"any","release":"confirmed"}}'
        )
    opened = _opened(GROUP, topics, "earliest")
    group.boot(opened)
    if added is not None:
        added.boot(_opened(ADDED, ["added"], "latest"))
    for stream in streams:
        stream.begin()
    middle, copied = streams[0].traffic.ranges // 2, 0
    steps: list[Callable[[_Stream, int], Any]] = [_Stream.publish, _Stream.consume]
    for number in range(streams[0].traffic.ranges):
        if number == middle and streams[0].traffic.disturbed:
            copied = group.fork(opened)
        if number == middle and any(stream.disturbance == "restart" for stream in streams):
            group.boot(opened)
            for stream in streams:
                stream.restart()
        for stream in streams:
            if number == middle:
                stream.add_group()
            for step in steps:
                step(stream, number)
    for client in (*producers, group, *([added] if added is not None else [])):
        client.row(
            "closed", f',"group":"{client.name}"' if client in (group, added) else ',"detail":{"pending":0}'
        )
        client.flush()
    return copied


def _opened(name: str, topics: list[str], begin: str) -> str:
    return (
        f',"group":"{name}","detail":{{"topics":{json.dumps(topics)},"sites":["dc1","dc2"],"begin":"{begin}",'
        f'"gap_timeout":30.0,"on_gap":"hold","inbox":"{name}"}}'
    )

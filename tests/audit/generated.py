"""Random journals: a small model run, written with the real journal, and possibly corrupted.

Every client, topic and site of a run has the run's tag in its name, so that many runs can be judged together and each
finding can be attributed to its run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from reliamsg.checker.journals import Chain, Role
from reliamsg.keys import KeyRing
from reliamsg.message import Prev, Stream
from reliamsg.store.journal import Entry, JournalRow
from reliamsg.store.segment import Segment, encode
from tests.checker.histories import EPOCH, digest_of, write

__all__ = ["GAP_TIMEOUT", "Journals", "Signing", "journals", "segments", "spoil", "write_chains"]

GAP_TIMEOUT = 30.0
"""The gap timeout of every group, in seconds."""

Place = tuple[Stream, int, int, int, int]
"""Stream, epoch, incarnation, and a range."""
Number = tuple[int, int, int]
"""Epoch, incarnation, sequence number."""
_RANGED = frozenset(
    {
        "enqueued", "confirmed", "published", "removed", "received", "duplicate", "buffered", "delivered",
        "redelivered", "acknowledged", "declared", "before_join", "late", "dead_lettered", "replayed", "joined",
        "gap_opened", "consumed", "released", "repaired",
    }
)  # fmt: skip


@dataclass
class Journals:
    """The journals of one run."""

    tag: str
    clients: list[tuple[Role, str, Sequence[JournalRow]]] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    """The corruptions."""

    def chains(self) -> list[Chain]:
        """Like segments: a journal that was not closed may have more rows."""
        return [
            Chain(role, name, f"{name}-{number}", rows, to_the_end=False)
            for number, (role, name, rows) in enumerate(self.clients)
        ]

    def write(self, directory: Path, rng: random.Random, keys: Signing | None = None) -> None:
        """Write the segments of the clients below `directory`, cut at random. `keys`: see :func:`segments`."""
        for role, name, rows in self.clients:
            _write(directory, role, name, rows, rng, keys)

    def __str__(self) -> str:
        lines = [f"run {self.tag}, spoilt by {self.changes or 'nothing'}"]
        for role, name, rows in self.clients:
            lines.append(f"{role} {name}:")
            lines += [f"  {_line(row)}" for row in rows]
        return "\n".join(lines)


def _line(row: JournalRow) -> str:
    about = (
        f"{row.producer}/{row.topic} {row.epoch}:{row.incarnation:x} {row.first}-{row.last}"
        if row.topic
        else ""
    )
    digest = "" if row.digest is None else f"{row.digest:016x}"
    found = (row.lsn, row.boot, row.kind, about, row.site, row.reason, digest, row.detail or "")
    return " ".join(str(each) for each in found if each != "")


def journals(seed: int, tag: str, *, clean: bool = True, changes: int = 0, closed: bool = False) -> Journals:
    """The journals of one run; `clean`: one whose verdict is ``complete``. `changes`: the number of corruptions.
    `closed`: every boot was closed, not only the last ones; but groups need not have delivered or received everything
    that the producers' last boots published."""
    rng = random.Random(seed)
    made = _Run(rng, tag, clean, closed).journals()
    for _ in range(changes):
        spoil(rng, made)
    return made


Signing = Callable[[str, str], KeyRing | None]
"""The key for the next segment of a client, by role and name."""


def segments(
    role: Role, client: str, rows: Sequence[JournalRow], rng: random.Random, keys: Signing | None = None
) -> list[Segment]:
    """A client's rows as the segments of a chain, cut at random places, between boots, and at missing rows. `keys`:
    called for each segment, which is signed with the key, if there is one."""
    found: list[Segment] = []
    start = 0
    for end in range(1, len(rows) + 1):
        goes_on = end < len(rows) and (rows[end].boot, rows[end].lsn) == (
            rows[start].boot,
            rows[end - 1].lsn + 1,
        )
        if not goes_on or rng.random() < 0.2:
            parent = found[-1].digest if found else None
            key = None if keys is None else keys(role, client)
            found.append(encode(role, client, rows[start:end], parent, keys=key))
            start = end
    return found


class _Run:
    """The producers and groups of one run."""

    def __init__(self, rng: random.Random, tag: str, clean: bool, closed: bool) -> None:
        self.rng = rng
        self.tag = tag
        self.clean = clean
        self.closed = closed
        self.sites = [f"dc1{tag}", f"dc2{tag}"][: rng.choice((1, 2, 2))]
        self.topics = [f"orders{tag}", f"audit{tag}"][: rng.randint(1, 2)]
        self.groups = [f"g{tag}", f"h{tag}"][: rng.randint(1, 2)]
        self.named = [group for group in self.groups if rng.random() < 0.8]
        """The others may begin anywhere."""
        self.numbers: dict[Stream, list[Number]] = {}
        self.boots: dict[str, list[tuple[int, int]]] = {}
        """Each producer's boots: incarnation, and last row."""
        self.unsent: set[tuple[Stream, int, int]] = set()
        """Removed, or not published: no group receives it."""
        self.ungiven: set[int] = set()
        """Incarnations of which groups deliver nothing."""

    def journals(self) -> Journals:
        made = Journals(self.tag)
        for name in [f"A{self.tag}", f"B{self.tag}"][: self.rng.randint(1, 2)]:
            chain = self._written("producer", name, self._producer(name))
            made.clients.append(("producer", name, chain.rows))
            self.boots[name] = [(boot.rows[0].incarnation, boot.rows[-1].lsn) for boot in chain.boots]
        if self.closed and self.rng.random() < 0.5:
            last = [name for boots in self.boots.values() for name, _ in boots[-1:] if name != boots[0][0]]
            self.ungiven = set(last)
        ends: dict[str, list[object]] = {}
        for name in self.groups:
            rows = self._written("group", name, _Group(self, name).boots()).rows
            made.clients.append(("group", name, rows))
            ends[name] = [rows[-1].boot, rows[-1].lsn]
        made.clients = [
            (
                role,
                name,
                [
                    replace(row, detail={"journal": ends[row.group]}) if row.kind == "consumed" else row
                    for row in rows
                ],
            )
            for role, name, rows in made.clients
        ]
        return made

    def _written(self, role: Role, name: str, boots: list[list[Entry]]) -> Chain:
        for boot in boots[:-1] if self.closed else ():
            boot.append(Entry("closed"))
        return write((role, name), boots)

    def _producer(self, name: str) -> list[list[Entry]]:
        rng = self.rng
        tips: dict[Stream, Prev] = {}
        boots: list[list[Entry]] = []
        epoch, incarnation = EPOCH, rng.getrandbits(63) | 1
        confirm, release = rng.choice(("all", "any")), rng.choice(("confirmed", "consumed"))
        for number in range(rng.randint(1, 3)):
            new = number == 0 or rng.random() < 0.5
            if number and new:
                epoch, incarnation = epoch + 10, rng.getrandbits(63) | 1
            named = dict.fromkeys(self.topics, self.named)
            detail = {"groups": named, "sites": self.sites, "confirm": confirm, "release": release}
            boot = [Entry("opened", epoch=epoch, incarnation=incarnation, detail=detail)]
            boot += [Entry("connected", site=site) for site in self.sites]
            for topic in self.topics:
                stream = Stream(name, topic)
                before = tips.get(stream)
                if before is None or before.epoch != epoch:
                    said = list(before) if before else None
                    boot.append(Entry("epoch", stream, epoch, incarnation, detail={"prev": said}))
                last = before.last if before is not None and before.epoch == epoch else 0
                last = self._publish(boot, stream, epoch, incarnation, last, confirm)
                if before is None or last > (before.last if before.epoch == epoch else 0):
                    tips[stream] = Prev(epoch, incarnation, last)
                if not self.clean:
                    self._membership(boot, stream, epoch, last)
            boots.append(boot)
        if not self.closed:
            self._consumed(boots[-1], [Stream(name, topic) for topic in self.topics])
        if self.clean or rng.random() < 0.9:
            boots[-1].append(Entry("closed", detail={"pending": 0}))
        return boots

    def _membership(self, boot: list[Entry], stream: Stream, epoch: int, last: int) -> None:
        """Groups are added and removed."""
        rng = self.rng
        for _ in range(rng.choice((0, 0, 1, 2))):
            at = rng.randint(1, last + 1)
            since = (stream, epoch, 0, at, at)
            group = rng.choice(self.groups)
            if rng.random() < 0.5:
                boot.append(Entry("group_added", *since, group=group))
            else:
                position = [epoch, at + rng.randint(0, 3)]
                boot.append(Entry("group_removed", *since, group=group, detail={"position": position}))

    def _consumed(self, boot: list[Entry], streams: list[Stream]) -> None:
        """Messages that groups announced as settled, and that in part were released from the outbox then."""
        for stream in streams:
            for place in _ranges(stream, self.numbers.get(stream, [])):
                boot += [Entry("consumed", *place, group=group) for group in self.named]
                if self.rng.random() < 0.5:
                    boot.append(Entry("released", *place))

    def _publish(
        self, boot: list[Entry], stream: Stream, epoch: int, incarnation: int, last: int, confirm: str
    ) -> int:
        """Some batches after `last`; returns the last number."""
        rng = self.rng
        waiting: list[Place] = []
        for _ in range(rng.randint(1, 4)):
            first, last = last + 1, last + rng.randint(1, 9)
            place = (stream, epoch, incarnation, first, last)
            total = digest_of(stream, epoch, first, last)
            boot.append(
                Entry("enqueued", *place, digest=total, latency={rng.randint(4, 30): last - first + 1})
            )
            self.numbers.setdefault(stream, []).extend(
                (epoch, incarnation, seq) for seq in range(first, last + 1)
            )
            waiting.append(place)
            if rng.random() < 0.6:
                self._confirm(boot, waiting, confirm)
        self._confirm(boot, waiting, confirm)
        return last

    def _confirm(self, boot: list[Entry], waiting: list[Place], confirm: str) -> None:
        rng = self.rng
        for place in waiting:
            sites = (
                self.sites if confirm == "all" else rng.sample(self.sites, rng.randint(1, len(self.sites)))
            )
            fate = (
                "published" if self.clean else rng.choices(("published", "removed", "pending"), (30, 1, 1))[0]
            )
            if fate == "published":
                latency = {rng.randint(20, 60): place[4] - place[3] + 1}
                boot += [Entry("confirmed", *place, site=site, latency=latency) for site in sites]
            if fate != "pending":
                boot.append(Entry(fate, *place))
            if fate != "published":
                self.unsent |= {(place[0], place[1], seq) for seq in range(place[3], place[4] + 1)}
        waiting.clear()


class _Group:
    """A group that reads everything, with crashes, gaps, dead letters and replays on the way."""

    def __init__(self, run: _Run, name: str) -> None:
        self.run = run
        self.rng = run.rng
        self.name = name
        self.entries: list[Entry] = []
        self.latest = name not in run.named and self.rng.random() < 0.5
        self.waiting = {
            stream: [number for number in numbers if number[1] not in run.ungiven]
            for stream, numbers in run.numbers.items()
        }
        self.ungiven = {
            stream: [number for number in numbers if number[1] in run.ungiven]
            for stream, numbers in run.numbers.items()
        }
        self.owed: dict[Stream, list[Number]] = {stream: [] for stream in self.waiting}
        """Delivered and not acknowledged."""
        self.dead: list[tuple[Stream, Number]] = []
        self.begun: set[Stream] = set()

    def boots(self) -> list[list[Entry]]:
        found = []
        boots = self.rng.randint(1, 3)
        for number in range(boots):
            begin = "latest" if self.latest else "earliest"
            detail = {
                "topics": self.run.topics,
                "sites": self.run.sites,
                "begin": begin,
                "gap_timeout": GAP_TIMEOUT,
            }
            self.entries = [Entry("opened", detail=detail)]
            self.entries += [
                Entry("connected", site=site, detail=self._connected(number)) for site in self.run.sites
            ]
            for stream, numbers in self.owed.items():
                self._put("redelivered", stream, numbers)
            ends = number == boots - 1 and (self.run.clean or self.rng.random() < 0.9)
            self._read(to_the_end=number == boots - 1)
            if number == boots - 1:
                self._take_in()
            if ends:
                for stream in self.owed:
                    self._acknowledge(stream, everything=True)
                self.entries += [
                    Entry("drained", site=site, detail={"count": 1, "heard": self._heard()})
                    for site in self.run.sites
                ]
                self.entries.append(Entry("closed"))
            found.append(self.entries)
        return found

    def _connected(self, number: int) -> dict[str, object]:
        """A session that is gone proves something if the row says so, and only then."""
        if number == 0:
            return {"session_present": False}
        present = self.rng.choice((True, False, False, None))
        return {"session_present": present, "heard": self._heard()}

    def _read(self, *, to_the_end: bool) -> None:
        rng = self.rng
        while left := [stream for stream, numbers in self.waiting.items() if numbers]:
            stream = rng.choice(left)
            numbers = self.waiting[stream]
            if stream not in self.begun:
                self._join(stream, numbers)
            count = rng.randint(1, 12)
            taken, self.waiting[stream] = numbers[:count], numbers[count:]
            told = [((stream, n[0], n[2]) in self.run.unsent, n) for n in taken]
            for gone, run in groupby(told, lambda each: each[0]):
                (self._give_up if gone else self._take)(stream, [n for _, n in run])
            if rng.random() < 0.5:
                self._acknowledge(stream)
            if self.dead and rng.random() < 0.5:
                letter, number = self.dead.pop()
                self._put("replayed", letter, [number])
            if not to_the_end and rng.random() < 0.15:
                return

    def _take_in(self) -> None:
        """A message that it will not deliver: it may be received, and partly stored."""
        for stream, numbers in self.ungiven.items():
            if not numbers:
                continue
            for place in _ranges(stream, numbers[: self.rng.choice((0, 1, len(numbers)))]):
                self.entries.append(Entry("received", *place, site=self.run.sites[0], group=self.name))
                if self.rng.random() < 0.5:
                    buffered = (*place[:2], 0, *place[3:])
                    self.entries.append(Entry("buffered", *buffered, site=self.run.sites[0], group=self.name))

    def _heard(self) -> dict[str, tuple[int, str]]:
        told = {name: self.rng.choice(boots) for name, boots in self.run.boots.items()}
        return {name: (self.rng.randint(1, rows), f"{boot:016x}") for name, (boot, rows) in told.items()}

    def _join(self, stream: Stream, numbers: list[Number]) -> None:
        self.begun.add(stream)
        if self.latest:
            within = sum(number[0] == numbers[0][0] for number in numbers)
            del numbers[: self.rng.randint(0, within - 1)]
        epoch, incarnation, seq = numbers[0]
        unheard = {"unheard": True} if (epoch + seq) % 3 == 0 else None
        self.entries.append(
            Entry("joined", stream, epoch, incarnation, seq, seq, group=self.name, detail=unheard)
        )

    def _take(self, stream: Stream, numbers: list[Number]) -> None:
        rng = self.rng
        if not self.run.clean and len(numbers) > 2 and rng.random() < 0.08:
            at = rng.randrange(1, len(numbers))
            lost = numbers[at : at + rng.randint(1, 3)]
            self._take(stream, numbers[:at])
            self._give_up(stream, lost)
            numbers = numbers[at + len(lost) :]
            if rng.random() < 0.5:
                self._put("late", stream, lost)
        for place in _ranges(stream, numbers):
            first, *others = rng.sample(self.run.sites, len(self.run.sites))
            how = "repair" if rng.random() < 0.1 else ""
            self.entries.append(Entry("received", *place, site=first, group=self.name, reason=how))
            if rng.random() < 0.3:
                self.entries.append(Entry("buffered", *place, site=first, group=self.name))
            self.entries += [
                Entry("duplicate", *place, site=s, group=self.name) for s in others if rng.random() < 0.8
            ]
        self._put("delivered", stream, numbers)
        self.owed[stream] += numbers
        if numbers and rng.random() < 0.05:
            letter = self.owed[stream].pop()
            self._put("dead_lettered", stream, [letter], reason="poison")
            self.dead.append((stream, letter))

    def _give_up(self, stream: Stream, numbers: list[Number]) -> None:
        for place in _ranges(stream, numbers):
            self.entries.append(Entry("gap_opened", *place, group=self.name))
            # The journal's clock advances as much as the gap's own clock.
            waited = {"elapsed": GAP_TIMEOUT, "after_s": GAP_TIMEOUT}
            self.entries.append(Entry("declared", *place, group=self.name, reason="expired", detail=waited))

    def _acknowledge(self, stream: Stream, everything: bool = False) -> None:
        numbers = self.owed[stream]
        count = len(numbers) if everything else self.rng.randint(0, len(numbers))
        self._put("acknowledged", stream, numbers[:count])
        del numbers[:count]

    def _put(self, kind: str, stream: Stream, numbers: Sequence[Number], reason: str = "") -> None:
        for place in _ranges(stream, numbers):
            given = kind in ("delivered", "redelivered")
            latency = {self.rng.randint(10, 50): place[4] - place[3] + 1} if given else None
            if kind == "acknowledged" and place[3] % 3:  # some rows are without, as from earlier versions
                latency = {place[4] % 60: place[4] - place[3] + 1}
            self.entries.append(
                Entry(
                    kind, *place, group=self.name, reason=reason,
                    digest=digest_of(stream, place[1], *place[3:]) if given else None,
                    latency=latency,
                )
            )  # fmt: skip


def _ranges(stream: Stream, numbers: Sequence[Number]) -> Iterator[Place]:
    """Numbers in order, as ranges that are as long as possible."""
    start = 0
    for end in range(1, len(numbers) + 1):
        one = numbers[end - 1]
        if end == len(numbers) or numbers[end] != (one[0], one[1], one[2] + 1):
            yield (stream, one[0], one[1], numbers[start][2], one[2])
            start = end


# Corruptions of rows


def spoil(rng: random.Random, made: Journals) -> None:
    """One change to one client's rows, or to all rows that show the restore of a file. Afterwards `lsn` is renumbered,
    except where a row is meant to be missing."""
    if rng.random() < 0.1 and any(role == "producer" and rows for role, _, rows in made.clients):
        _restore(rng, made)
        made.changes.append("restore")
        return
    number = rng.randrange(len(made.clients))
    role, name, rows = made.clients[number]
    rows = list(rows)
    at = rng.randrange(len(rows))
    row = rows[at]
    how = rng.choice(_HOW)
    if how == "clone":
        # A file that was copied when it had the rows up to there, and was then opened.
        boots = sorted({each.boot for each in rows[: at + 1]})
        opened = next(each for each in rows if each.boot == boots[-1])
        more = [
            replace(opened, boot=f"{0xC0:016x}", kind="opened"),
            replace(opened, boot=f"{0xC0:016x}", kind="closed"),
        ]
        copied = [
            *rows[: at + 1],
            *(replace(each, wall_us=row.wall_us, wall_last_us=row.wall_us) for each in more),
        ]
        made.clients.append((role, name, [replace(each, lsn=lsn) for lsn, each in enumerate(copied, 1)]))
    elif how == "lose":
        del rows[at]
        rows = rows or [row]
    else:
        _CHANGES[how](rng, rows, at)
        rows = [replace(each, lsn=lsn) for lsn, each in enumerate(rows, 1)] or [row]
    made.changes.append(f"{how} {name} {row.lsn} {row.kind}")
    made.clients[number] = (role, name, rows)


def _entered(rng: random.Random, rows: Sequence[JournalRow]) -> dict[str, Any] | None:
    """A group's position that an opening is behind, and what that opening did not know of it; either may be missing."""
    detail: dict[str, Any] = {}
    if rng.random() < 0.5:
        detail["entered"] = rng.choice(rows).epoch + rng.choice((0, 1, 5))
    if rng.random() < 0.5:
        of = rng.choice(rows)
        detail["known"] = [of.epoch, f"{of.incarnation:016x}", of.last + rng.choice((-1, 0, 1, 5))]
    return detail or None


def _restore(rng: random.Random, made: Journals) -> None:
    """A producer's journal lacks the part before one of its openings. Groups may have met that opening, or the last one
    may have been fenced by one without a journal."""
    number, (_, name, rows) = rng.choice(
        [(i, each) for i, each in enumerate(made.clients) if each[0] == "producer"]
    )
    openings = [i for i, row in enumerate(rows) if row.kind == "opened"]
    if len(openings) < 2 or rng.random() < 0.2:
        at = rng.randrange(openings[-1] + 1, len(rows) + 1) if openings else len(rows)
        other = {"epoch": rows[-1].epoch + rng.choice((0, 10)), "incarnation": f"{rng.getrandbits(63):016x}"}
        left = [*rows[:at], replace(rows[at - 1], kind="fenced", topic="", first=0, last=0, detail=other)]
    else:
        goes_on = rng.randrange(1, len(openings))
        begin = openings[goes_on]
        cut = rng.randrange(begin)
        left = [*rows[:cut], *rows[begin:]]
        before = openings[goes_on - 1]
        if goes_on > 1 and before < cut:
            # It had been opened in another epoch, and then entered the epoch that its rows are about.
            left[before] = replace(left[before], epoch=left[before].epoch - 1)
        if rng.random() < 0.3:
            left.insert(
                rng.randrange(cut + 1, len(left) + 1),
                replace(rows[begin], kind="surpassed", detail=_entered(rng, rows)),
            )
        for i, (role, group, own) in enumerate(made.clients):
            if role == "group" and own and rng.random() < 0.8:
                at = rng.randrange(1, len(own) + 1)
                heard = rng.random() < 0.3
                of = rows[rng.choice(openings)] if heard else rows[begin]
                if heard and rng.random() < 0.5:
                    # No journal has that opening, and earlier ones may have published nothing.
                    of = replace(of, epoch=of.epoch + rng.choice((1, 5)), incarnation=rng.getrandbits(63) | 1)
                    silent = {left[rng.randrange(len(left))].boot for _ in range(2)}
                    left = [row for row in left if row.kind != "enqueued" or row.boot not in silent]
                kind, topic = ("heard", "") if heard else ("conflict", own[-1].topic)
                met = replace(
                    own[at - 1], kind=kind, producer=name, topic=topic, epoch=of.epoch, incarnation=of.incarnation,
                    first=0, last=0, reason="", site="", digest=None, latency=None,
                    detail={"lsn": rng.randint(1, 40), "epoch": of.epoch} if heard else _entered(rng, rows),
                )  # fmt: skip
                if rng.random() < 0.2:
                    # It continued from another inbox's position, and met no other opening.
                    had = [rows[before].epoch, rng.randint(1, 40)]
                    end: dict[str, Any] = {
                        "epoch": rows[begin].epoch + rng.choice((0, 1)),
                        "first": 1,
                        "last": 1,
                        "incarnation": 0,
                    }
                    met = replace(met, kind="behind", topic=own[-1].topic, detail={"from": had}, **end)
                more = [*own[:at], met, *own[at:]]
                made.clients[i] = (role, group, [replace(row, lsn=lsn) for lsn, row in enumerate(more, 1)])
    last = max((i for i, row in enumerate(left) if row.kind == "opened"), default=0)
    if rng.random() < 0.2:
        # Nothing has been published since, and its clock may have been behind.
        left[last + 1 :] = [row for row in left[last + 1 :] if row.kind in ("closed", "connected")]
        left[last] = replace(
            left[last], epoch=left[last].epoch - rng.choice((0, 11, 25)), incarnation=rng.getrandbits(63)
        )
    made.clients[number] = ("producer", name, [replace(row, lsn=lsn) for lsn, row in enumerate(left, 1)])


def _drop(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    del rows[at]


def _swap(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    same = [i for i, row in enumerate(rows) if row.boot == rows[at].boot]
    other = rng.choice(same)
    rows[at], rows[other] = rows[other], rows[at]


def _repeat(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    same = [i for i, row in enumerate(rows) if row.boot == rows[at].boot]
    rows.insert(rng.choice(same) + 1, rows[at])


def _ends(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    ranged = [i for i, row in enumerate(rows) if row.kind in _RANGED]
    if not ranged:
        return
    at = rng.choice(ranged)
    row = rows[at]
    first, last = max(1, row.first + rng.randint(-2, 2)), row.last + rng.randint(-2, 2)
    rows[at] = replace(row, first=first, last=max(first, last))


def _digest(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    summed = [i for i, row in enumerate(rows) if row.digest is not None]
    if not summed:
        return
    at = rng.choice(summed)
    changed = (rows[at].digest or 0) ^ (1 << rng.randrange(64))
    rows[at] = replace(rows[at], digest=rng.choice((None, changed, changed)))


def _kind(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    ranged = [i for i, row in enumerate(rows) if row.kind in _RANGED]
    if not ranged:
        return
    at = rng.choice(ranged)
    mine = {row.kind for row in rows} & _RANGED
    others = (
        mine | {"declared", "before_join", "dead_lettered", "late", "replayed"} if rows[at].group else mine
    )
    rows[at] = replace(rows[at], kind=rng.choice(sorted(others)))


def _epoch(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    own = [i for i, row in enumerate(rows) if row.epoch]
    if own:
        at = rng.choice(own)
        rows[at] = replace(rows[at], epoch=rows[at].epoch + rng.choice((-10, 10)))


def _incarnation(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    own = [i for i, row in enumerate(rows) if row.incarnation]
    if own:
        at = rng.choice(own)
        rows[at] = replace(rows[at], incarnation=rows[at].incarnation ^ 2)


def _reason(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    told = [i for i, row in enumerate(rows) if row.kind == "declared"]
    if told:
        at = rng.choice(told)
        elapsed = rng.choice((0.0, GAP_TIMEOUT - 2, GAP_TIMEOUT + 0.5, GAP_TIMEOUT + 2))
        detail = rng.choice((None, {"elapsed": elapsed}, {"until_epoch": rows[at].epoch + 10}))
        rows[at] = replace(rows[at], reason=rng.choice(("expired", "superseded")), detail=detail)


def _site(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    own = [i for i, row in enumerate(rows) if row.site]
    if own:
        at = rng.choice(own)
        rows[at] = replace(rows[at], site=rng.choice(sorted({row.site for row in rows if row.site})))


def _behind(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    """A group is told that it had settled everything between two positions."""
    of = [row for row in rows if row.kind in ("delivered", "redelivered", "acknowledged")]
    if of:
        row = rng.choice(of)
        low, last = max(1, row.first - rng.randint(0, 6)), row.last + rng.randint(-2, 6)
        detail = {"from": rng.choice(([row.epoch, low], [0, 1], [row.epoch - 10, low]))}
        if rng.random() < 0.5:
            detail["existed"] = [row.epoch + rng.choice((0, 0, 10)), max(1, last + rng.randint(-3, 12))]
        more = replace(row, kind="behind", first=last, last=last, incarnation=0, digest=None, detail=detail)
        rows.insert(at + 1, replace(more, boot=rows[at].boot, latency=None, site="", reason=""))
        if rng.random() < 0.5:
            _joins_elsewhere(rng, rows, row)


def _joins_elsewhere(rng: random.Random, rows: list[JournalRow], place: JournalRow) -> None:
    """A group joined near that position, with the first message to arrive or at another inbox's position."""
    stream, reason = (place.producer, place.topic, place.partition), rng.choice(("", "took_over"))
    first = max(1, place.last + rng.randint(-3, 8))
    for at, row in enumerate(rows):
        if row.kind == "joined" and (row.producer, row.topic, row.partition) == stream:
            rows[at] = replace(row, epoch=place.epoch, first=first, last=first, reason=reason)


def _gone(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    """A group's inbox is an older copy of a lost one: the rows of some streams are missing from some row on, and it was
    told so for one of them or for another stream."""
    group = [row for row in rows if row.group and row.topic]
    if not group:
        return
    lost = {(row.producer, row.topic, row.partition) for row in rng.sample(group, min(2, len(group)))}
    kept = [
        row for i, row in enumerate(rows) if i < at or (row.producer, row.topic, row.partition) not in lost
    ]
    if kept:
        rows[:] = kept
        _behind(rng, rows, rng.randrange(len(rows)))


def _operated(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    """Messages that wait for an operator, decisions of an operator, and responses of sites other than confirms."""
    ranged = [row for row in rows if row.kind in _RANGED]
    if not ranged:
        return
    row = rng.choice(ranged)
    kinds = (
        ("forgotten", "quarantined", "quarantine_discarded", "gap_held")
        if row.group
        else ("nacked", "returned", "refused", "parked", "resumed")
    )
    sites = sorted({each.site for each in rows if each.site}) or [""]
    first = max(1, row.first + rng.randint(-2, 2))
    more = replace(
        row, boot=rows[at].boot, kind=rng.choice(kinds), first=first, last=max(first, row.last), digest=None,
        latency=None, detail=None, site=rng.choice(sites), reason=rng.choice(("forged", "forged", "unremembered", "")),
    )  # fmt: skip
    rows.insert(at + 1, more)


def _cut(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    """The journal ends here."""
    del rows[max(1, at) :]


def _day_off(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    day = rng.choice((-1, 1)) * 86_400_000_000
    rows[:] = [replace(row, wall_us=row.wall_us + day, wall_last_us=row.wall_last_us + day) for row in rows]


def _said(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    """What a group declared was removed, according to its producer: by a row of its journal that may exist."""
    declared = [number for number, row in enumerate(rows) if row.kind == "declared"]
    for number in rng.sample(declared, min(len(declared), 2)):
        incarnation = f"{rng.choice(rows).incarnation:016x}"
        detail = rng.choice(
            (None, {"heard": [rng.choice((0, 1, 3, 300)), incarnation]}, {"heard": incarnation})
        )
        rows[number] = replace(rows[number], reason="removed", detail=detail)


def _report(rng: random.Random, rows: list[JournalRow], at: int) -> None:
    """Another opening of a group and another row of its journal, which may exist."""
    reports = [number for number, row in enumerate(rows) if row.kind == "consumed"]
    for number in rng.sample(reports, min(len(reports), rng.randint(1, 3))):
        boot, lsn = f"{rng.choice((1, 1, 2, 3, 9)):016x}", rng.choice((0, 1, 5, 5, 12, 200))
        detail = rng.choice(
            (None, {}, {"journal": [boot, lsn]}, {"journal": [boot, lsn]}, {"journal": [lsn]})
        )
        rows[number] = replace(rows[number], detail=detail)


_CHANGES = {
    "drop": _drop, "swap": _swap, "repeat": _repeat, "ends": _ends, "digest": _digest, "kind": _kind,
    "epoch": _epoch, "incarnation": _incarnation, "reason": _reason, "site": _site, "cut": _cut, "day off": _day_off,
    "behind": _behind, "gone": _gone, "operated": _operated, "report": _report, "said": _said,
}  # fmt: skip
_HOW = (
    "lose",
    "clone",
    *_CHANGES,
    "gone",
    "gone",
    "operated",
    "operated",
    "report",
    "report",
    "said",
    "ends",
    "kind",
    "swap",
    "repeat",
    "drop",
)


def write_chains(directory: Path, chains: Sequence[Chain]) -> None:
    """Write chains below `directory` as the segments of their clients, cut at random."""
    rng = random.Random(7)
    for chain in chains:
        _write(directory, chain.role, chain.client, chain.rows, rng)


def _write(
    directory: Path,
    role: Role,
    name: str,
    rows: Sequence[JournalRow],
    rng: random.Random,
    keys: Signing | None = None,
) -> None:
    for segment in segments(role, name, rows, rng, keys):
        path = directory / segment.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(segment.data)

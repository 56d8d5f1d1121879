"""The work of Spark's tasks: read and fold segments, and judge streams."""

from __future__ import annotations

import gc
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from operator import add
from typing import Any

import msgspec

from reliamsg.audit.accepted import MAX_BRIEFS, Brief, worst_briefs
from reliamsg.audit.clients import StreamTraces
from reliamsg.audit.context import NOBODY, Context, Journal
from reliamsg.audit.days import Days, add_days, days_of
from reliamsg.audit.fates import Fate
from reliamsg.audit.fold import Fact, Folder, StreamName, decode_facts
from reliamsg.audit.found import Finding
from reliamsg.audit.incidents import MAX_INCIDENTS, Incident, worst_incidents
from reliamsg.audit.kinds import KINDS, LOSSES, PRECEDENCE
from reliamsg.audit.lineage import Damaged, Placed
from reliamsg.audit.numbers import read_history
from reliamsg.audit.offsets import Offsets, add_offsets
from reliamsg.audit.overview import Overview, overview_of
from reliamsg.audit.segment import StatedIdle, is_head, owner_of, read_head, read_segment
from reliamsg.audit.signatures import Signer, UnsignedHead, signer_of
from reliamsg.audit.sources import Chunk, File
from reliamsg.audit.spans import LAST, size
from reliamsg.audit.streams import Account, Judged, judge
from reliamsg.audit.through import Open, enqueued_by
from reliamsg.trust import Trust

__all__ = [
    "Key",
    "Summary",
    "count_enqueued",
    "fold",
    "judge_streams",
    "partition_of",
    "summarize",
    "trace_streams",
    "worst_first",
]

Key = tuple[StreamName, int]
"""A stream, and the number of the part that has facts about it."""

_facts = msgspec.msgpack.Encoder()
_SEVERITY = {kind: PRECEDENCE.index(severity) for kind, (severity, _) in KINDS.items()}
MAX_PARTS = 1 << 20
"""Parts of one chunk, at most."""


_Folded = tuple[Key, bytes] | Placed | Damaged | StatedIdle | UnsignedHead


def fold(chunk: Chunk, read: Callable[[str], bytes], trust: Trust | None = None) -> Iterator[_Folded]:
    """Fold the segments of a chunk: parts, and the facts of each stream in each part. Heads are read only. With
    `trust`, signatures are checked. An unsigned segment that may be accepted is a part of its own."""
    return _Folding(chunk, read, trust).run()


class _Folding:
    def __init__(self, chunk: Chunk, read: Callable[[str], bytes], trust: Trust | None) -> None:
        self._chunk, self._read, self._trust = chunk, read, trust
        self._folder: Folder | None = None
        self._last: tuple[str, str, int, str] | None = None
        """Role, client, last row and digest of the segment before."""
        self._place = ("", "", "")
        self._parts = 0

    def run(self) -> Iterator[_Folded]:
        for file in self._chunk.files:
            data = self._read(file.path)
            if is_head(file.name):
                yield self._head(file, data)
                continue
            found = read_segment(file.path, data)
            if found is None:
                continue
            signer = Signer()
            if found.problem is None and found.header is not None and self._trust is not None:
                role, client, line, body = found.header.role, found.header.client, *_split(data)
                signer = signer_of(self._trust, role, client, found.first or {}, line, body)
            problem = found.problem or signer.problem
            if problem is not None or found.header is None or found.lines is None:
                yield Damaged(file.path, file.name, owner_of(file.path), problem or "")
                yield from self._end()
                continue
            header = found.header
            unsigned = self._trust is not None and not signer.mark
            if unsigned or self._last != (header.role, header.client, header.first_lsn - 1, header.parent):
                yield from self._end()
            if self._folder is None:
                self._folder = Folder()
            self._folder.add(header, found.digest, found.lines, signer.mark, unsigned)
            self._last = (header.role, header.client, header.last_lsn, found.digest)
            self._place = (_directory(file.path), file.name, file.path)
            if unsigned:
                yield from self._end()
        yield from self._end()

    def _head(self, file: File, data: bytes) -> Damaged | StatedIdle | UnsignedHead:
        head = read_head(file.path, data)
        if isinstance(head, StatedIdle) and self._trust is not None:
            line, _ = _split(data)
            first = msgspec.json.decode(line)
            signer = signer_of(self._trust, head.role, head.client, first, line, b"")
            if signer.problem is None:
                return head if signer.mark else UnsignedHead(file.path, head)
            head = signer.problem
        return Damaged(file.path, file.name, owner_of(file.path), head) if isinstance(head, str) else head

    def _end(self) -> Iterator[tuple[Key, bytes] | Placed]:
        """End the part: what follows does not continue it."""
        folder, self._folder, self._last = self._folder, None, None
        if folder is None:
            return
        number = self._chunk.number * MAX_PARTS + self._parts
        self._parts += 1
        for stream, facts in folder.streams.items():
            yield (stream, number), _facts.encode(facts)
        yield Placed(number, folder.part(), *self._place, len(folder.streams))


def _split(data: bytes) -> tuple[bytes, bytes]:
    """The first line without its newline, and all further lines."""
    line, _, rest = data.partition(b"\n")
    return line, rest


def _directory(path: str) -> str:
    """The directory of a client's segments."""
    found = re.match("^(.*)/date=", path)
    return found[1] if found and found[1] else path.rpartition("/")[0]


def partition_of(key: Key) -> int:
    """The same for all parts of a stream."""
    (producer, topic, part), _ = key
    return zlib.crc32(f"{producer}\0{topic}\0{part}".encode())


def _streams(
    records: Iterable[tuple[Key, bytes]], numbers: Mapping[str, Sequence[int]]
) -> Iterator[tuple[StreamName, dict[str, list[Fact]]]]:
    """The facts of each stream, by journal and in journal order. `records` are sorted by key; `numbers`: by journal,
    its parts in order."""
    journals: dict[int, list[str]] = defaultdict(list)
    for name, own in numbers.items():
        for number in own:
            journals[number].append(name)
    places = {name: {number: place for place, number in enumerate(own)} for name, own in numbers.items()}
    for stream, group in groupby(records, key=lambda record: record[0][0]):
        pieces: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        for (_, number), data in group:
            for name in journals[number]:
                pieces[name].append((places[name][number], data))
        words: dict[str, str] = {}
        facts = {
            name: [fact for _, data in sorted(own) for fact in decode_facts(data, words)]
            for name, own in pieces.items()
        }
        if facts:
            yield stream, facts


def trace_streams(
    records: Iterable[tuple[Key, bytes]],
    numbers: Mapping[str, Sequence[int]],
    journals: Mapping[str, Journal],
) -> StreamTraces:
    """What the journals have of streams that conflicts are about. `journals` need not be judged yet."""
    found = StreamTraces()
    for stream, facts in _streams(records, numbers):
        for name, own in facts.items():
            journal = journals[name]
            if journal.role == "producer":
                history = read_history(journal, stream, own)
                for row in history.of_kind("enqueued"):
                    key = (stream, row.epoch)
                    found.has[key] = max(row.fact.last, found.has.get(key, 0))
                found.published[name, stream] = {row.boot_lsn for row in history.of_kind("enqueued")}
                found.identified.update(
                    (stream[0], row.epoch, row.fact.incarnation)
                    for row in history.rows if row.epoch and row.fact.incarnation != NOBODY
                )  # fmt: skip
                continue
            settled = [
                (fact.epoch, fact.last)
                for fact in own
                if fact.kind in ("acknowledged", "declared", "dead_lettered") and fact.first <= fact.last
            ]
            if settled:
                found.settled[name, stream] = max(settled)
    return found


@dataclass(slots=True)
class Summary:
    """The judgement of many streams, added up."""

    streams: int = 0
    """Those to which messages were published or of which any were delivered."""
    pending: int = 0
    accounts: dict[str, Account] = field(default_factory=dict)
    """By group; the producers' own under ``""``."""
    sites: dict[str, Counter[str]] = field(default_factory=dict)
    """By site, numbers of messages by name."""
    by_repair: int = 0
    by_second_site: int = 0
    lacking: set[str] = field(default_factory=set)
    lacking_of: set[str] = field(default_factory=set)
    """The producers that these lines are about."""
    open: Open = field(default_factory=Open)
    """All open questions."""
    unaccepted: Open = field(default_factory=Open)
    """Those that are not about incidents that an operator accepted."""
    latest_us: int = 0
    """The latest time at which a row began that enqueued messages."""
    offsets: Offsets = field(default_factory=dict)
    """How far the clocks of clients are apart."""
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By kind and group, the number of findings."""
    messages: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The same, the number of messages in them."""
    findings: list[Finding] = field(default_factory=list)
    """The worst :data:`MAX_FINDINGS` are among them, see :func:`worst_first`."""
    losses: list[Finding] = field(default_factory=list)
    """Ranges of lost messages, likewise."""
    losses_total: int = 0
    incidents: list[Incident] = field(default_factory=list)
    """The worst are among them, see :func:`worst_incidents`."""
    incidents_total: int = 0
    briefs: list[Brief] = field(default_factory=list)
    """The worst :data:`MAX_BRIEFS` of all incidents are among them."""
    days: Days = field(default_factory=dict)
    overview: Overview = field(default_factory=Overview)
    """For the report; empty unless tables are made."""

    @property
    def enqueued(self) -> int:
        """The number of messages."""
        return sum(account.enqueued for account in self.accounts.values())

    def add(self, other: Summary) -> None:
        """Add the judgement of other streams."""
        self.streams += other.streams
        self.pending += other.pending
        for group, account in other.accounts.items():
            self.accounts.setdefault(group, Account()).add(account)
        for site, counts in other.sites.items():
            self.sites.setdefault(site, Counter()).update(counts)
        self.by_repair += other.by_repair
        self.by_second_site += other.by_second_site
        self.lacking |= other.lacking
        self.lacking_of |= other.lacking_of
        self.open.add(other.open)
        self.unaccepted.add(other.unaccepted)
        self.latest_us = max(self.latest_us, other.latest_us)
        add_offsets(self.offsets, other.offsets)
        self.kinds.update(other.kinds)
        self.messages.update(other.messages)
        self.losses_total += other.losses_total
        self.incidents += other.incidents
        if len(self.incidents) > 2 * MAX_INCIDENTS:
            self.incidents = worst_incidents(self.incidents)
        self.incidents_total += other.incidents_total
        self.briefs += other.briefs
        if len(self.briefs) > 2 * MAX_BRIEFS:
            self.briefs = worst_briefs(self.briefs)
        add_days(self.days, other.days)
        self.overview.add(other.overview)
        self.findings = _bounded(self.findings, other.findings)
        self.losses = _bounded(self.losses, other.losses)


MAX_FINDINGS = 1_000
"""The maximum number of findings, and of lost ranges, in a verdict; the tables contain all."""


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The worst :data:`MAX_FINDINGS`, in the order of severity, kind, group, stream and range."""
    return sorted(findings, key=_order)[:MAX_FINDINGS]


def _bounded(some: list[Finding], more: list[Finding]) -> list[Finding]:
    """Both, without those that are too many; sorted only now and then, since streams are added one by one."""
    some += more
    return some if len(some) <= 2 * MAX_FINDINGS else worst_first(some)


def _order(finding: Finding) -> tuple[Any, ...]:
    return (
        _SEVERITY[finding.kind], finding.kind, finding.group, finding.stream or ("", "", 0),
        -1 if finding.epoch is None else finding.epoch, -1 if finding.first is None else finding.first,
        finding.site, finding.text, finding.place, finding.hop, finding.sites,
    )  # fmt: skip


def judge_streams(
    records: Iterable[tuple[Key, bytes]],
    numbers: Mapping[str, Sequence[int]],
    context: Context,
    tables: bool,
) -> Iterator[Finding | tuple[StreamName, str, int, Fate] | Summary]:
    """Judge all streams of sorted records. Ends with a summary. With `tables`, every finding and every range come
    before it, and it has an overview."""
    summary = Summary()
    with _cycles_uncollected():
        for stream, facts in _streams(records, numbers):
            found = judge(stream, facts, context)
            if tables:
                yield from found.findings
                for (group, epoch), fates in found.fates.items():
                    for fate in fates:
                        yield stream, group, epoch, fate
            own = summarize(found)
            own.days = days_of(facts, context.journals)
            if tables:
                own.overview = overview_of(found, facts, context)
            summary.add(own)
    yield summary


@contextmanager
def _cycles_uncollected() -> Iterator[None]:
    """Without Python's collector of reference cycles. A stream's judgement has none; but it has millions of objects if
    the stream has millions of ranges, and the collector would go through them again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def count_enqueued(
    records: Iterable[tuple[Key, bytes]],
    numbers: Mapping[str, Sequence[int]],
    context: Context,
    times: Sequence[int],
) -> Iterator[list[int]]:
    """The numbers of messages in sorted records that were enqueued by these times: one list."""
    total = [0] * len(times)
    producers = {name: own for name, own in numbers.items() if context.journals[name].role == "producer"}
    for stream, facts in _streams(records, producers):
        histories = [read_history(context.journals[name], stream, rows) for name, rows in facts.items()]
        total = list(map(add, total, enqueued_by(times, histories, context.until_us)))
    yield total


def summarize(found: Judged) -> Summary:
    """The judgement of one stream, without days and overview."""
    losses = [each for each in found.findings if each.kind in LOSSES]
    summary = Summary(
        int(found.used), found.pending, found.accounts, by_repair=found.passages.by_repair,
        by_second_site=found.passages.by_second_site, lacking=set(found.lacking),
        lacking_of={found.stream[0]} if found.lacking else set(),
        open=found.open, unaccepted=found.unaccepted, latest_us=found.latest_us,
        offsets=found.offsets,
        findings=found.findings, losses=losses, losses_total=len(losses),
        incidents=found.incidents, incidents_total=len(found.incidents),
        briefs=[each.brief for each in found.incidents],
    )  # fmt: skip
    passages = found.passages
    for name, counts in (
        ("confirmed", passages.confirmed), ("received", passages.received), ("lost_after_confirm", passages.lost),
        ("saved_alone", passages.alone),
    ):  # fmt: skip
        for site, number in counts.items():
            summary.sites.setdefault(site, Counter())[name] += number
    for each in found.findings:
        summary.kinds[each.kind, each.group] += 1
        if each.first is not None and each.last is not None and each.last < LAST:
            summary.messages[each.kind, each.group] += size(each.first, each.last)
    return summary
